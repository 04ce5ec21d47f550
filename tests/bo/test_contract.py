"""One contract for every model that goes into BoTorch, over the table of ``contract_cases``.

Conditioned predictions are held to models of all rows, and to plain conditioning of the joint normal distributions.
"""

import copy

import numpy as np
import pytest
import torch
from botorch.acquisition import qKnowledgeGradient
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models import ModelList, ModelListGP
from botorch.models.transforms import ChainedOutcomeTransform, Log, Normalize, Standardize, Warp
from botorch.posteriors import TransformedPosterior
from botorch.sampling import IIDNormalSampler, ListSampler, SobolQMCNormalSampler
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from numpy.testing import assert_allclose
from scipy import stats
from torch import Size
from torch.autograd.functional import hessian, jacobian

from gp_ensembles.bo import EnsembleModel, ExactEnsembleModel, MixturePosterior
from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.papers.quadrature import KernelMixtureModel, RegressionProblem
from gp_ensembles.papers.sparse import SparseGP
from tests.bo.acquisition_cases import CASES as ACQUISITIONS
from tests.bo.acquisition_cases import MEMBERS, MODEL, NONE, Setting, exported
from tests.bo.contract_cases import CASES, NUM_INPUTS, NUM_ROWS, Transforms, close, generator, points, rows

DTYPE = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32")
FUSED = {"linear fusion", "log-linear fusion"}
every = pytest.mark.parametrize("name", CASES)
with_components = pytest.mark.parametrize("name", [name for name in CASES if name not in FUSED])


def make(name, **options):
    return CASES[name].make(*rows(), **options)


@pytest.fixture(scope="module")
def models():
    """One model of each kind, not to be changed."""
    return {name: make(name) for name in CASES}


def as_mixture(posterior):
    """A normal posterior of one output is a mixture of one component."""
    if isinstance(posterior, MixturePosterior):
        return posterior
    covariance = posterior.distribution.covariance_matrix[..., None, None, :, :]
    return MixturePosterior(posterior.mean.new_zeros(1), posterior.mean.unsqueeze(-3), covariance)


def same(a, b, X, tolerance=1e-8):
    for noise in (False, True):
        p, q = (model.posterior(X, observation_noise=noise) for model in (a, b))
        close((p.mean, p.variance), (q.mean.expand_as(p.mean), q.variance.expand_as(p.variance)), tolerance)


# State


def changed(model):
    """A state of somewhat larger numbers."""
    return {
        key: value + 0.01 * (torch.arange(value.numel()).reshape(value.shape) + 1.0)
        if value.is_floating_point() and not value.isinf().any() and not key.endswith(("smoothness", "uniforms"))
        else value.clone()
        for key, value in model.state_dict().items()
    }


@every
def test_state_travels_without_the_data(name):
    ours, other = make(name), make(name)
    other.load_state_dict(changed(ours))
    X = points(3, 1)
    assert not torch.allclose(other.posterior(X).mean, ours.posterior(X).mean)
    other.load_state_dict(ours.state_dict(), keep_transforms=True)
    same(other, ours, X)
    assert not any(NUM_ROWS in value.shape for value in ours.state_dict().values()), "rows of data in the state_dict"


@every
def test_loading_leaves_relatives_alone(name):
    """Of a parent, a child and a fantasy, each is loaded in turn."""
    parent = make(name)
    new_X, new_Y = rows(2, seed=8)
    child = parent.condition_on_observations(new_X, new_Y)
    fantasy = parent.fantasize(new_X, IIDNormalSampler(Size([2]), seed=0))
    family, at = [parent, child, fantasy], points(3, 1).unsqueeze(1)
    for loaded in family:
        before = [model.posterior(at).mean.detach() for model in family]
        state = copy.deepcopy(loaded.state_dict())
        loaded.load_state_dict(changed(loaded))
        for model, mean in zip(family, before, strict=True):
            after = model.posterior(at).mean
            if model is loaded:
                assert bool(after.isfinite().all())
                assert not torch.allclose(after, mean)
            else:
                close(after, mean)
                model.load_state_dict(copy.deepcopy(model.state_dict()))
                close(model.posterior(at).mean, mean, 1e-6)  # learned again
        loaded.load_state_dict(state)


