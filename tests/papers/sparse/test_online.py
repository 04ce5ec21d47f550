"""From sparse models to online experts: the same posterior row by row, and ensembles that go on with it."""

import numpy as np
import pytest
import torch
from botorch.models.transforms import Normalize, Standardize
from gpytorch.kernels import RBFKernel
from gpytorch.means import Mean, ZeroMean
from torch import Tensor

from gp_ensembles.experts import GaussianExpert
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.papers.sparse import DIC, FITC, VFE, ExactGP, SparseGP, start_online
from gp_ensembles.papers.sparse import online as online_module
from gp_ensembles.papers.sparse.base import SparseModel
from gp_ensembles.papers.sparse.online import inducing_features, weights_posterior
from gp_ensembles.papers.sparse.selection import LinearTrend
from tests.papers.sparse.problems import KERNELS, name_of, noise_of, rows, value_of

RULE = BayesianModelAveraging()


def sparse(name: str = "rbf", num_knots: int = 8, noise: float = 0.05, **settings) -> SparseGP:
    X, y = rows()
    return SparseGP(X, y, X[:num_knots] + 0.01, KERNELS[name]().double(), noise_of(noise), **settings)


def exact(name: str = "rbf", num_rows: int = 40, mean: Mean | None = None) -> ExactGP:
    return ExactGP(*rows(num_rows), KERNELS[name]().double(), noise_of(0.05), mean)


def like(model: SparseGP, X: Tensor, y: Tensor, approximation) -> SparseGP:
    """A model of other rows, all else the same."""
    parts = model.knots, model.covar_module, model.likelihood, model.mean_module
    return SparseGP(X, y, *parts, approximation=approximation)


