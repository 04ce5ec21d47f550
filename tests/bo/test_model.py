"""The BoTorch model against exact GPs, against filtering from scratch, and against what a user may do wrong."""

import copy
import warnings
from dataclasses import replace

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Warp
from botorch.models.transforms.outcome import Standardize
from botorch.utils.datasets import SupervisedDataset
from gpytorch.kernels import LinearKernel, RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Size

from gp_ensembles import meta_learners as meta
from gp_ensembles.bo import EnsembleModel
from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.experts import GaussianExpert, StudentTExpert
from gp_ensembles.features import HilbertAdditiveFeatures, LinearFeatures, RandomFourierFeatures
from gp_ensembles.filters import CorrelatedWalk, ExponentialForgetting, RandomWalk, StabilizedForgetting
from tests.bo.contract_cases import NUM_INPUTS, close, generator, rows

DTYPE = torch.float64
NUM_FEATURES = 12
FULL = torch.tensor([[0.04, 0.01], [0.01, 0.02]], dtype=DTYPE)
TRANSITIONS = {
    "static": None,
    "walk": RandomWalk(0.05),
    "walk per feature": RandomWalk(torch.linspace(0.01, 0.1, NUM_FEATURES, dtype=DTYPE)),
    "correlated walk": CorrelatedWalk(torch.kron(torch.diag_embed(torch.ones(NUM_FEATURES // 2, dtype=DTYPE)), FULL)),
    "forgetting": ExponentialForgetting(0.9),
    "stabilized": StabilizedForgetting(0.95),
}


def ensemble(transition=None, rule=None, num_experts=3):
    """Expert objects of different features and noise."""
    experts = []
    for m in range(num_experts):
        kernel = RBFKernel().double().initialize(lengthscale=0.3 * (m + 1))
        features = RandomFourierFeatures.from_kernel(kernel, NUM_INPUTS, NUM_FEATURES, generator=generator(m))
        is_linear = m == num_experts - 1 and transition is None
        expert = GaussianExpert(linear() if is_linear else features, transition=transition)
        expert.likelihood.noise = 0.02 * (m + 1)
        experts.append(expert)
    return Ensemble(experts, meta.BayesianModelAveraging() if rule is None else rule)


def linear():
    return LinearFeatures(NUM_INPUTS, torch.tensor(1.5, dtype=DTYPE))


def model(transition=None, rule=None, **options):
    return EnsembleModel(*rows(), ensemble=ensemble(transition, rule), **options)


RULES = {
    "averaging": meta.BayesianModelAveraging(),
    "switching": meta.MarkovSwitching(meta.sticky_transition(3, 0.9).double()),
}


def same(a, b, X, noise=True):
    """Two models predict alike, weights included."""
    p, q = a.posterior(X, observation_noise=noise), b.posterior(X, observation_noise=noise)
    close(p.log_weights.expand(*q.batch_shape, -1), q.log_weights.expand(*q.batch_shape, -1))
    close((p.mean.expand_as(q.mean), p.component_mean.expand_as(q.component_mean)), (q.mean, q.component_mean))
    close(p.component_covariance.expand_as(q.component_covariance), q.component_covariance)


def exact_pair(outcome_transform=None, noise=0.3):
    """A GP with a linear kernel, and one expert whose features are its weight-space form."""
    X, Y = rows()
    kernel = LinearKernel().double()
    kernel.variance = 1.5
    likelihood = GaussianLikelihood().double()
    likelihood.noise = noise
    transforms = [None if outcome_transform is None else copy.deepcopy(outcome_transform) for _ in range(2)]
    parts = {"likelihood": likelihood, "covar_module": kernel, "mean_module": ZeroMean()}
    gp = SingleTaskGP(X, Y, **parts, outcome_transform=transforms[0])
    expert = GaussianExpert(LinearFeatures(NUM_INPUTS, torch.tensor(1.5, dtype=DTYPE), bias=False))
    expert.likelihood.noise = noise
    ours = EnsembleModel(X, Y, None, Ensemble([expert], meta.BayesianModelAveraging()), outcome_transform=transforms[1])
    return gp.eval(), ours


# Against an exact GP


@pytest.mark.parametrize("transform", [None, Standardize(1)], ids=["plain", "standardized"])
@pytest.mark.parametrize("noise", [False, True])
def test_one_exact_expert_is_an_exact_gp(transform, noise):
    gp, ours = exact_pair(transform)
    X = torch.rand(4, 2, NUM_INPUTS, generator=generator(5), dtype=DTYPE)  # the kernel's rank allows two points
    ours_posterior, exact = ours.posterior(X, observation_noise=noise), gp.posterior(X, observation_noise=noise)
    close((ours_posterior.mean, ours_posterior.variance), (exact.mean, exact.variance))
    close(ours_posterior.covariance.squeeze(-3), exact.distribution.covariance_matrix)
    normals = torch.randn(5, 4, 2, generator=generator(6), dtype=DTYPE)
    base = torch.cat([torch.zeros(5, 4, 1, dtype=DTYPE), normals], dim=-1)
    value = torch.randn(4, 2, 1, generator=generator(7), dtype=DTYPE)
    if noise:  # without, GPyTorch's root of a linear kernel is not its Cholesky factor
        draws = ours_posterior.rsample_from_base_samples(Size([5]), base)
        close(draws, exact.rsample_from_base_samples(Size([5]), normals))
        close(ours_posterior.log_prob(value), exact.distribution.log_prob(value.squeeze(-1)))
    close(ours_posterior.quantile(torch.tensor(0.8)), exact.quantile(torch.tensor([0.8], dtype=DTYPE)).squeeze(0), 1e-7)


@pytest.mark.parametrize("transform", [None, Standardize(1)], ids=["plain", "standardized"])
def test_one_exact_expert_conditions_as_an_exact_gp(transform):
    gp, ours = exact_pair(transform)
    gp.posterior(rows()[0])
    new_X, new_Y = rows(3, seed=9)
    X = torch.rand(4, 2, NUM_INPUTS, generator=generator(5), dtype=DTYPE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # GPyTorch's, about its caches
        one = gp.condition_on_observations(new_X, new_Y)
        close(ours.condition_on_observations(new_X, new_Y).posterior(X).mean, one.posterior(X).mean)
        fantasies = new_Y + torch.randn(6, 3, 1, generator=generator(8), dtype=DTYPE)
        many = gp.condition_on_observations(new_X.expand(6, 3, NUM_INPUTS), fantasies)
        exact = many.posterior(X.unsqueeze(1).expand(4, 6, 2, NUM_INPUTS))
        posterior = ours.condition_on_observations(new_X, fantasies).posterior(X.unsqueeze(1))
        close((posterior.mean, posterior.variance), (exact.mean, exact.variance))


def test_the_log_evidence_weighs_the_experts():
    """Weights after n rows are the evidence of the n rows, by dense algebra."""
    ours = model(outcome_transform=None)
    X, Y = rows()
    evidence = torch.stack([expert.log_evidence(X, Y.squeeze(-1)) for expert in ours.ensemble.experts]).flatten()
    close(ours.log_weights, torch.log_softmax(evidence.detach(), 0))


# Conditioning and fantasies


@pytest.mark.parametrize("transition", TRANSITIONS)
@pytest.mark.parametrize("rule", ["averaging", "switching"])
def test_conditioning_is_filtering_from_scratch(transition, rule):
    """As data one after another; a batch of one fantasy each learns it as the filter does."""
    ours = model(TRANSITIONS[transition], RULES[rule], outcome_transform=None)
    X, Y = rows(3, seed=3)
    points = torch.rand(3, 2, NUM_INPUTS, generator=generator(5), dtype=DTYPE)
    old_X, old_Y = rows()
    scratch = EnsembleModel(
        torch.cat([old_X, X]), torch.cat([old_Y, Y]), ensemble=ours.ensemble, outcome_transform=None
    )
    for_good = ours
    for x, y in zip(X.split(1), Y.split(1), strict=True):
        for_good = for_good.condition_on_observations(x, y)
    same(for_good, scratch, points)
    if transition != "static" or rule != "averaging":
        return  # fantasies are all of the next step
    fantasies = ours.condition_on_observations(X.expand(2, 3, NUM_INPUTS), Y.expand(2, 3, 1))
    same(scratch, fantasies, points.unsqueeze(1))


# Transforms, outputs, state


def test_models_of_one_ensemble_do_not_change_one_another():
    X, Y = rows(12)
    shared = ensemble()
    first = EnsembleModel(X, Y, ensemble=shared)
    points = rows(5, seed=6)[0]
    before = first.posterior(points).mean
    other = EnsembleModel(X, 7 * Y.square(), ensemble=shared)
    other.load_state_dict({name: 2 * value for name, value in other.state_dict().items()})
    assert torch.equal(first.posterior(points).mean, before)
    mll = ExactMarginalLogLikelihood(other.likelihood, other)
    assert fit_gpytorch_mll(mll).model is other  # nothing to fit
    sibling = first.condition_on_observations(*rows(3, seed=9))
    after = sibling.posterior(points).mean
    first.float()
    assert torch.equal(sibling.posterior(points).mean, after)


def test_transforms_that_are_set_stay():
    X, Y = rows()
    warp = Warp(d=NUM_INPUTS, indices=[0, 1])
    ours = EnsembleModel(X, Y, ensemble=ensemble(), input_transform=warp.requires_grad_(False))
    before = ours.posterior(X).mean
    with torch.no_grad():
        ours.input_transform.concentration0.fill_(2.0)
    by_hand = EnsembleModel(X, Y, ensemble=ensemble(), input_transform=copy.deepcopy(ours.input_transform))
    close(ours.posterior(X).mean, by_hand.posterior(X).mean)
    assert not torch.allclose(ours.posterior(X).mean, before)


# Building and fitting


def test_presets_and_data_sets_make_models():
    X, Y = rows(30)
    Y = Y + 3 * X[:, :1]
    by_preset = EnsembleModel(X, Y, ensemble=replace(oebe, bases=(LinearBasis(),)))
    assert by_preset.ensemble.num_experts == 3
    data = SupervisedDataset(X, Y, feature_names=["a", "b"], outcome_names=["y"])
    built = EnsembleModel(**EnsembleModel.construct_inputs(data, ensemble=by_preset.ensemble)).fit()
    same(built, by_preset, X[:3])
    assert EnsembleModel.construct_inputs(data).keys() == {"train_X", "train_Y"}
    assert (built.train_inputs[0].shape, built.train_targets.shape) == ((30, NUM_INPUTS), (30,))


# What may go wrong


def test_bad_training_data_are_refused():
    X, Y = rows()
    both = (X, torch.cat([Y, Y], -1))
    student = Ensemble([StudentTExpert(linear())], meta.BayesianModelAveraging())
    for error, words, arguments in (
        (BotorchTensorDimensionError, r"use Y.unsqueeze\(-1\)", (X, Y.squeeze(-1))),
        (UnsupportedError, "one data set", (X.expand(2, -1, -1), Y.expand(2, -1, -1))),
        (InputDataError, "there are no rows; at least one target", (X[:0], Y[:0])),
        (InputDataError, r"convert one with \.to", (X, Y.float())),
        (InputDataError, "must be positive", (X, Y, torch.zeros_like(Y))),
        (UnsupportedError, "no train_Yvar", (X, Y, torch.ones_like(Y))),
        (InputDataError, "train_Yvar must be a tensor", (X, Y, ensemble())),
        (TypeError, "ensemble must be an object such as", (X, Y, None, "auto")),
        (TypeError, "StudentTExpert", (X, Y, None, student)),
        (UnsupportedError, "one data set and output, .* use ExactEnsembleModel", both),
        (ValueError, r"must have shape \(..., N, 2\)", (X[:, :1], Y, None, ensemble())),
    ):
        with pytest.raises(error, match=words):
            EnsembleModel(*arguments)


def test_constant_and_repeated_observations_are_learned():
    X, Y = rows()
    constant = EnsembleModel(X, torch.full_like(Y, 3.0), ensemble=ensemble())
    close(constant.posterior(X).mean, torch.full_like(Y, 3.0), 1e-6)
    twice = EnsembleModel(X.repeat(2, 1), Y.repeat(2, 1), generator=generator())
    assert bool(torch.isfinite(twice.posterior(X).variance).all())


@pytest.mark.parametrize("Y", [torch.rand(9, 1).double(), torch.ones(12, 1).double()], ids=["few", "equal"])
def test_a_record_needs_rows_to_be_fitted_to(Y):
    X = torch.linspace(0, 1, len(Y), dtype=torch.float64).unsqueeze(-1)
    with pytest.raises(InputDataError, match=r"at least 10 rows .* not all equal; .* use ExactEnsembleModel"):
        EnsembleModel(X, Y)


def test_a_point_outside_a_basis_is_refused():
    X, Y = rows()
    features = HilbertAdditiveFeatures.from_data(RBFKernel(ard_num_dims=NUM_INPUTS).double(), X, 5)
    ours = EnsembleModel(X, Y, ensemble=Ensemble([GaussianExpert(features)], meta.BayesianModelAveraging()))
    with pytest.raises(ValueError, match="leaves the domain"):
        ours.posterior(X + 100)
