"""Exact processes with several kernels: evidence and posterior by GPyTorch's kernels, the fit, drift, conditioning."""

import copy
import math
from functools import partial

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.exceptions import InputDataWarning, UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import ChainedInputTransform, Normalize, NumericToCategoricalEncoding, Warp
from botorch.optim import optimize_acqf_mixed
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch.nn.functional import one_hot
from torch.testing import assert_close

from gp_ensembles.bo import ExactEnsembleModel, exact_kernels
from gp_ensembles.bo.data import Observations
from gp_ensembles.bo.exact_kernels import (
    Hyperparameters,
    condition,
    fit,
    initial_hyperparameters,
    make_kernels,
    negative_log_posterior,
    vectors,
)
from gp_ensembles.bo.exact_model import maximize_in_transform
from gp_ensembles.numerics.cholesky import NumericalError
from tests.bo.contract_cases import KERNELS, exact_ensemble


def made_up(generator, num_rows=15, num_inputs=2, noise=0.05):
    X = torch.rand(num_rows, num_inputs, generator=generator, dtype=torch.float64)
    errors = torch.randn(num_rows, 1, generator=generator, dtype=torch.float64)
    return X, (5 * X[:, :1]).sin() * X[:, -1:] + noise * errors


def some_hyperparameters(generator, num_inputs=2):
    lengthscale, outputscale, noise = (
        0.1 + torch.rand(shape, generator=generator, dtype=torch.float64) for shape in ((3, num_inputs), (3,), (3,))
    )
    return Hyperparameters(lengthscale, outputscale, 0.02 * noise)


def dense_kernel(nu, X, Z, lengthscale, outputscale, categories=()):
    """As defined: categories are alike or not, and those that are add one each to the constant."""
    steps, is_category = X.unsqueeze(1) - Z, torch.zeros(X.shape[1], dtype=torch.bool)
    is_category[list(categories)] = True
    square = (torch.where(is_category, (steps != 0).to(X), steps) / lengthscale).square().sum(-1)
    apart = square > 0
    r = torch.where(apart, torch.where(apart, square, 1.0).sqrt(), 0.0)
    kernel = {
        math.inf: lambda: (-square / 2).exp(),
        2.5: lambda: (1 + 5**0.5 * r + 5 / 3 * square) * (-(5**0.5) * r).exp(),
        1.5: lambda: (1 + 3**0.5 * r) * (-(3**0.5) * r).exp(),
    }[nu]()
    return outputscale * kernel + 1 + (steps[..., is_category] == 0).sum(-1)


def test_noise_as_large_as_the_function_is_noise_to_the_fit():
    generator = torch.Generator().manual_seed(2)
    X = torch.rand(40, 2, generator=generator, dtype=torch.float64)
    truth = (3 * X[:, :1]).sin() + X[:, 1:].square()
    Y = truth + 0.4 * torch.randn(40, 1, generator=generator, dtype=torch.float64)
    model = ExactEnsembleModel(X, Y).fit()  # the modes alone end at a thirtieth of the noise, 4 nats below
    assert 0.5 < float(model.noise * Y.var()) / 0.4**2 < 2.0
    assert float((model.posterior(X).mean - truth).std()) < 0.2


def dense_log_posterior(nu, X, y, lengthscale, outputscale, noise, categories):
    """By torch's density, differentiable in the three."""
    covariance = dense_kernel(nu, X, X, lengthscale, outputscale, categories) + noise * torch.eye(len(y), dtype=y.dtype)
    value = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    mean, scale = math.sqrt(2) + 0.5 * math.log(X.shape[1]), math.sqrt(3)
    for part, numbers in ((lengthscale, (mean, scale)), (outputscale, (0.0, 1.0)), (noise, (-4.0, 1.0))):
        value = value + torch.distributions.LogNormal(*y.new_tensor(numbers)).log_prob(part).sum()
    return value


def log_posterior(kernels, rows, values):
    """Log evidence plus log priors of every process, and its gradient in lengthscales, output scale and noise."""
    points = vectors(values, with_noise=True)
    loss, slopes = negative_log_posterior(kernels, rows)(points, torch.arange(len(points)))
    return -len(rows.Y) * loss, -len(rows.Y) * slopes / points.exp()