def test_a_copy_in_single_precision_agrees(models):
    for name in CASES:
        single = copy.deepcopy(models[name]).to(torch.float32)
        X = points(3, 1)
        posterior = single.posterior(X.float(), observation_noise=True)
        assert posterior.mean.dtype == torch.float32
        wanted = models[name].posterior(X, observation_noise=True)
        close((posterior.mean.double(), posterior.variance.double()), (wanted.mean, wanted.variance), 1e-2)
        assert models[name].posterior(X).mean.dtype == DTYPE
        wide = (
            (*single.hyperparameters._fields, "smoothness", "_shapes") if CASES[name].kind is ExactEnsembleModel else ()
        )  # computed in double precision
        for key, part in single.named_buffers():
            if part.is_floating_point():
                assert part.dtype == (DTYPE if key in wide else torch.float32), key
        back = single.to(DTYPE).posterior(X)
        close(back.mean, models[name].posterior(X).mean, 1e-2)


@every
def test_copies_and_files(name, models, tmp_path):
    fantasies = models[name].fantasize(points(2).requires_grad_(), IIDNormalSampler(Size([3]), seed=0))  # of a graph
    again = fantasies.condition_on_observations(points(3, 1), rows(3)[1].unsqueeze(-1))
    for ours in (models[name], fantasies, again):
        same(copy.deepcopy(ours), ours, points(3, 1))
        torch.save(ours, tmp_path / "model.pt")
        same(torch.load(tmp_path / "model.pt", weights_only=False), ours, points(3, 1))
        single = copy.deepcopy(ours).float().posterior(points(3, 1).float()).mean.double()
        close(single, ours.posterior(points(3, 1)).mean, 1e-2)


# Predictions


@every
def test_any_batch_of_points(name, models):
    for batch, q, noise in (((), 1, False), ((), 3, True), ((3,), 1, True), ((2, 3), 3, False), ((2, 3), 1, True)):
        X = points(*batch, q)
        posterior = models[name].posterior(X, observation_noise=noise)
        assert posterior.mean.shape == posterior.variance.shape == (*batch, q, 1)
        assert posterior.rsample(Size([2])).shape == (2, *batch, q, 1)
        covariance = posterior.distribution.covariance_matrix
        for place in np.ndindex(*batch):
            alone = models[name].posterior(X[place], observation_noise=noise)
            close((posterior.mean[place], covariance[place]), (alone.mean, alone.distribution.covariance_matrix))


@every
def test_draws_have_the_moments(name, models):
    posterior = models[name].posterior(points(2), observation_noise=True)
    draws = get_sampler(posterior, Size([2**15]), seed=0)(posterior).squeeze(-1).detach()
    covariance = posterior.distribution.covariance_matrix.detach()
    scale = float(covariance.diagonal().mean())
    # 2^15 draws: standard errors of 0.6 % in means and 0.8 % in variances of normal draws, less by Sobol's
    torch.testing.assert_close(draws.mean(0), posterior.mean.squeeze(-1), rtol=0, atol=0.02 * scale**0.5)
    torch.testing.assert_close(draws.mT.cov(), covariance, rtol=0, atol=0.04 * scale)


@every
@pytest.mark.processor
def test_gradients_are_those_of_differences(name, models):
    X = points(1, 2).requires_grad_()

    def moments(x):
        posterior = models[name].posterior(x, observation_noise=True)
        return posterior.mean, posterior.variance

    assert torch.autograd.gradcheck(moments, (X,))


@pytest.mark.parametrize("name", [*CASES, "knots of an RBF kernel"])
@pytest.mark.processor
def test_hessians_are_differences_of_gradients(name, models):
    """At observed rows and at knots, where optima like to be; functions of exact processes bend sharply there."""
    (X, Y), step = rows(), 1e-5
    smooth = {"knots": X[:6], "kernel": ScaleKernel(RBFKernel().double().initialize(lengthscale=0.4)).double()}
    model = models[name] if name in CASES else SparseGP(X, Y, **smooth)

    def moments(place):
        posterior = model.posterior(place.reshape(1, 2))
        return torch.stack([posterior.mean.reshape(()), posterior.variance.reshape(())])

    axes = step * torch.eye(2, dtype=DTYPE)
    for place in (X[0], X[-1]):  # of the experts' half and of the half that a fusion learns for itself
        found = torch.stack([hessian(lambda x, k=k: moments(x)[k], place) for k in range(2)])
        after, before = (torch.stack([jacobian(moments, place + s * axis) for axis in axes], -1) for s in (1, -1))
        expected = (after - before) / (2 * step)
        scale = float(expected.abs().max())
        assert scale > 1e-4
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * scale)


