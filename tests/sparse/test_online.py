"""From sparse models to online experts: the same posterior row by row, and ensembles that go on with it."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import LinearMean, ZeroMean
from torch import Tensor

from gp_ensembles.ensembles import Ensemble, OnlineEnsemble
from gp_ensembles.experts import GaussianExpert, LaplaceExpert
from gp_ensembles.filters import SquareRootState
from gp_ensembles.filters.states import GaussianState
from gp_ensembles.likelihoods import LogisticLikelihood
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.sparse import DIC, FITC, VFE, GreedyBlocks, SparseGP, select_knots, start_online
from gp_ensembles.sparse.base import SparseModel
from gp_ensembles.sparse.laplace import SparseLaplaceGP
from gp_ensembles.sparse.online import WeightsPosterior, inducing_features, weights_posterior
from gp_ensembles.sparse.variational import SparseVariationalGP

KERNELS = {
    "rbf": lambda: ScaleKernel(RBFKernel()),
    "matern ard": lambda: ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2)),
    "sum": lambda: ScaleKernel(PeriodicKernel()) + ScaleKernel(RBFKernel(active_dims=[1])),
    "no scale": lambda: MaternKernel(nu=0.5),
}
FORMS = {
    "covariance": lambda posterior: GaussianState(posterior.moments),
    "square root": lambda posterior: SquareRootState(*posterior),
}
each_kernel = pytest.mark.parametrize("name", KERNELS)


def rows(num_rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draws = np.random.default_rng(seed)
    X = torch.as_tensor(draws.uniform(size=(num_rows, 2)))
    return X, torch.sin(6.0 * X[:, 0]) + X[:, 1].square() + 0.1 * torch.as_tensor(draws.normal(size=num_rows)) + 3.0


def sparse(kernel: Kernel, num_rows: int = 40, num_knots: int = 8, noise: float = 0.05, **settings) -> SparseGP:
    X, y = rows(num_rows)
    likelihood = GaussianLikelihood().double()
    likelihood.noise = noise
    return SparseGP(X, y, X[:num_knots] + 0.01, kernel.double(), likelihood, **settings)


def data_of(model: SparseGP) -> tuple[Tensor, Tensor]:
    return model.train_X, model.train_y


def like(model: SparseGP, X: Tensor, y: Tensor, approximation) -> SparseGP:
    """A model of other rows, all else the same."""
    return SparseGP(
        X, y, model.knots, model.covar_module, model.likelihood, model.mean_module, approximation=approximation
    )


def moments(model: SparseGP, X: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of targets at each row on its own."""
    posterior = model.posterior(X, observation_noise=True)
    return posterior.mean.squeeze(-1).detach(), posterior.variance.squeeze(-1).detach()


def agree(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=1e-8, atol=1e-8)


def copied_likelihood(model: SparseGP) -> GaussianLikelihood:
    likelihood = GaussianLikelihood().double()
    likelihood.noise = model.likelihood.noise.detach()
    return likelihood


@each_kernel
def test_an_expert_is_the_subset_of_regressors_row_by_row(name: str) -> None:
    """Before each target the filter predicts what ``DIC`` says after the rows so far, mean and variance of y."""
    model = sparse(KERNELS[name]())
    expert = GaussianExpert(inducing_features(model), copied_likelihood(model))
    X, y = rows(14, seed=1)
    offset = model.mean_module(X).detach()
    _, steps = expert.update(expert.init(), X, y - offset)
    assert torch.allclose(steps.mean[0], X.new_zeros(()))  # the prior's mean
    for t in range(8, 14):  # a sparse model has at least as many rows as knots
        expected = moments(like(model, X[:t], y[:t], DIC()), X[t : t + 1])
        agree((steps.mean[t : t + 1] + offset[t], steps.variance[t : t + 1]), expected)


@each_kernel
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("approximation", [VFE(), DIC()], ids=["VFE", "DIC"])
def test_an_expert_goes_on_where_the_model_stopped(name: str, form: str, approximation) -> None:
    model = sparse(KERNELS[name](), approximation=approximation)
    features, posterior = inducing_features(model), weights_posterior(model)
    expert = GaussianExpert(features, copied_likelihood(model))
    X, y = rows(9, seed=2)
    offset = model.mean_module(X).detach()
    state, steps = expert.update(FORMS[form](posterior), X, y - offset)
    before, after = expert.predict(FORMS[form](posterior), X), expert.predict(state, X)
    agree((before[0] + offset, before[1]), moments(like(model, model.train_X, model.train_y, DIC()), X))
    both = torch.cat([model.train_X, X]), torch.cat([model.train_y, y])
    agree((after[0] + offset, after[1]), moments(like(model, *both, DIC()), X))
    # What the knots miss makes it the prediction of VFE.
    agree((after[0] + offset, after[1] + features.unexplained(X)), moments(like(model, *both, VFE()), X))
    # Evidence of the stream, given the model's rows, by the densities of all and of the first.
    evidence = [float(like(model, *data, DIC()).objective().detach()) for data in (both, data_of(model))]
    assert float(steps.log_prob.sum().detach()) == pytest.approx(evidence[0] - evidence[1], abs=1e-7)