@pytest.mark.parametrize("categories", [[], [1, 3]])
def test_evidence_and_gradient_are_those_of_dense_matrices(categories, generator):
    X, Y = mixed(generator, 14) if categories else made_up(generator)
    kernels, rows = make_kernels(KERNELS, X, categories), Observations(X, Y, None)
    values = some_hyperparameters(generator, X.shape[1])
    found, slopes = log_posterior(kernels, rows, values)
    gradient = slopes[:, : X.shape[1]], slopes[:, -2], slopes[:, -1]
    for number, nu in enumerate(KERNELS):
        own = [part[number].clone().requires_grad_() for part in values]
        value = dense_log_posterior(nu, X, Y.squeeze(-1), *own, categories)
        assert_close(found[number], value.detach(), rtol=1e-11, atol=1e-10)
        expected = torch.autograd.grad(value, own)
        assert_close(tuple(part[number] for part in gradient), expected, rtol=1e-8, atol=1e-8)


def test_the_kernel_of_the_heaviest_process_can_be_read(generator):
    X, Y = made_up(generator)
    model = exact_ensemble(X, Y).fit()
    heaviest = int(model.log_weights.argmax())
    expected = dense_kernel(KERNELS[heaviest], X, X, model.lengthscale[heaviest], model.outputscale[heaviest])
    assert_close(model.covar_module(X).to_dense() + 1, expected)
    with pytest.raises(AttributeError, match="setter"):
        model.covar_module.lengthscale = 1.0  # of a copy
    fantasies = model.condition_on_observations(X.unsqueeze(-2), Y.unsqueeze(-2))
    assert fantasies.covar_module.lengthscale.shape == (1, 2)


def test_known_noise_takes_the_place_of_the_own(generator):
    X, Y = made_up(generator)
    values = some_hyperparameters(generator)
    one = Hyperparameters(values.lengthscale, values.outputscale, torch.full_like(values.noise, 0.03))
    inferred = exact_ensemble(X, Y, outcome_transform=None).with_hyperparameters_(one)
    known = exact_ensemble(X, Y, torch.full_like(Y, 0.03), outcome_transform=None).with_hyperparameters_(values)
    assert_close(known.posterior(X[:4]).mean, inferred.posterior(X[:4]).mean)
    assert_close(known.log_weights, inferred.log_weights)
    fitted = exact_ensemble(X, Y, torch.full_like(Y, 0.03)).fit()
    assert bool((fitted.log_evidence > exact_ensemble(X, Y, torch.full_like(Y, 0.03)).log_evidence).all())


@pytest.mark.parametrize(("num_rows", "num_inputs"), [(6, 2), (30, 2), (14, 6), (60, 6)])
def test_fits_climb_and_warm_starts_end_no_lower(num_rows, num_inputs, generator, monkeypatch):
    evaluations, search = [], exact_kernels.minimize

    def counted(*arguments, **options):
        found = search(*arguments, **options)
        evaluations.append(found.num_evaluations)
        return found

    monkeypatch.setattr(exact_kernels, "minimize", counted)
    X, Y = made_up(generator, num_rows, num_inputs)
    y = (Y - Y.mean()) / Y.std()
    kernels = make_kernels(KERNELS, X)
    rows, fewer = Observations(X, y, None), Observations(X[:-1], y[:-1], None)
    start = initial_hyperparameters(kernels, num_inputs)
    cold = fit(kernels, rows, [start])
    before = fit(kernels, fewer, [start])
    warm = fit(kernels, rows, [before, start])
    alone = fit(kernels, rows, [before])
    ends = {"cold": cold, "warm": warm, "alone": alone}
    reached = {name: log_posterior(kernels, rows, end)[0] for name, end in ends.items()}
    assert bool((reached["cold"] >= log_posterior(kernels, rows, start)[0]).all())
    assert bool((reached["warm"] >= reached["cold"] - 1e-3).all())  # tolerance of the search: 1e-6 n nats
    assert evaluations[3] <= evaluations[0]
    assert bool((reached["cold"] - reached["alone"] < 0.5).all())  # without the other start: about the same


