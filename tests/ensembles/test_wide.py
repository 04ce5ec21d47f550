"""Many random features with the length scales of an exact process, and why its noise is not taken over."""

import pytest
import torch
from torch.testing import assert_close

from gp_ensembles.ensembles.bases import scaled_kernel
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.extra_experts import WarmUp, WideFeatures
from gp_ensembles.experts import LBFGS, WindowExpert, fit_empirical_bayes
from gp_ensembles.experts.empirical_bayes import search_starts
from gp_ensembles.experts.gaussian import GaussianExpert, default_likelihood
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.spectral.frequencies import IIDDraws


def rows(number: int, num_inputs: int = 3, noise: float = 0.01, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and a smooth function of them."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(number, num_inputs, generator=generator, dtype=torch.float64)
    y = (2.0 * X[:, 0]).sin() + 0.5 * (X[:, 1] * X[:, 2]).tanh()
    y = y + noise * torch.randn(number, generator=generator, dtype=torch.float64)
    return X, (y - y.mean()) / y.std()


def warm_up(X: torch.Tensor, y: torch.Tensor, inputs: torch.Tensor | None = None) -> WarmUp:
    return WarmUp(X, y, X if inputs is None else inputs, FitSettings(), torch.Generator().manual_seed(1))


def test_hyperparameters_are_those_of_an_exact_process_but_for_the_noise() -> None:
    X, y = rows(60)
    y[7] = torch.nan
    record = WideFeatures(num_features=40, noises=(0.01, 0.2))
    ((name, expert),) = record.build(warm_up(X, y))
    assert name == "wide"
    assert (expert.batch_shape, expert.features.num_features) == ((2,), 40)

    seen = ~torch.isnan(y)
    kernel = scaled_kernel(X[seen], record.nu, (0.5,))
    exact = WindowExpert(kernel, 3, 500)
    from_root = 0.5 * 3**0.5 * kernel.base_kernel.lengthscale.detach().flatten()
    method, precision = LBFGS(loss_tolerance=5e-4), FitSettings().start_precision
    before = search_starts(exact, X[seen], y[seen], (from_root,), start_precision=precision)
    fit_empirical_bayes(exact, X[seen], y[seen], method, start_precision=precision, before=before)
    features = expert.features
    assert isinstance(features, RandomFourierFeatures)
    assert isinstance(expert, GaussianExpert)
    assert_close(features.prior_variance, kernel.outputscale.expand(2))
    generator = torch.Generator().manual_seed(1)
    for number, noise in enumerate(record.noises):
        normals = IIDDraws().draw(20, 3, generator=generator).normals
        omega = normals / kernel.base_kernel.lengthscale[0]
        assert_close(features.frequencies()[number], omega)
        assert expert.likelihood.noise[number].item() == pytest.approx(noise, rel=1e-12)


def test_noise_of_the_exact_process_starves_a_finite_basis() -> None:
    # A rough Matern process of six inputs and hardly any noise: the exact process says so, and is right. Sixty features
    # cannot follow it; with the exact noise the expert claims an error a hundred times too small.
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(700, 6, generator=generator, dtype=torch.float64) * 2 - 1
    kernel = scaled_kernel(X, 1.5, (0.5,))
    with torch.no_grad():
        covariance = kernel(X).to_dense()[0] + 1e-4 * torch.eye(700, dtype=torch.float64)
        y = torch.linalg.cholesky(covariance) @ torch.randn(700, generator=generator, dtype=torch.float64)
        exact = WindowExpert(kernel, 6, 1000)
        exact.likelihood.noise = torch.full((1, 1), 1e-4, dtype=torch.float64)
        state, _ = exact.update(exact.init(), X[:600], y[:600])
        _, of_exact = exact.update(state, X[600:], y[600:])
        scores = {}
        for noise in (1e-4, 0.1):
            features = RandomFourierFeatures.from_kernel(kernel, 6, 60, generator=torch.Generator().manual_seed(0))
            likelihood = default_likelihood(features)
            likelihood.noise = torch.full((1, 1), noise, dtype=torch.float64)
            wide = GaussianExpert(features, likelihood)
            state, _ = wide.update(wide.init(), X[:600], y[:600])
            _, steps = wide.update(state, X[600:], y[600:])
            scores[noise] = float(steps.log_prob.mean())
    assert float(of_exact.log_prob.mean()) > scores[0.1]
    assert scores[1e-4] < scores[0.1] - 50.0
    assert scores[0.1] > -1.5


@pytest.mark.slow
def test_of_many_rows_the_last_are_fitted_to() -> None:
    X, y = rows(520)
    record = WideFeatures(num_features=20, noises=(0.1,))
    (_, of_all), *_ = record.build(warm_up(X, y))
    (_, of_last), *_ = record.build(warm_up(X[20:], y[20:]))
    starts = scaled_kernel(X, record.nu, (0.5,)).base_kernel.lengthscale
    same = torch.equal(starts, scaled_kernel(X[20:], record.nu, (0.5,)).base_kernel.lengthscale)
    tolerance = 1e-12 if same else 0.05  # the start is the range of all rows, and a weak prior is around it
    assert_close(of_all.features.prior_variance, of_last.features.prior_variance, rtol=tolerance, atol=tolerance)


def test_sees_the_columns_that_it_should() -> None:
    X, y = rows(80)
    inputs = torch.cat([X, X[:, :1].roll(1, 0)], dim=-1)
    for lags in (False, True):
        ((_, expert),) = WideFeatures(num_features=20, lags=lags).build(warm_up(X, y, inputs))
        assert expert.features.num_inputs == 4
        other = inputs.clone()
        other[:, 3] += 1.0
        assert torch.equal(expert.features(inputs), expert.features(other)) != lags