def moments(model: SparseModel, X: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of targets at each row on its own."""
    posterior = model.posterior(X, observation_noise=True)
    return posterior.mean.squeeze(-1).detach(), posterior.variance.squeeze(-1).detach()


def agree(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", KERNELS)
def test_an_expert_is_the_subset_of_regressors_row_by_row(name: str) -> None:
    """Before each target the filter predicts what ``DIC`` says after the rows so far, mean and variance of y."""
    model = sparse(name)
    expert = GaussianExpert(inducing_features(model), noise_of(0.05))
    X, y = rows(14, seed=1)
    offset = model.mean_module(X).detach()
    _, steps = expert.update(expert.init(), X, y - offset)
    assert torch.allclose(steps.mean[0], X.new_zeros(()))  # the prior's mean
    for t in range(8, 14):  # a sparse model has at least as many rows as knots
        expected = moments(like(model, X[:t], y[:t], DIC), X[t : t + 1])
        agree((steps.mean[t : t + 1] + offset[t], steps.variance[t : t + 1]), expected)


@torch.no_grad()
def test_the_posterior_is_that_of_the_models_approximation() -> None:
    """Dense Bayesian regression on the features, with FITC's noise."""
    model = sparse(approximation=FITC)
    posterior, features = weights_posterior(model), inducing_features(model)
    Phi, residual = features(model.train_X), model.train_y - model.mean_module(model.train_X)
    diagonal = FITC.diagonal(model.projection())
    precision = torch.eye(8, dtype=Phi.dtype) / features.prior_variance + Phi.mT @ (Phi / diagonal[:, None])
    covariance = torch.linalg.inv(precision)
    torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(posterior.mean, covariance @ Phi.mT @ (residual / diagonal), rtol=1e-7, atol=1e-8)


def test_nothing_is_shared_with_the_model() -> None:
    model, (X, _) = sparse("linear and rbf"), rows(4, seed=3)
    online = start_online(model, RULE)
    before = online.predict(X)
    for parameter in model.parameters():
        parameter.data.add_(0.3)
    after = online.predict(X)
    assert torch.equal(after.mean, before.mean)
    assert torch.equal(after.variance, before.variance)


# --- one call ---------------------------------------------------------------------------------------------------------


def far(num_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of which half lie away from the knots."""
    X, y = rows(num_rows, seed)
    X[::2] += 1.5
    return X, y


MEANS = {"constant": lambda X, y: None, "zero": lambda X, y: ZeroMean(), "linear": LinearTrend}


@pytest.mark.parametrize(("mean", "approximation"), [("constant", VFE), ("zero", FITC), ("linear", VFE)], ids=name_of)
def test_the_first_predictions_are_the_models(approximation, mean: str) -> None:
    """Also far from all knots, where the variance is the prior's."""
    model = sparse("matern ard", approximation=approximation, mean=MEANS[mean](*rows()))
    if mean == "linear":
        model.mean_module.weights.data.copy_(torch.tensor([0.3, -0.2]))
    online, (X, _) = start_online(model, RULE), far(12, seed=5)
    predicted, lone = online.predict(X), X.new_full((1, 2), 50.0)
    agree((predicted.mean, predicted.variance), moments(model, X))
    prior = model.kernel_diagonal(lone) + model.likelihood.noise
    torch.testing.assert_close(online.predict(lone).variance, prior.detach())


@torch.no_grad()
def one_row_after_the_other(model: SparseGP, X: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Bayesian linear regression on the knots' features, its noise that of each row."""
    Phi, unexplained = inducing_features(model)(X), inducing_features(model).unexplained(X)
    learned, noise, offset = weights_posterior(model), model.likelihood.noise, model.mean_module(X)
    mean, covariance = learned.mean, learned.covariance
    found = []
    for phi, target, more, prior in zip(Phi, y, unexplained, offset, strict=True):
        center, variance = prior + phi @ mean, phi @ covariance @ phi + noise.squeeze() + more
        log_prob = -0.5 * ((target - center).square() / variance + (2.0 * torch.pi * variance).log())
        found.append(torch.stack([center, variance, log_prob]))
        if not bool(target.isnan()):
            gain = covariance @ phi / variance
            mean, covariance = mean + gain * (target - center), covariance - variance * gain.outer(gain)
    return torch.stack(found).unbind(-1)


@pytest.mark.parametrize("mean", MEANS)
def test_rows_off_the_knots_teach_less_exactly(mean: str) -> None:
    model, (X, y) = sparse(mean=MEANS[mean](*rows())), far(25, seed=6)
    y[4] = torch.nan
    expected = one_row_after_the_other(model, X, y)
    for sizes in ([25], [1] * 25, [7, 3, 15]):
        online = start_online(model, RULE)
        parts = [online.observe(*block) for block in zip(X.split(sizes), y.split(sizes), strict=True)]
        for name, values in zip(("mean", "variance", "log_prob"), expected, strict=True):
            found = torch.cat([getattr(part.experts, name)[0] for part in parts])
            torch.testing.assert_close(found, values, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("mean", MEANS)
def test_an_exact_model_goes_on_exactly(mean: str) -> None:
    trend = MEANS[mean](*rows())
    model = exact("matern ard", mean=None if trend is None else trend.double())
    (X, _), (more, targets) = rows(), far(8, seed=7)
    online = start_online(model, RULE)
    agree((online.predict(more).mean, online.predict(more).variance), moments(model, more))
    steps = online.observe(more, targets)
    for t in range(8):
        agree((steps.mean[t : t + 1], steps.variance[t : t + 1]), moments(model, more[t : t + 1]))
        model = model.condition_on_observations(more[t : t + 1], targets[t : t + 1].unsqueeze(-1))
    agree((online.predict(X).mean, online.predict(X).variance), moments(model, X))


def test_a_large_exact_model_goes_on_by_some_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online_module, "WINDOW", 50)
    monkeypatch.setattr(online_module, "KNOTS", 30)
    model, (new, _) = exact(num_rows=120), rows(20, seed=1)
    online = start_online(model, RULE)
    assert online.ensemble.experts[0].features.num_features == 32
    torch.testing.assert_close(online.predict(new).mean, moments(model, new)[0], rtol=0, atol=1e-3)


def test_an_ensemble_of_fitted_models() -> None:
    """Experts of three kernels, numbers of knots and means: weights by cumulative evidence, and nothing of later."""
    models: list[SparseModel] = [sparse(num_knots=6), sparse("linear and rbf", num_knots=7), exact("matern ard")]
    online = start_online(models, RULE, ["rbf", "sum", "exact"])
    X, y = far(30, seed=6)
    seen = online.observe(X, y)
    alone = torch.stack([start_online(model, RULE).observe(X, y).log_prob.sum() for model in models])
    torch.testing.assert_close(online.log_weights, alone.log_softmax(0), rtol=1e-8, atol=1e-8)
    assert value_of(seen.log_prob.sum()) == pytest.approx(float(alone.logsumexp(0)) - np.log(3.0), abs=1e-8)
    assert online.names == ("rbf", "sum", "exact")
    other = start_online(models, RULE).observe(X, y.index_fill(0, torch.tensor([12]), 30.0))
    assert torch.equal(seen.mean[:13], other.mean[:13])
    assert torch.equal(seen.variance[:13], other.variance[:13])


def test_evidence_is_that_of_the_predictions() -> None:
    """FITC's, for a model without rows of its own."""
    model, (X, y) = sparse(), rows(30, seed=9)
    expert = start_online(model, RULE).ensemble.experts[0]
    expected = like(model, X, y, FITC).objective()
    torch.testing.assert_close(expert.log_evidence(X, y), expected, rtol=1e-6, atol=1e-5)


def test_models_that_do_not_fit_together() -> None:
    X, y = rows(9)
    narrow = ExactGP(X[:, :1], y, RBFKernel().double())
    for call, message in (
        (lambda: weights_posterior(exact()), "start_online, which continues from its rows"),
        (lambda: start_online([], RULE), "at least one model"),
        (lambda: start_online([sparse(), narrow], RULE), "different numbers of inputs"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_transforms_and_known_noise_are_refused() -> None:
    X, y = rows()
    given = 50.0 * X, 7.0 * y.unsqueeze(-1) + 100.0
    noise = torch.full((40, 1), 0.1).double()
    for option, message in [
        ({"input_transform": Normalize(2)}, "model 1 has an input_transform.*transform the inputs first"),
        ({"outcome_transform": Standardize(1)}, "model 1 has an outcome_transform.*transform the targets first"),
        ({"train_Yvar": noise}, r"model 1 was given the noise .*\(train_Yvar\).*is inferred"),
    ]:
        kernel = KERNELS["rbf"]().double()
        for model in (ExactGP(*given, kernel, **option), SparseGP(*given, 50.0 * X[:8], kernel, **option)):
            with pytest.raises(ValueError, match=message):
                start_online([sparse(), model], RULE)