def test_a_fit_is_no_worse_than_gpytorchs(generator):
    X, Y = made_up(generator, 30)
    model = SingleTaskGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    own = exact_ensemble(X, Y).fit()
    lengthscale, noise = model.covar_module.lengthscale.detach(), model.likelihood.noise.detach()
    values = Hyperparameters(lengthscale.expand(3, -1), own.outputscale, noise.expand(3))
    rows = Observations(X, own.train_targets.unsqueeze(-1), None)
    kernels = make_kernels(KERNELS, X)
    theirs = log_posterior(kernels, rows, values)[0][0]
    assert float(log_posterior(kernels, rows, own.hyperparameters)[0][0]) >= float(theirs) - 1e-3


def test_single_precision_costs_no_digits_inside(generator):
    X, Y = made_up(generator)
    double = exact_ensemble(X.float().double(), Y.float().double()).fit()
    single = exact_ensemble(X.float(), Y.float()).fit()
    posterior = single.posterior(X.float())
    assert (posterior.mean.dtype, single.lengthscale.dtype) == (torch.float32, torch.float64)
    assert_close(posterior.mean.double(), double.posterior(X).mean, rtol=1e-3, atol=1e-3)


def test_botorch_takes_it_as_its_own(generator):
    X, Y = made_up(generator)
    data = SupervisedDataset(X, Y, feature_names=["a", "b"], outcome_names=["y"])
    model = exact_ensemble(**ExactEnsembleModel.construct_inputs(data))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert torch.equal(model.lengthscale, exact_ensemble(X, Y).fit().lengthscale)


def test_what_cannot_be_done_is_said():
    X = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
    for name, words in (("covar_module", "kernels="), ("likelihood", "train_Yvar"), ("mean_module", "constant")):
        with pytest.raises(UnsupportedError, match=f"takes no {name}: .*{words}"):
            exact_ensemble(X, X, **{name: torch.nn.Identity()})
    with pytest.raises(TypeError, match="no argument 'kernel'"):
        exact_ensemble(X, X, kernel=2.5)
    for bad in ((), (0.5,), 2.5, None, ([1],)):
        with pytest.raises(ValueError, match=r"values from \(1.5, 2.5, inf\), got"):
            exact_ensemble(X, X, kernels=bad)
    model = exact_ensemble(X, X)
    for other in ((1.5, 2.5, math.inf), (2.5,)):
        with pytest.raises(ValueError, match=r"kernels other than \(inf, 2.5, 1.5\)"):
            model.load_state_dict(exact_ensemble(X, X, kernels=other).state_dict())
    with pytest.raises(ValueError, match="noise must have shape"):
        model.with_hyperparameters_(model.hyperparameters._replace(noise=torch.ones(4)))
    start = Hyperparameters(*(value[:1] for value in model.hyperparameters))
    with pytest.raises(ValueError, match=r"lengthscale must have shape \(3, 1\), got \(1, 1\)"):
        model.fit(start)
    with pytest.raises(UnsupportedError, match="has no data; fit"):
        exact_ensemble(X, X).condition_on_observations(X.unsqueeze(-2), X.unsqueeze(-2)).fit()
    kernels = make_kernels(KERNELS, X)
    learned = condition(kernels, Observations(X, X, None), initial_hyperparameters(kernels, 1))
    assert learned.inverse is not None
    assert learned.inverse.shape == (3, 5, 5)


def test_a_covariance_that_cannot_be_factorized_is_infinitely_bad():
    X = torch.zeros(12, 1, dtype=torch.float64)
    X[6:] = 1e-9
    kernels = make_kernels(KERNELS, X)
    values = initial_hyperparameters(kernels, 1)
    hopeless = values._replace(outputscale=torch.full_like(values.outputscale, 1e18))
    rows = Observations(X, X, None)
    assert bool((log_posterior(kernels, rows, hopeless)[0] == -torch.inf).all())
    with pytest.raises(NumericalError, match="the covariance of process 0 cannot be factorized"):
        fit(kernels, rows, [hopeless])
    assert bool(log_posterior(kernels, rows, fit(kernels, rows, [hopeless, values]))[0].isfinite().all())


def mixed(generator, num_rows):
    """A number, a category of three, a number, a category of two."""
    parts = [torch.rand(num_rows, 2, generator=generator, dtype=torch.float64)]
    parts += [torch.randint(levels, (num_rows, 1), generator=generator).double() for levels in (3, 2)]
    X = torch.cat(parts, dim=-1)[:, [0, 2, 1, 3]]
    return X, (4 * X[:, :1]).sin() * (1 + X[:, 1:2]) + X[:, 2:3] - X[:, 3:]


