"""Several outputs, members of equal weight, leaving one out, and functions drawn: exact models against one another."""

import math

import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    ProximalAcquisitionFunction,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.acquisition.bayesian_active_learning import qBayesianActiveLearningByDisagreement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.cross_validation import loo_cv
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Log, Normalize
from botorch.models.transforms.input import AppendFeatures, InputPerturbation
from botorch.sampling import IIDNormalSampler, SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths, get_matheron_path_model
from gpytorch.distributions import MultivariateNormal
from torch import Size

from gp_ensembles.bo import ExactEnsembleModel, thompson
from gp_ensembles.bo.exact_kernels import Hyperparameters
from tests.bo.contract_cases import KERNELS, close, exact_ensemble, generator, points

DTYPE = torch.float64
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=DTYPE)


def rows(num=13, num_outputs=2, seed=0):
    X = torch.rand(num, 2, generator=generator(seed), dtype=DTYPE)
    Y = (5 * X[:, :1] + torch.arange(num_outputs)).sin() * X[:, 1:] + 10 * torch.arange(num_outputs)
    return X, Y + 0.1 * torch.randn(num, num_outputs, generator=generator(seed + 1), dtype=DTYPE)


def some(num_outputs, seed=3):
    shape = (num_outputs, 3) if num_outputs > 1 else (3,)
    draw = torch.rand(*shape, 4, generator=generator(seed), dtype=DTYPE)
    return Hyperparameters(0.2 + draw[..., :2], 0.5 + draw[..., 2], 0.02 + 0.2 * draw[..., 3])


def make(num_outputs=2, known_noise=False, **options):
    X, Y = rows(num_outputs=num_outputs)
    Yvar = 0.01 + 0.1 * torch.rand(Y.shape, generator=generator(9), dtype=DTYPE) if known_noise else None
    return exact_ensemble(X, Y, Yvar, **options).with_hyperparameters_(some(num_outputs))


def alone(model, output):
    X, Y, Yvar = model.data
    own = Hyperparameters(*(value[output] for value in model.hyperparameters))
    one = exact_ensemble(X, Y[:, [output]], None if Yvar is None else Yvar[:, [output]])
    return one.with_hyperparameters_(own)


# Outputs


@pytest.mark.parametrize("known_noise", [False, True])
def test_each_output_is_the_model_of_it_alone(known_noise):
    model = make(3, known_noise)
    new_X, new_Y = rows(2, 3, seed=8)
    noise = torch.full_like(new_Y, 0.05) if known_noise else None
    later = model.condition_on_observations(new_X, new_Y, noise)
    fantasies = model.condition_on_observations(new_X.expand(4, 2, 2), new_Y.expand(4, 2, 3), noise)
    joint = model.fantasize(new_X, SobolQMCNormalSampler(Size([4]), seed=0))
    assert (later.batch_shape, fantasies.batch_shape, joint.batch_shape) == (Size(), Size([4]), Size([4]))
    assert fantasies.log_weights.shape == (4, 3, 3)
    at = points(4, 2)
    normal = model.eval()(at[0])
    for output in range(3):
        one, own = alone(model, output), None if noise is None else noise[:, [output]]
        after = one.condition_on_observations(new_X, new_Y[:, [output]], own)
        each = one.condition_on_observations(new_X.expand(4, 2, 2), new_Y[:, [output]].expand(4, 2, 1), own)
        for a, b in ((model, one), (model.subset_output([output]), one), (later, after), (fantasies, each)):
            for observed in (False, True):
                p, q = a.posterior(at, observation_noise=observed), b.posterior(at, observation_noise=observed)
                place = [output] if p.mean.shape[-1] > 1 else [0]
                close((p.mean[..., place], p.variance[..., place]), (q.mean, q.variance))
                close(p.covariance[..., place, :, :], q.covariance)
        close((normal.mean[output], normal.covariance_matrix[output]), (one(at[0]).mean, one(at[0]).covariance_matrix))
        close(later.log_weights[output], after.log_weights)
        close(fantasies.log_weights[:, output], each.log_weights)
    two = model.subset_output([2, 0])
    close(two.posterior(at).mean, model.posterior(at, output_indices=[2, 0]).mean)
    after = two.condition_on_observations(new_X, new_Y[:, [2, 0]], None if noise is None else noise[:, [2, 0]])
    close(after.posterior(at).mean, later.posterior(at).mean[..., [2, 0]])
    assert (model.train_inputs[0].shape, model.train_targets.shape) == ((3, 13, 2), (3, 13))


