"""Exact processes of a batch of data sets: the same as a model of each data set alone."""

import copy

import numpy as np
import pytest
import torch
from botorch.acquisition import ScalarizedPosteriorTransform
from botorch.cross_validation import batch_cross_validation, gen_loo_cv_folds
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.transforms import ChainedOutcomeTransform, Log, Normalize, Standardize, Warp
from botorch.sampling.normal import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Size

from gp_ensembles.bo import EnsembleModel, ExactEnsembleModel, MixturePosterior
from gp_ensembles.bo.data import Observations
from gp_ensembles.bo.exact_kernels import Hyperparameters
from tests.bo.contract_cases import close, exact_ensemble

DTYPE = torch.float64
BATCHES = (Size([2]), Size([3]), Size([2, 3]))  # as many data sets as kernels among them
every = pytest.mark.parametrize("batch", BATCHES, ids=str)


def data(generator, batch, num_rows=9):
    """Data sets of different places, levels and sizes."""
    X = torch.rand(*batch, num_rows, 2, generator=generator, dtype=DTYPE)
    scale, level = (1 + 3 * torch.rand(*batch, 1, 1, generator=generator, dtype=DTYPE) for _ in range(2))
    errors = torch.randn(*batch, num_rows, 1, generator=generator, dtype=DTYPE)
    return X, 10 * level + scale * ((5 * X[..., :1]).sin() * X[..., 1:] + 0.1 * errors)


def some_hyperparameters(generator, batch):
    lengthscale, outputscale, noise = (
        0.1 + torch.rand(*batch, *shape, generator=generator, dtype=DTYPE) for shape in ((3, 2), (3,), (3,))
    )
    return Hyperparameters(lengthscale, outputscale, 0.1 * noise)


def make(generator, batch, known_noise=False, **options):
    """A model of a batch, and a model of each data set by its index, with the same hyperparameters."""
    X, Y = data(generator, batch)
    Yvar = 0.01 + 0.05 * torch.rand(Y.shape, generator=generator, dtype=DTYPE) if known_noise else None
    values = some_hyperparameters(generator, batch)
    together = exact_ensemble(X, Y, Yvar, **{name: of(batch) for name, of in options.items()})
    apart = {}
    for index in np.ndindex(*batch):
        noise = None if Yvar is None else Yvar[index]
        alone = exact_ensemble(X[index], Y[index], noise, **{name: of(Size()) for name, of in options.items()})
        apart[index] = alone.with_hyperparameters_(Hyperparameters(*(value[index] for value in values)))
    return together.with_hyperparameters_(values), apart


def same(together, apart, X, **options):
    """Predictions at X of a t-batch that ends in the data sets': moments, weights, and draws from the same normals."""
    joint = together.posterior(X, **options)
    base = joint.base_sample_shape
    wide = X.expand(*base[:-1], *X.shape[-2:])
    normals = torch.randn(5, *base, generator=torch.Generator().manual_seed(1), dtype=X.dtype)
    draws = joint.rsample_from_base_samples(Size([5]), normals)
    for index, alone in apart.items():
        at, point = (..., *index, slice(None)), (..., *index, slice(None), slice(None))
        each = alone.posterior(wide[point], **options)
        close((joint.mean[point], joint.variance[point]), (each.mean, each.variance))
        # the factors of covariances that are almost singular lose half the digits
        close(draws[point], each.rsample_from_base_samples(Size([5]), normals[at]), 1e-6)
        if isinstance(joint, MixturePosterior):
            close(joint.covariance[(*point, slice(None))], each.covariance)
            close(joint.log_weights.expand(*base[:-1], -1)[at], each.log_weights.expand(*each.batch_shape, -1))
    return joint