@pytest.mark.parametrize("categories", [None, [1, -1]])
def test_predictions_and_evidence_by_dense_matrices(categories, generator):
    (X, Y), (places, _), size = mixed(generator, 14), mixed(generator, 3), torch.tensor([1.0, 2.0, 1.0, 1.0])
    X, places = X / size, places / size  # of the unit cube
    values, columns = some_hyperparameters(generator, 4), (1, 3) if categories else ()
    model = exact_ensemble(X, Y, outcome_transform=None, cat_dims=categories).with_hyperparameters_(values)
    joint, alone = model.posterior(places), model.posterior(places.unsqueeze(-2))
    evidence = []
    for number, nu in enumerate(KERNELS):
        lengthscale, outputscale, noise = (part[number] for part in values)
        kernel = partial(dense_kernel, nu, lengthscale=lengthscale, outputscale=outputscale, categories=columns)
        covariance = kernel(X, X) + noise * torch.eye(14, dtype=X.dtype)
        cross = kernel(places, X)
        mean = cross @ torch.linalg.solve(covariance, Y)
        after = kernel(places, places) - cross @ torch.linalg.solve(covariance, cross.mT)
        assert_close(joint.component_mean[number], mean, rtol=1e-8, atol=1e-8)
        assert_close(joint.component_covariance[number, 0], after, rtol=1e-7, atol=1e-8)
        assert_close(alone.component_covariance[:, number].flatten(), after.diagonal(), rtol=1e-7, atol=1e-8)
        normal = torch.distributions.MultivariateNormal(torch.zeros_like(Y.squeeze(-1)), covariance)
        evidence.append(normal.log_prob(Y.squeeze(-1)))
    assert_close(model.log_evidence, torch.stack(evidence))


@pytest.mark.parametrize("columns", [[0, 1, 2, 3], [1, 3]])
def test_names_of_categories_do_not_matter(columns, generator):
    """With numbers besides, and alone."""
    X, Y = mixed(generator, 14)
    other = X.clone()
    other[:, 1] = X.new_tensor([7.0, -2.0, 0.5])[X[:, 1].long()]
    X, other, places = X[:, columns], other[:, columns], [columns.index(1), columns.index(3)]
    first = exact_ensemble(X, Y, cat_dims=places).fit()
    second = exact_ensemble(other, Y, cat_dims=torch.tensor(places)).fit()
    assert torch.equal(first.posterior(X).mean, second.posterior(other).mean)


@pytest.mark.processor
def test_the_best_of_numbers_and_categories_is_found(generator):
    X, Y = mixed(generator, 24)
    model = exact_ensemble(X, Y, cat_dims=[1, 3]).fit()
    acquisition = qLogExpectedImprovement(model, best_f=Y.max())
    bounds = torch.stack([X.new_zeros(4), X.new_tensor([1.0, 2.0, 1.0, 1.0])])
    choices = [{1: float(one), 3: float(two)} for one in range(3) for two in range(2)]
    best, _ = optimize_acqf_mixed(
        acquisition, bounds, q=1, num_restarts=2, raw_samples=16, fixed_features_list=choices, options={"maxiter": 20}
    )
    assert best[0, [1, 3]].tolist() == [2.0, 0.0]
    fantasies = model.fantasize(best, SobolQMCNormalSampler(torch.Size([4]), seed=0))
    assert fantasies.posterior(X).mean.shape == (4, 24, 1)
    with pytest.raises(AttributeError, match="covar_module"):
        _ = model.covar_module
    with pytest.raises(ValueError, match="4 input columns"):
        exact_ensemble(X, Y, cat_dims=[4])


def test_an_input_transform_may_change_the_number_of_columns(generator):
    X, Y = mixed(generator, 14)
    encoders = {column: partial(one_hot, num_classes=number) for column, number in ((1, 3), (3, 2))}
    encode = NumericToCategoricalEncoding(4, {1: 3, 3: 2}, encoders)
    model = exact_ensemble(X, Y, input_transform=encode).fit()
    assert model.lengthscale.shape == (3, 7)
    assert float((model.posterior(X).mean - Y).abs().max()) < 0.3