@pytest.mark.processor
def test_outputs_are_fitted_each_alone():
    X, Y = rows()
    both = exact_ensemble(X, Y).fit()
    for output in range(2):
        one = exact_ensemble(X, Y[:, [output]]).fit()
        close(both.log_evidence[output], one.log_evidence, 1e-6)
    flat = Y.clone()
    flat[:, 1] = 3.0
    with pytest.warns(InputDataWarning, match="are 3: hyperparameters cannot be fitted"):
        found = exact_ensemble(X, flat).fit()
    close(found.lengthscale[0], both.lengthscale[0], 1e-6)
    close(found.lengthscale[1], exact_ensemble(X, Y).lengthscale[1])
    with pytest.warns(InputDataWarning, match="cannot be fitted"):
        one = exact_ensemble(X[:1], Y[:1]).fit()
    assert bool(one.posterior(points(3)).variance.isfinite().all())
    assert "output 1, " not in repr(both)
    assert "output 1: matern 2.5: weight" in repr(both)


def test_a_sum_of_outputs_is_one_of_normal_distributions():
    """Of one kernel or of members; a mixture of several kernels refuses it."""
    weights, at, (X, Y) = torch.tensor([1.0, -2.0], dtype=DTYPE), points(3, 2), rows()
    scalarize = ScalarizedPosteriorTransform(weights)
    for model in (make(members=4), ExactEnsembleModel(X, Y)):
        whole, scalar = model.posterior(at), model.posterior(at, posterior_transform=scalarize)
        close(scalar.mean, (whole.mean @ weights).unsqueeze(-1))
        close(scalar.variance, (whole.variance @ weights.square()).unsqueeze(-1))
    with pytest.raises(UnsupportedError, match=r"objective on samples .* for several outputs, one kernel or members=K"):
        make().posterior(at, posterior_transform=scalarize)


# What BoTorch asks of a GPyTorch model


def test_training_inputs_targets_and_priors_are_as_in_botorch():
    X, Y = rows(num_outputs=1)
    wide = 10 * X
    ours, theirs = (kind(wide, Y, input_transform=Normalize(2)) for kind in (ExactEnsembleModel, SingleTaskGP))
    for model in (ours, theirs):
        model.train()
    assert torch.equal(ours.train_inputs[0], theirs.train_inputs[0])
    prior = ours(*ours.train_inputs)
    assert isinstance(prior, MultivariateNormal)
    evidence = ours.likelihood(prior).log_prob(ours.train_targets)
    for model in (ours, theirs):
        model.eval()
    close(evidence, ours.log_evidence.squeeze(-1), 1e-6)
    close((ours.train_inputs[0], ours.train_targets), (theirs.train_inputs[0], theirs.train_targets))
    at = points(4)
    there = ours.posterior(ours.input_transform.untransform(at)).mean.squeeze(-1)
    close(ours(at).mean, (there - Y.mean()) / Y.std())
    with pytest.raises(UnsupportedError, match="use one kernel, or members=K"):
        loo_cv(make(1).eval())
    before = ours.posterior(wide).mean
    ours.set_train_data(ours.train_inputs, ours.train_targets)
    close(ours.posterior(wide).mean, before)
    ours.set_train_data(ours.train_inputs[0][:5], ours.train_targets[:5], strict=False)
    assert ours.data.Y.shape == (5, 1)
    with pytest.raises(RuntimeError, match="cannot replace the rows"):
        ours.set_train_data(targets=ours.train_targets[:4])
    known = make(1, known_noise=True)
    with pytest.raises(RuntimeError, match="cannot replace the rows"):
        known.set_train_data(X[:4], known.train_targets[:4], strict=False)
    with pytest.raises(InputDataError, match="Y is nan in row 0"):
        known.set_train_data(targets=known.train_targets * math.nan)
    with pytest.raises(BotorchTensorDimensionError, match=r"\(\.\.\., q, 2\)"):
        make(1).set_train_data(X[:, :1], Y.squeeze(-1), strict=False)
    assert ours.outcome_transform.stdvs.shape == (1, 1)


def test_a_proximal_weight_is_that_of_botorchs_own_model():
    X, Y = rows(num_outputs=1)
    ours, theirs = (kind(10 * X, Y, input_transform=Normalize(2)).eval() for kind in (ExactEnsembleModel, SingleTaskGP))
    at, found = 10 * points(4, 1), []
    for model in (ours, theirs):
        plain = qLogExpectedImprovement(model, best_f=Y.max(), sampler=SobolQMCNormalSampler(Size([8]), seed=0))
        near = ProximalAcquisitionFunction(plain, torch.ones(2, dtype=DTYPE), beta=1.0)
        found.append(near(at) / torch.nn.functional.softplus(plain(at), beta=1.0))
    close(found[0], found[1])
    assert float(found[0].min()) > 0