def test_given_noise_is_added(models):
    for name in CASES:
        X = points(2, 2)
        plain = models[name].posterior(X)
        given = models[name].posterior(X, observation_noise=torch.full((2, 1), 0.3, dtype=DTYPE))
        close((given.mean, given.variance), (plain.mean, plain.variance + 0.3))


# Further rows


@with_components
def test_rows_for_good_are_a_model_of_all_rows(name, models):
    ours, (X, Y) = models[name], rows()
    new_X, new_Y = rows(3, seed=8)
    after = ours.condition_on_observations(new_X, new_Y)
    assert (len(ours.data.Y), len(after.data.Y)) == (NUM_ROWS, NUM_ROWS + 3)
    if name == "kernel mixture":
        evidence = [
            stats.multivariate_normal(m.numpy(), c.numpy()).logpdf(new_Y.squeeze(-1).numpy())
            for m, c in zip(*joint_of(ours, new_X, True), strict=True)
        ]
        log_weights = (ours.log_weights + torch.tensor(evidence)).log_softmax(-1)
        whole = kernel_mixture(ours, torch.cat([X, new_X]), torch.cat([Y, new_Y]), log_weights)
    else:
        whole = CASES[name].make(torch.cat([X, new_X]), torch.cat([Y, new_Y]))
    same(after, whole, points(4, 2))
    one_by_one = ours
    for x, y in zip(new_X.split(1), new_Y.split(1), strict=True):
        one_by_one = one_by_one.condition_on_observations(x, y)
    same(one_by_one, after, points(4, 2), 1e-6)


def kernel_mixture(model, X, Y, log_weights, Yvar=None):
    """A model's kernels and prior mean about other rows: of its own, the prior mean would be their average."""
    problem = RegressionProblem(X, Y.squeeze(-1), mean=float(model.mean))
    return KernelMixtureModel(problem, model.hyperparameters, log_weights, known_noise=Yvar)


def joint_of(model, X, noise):
    """Means (M, n) and covariances (M, n, n) of the components."""
    mixture = as_mixture(model.posterior(X, observation_noise=noise))
    return mixture.component_mean.squeeze(-1).detach(), mixture.component_covariance.squeeze(-3).detach()


@with_components
def test_fantasies_are_conditioned_normal_distributions(name, models):
    """Every component at the rows and the points together, conditioned in numpy; weights by scipy's densities."""
    ours, num = models[name], 2
    X, new_Y = points(3, num, seed=7), torch.randn(4, 3, num, 1, generator=generator(8), dtype=DTYPE)
    fantasies = ours.condition_on_observations(X, new_Y)
    assert fantasies.batch_shape == Size([4, 3])
    at = points(3, 2, seed=9)
    posterior = as_mixture(fantasies.posterior(at, observation_noise=True))
    weights = as_mixture(ours.posterior(at[0])).log_weights.exp().detach().numpy()
    for s, t in np.ndindex(4, 3):
        both = torch.cat([X[t], at[t]])
        (mean, covariance), (_, noisy) = joint_of(ours, both, False), joint_of(ours, both, True)
        densities = []
        for m in range(len(mean)):
            own = (noisy[m] - covariance[m]).diagonal()
            C, mu = covariance[m].numpy(), mean[m].numpy()
            seen = C[:num, :num] + np.diag(own[:num].numpy())
            y = new_Y[s, t].squeeze(-1).numpy()
            gain = np.linalg.solve(seen, C[:num, num:]).T
            wanted = mu[num:] + gain @ (y - mu[:num])
            spread = C[num:, num:] - gain @ C[:num, num:] + np.diag(own[num:].numpy())
            assert_allclose(posterior.component_mean[s, t, m].squeeze(-1).detach(), wanted, atol=1e-7)
            shown = posterior.component_covariance.expand(4, 3, *posterior.component_covariance.shape[-4:])
            assert_allclose(shown[s, t, m, 0].detach(), spread, atol=1e-7)
            densities.append(stats.multivariate_normal(mu[:num], seen).pdf(y))
        expected = weights * densities / (weights @ densities)
        assert_allclose(posterior.log_weights.exp().expand(4, 3, -1)[s, t].detach(), expected, atol=1e-7)