def log_evidences(model):
    """Of every process, differentiable in the input transform."""
    rows = model.rows()
    return condition(make_kernels(KERNELS, rows.X), rows, model.hyperparameters).log_density


@pytest.mark.processor
def test_input_transforms_with_parameters_are_learned(generator):
    """A function that is smooth in warped inputs only: the evidence rises, to where it is flat in the transform."""
    X = torch.rand(30, 2, generator=generator, dtype=torch.float64)
    places = torch.rand(100, 2, generator=generator, dtype=torch.float64)
    Y, truth = ((8 * inputs[:, :1] ** 0.25).sin() for inputs in (X, places))
    bounds = torch.stack([X.new_zeros(2), X.new_ones(2)])
    priors = {f"concentration{number}_prior": LogNormalPrior(0.0, 0.75**0.5) for number in (0, 1)}
    plain = exact_ensemble(X, Y).fit()
    start = exact_ensemble(X, Y, input_transform=Warp(d=2, indices=[0], bounds=bounds, **priors))
    fantasies = start.condition_on_observations(X[:1].unsqueeze(0), Y[:1].unsqueeze(0))
    before = fantasies.posterior(places).mean
    warped = start.fit()
    assert torch.equal(fantasies.posterior(places).mean, before)
    gain = log_evidences(warped).logsumexp(0) - log_evidences(plain).logsumexp(0)
    assert float(gain.detach()) > 1.0
    errors = [(model.posterior(places).mean - truth).square().mean().sqrt().detach() for model in (warped, plain)]
    assert float(errors[0]) < 0.9 * float(errors[1])
    learned = warped.input_transform
    assert_close(log_evidences(warped).detach(), warped.log_evidence, rtol=1e-8, atol=1e-8)
    maximize_in_transform(learned, partial(log_evidences, warped))
    assert learned.concentration0.grad is None
    value = log_evidences(warped).logsumexp(0)
    for name, prior in priors.items():
        value = value + prior.log_prob(getattr(learned, name.removesuffix("_prior"))).sum()
    slopes = torch.autograd.grad(value, [learned.concentration0, learned.concentration1])
    assert max(float(slope.abs().max()) for slope in slopes) < 0.05


def test_bounds_and_priors_of_transforms_in_a_chain_hold(generator):
    X, Y = made_up(generator)
    tight = LogNormalPrior(0.0, 1e-3)
    warp = Warp(d=2, indices=[0, 1], concentration1_prior=tight, concentration0_prior=tight)
    chain = ChainedInputTransform(scaled=Normalize(2), warped=warp)
    model = exact_ensemble(10 * X, Y, input_transform=chain).fit()
    warped = model.input_transform["warped"]
    for learned in (warped.concentration0, warped.concentration1):
        assert torch.allclose(learned, torch.ones_like(learned), atol=0.02)


def test_a_search_that_fails_leaves_the_transform(generator):
    warp = Warp(d=2, indices=[0])
    before = copy.deepcopy(warp.state_dict())

    def log_evidences():
        if bool((warp.concentration0 == before["concentration0"]).all()):
            return warp.concentration0.sum().log().reshape(1)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        maximize_in_transform(warp, log_evidences)
    assert all(torch.equal(value, before[name]) for name, value in warp.state_dict().items())


def test_transforms_that_lead_far_from_the_unit_cube_are_warned_of(generator):
    X, Y = made_up(generator)
    with pytest.warns(InputDataWarning, match="unit cube"):
        ExactEnsembleModel(X, Y, input_transform=Normalize(2, bounds=torch.stack([0.0 * X[0], 0.0 * X[0] + 1e-4])))
    ExactEnsembleModel(1e4 * X, Y)  # warnings are errors
    ExactEnsembleModel(1e4 * X, Y, input_transform=Normalize(2))


def test_many_points_are_those_of_their_parts(generator):
    X = torch.rand(9000, 1, 20, generator=generator, dtype=torch.float64).round(decimals=1)
    model = ExactEnsembleModel(X[:100, 0], X[:100, 0, :2].sum(-1, keepdim=True), cat_dims=[3])
    parts = [model.posterior(part).mean for part in X.split(1000)]
    assert_close(model.posterior(X).mean, torch.cat(parts), rtol=1e-12, atol=1e-12)