def test_transforms_that_add_columns_or_points():
    X, Y = rows(num_outputs=1)
    weather = torch.tensor([[0.2], [0.9]], dtype=DTYPE)
    model = exact_ensemble(X, Y, input_transform=AppendFeatures(weather))
    at = points(3, 2)[..., :1]
    by_hand = exact_ensemble(X, Y)
    both = torch.stack([torch.cat([at, w.expand_as(at)], -1) for w in weather], -2).flatten(-3, -2)
    close(model.posterior(at).mean, by_hand.posterior(both).mean)
    shaken = exact_ensemble(X, Y, input_transform=InputPerturbation(torch.tensor([[0.0, 0.0], [0.1, 0.0]]).double()))
    moved = torch.stack([points(3, 2), points(3, 2) + torch.tensor([0.1, 0.0])], -2).flatten(-3, -2)
    close(shaken.posterior(points(3, 2)).mean, by_hand.posterior(moved).mean)
    assert shaken.fantasize(points(1), IIDNormalSampler(Size([2]))).posterior(points(2)).mean.shape == (2, 4, 1)


# Leaving one out


@pytest.mark.parametrize("known_noise", [False, True])
def test_leaving_one_out_is_a_model_of_the_others(known_noise):
    """BoTorch's closed form; the same hyperparameters, no search: n models, of outcomes whose units stay."""
    X, Y = rows()
    Yvar = 0.01 + 0.1 * Y.cos().square() if known_noise else None
    model = ExactEnsembleModel(X, Y, Yvar, outcome_transform=None).fit()
    found = loo_cv(model).posterior
    for row in range(13):
        others = torch.arange(13) != row
        own = None if Yvar is None else Yvar[others]
        less = ExactEnsembleModel(X[others], Y[others], own, outcome_transform=None)
        posterior = less.with_hyperparameters_(model.hyperparameters).posterior(X[[row]])
        noise = less.noise.squeeze(-1) if Yvar is None else Yvar[row]
        close((found.mean[row], found.variance[row]), (posterior.mean, posterior.variance + noise))


# Members


def test_members_are_a_fully_bayesian_model():
    """Analytic functions averaged over them are those that the weights weigh, as well as 200 members can."""
    mixture, (X, Y) = make(1), rows(num_outputs=1)
    members = exact_ensemble(X, Y, members=200).with_hyperparameters_(some(1))
    at, best = points(5, 1), float(Y.max())
    assert (members.batch_shape, members.posterior(at).mean.shape) == (Size([200]), (5, 200, 1, 1))
    close(members.posterior(at).mixture_mean, mixture.posterior(at).mean, 0.01)
    each = []
    for number, nu in enumerate(KERNELS):
        own = Hyperparameters(*(value[number : number + 1] for value in some(1)))
        one = ExactEnsembleModel(X, Y, kernels=(nu,)).with_hyperparameters_(own)
        each.append(LogExpectedImprovement(one, best_f=best)(at))
    exact = (mixture.log_weights + torch.stack(each, dim=-1)).logsumexp(-1)
    close(LogExpectedImprovement(members, best_f=best)(at), exact, 0.05)
    few = exact_ensemble(X, Y, members=4).with_hyperparameters_(some(1))
    disagreement = qBayesianActiveLearningByDisagreement(members, SobolQMCNormalSampler(Size([64]), seed=0))
    assert bool((disagreement(at) > 0).all())
    found = loo_cv(few, untransform=False).posterior
    assert found.mean.shape == (13, 4, 1, 1)
    both = ModelListGP(few, exact_ensemble(X, Y, members=4))
    assert SobolQMCNormalSampler(Size([3]), seed=0)(both.posterior(at)).shape == (3, 5, 4, 1, 2)
    two = make(2, members=4).posterior(at)
    assert two.mean.shape == (5, 4, 1, 2)
    after = few.condition_on_observations(X[:1], Y[:1])
    assert after.posterior(at).mean.shape == (5, 4, 1, 1)
    with pytest.raises(UnsupportedError, match="members=None"):
        few.fantasize(at, IIDNormalSampler(Size([2])))
    for bad in (0, True, 2.5):
        with pytest.raises(ValueError, match="members must be >= 1"):
            exact_ensemble(X, Y, members=bad)
    with pytest.raises(ValueError, match=r"got 4 and \("):
        exact_ensemble(X.unsqueeze(0), Y.unsqueeze(0), members=4)
    assert torch.equal(few.covar_module.lengthscale, mixture.covar_module.lengthscale)