@pytest.mark.parametrize(
    ("batch", "known_noise"), [(Size([2]), True), (Size([3]), False), (Size([2, 3]), True)], ids=str
)
def test_predictions_are_those_of_a_model_of_each_data_set(batch, known_noise, generator):
    together, apart = make(generator, batch, known_noise)
    assert together.batch_shape == batch
    for shape in ((4,), (1,), (*batch, 4), (*batch, 1), (5, *batch, 3), (5, *[1] * len(batch), 1)):
        X = torch.rand(*shape, 2, generator=generator, dtype=DTYPE)
        posterior = same(together, apart, X)
        lead = torch.broadcast_shapes(shape[:-1], batch)
        assert posterior.mean.shape == (*lead, shape[-1], 1)
        same(together, apart, X, observation_noise=True)
    for index, alone in apart.items():
        close((together.log_evidence[index], together.log_weights[index]), (alone.log_evidence, alone.log_weights))
        close(together.likelihood.noise[index], alone.likelihood.noise)
        close(together.train_targets[index], alone.train_targets)


TRANSFORMS = {
    "none": {"outcome_transform": lambda batch: None},
    "inputs": {"input_transform": lambda batch: Normalize(2, batch_shape=batch)},
    "not linear": {
        "outcome_transform": lambda batch: ChainedOutcomeTransform(log=Log(), scale=Standardize(1, batch_shape=batch))
    },
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_undone_for_each_data_set(name, generator):
    together, apart = make(generator, Size([3]), **TRANSFORMS[name])
    X = torch.rand(4, 3, 2, 2, generator=generator, dtype=DTYPE)
    same(together, apart, X)
    if name == "inputs":
        weighed = ScalarizedPosteriorTransform(torch.tensor([2.0], dtype=DTYPE), offset=1.0)
        close(together.posterior(X, posterior_transform=weighed).mean, 1 + 2 * together.posterior(X).mean)


@pytest.mark.processor
@every
def test_fits_are_those_of_each_data_set(batch, generator):
    X, Y = data(generator, batch)
    together = exact_ensemble(X, Y).fit()
    for index in np.ndindex(*batch):
        alone = exact_ensemble(X[index], Y[index]).fit()
        # The same search on numbers that differ in round-off; a flat direction of the evidence multiplies that.
        for value, own in zip(together.hyperparameters, alone.hyperparameters, strict=True):
            close(value[index], own, 1e-4)
        close(together.log_evidence[index], alone.log_evidence, 1e-6)
    again = exact_ensemble(X, Y).fit(together.hyperparameters)
    assert bool((again.log_evidence.logsumexp(-1) > together.log_evidence.logsumexp(-1) - 0.1).all())


@pytest.mark.processor
def test_a_transform_of_all_data_sets_is_learned_from_their_sum(generator):
    X, Y = data(generator, Size([2]))
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=DTYPE)
    model = exact_ensemble(X, Y, input_transform=Warp(d=2, indices=[0, 1], bounds=bounds))
    before = exact_ensemble(X, Y).fit().log_evidence.logsumexp(-1).sum()
    assert float(model.fit().log_evidence.logsumexp(-1).sum()) > float(before)


