"""Variances of each series: the evidence by the dense normal density, its maximum by a search of another library."""

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.features import LinearFeatures
from gp_ensembles.fleet.fitting import fit_variances
from tests.fleet.instances import fourier

NUM_SERIES, NUM_ROWS, PRECISION = 6, 40, 0.5


def series(generator):
    draw = {"generator": generator, "dtype": torch.float64}
    X = torch.randn(NUM_SERIES, NUM_ROWS, 2, **draw)
    noise = torch.logspace(-1.5, 0.3, NUM_SERIES, dtype=torch.float64).unsqueeze(-1)
    y = 2 * X[..., 0].sin() + noise * torch.randn(NUM_SERIES, NUM_ROWS, **draw)
    y[1, 25:], y[:, 3] = torch.nan, torch.nan
    return X, y


@pytest.mark.parametrize("num_experts", [1, 2])
def test_each_series_has_the_variances_with_the_highest_evidence(num_experts, generator):
    X, y = series(generator)
    expert = GaussianExpert(fourier(num_experts=num_experts))
    found = fit_variances(expert, X, y, FitSettings(LBFGS(loss_tolerance=1e-12), start_precision=PRECISION))
    assert found.noise.shape == (NUM_SERIES, num_experts)
    Phi = expert.bind().features(X).detach().numpy()
    own = np.log([expert.likelihood.noise.detach().numpy()[0, 0], expert.features.prior_variance.detach().numpy()[0]])
    for s in range(NUM_SERIES):
        seen = ~np.isnan(y[s].numpy())
        target = y[s].numpy()[seen]
        for m in range(num_experts):
            design = Phi[s, m][seen]

            def height(logs, design=design, target=target):
                noise, prior = np.exp(logs)
                covariance = prior * design @ design.T + noise * np.eye(len(target))
                density = stats.multivariate_normal(cov=covariance, allow_singular=True).logpdf(target)
                return -density + 0.5 * PRECISION * ((logs - own) ** 2).sum()

            best = optimize.minimize(height, own, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
            logs = np.log([float(found.noise[s, m]), float(found.prior[s, m])])
            assert height(logs) <= best.fun + 1e-7
            np.testing.assert_allclose(logs, best.x, rtol=0, atol=1e-3)


def test_targets_without_noise_have_the_least_noise_and_a_finite_prior(generator):
    """What least squares leave of them is round-off of either sign, which must not be divided by."""
    X = torch.linspace(-2, 2, NUM_ROWS, dtype=torch.float64).expand(2, -1).unsqueeze(-1)
    y = torch.tensor([[1.0], [-1.0]], dtype=torch.float64) * X.squeeze(-1)
    expert = GaussianExpert(LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64)))
    found = fit_variances(expert, X, y, FitSettings(LBFGS()))
    assert bool((found.noise < 2e-6).all())
    assert bool((found.noise >= 1e-6).all())
    assert bool((found.prior < 10).all())
    torch.testing.assert_close(found.prior[0], found.prior[1])


def test_settings_without_an_optimizer_are_refused(generator):
    X, y = series(generator)
    with pytest.raises(ValueError, match="fit nothing"):
        fit_variances(GaussianExpert(fourier()), X, y, FitSettings(method=None))