def test_the_posterior_is_that_of_the_models_approximation() -> None:
    """Dense Bayesian regression on the features, with FITC's noise."""
    model = sparse(KERNELS["rbf"](), approximation=FITC())
    posterior, features = weights_posterior(model), inducing_features(model)
    with torch.no_grad():
        Phi, residual = features(model.train_X), model.train_y - model.mean_module(model.train_X)
        diagonal = FITC().diagonal(model.projection())
        precision = torch.eye(8, dtype=Phi.dtype) / features.prior_variance + Phi.mT @ (Phi / diagonal[:, None])
        covariance = torch.linalg.inv(precision)
        torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(posterior.mean, covariance @ Phi.mT @ (residual / diagonal), rtol=1e-7, atol=1e-8)
        assert torch.equal(posterior.moments[:, -1], posterior.mean)


def test_nothing_is_shared_with_the_model() -> None:
    model = sparse(KERNELS["sum"]())
    start = start_online(model)
    X, _ = rows(4, seed=3)
    before = start.features(X).clone(), start.likelihood.noise.clone()
    for parameter in model.parameters():
        parameter.data.add_(0.3)
    assert torch.equal(start.features(X), before[0])
    assert torch.equal(start.likelihood.noise, before[1])
    assert not any(parameter is other for parameter in model.parameters() for other in start.features.parameters())


def variants() -> list[SparseGP]:
    """Models of one structure with other hyperparameters, knots, nuggets and prior means."""
    models = []
    for number in range(3):
        kernel = ScaleKernel(RBFKernel())
        kernel.outputscale, kernel.base_kernel.lengthscale = 0.5 + number, 0.2 + 0.2 * number
        model = sparse(kernel, noise=0.02 * (1 + number), nugget=10.0 ** -(6 - number))
        model.knots.data.add_(0.01 * number)
        model.mean_module.constant.data.fill_(2.0 + number)
        models.append(model)
    return models


def test_models_of_one_structure_are_a_batch() -> None:
    models = variants()
    features, posterior, start = inducing_features(models), weights_posterior(models), start_online(models)
    assert features.batch_shape == start.features.batch_shape == (3,)
    assert start.likelihood.noise.shape == (3, 1)
    X, _ = rows(9, seed=4)
    expert = GaussianExpert(start.features, start.likelihood)
    mean, variance = expert.predict(SquareRootState(*start.weights), X)
    for number, model in enumerate(models):
        torch.testing.assert_close(features(X)[number], inducing_features(model)(X), rtol=1e-9, atol=1e-11)
        single = weights_posterior(model)
        torch.testing.assert_close(posterior.mean[number], single.mean)
        torch.testing.assert_close(posterior.covariance[number], single.covariance)
        torch.testing.assert_close(start.inducing.unexplained(X)[number], inducing_features(model).unexplained(X))
        other = model.with_knots(model.knots)
        other.approximation = DIC()
        agree((mean[number], variance[number]), moments(other, X))


def test_one_model_in_a_list_is_a_batch_of_one() -> None:
    start = start_online([sparse(KERNELS["rbf"]())])
    assert start.features.batch_shape == (1,)
    assert start.weights.factor.shape == (1, 9, 9)


def test_a_mean_of_zero_is_no_doubt_either() -> None:
    model = sparse(KERNELS["rbf"](), mean=ZeroMean())
    X, _ = rows(5, seed=5)
    start = start_online(model)
    expert = GaussianExpert(start.features, start.likelihood)
    agree(expert.predict(SquareRootState(*start.weights), X), moments(like(model, *data_of(model), DIC()), X))