@every
def test_a_batch_of_rows_is_each_alone(name, models):
    ours = models[name]
    X, Y = points(3, 2, seed=7), torch.randn(4, 3, 2, 1, generator=generator(8), dtype=DTYPE)
    fantasies = ours.condition_on_observations(X, Y)
    posterior = fantasies.posterior(points(2, seed=9))
    assert posterior.mean.shape == (4, 3, 2, 1)
    for s, t in ((0, 0), (3, 1)):
        alone = ours.condition_on_observations(X[t].unsqueeze(0), Y[s, t].unsqueeze(0)).posterior(points(2, seed=9))
        close((posterior.mean[s, t], posterior.variance[s, t]), (alone.mean[0], alone.variance[0]))
        if not CASES[name].more_knots:
            for_good = ours.condition_on_observations(X[t], Y[s, t]).posterior(points(2, seed=9))
            close((posterior.mean[s, t], posterior.variance[s, t]), (for_good.mean, for_good.variance), 1e-6)


@every
def test_fantasies_in_parts(name, models):
    ours = models[name]
    X, Y = points(4, 3, seed=7), torch.randn(4, 3, 1, generator=generator(8), dtype=DTYPE)
    X[:, 0] = X[0, 0]  # of one place first, then where each likes: as looking ahead in steps does
    first = ours.condition_on_observations(X[0, :1], Y[:, :1])
    second = first.condition_on_observations(X[:, 1:].expand(2, 4, 2, NUM_INPUTS), Y[:, 1:].expand(2, 4, 2, 1))
    assert second.batch_shape == Size([2, 4])
    together = ours.condition_on_observations(X, Y).posterior(points(2, seed=9))
    close(second.posterior(points(2, seed=9)).mean[1], together.mean)
    close(second.posterior(points(2, seed=9)).variance[1], together.variance)
    empty = first.condition_on_observations(X[:, :0].expand(2, 4, 0, NUM_INPUTS), Y[:, :0].expand(2, 4, 0, 1))
    assert empty.posterior(X).mean.shape == (2, 4, 3, 1)
    close(empty.posterior(X).mean[1], first.posterior(X).mean)


@every
def test_fantasies(name, models):
    ours, X = models[name], points(3, 2, seed=7)
    sampler = SobolQMCNormalSampler(Size([4]), seed=0)
    fantasies = ours.fantasize(X, sampler)
    assert fantasies.batch_shape == Size([4, 3])
    drawn = sampler(ours.posterior(X, observation_noise=True))
    by_hand = ours.condition_on_observations(X, drawn)
    at = points(2, seed=9)
    close(fantasies.posterior(at).mean, by_hand.posterior(at).mean)
    before = ours.posterior(X[0]).variance
    after = ours.fantasize(X[0], IIDNormalSampler(Size([64]), seed=0)).posterior(X[0]).variance
    assert bool((after.mean(0) < before).all()), "an observation teaches"
    assert ours.fantasize(X[:, :0], sampler).posterior(at).mean.shape == (4, 3, 2, 1)
    with pytest.raises(UnsupportedError, match="weight"):
        ours.fantasize(X, sampler, weight=1.0)


@every
def test_knowledge_gradient_is_that_of_models_conditioned_alone(name, models):
    ours, sampler = models[name], SobolQMCNormalSampler(Size([3]), seed=0)
    acquisition = qKnowledgeGradient(ours, num_fantasies=3, sampler=sampler)
    X = points(2, 1 + 3, seed=7).requires_grad_()
    values = acquisition(X)
    targets = sampler(ours.posterior(X[:, :1], observation_noise=True))
    for b in range(2):
        means = [
            ours.condition_on_observations(X[b : b + 1, :1], targets[s, b].unsqueeze(0)).posterior(X[b, 1 + s : 2 + s])
            for s in range(3)
        ]
        close(values[b], torch.stack([posterior.mean for posterior in means]).mean())
    (slope,) = torch.autograd.grad(values.sum(), X)
    assert bool(slope.isfinite().all())
    assert bool((slope != 0).any())