@pytest.mark.parametrize("options", [{"kernels": (2.5,)}, {"kernels": KERNELS, "members": 4}], ids=["one", "members"])
def test_constrained_noisy_improvement_is_a_function(options):
    """Where nothing is feasible BoTorch draws a bound at random unless it may keep a factor."""
    X, Y = rows()
    with pytest.warns(match="infeasible"):
        acquisition = qLogNoisyExpectedImprovement(
            ExactEnsembleModel(X, Y, **options),
            X,
            objective=lambda values, X=None: values[..., 0],
            constraints=[lambda values: values[..., 1] - 8.0],
            sampler=SobolQMCNormalSampler(Size([16]), seed=0),
            prune_baseline=False,
        )
    at = points(3, 2)
    assert torch.equal(acquisition(at), acquisition(at))


# Paths


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_paths_have_the_posteriors_law(num_outputs):
    """Levels of the mixture's distribution, and its covariance; noise-free rows are met."""
    model, at = make(num_outputs, input_transform=Normalize(2, bounds=2 * UNIT)), points(3, seed=7)
    sets = [draw_matheron_paths(model, Size([400])) for _ in range(10)]  # paths of one set have features in common
    values = torch.cat([paths(at).unsqueeze(-1) if num_outputs == 1 else paths(at.unsqueeze(-3)).mT for paths in sets])
    posterior = model.posterior(at)
    assert values.shape == (4000, 3, num_outputs)
    levels = torch.linspace(0.05, 0.95, 19, dtype=DTYPE)
    shares = (posterior.marginals.cdf(values.flatten(1)).unsqueeze(-1) <= levels).double().mean(0)
    assert float((shares - levels).abs().max()) < 5 * 0.5 / math.sqrt(4000)
    centered = values - values.mean(0)
    covariance = torch.einsum("sio,sjo->oij", centered, centered) / 4000
    torch.testing.assert_close(covariance, posterior.covariance, rtol=0.1, atol=0.1 * float(posterior.variance.max()))
    X, Y = rows(num_outputs=1)
    known = exact_ensemble(X, Y, torch.full_like(Y, 1e-6)).with_hyperparameters_(some(1))
    close(draw_matheron_paths(known, Size([3]))(X), Y.squeeze(-1).expand(3, -1), 0.02)


def test_a_path_is_one_function():
    """However it is asked: alone, together, with points of its own for each draw; differentiable; outcomes positive."""
    model = make(1)
    paths = draw_matheron_paths(model, Size([4]))
    X = points(3, 4, 5, seed=3)
    together = paths(X)
    assert together.shape == (3, 4, 5)
    for b, s in ((0, 0), (2, 3)):
        close(paths(X[b, s])[s], together[b, s])
    assert draw_matheron_paths(model, Size())(X[0, 0]).shape == (5,)
    assert draw_matheron_paths(model, Size([2, 3]))(X[0, 0]).shape == (2, 3, 5)
    assert get_matheron_path_model(model, Size([3]))(X[0, :3]).shape == (3, 5, 1)
    assert get_matheron_path_model(make(2), Size([3]))(X[0, :3]).shape == (3, 5, 2)
    torch.manual_seed(0)
    acquisition, batch = PathwiseThompsonSampling(model), points(5, 3).requires_grad_()
    assert torch.autograd.gradcheck(acquisition, (batch,))
    positive = exact_ensemble(*(part.exp() for part in rows(num_outputs=1)), outcome_transform=Log())
    assert bool((draw_matheron_paths(positive, Size([9]))(X[0, 0]) > 0).all())


def test_thompson_sampling_goes_to_the_maximum():
    X = points(20)
    Y = -(X - torch.tensor([0.3, 0.6], dtype=DTYPE)).square().sum(-1, keepdim=True)
    model = exact_ensemble(X, Y).fit()
    best = thompson(model, UNIT, 3, raw_samples=64, num_restarts=1, generator=generator(0))
    assert best.shape == (3, 2)
    assert float((best - torch.tensor([0.3, 0.6])).abs().max()) < 0.1
    assert torch.equal(best, thompson(model, UNIT, 3, raw_samples=64, num_restarts=1, generator=generator(0)))
    fixed = UNIT.clone()
    fixed[:, 1] = 0.9  # the time to come
    assert float((thompson(model, fixed, raw_samples=32, num_restarts=1)[:, 1] - 0.9).abs().max()) == 0
    with pytest.raises(ValueError, match="needs q >= 1"):
        thompson(model, UNIT, 0)
    assert thompson(model, UNIT[1:].expand(2, 2), 3).tolist() == [[1.0, 1.0]] * 3
    for bad in (UNIT.mT[:1], UNIT.flip(0), UNIT.long(), UNIT * math.nan, UNIT.tolist()):
        with pytest.raises(ValueError, match="finite bounds"):
            thompson(model, bad)
    for several in (make(2), exact_ensemble(X.expand(2, -1, -1), Y.expand(2, -1, -1))):
        with pytest.raises(UnsupportedError, match="takes one output and data set"):
            thompson(several, UNIT)