@pytest.mark.parametrize("form", FORMS)
def test_an_ensemble_of_sparse_processes(form: str) -> None:
    """Experts of three kernels and different means over a stream: each ``DIC``, and weights by cumulative evidence."""
    models = [sparse(KERNELS[name]()) for name in ("rbf", "matern ard", "sum")]
    for number, model in enumerate(models):
        model.mean_module.constant.data.fill_(2.0 + 0.5 * number)
    starts = [start_online(model) for model in models]
    ensemble = Ensemble(
        [GaussianExpert(start.features, start.likelihood) for start in starts],
        BayesianModelAveraging(),
        names=["rbf", "matern", "sum"],
    )
    first = ensemble.init()._replace(experts=tuple(FORMS[form](start.weights) for start in starts))
    online = OnlineEnsemble(ensemble, first)
    X, y = rows(30, seed=6)
    seen = [online.observe(X[part], y[part]) for part in (slice(0, 13), slice(13, 30))]
    after = online.predict(X)
    evidence = []
    for number, model in enumerate(models):
        both = torch.cat([model.train_X, X]), torch.cat([model.train_y, y])
        batch, start = like(model, *both, DIC()), like(model, *data_of(model), DIC())
        agree((after.component_mean[number], after.component_variance[number]), moments(batch, X))
        evidence.append((batch.objective() - start.objective()).detach())
    expected = torch.stack(evidence).log_softmax(0)
    torch.testing.assert_close(after.log_weights.reshape(3, -1)[:, 0], expected, rtol=1e-7, atol=1e-7)
    total = sum(float(part.log_prob.sum()) for part in seen)
    mixture = torch.stack(evidence).logsumexp(0) - torch.tensor(3.0).double().log()
    assert total == pytest.approx(float(mixture), abs=1e-6)


def labeled(kind: type = SparseLaplaceGP) -> SparseModel:
    X, y = rows(40)
    model = kind(X, (y > 3.5).double(), X[:8] + 0.01, KERNELS["matern ard"]().double(), LogisticLikelihood())
    model.mean_module.constant.data.fill_(0.4)
    return model


@pytest.mark.parametrize("kind", [SparseLaplaceGP, SparseVariationalGP])
def test_labels_go_on_by_laplace(kind: type) -> None:
    """The latent moments are the model's, less what the knots miss, and further labels are learned."""
    model = labeled(kind)
    start = start_online(model)
    X, y = rows(30, seed=8)
    posterior = model.posterior(X)
    with torch.no_grad():
        Phi = start.features(X)
        latent = Phi @ start.weights.mean, (Phi @ start.weights.factor).square().sum(-1) + start.inducing.unexplained(X)
    agree(latent, (posterior.mean.squeeze(-1).detach(), posterior.variance.squeeze(-1).detach()))
    ensemble = Ensemble([LaplaceExpert(start.features, start.likelihood)], BayesianModelAveraging())
    first = ensemble.init()._replace(experts=(GaussianState(start.weights.moments),))
    online = OnlineEnsemble(ensemble, first)
    labels = (y > 3.5).double()
    before, after = (float(online.observe(X, labels).log_prob.mean()) for _ in range(2))
    assert np.log(0.5) < before < after


def test_from_chosen_knots_to_a_stream() -> None:
    """Chosen on the first rows, online on the next: the mixture is about as good as its best expert."""
    X, y = rows(120, seed=7)
    quick = GreedyBlocks(max_knots=20, fit_iterations=20, reselect=False)
    found = [
        select_knots(
            X[:60],
            y[:60],
            KERNELS[name]().double(),
            strategy=quick,
            generator=torch.Generator().manual_seed(0),
        )
        for name in ("rbf", "matern ard")
    ]
    starts = [start_online(one.model) for one in found]
    experts = [GaussianExpert(start.features, start.likelihood) for start in starts]
    ensemble = Ensemble(experts, BayesianModelAveraging())
    first = ensemble.init()._replace(experts=tuple(SquareRootState(*start.weights) for start in starts))
    stream = OnlineEnsemble(ensemble, first).observe(X[60:], y[60:])
    each = stream.experts.log_prob.sum(-1)
    assert float(stream.log_prob.sum()) >= float(each.max()) - np.log(2.0) - 1e-9
    error = (stream.mean - y[60:]).square().mean().sqrt()
    assert float(error) < 0.15  # noise 0.1


def test_models_that_do_not_fit_together() -> None:
    with pytest.raises(ValueError, match=r"\[\(8, 2\), \(6, 2\)\]; .* an expert of each model"):
        inducing_features([sparse(KERNELS["rbf"]()), sparse(KERNELS["rbf"](), num_knots=6)])
    with pytest.raises(ValueError, match="no model"):
        weights_posterior([])
    with pytest.raises(ValueError, match="differs in structure"):
        inducing_features([sparse(KERNELS["rbf"]()), sparse(KERNELS["matern ard"]())])
    with pytest.raises(ValueError, match=r"model 0 has a LogisticLikelihood, .* an expert of each model"):
        start_online([labeled(), labeled()])
    with pytest.raises(ValueError, match="LinearMean; online experts start from a constant"):
        start_online(sparse(KERNELS["rbf"](), mean=LinearMean(2)))


def test_forms_of_a_posterior() -> None:
    posterior = WeightsPosterior(torch.tensor([1.0, 2.0]), torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
    assert posterior.covariance.tolist() == [[4.0, 2.0], [2.0, 2.0]]
    assert posterior.moments.tolist() == [[4.0, 2.0, 1.0], [2.0, 2.0, 2.0]]