# Transforms, noise, outputs


@every
def test_transforms_are_undone(name):
    X, Y = rows()
    wide, shifted = 10 * X - 3, 50 * Y + 7
    inputs, outcomes = Normalize(NUM_INPUTS), Standardize(1)
    ours = CASES[name].make(wide, shifted, transforms=Transforms(inputs, outcomes))
    unit, standard = inputs(wide), outcomes(shifted)[0]
    plain = CASES[name].make(unit, standard)
    scale, level = shifted.std(), shifted.mean()
    at, new_X, new_Y = points(3, 2), points(2, seed=7), torch.randn(2, 1, generator=generator(8), dtype=DTYPE)
    here = inputs.untransform

    def compare(a, b):
        for noise in (False, True):
            p = a.posterior(here(at), observation_noise=noise)
            q = b.posterior(at, observation_noise=noise)
            close((p.mean, p.variance), (q.mean * scale + level, q.variance * scale**2))

    compare(ours, plain)
    back = new_Y * scale + level
    compare(ours.condition_on_observations(here(new_X), back), plain.condition_on_observations(new_X, new_Y))
    sampler = IIDNormalSampler(Size([3]), seed=0)
    compare(ours.fantasize(here(new_X), sampler), plain.fantasize(new_X, sampler))
    compare(
        ours.condition_on_observations(here(new_X).expand(3, 2, 2), back.expand(3, 2, 1)),
        plain.condition_on_observations(new_X.expand(3, 2, 2), new_Y.expand(3, 2, 1)),
    )
    num = len(ours.data.X)  # the rows that a fusion learned from are not its experts'
    close((ours.train_inputs[0], ours.train_targets), (unit[-num:], standard.squeeze(-1)[-num:]))
    ours.train()  # a loop that forgets to go back must not teach the transforms
    close(ours.train_inputs[0], wide[-num:])
    compare(ours, plain)


def test_nonlinear_outcomes():
    for number, name in enumerate(CASES):
        X, Y = rows()
        chain = ChainedOutcomeTransform(log=Log(), standardize=Standardize(1))
        ours = CASES[name].make(X, Y.exp() + 0.1, transforms=Transforms(None, (chain, Log())[number % 2]))
        posterior = ours.posterior(points(4, 1))
        assert isinstance(posterior, TransformedPosterior)
        draws = get_sampler(posterior, Size([2**13]), seed=0)(posterior)
        assert bool((draws > 0).all())
        torch.testing.assert_close(draws.mean(0), posterior.mean, rtol=0.03, atol=0)
        torch.testing.assert_close(draws.var(0), posterior.variance, rtol=0.2, atol=0)


def test_transforms_with_something_to_learn_are_refused_or_fixed():
    for name in CASES:
        warp = Warp(d=NUM_INPUTS, indices=[0, 1])
        if name in {"exact", "knots", "ensemble"}:
            with pytest.raises(UnsupportedError, match="Warp has trainable parameters"):
                make(name, transforms=Transforms(warp))
        fixed = make(name, transforms=Transforms(warp.requires_grad_(False)))
        assert fixed.posterior(points(2, 1)).mean.shape == (2, 1, 1)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.known_noise])