@pytest.mark.parametrize("known_noise", [False, True])
def test_data_and_fantasies(known_noise, generator):
    batch = Size([3])
    together, apart = make(generator, batch, known_noise)
    X = torch.rand(3, 4, 2, generator=generator, dtype=DTYPE)
    new = torch.rand(3, 2, 2, generator=generator, dtype=DTYPE)
    Y = 10 + torch.rand(3, 2, 1, generator=generator, dtype=DTYPE)
    noise = torch.full_like(Y, 0.1) if known_noise else None
    after = together.condition_on_observations(new, Y, noise)
    each = {
        index: alone.condition_on_observations(new[index], Y[index], None if noise is None else noise[index])
        for index, alone in apart.items()
    }
    same(after, each, X)
    assert after.train_inputs[0].shape == (3, 11, 2)
    assert torch.equal(after.fit().data.Y[:, -2:], Y)
    sampler = SobolQMCNormalSampler(Size([4]), seed=0)
    fantasies = together.fantasize(new, sampler)
    assert fantasies.batch_shape == (4, 3)
    level, scale = together.data.Y.mean(-2, keepdim=True), together.data.Y.std(-2, keepdim=True)
    variance = together.data.noise.mean(-2, keepdim=True) / scale.square() if known_noise else None
    drawn = sampler(together.posterior(new, observation_noise=variance if known_noise else True))
    fantasized = (drawn - level) / scale
    for index, alone in apart.items():
        noise = variance[index].expand(2, 1) if known_noise else None
        rows = Observations(new[index], fantasized[:, *index], noise)
        one, other = fantasies.posterior(X), alone.fantasies(rows).posterior(X[index])
        close((one.mean[:, *index], one.covariance[:, *index]), (other.mean, other.covariance))
        close(fantasies.log_weights[:, *index], alone.fantasies(rows).log_weights)
    shared = together.condition_on_observations(new[0], Y[0], None if not known_noise else torch.full_like(Y[0], 0.1))
    assert (shared.batch_shape, shared.posterior(X).mean.shape) == (batch, (3, 4, 1))
    expanded = together.fantasize(new[..., :0, :], sampler)
    assert (expanded.posterior(X).mean.shape, expanded.log_weights.shape[-2:]) == ((4, 3, 4, 1), (3, 3))


@pytest.mark.processor
def test_leaving_one_out_as_botorchs_tutorials_do(generator):
    X, Y = data(generator, Size(), 8)
    folds = gen_loo_cv_folds(X, Y)
    found = batch_cross_validation(ExactEnsembleModel, ExactMarginalLogLikelihood, folds, observation_noise=True)
    assert found.posterior.mean.shape == found.observed_Y.shape == (8, 1, 1)
    assert found.model.lengthscale.shape == (8, 1, 2)
    for row in range(8):
        others = torch.arange(8) != row
        alone = ExactEnsembleModel(X[others], Y[others]).fit()
        posterior = alone.posterior(X[row : row + 1], observation_noise=True)
        close((found.posterior.mean[row], found.posterior.variance[row]), (posterior.mean, posterior.variance), 1e-4)


def test_state_and_precision(generator):
    together, apart = make(generator, Size([3]))
    X = torch.rand(3, 4, 2, generator=generator, dtype=DTYPE)
    other = exact_ensemble(*data(torch.Generator().manual_seed(0), Size([3])))
    other.data = together.data
    other.load_state_dict(together.state_dict())
    close(other.posterior(X).mean, together.posterior(X).mean)
    single = copy.deepcopy(together).float()
    assert single.posterior(X.float()).mean.dtype == torch.float32
    close(single.posterior(X.float()).mean.double(), together.posterior(X).mean, 1e-3)
    places = X.clone().requires_grad_()
    together.posterior(places).mean.sum().backward()
    own = X[1].clone().requires_grad_()
    apart[(1,)].posterior(own).mean.sum().backward()
    close(places.grad[1], own.grad)


def test_what_cannot_be_done_is_said(generator):
    X, Y = data(generator, Size([3]))
    for arguments in ((X, Y[:2]), (X[0], Y), (X, Y, 0.1 * Y[0])):
        with pytest.raises(BotorchTensorDimensionError, match="the same batch shape"):
            exact_ensemble(*arguments)
    with pytest.raises(InputDataError, match="train_Y is inf in row 2"):
        exact_ensemble(X, torch.where(torch.arange(9).unsqueeze(-1) == 2, torch.inf, Y))
    with pytest.warns(InputDataWarning, match="cannot be fitted"):
        found = exact_ensemble(X, torch.cat([Y[:2], torch.ones_like(Y[:1])])).fit()
    assert not torch.equal(found.lengthscale[0], found.lengthscale[2])
    with pytest.raises(AttributeError, match="covar_module"):
        _ = exact_ensemble(X, Y).covar_module
    with pytest.raises(UnsupportedError, match="use ExactEnsembleModel"):
        EnsembleModel(X, Y)