def test_known_noise(name):
    """As the same model of inferred noise where all variances are the same; a noisy row hardly counts."""
    X, Y = rows()
    Yvar = torch.full_like(Y, 0.05)
    Yvar[3] = 1e6
    ours = CASES[name].make(X, Y, Yvar)
    keep = torch.arange(NUM_ROWS) != 3
    less = CASES[name].make(X[keep], Y[keep], Yvar[keep])
    if name == "kernel mixture":  # the average of the targets is another one
        less = kernel_mixture(ours, X[keep], Y[keep], ours.log_weights, Yvar[keep])
    at = points(4, 1)
    if name not in {"knots", "ensemble", "exact ensemble"}:  # other knots' rows; other weights
        close(ours.posterior(at).mean, less.posterior(at).mean, 1e-4)
        close(ours.posterior(at).variance, less.posterior(at).variance, 1e-4)
    noisy = ours.posterior(at, observation_noise=True).variance
    close(noisy, ours.posterior(at).variance + Yvar.mean())
    new_X, new_Y = rows(2, seed=8)
    noise = torch.tensor([[0.02], [0.3]], dtype=DTYPE)
    with pytest.raises(InputDataError, match="noise="):
        ours.condition_on_observations(new_X, new_Y)
    after = ours.condition_on_observations(new_X, new_Y, noise=noise)
    close(after.data.noise[-2:], noise)
    batch = ours.condition_on_observations(new_X.expand(3, 2, 2), new_Y.expand(3, 2, 1), noise=noise)
    if not CASES[name].more_knots:
        close(batch.posterior(at.unsqueeze(1)).mean, after.posterior(at.unsqueeze(1)).mean.expand(4, 3, 1, 1), 1e-6)
        expected = after.posterior(at.unsqueeze(1)).variance.expand(4, 3, 1, 1)
        close(batch.posterior(at.unsqueeze(1)).variance, expected, 1e-6)
    assert ours.fantasize(new_X, IIDNormalSampler(Size([2]), seed=0)).posterior(new_X).mean.shape == (2, 2, 1)


def test_known_noise_of_further_rows_alone(models):
    """Of data it is refused, for it would be lost; a batch of fantasies has it."""
    for name in CASES:
        ours, (X, Y) = models[name], rows(2, seed=8)
        noise = torch.full((2, 1), 100.0, dtype=DTYPE)
        with pytest.raises(InputDataError, match="omit noise="):
            ours.condition_on_observations(X, Y, noise=noise)
        noisy = ours.condition_on_observations(X.unsqueeze(0), Y.unsqueeze(0), noise=noise)
        plain = ours.condition_on_observations(X.unsqueeze(0), Y.unsqueeze(0))
        assert not torch.allclose(noisy.posterior(X).mean, plain.posterior(X).mean, atol=1e-3)


@pytest.mark.parametrize("kind", [EnsembleModel, ExactEnsembleModel])
def test_transforms_that_give_no_numbers_are_named(kind):
    X, Y = rows()
    with pytest.raises(InputDataError, match=r"Log\(\) of Y is nan in row"):
        kind(X, Y, outcome_transform=Log())
    model = kind(X, Y.exp(), outcome_transform=Log())
    with pytest.raises(InputDataError, match=r"Log\(\) of Y is nan in row 1"):
        model.condition_on_observations(X[:2], torch.tensor([[1.0], [-1.0]], dtype=DTYPE))
    with pytest.raises(InputDataError, match=r"double\(\)"):
        kind((10 * X).long(), (10 * Y).long())


def test_outputs(models):
    for name in CASES:
        ours, X = models[name], points(2, 1)
        assert (ours.num_outputs, ours.batch_shape) == (1, Size())
        same(ours.subset_output([0]), ours, X)
        close(ours.posterior(X, output_indices=[0]).mean, ours.posterior(X).mean)
        with pytest.raises(BotorchTensorDimensionError, match="1 output"):
            ours.subset_output([1])
        with pytest.raises(BotorchTensorDimensionError, match="1 output"):
            ours.posterior(X, output_indices=[1])


def test_what_is_refused(models):
    for name in CASES:
        ours, (X, Y) = models[name], rows(2, seed=7)
        for bad in (X[:, :1], X[0]):
            with pytest.raises(BotorchTensorDimensionError, match="must have shape"):
                ours.posterior(bad)
        for error, words, given, settings in (
            (InputDataError, "Y is inf in row 0", Y.abs() * torch.inf, {}),
            (BotorchTensorDimensionError, "one row per row", Y[:1], {}),
            (BotorchTensorDimensionError, "1 output", Y.expand(2, 2), {}),
            (UnsupportedError, "unknown options", Y, {"weight": 2.0}),
        ):
            with pytest.raises(error, match=words):
                ours.condition_on_observations(X, given, **settings)
        for error, bad in (
            (InputDataError, (X * torch.inf, Y)),
            (InputDataError, (X.float(), Y.float())),
            (BotorchTensorDimensionError, (X[:, :1], Y)),
        ):
            with pytest.raises(error):
                ours.condition_on_observations(*bad)


# In BoTorch's hands


PAIRS = ("Constrained", "Feasib", "Hypervolume", "MultiObjective", "MOMF", "NPar", "MultiOutputPosteriorMean")


def takes_pairs(acquisition):
    """Whether it is for several outputs, which are a list of models here."""
    return any(word in acquisition for word in PAIRS)


# Thompson's paths and members are those of exact ensembles.
TAKEN = [
    name
    for name, case in ACQUISITIONS.items()
    if case.fixed and case.given not in (NONE, MEMBERS) and name != "PathwiseThompsonSampling"
    if (case.given == MODEL and "LowerBoundMultiObjective" not in name and "qMultiObjective" not in name)
    or not takes_pairs(name)
]


@every
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.NumericsWarning")  # there are better ones
@pytest.mark.filterwarnings("ignore::linear_operator.utils.warnings.NumericalWarning")  # baselines that are known
def test_every_acquisition_function_as_the_table_says(name, models):
    """Made from the model, each has finite values of two batches."""
    ours, both, classes = models[name], ModelList(models[name], models[name]), exported()
    for acquisition in TAKEN:
        case = ACQUISITIONS[acquisition]
        setting = Setting(ours, both, both, ours, rows()[0], num_samples=8, listed=takes_pairs(acquisition))
        torch.manual_seed(0)
        X = torch.rand(2, case.sizes[0], case.num_inputs, generator=generator(3), dtype=DTYPE)
        made = case.make(classes[acquisition], setting)
        values = torch.cat([made(x.unsqueeze(0)) for x in X]) if case.alone else made(X)
        assert values.shape[0] == 2
        assert bool(values.isfinite().all()), acquisition


def test_paths_are_those_of_exact_ensembles(models):
    for name in CASES:
        if CASES[name].kind is ExactEnsembleModel:
            assert draw_matheron_paths(models[name], Size([2]))(points(3)).shape == (2, 3)
            for batch in (Size([]), Size([2])):
                fantasies = models[name].fantasize(points(3), SobolQMCNormalSampler(batch, seed=0))
                with pytest.raises(UnsupportedError, match="do not support fantasies"):
                    draw_matheron_paths(fantasies, Size([2]))
            continue
        with pytest.raises(UnsupportedError, match="has no sample paths"):
            draw_matheron_paths(models[name], Size([2]))


@every
def test_both_lists_of_models_join_them(name):
    transforms = Transforms(None, Standardize(1) if list(CASES).index(name) % 2 else None)
    ours = [make(name, transforms=transforms), CASES[name].make(*rows(seed=3))]
    ours.append(CASES["exact"].make(*rows(seed=4)))
    X = points(2, 2)
    listed, joined = ModelListGP(*ours), ModelList(*ours)
    close(listed.posterior(X).mean, joined.posterior(X).mean)
    close(listed.posterior(X, observation_noise=True).variance, joined.posterior(X, observation_noise=True).variance)
    assert SobolQMCNormalSampler(Size([4]), seed=0)(listed.posterior(X)).shape == (4, 2, 2, 3)
    sampler = ListSampler(*(IIDNormalSampler(Size([3]), seed=seed) for seed in range(3)))
    fantasies = joined.fantasize(X[0], sampler)
    assert fantasies.posterior(X[0]).mean.shape == (3, 2, 3)
    again = listed.fantasize(X[0], sampler)
    close(again.posterior(X[0]).mean, fantasies.posterior(X[0]).mean)
    new_X, new_Y = points(2, seed=7), torch.randn(2, 3, generator=generator(8), dtype=DTYPE)
    after = listed.condition_on_observations([new_X] * 3, new_Y)
    alone = [model.condition_on_observations(new_X, new_Y[:, [i]]) for i, model in enumerate(ours)]
    close(after.posterior(X).mean, ModelList(*alone).posterior(X).mean)
    draws = get_sampler(joined.posterior(X), Size([4]), seed=0)(joined.posterior(X))
    assert draws.shape == (4, 2, 2, 3)


def test_the_table_has_every_model():
    def leaves(kind):
        return {part for sub in kind.__subclasses__() for part in (leaves(sub) or {sub})}

    kinds = {case.kind.__name__ for case in CASES.values()}
    ours = {kind.__name__ for kind in leaves(MixtureModel) if kind.__module__.startswith("gp_ensembles.")}
    assert ours <= kinds
    assert all(isinstance(make(name).likelihood, GaussianLikelihood) for name in CASES)
