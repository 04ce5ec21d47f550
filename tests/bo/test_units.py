"""Inputs in any units: means and variances are the same, gradients those of the units, and the scale is that of the
first rows. The oracle is the same model of the inputs of the unit square, or one with BoTorch's own transform."""

import copy

import pytest
import torch
from botorch.models.transforms import Normalize
from botorch.sampling import IIDNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from torch import Size

import gp_ensembles as gpe
from gp_ensembles.bo import EnsembleModel, ExactEnsembleModel
from gp_ensembles.papers.quadrature import Budget, RegressionProblem
from tests.bo.contract_cases import close, generator, random_features

DTYPE = torch.float64
UNITS = {
    "a million": (torch.tensor([1e6, 1e6], dtype=DTYPE), 0.0),
    "a millionth": (torch.tensor([1e-6, 1e-6], dtype=DTYPE), 0.0),
    "inches from far away": (torch.tensor([25.4, 1e3], dtype=DTYPE), torch.tensor([1e4, -7.0], dtype=DTYPE)),
}
units = pytest.mark.parametrize(("size", "shift"), UNITS.values(), ids=list(UNITS))


def rows(number=14, seed=0):
    """Rows whose columns have the ends 0 and 1, and a function of them."""
    source = generator(seed)
    X = torch.rand(number, 2, generator=source, dtype=DTYPE)
    X = (X - X.amin(0)) / (X.amax(0) - X.amin(0))
    noise = 0.1 * torch.randn(number, 1, generator=source, dtype=DTYPE)
    return X, (5 * X[:, :1]).sin() + X[:, 1:].square() + noise


MODELS = {
    "exact": lambda X, Y: ExactEnsembleModel(X, Y).fit(),
    "categories": lambda X, Y: ExactEnsembleModel(torch.cat([X, 3.0 * (Y > 1)], 1), Y, cat_dims=[2]).fit(),
    "online": lambda X, Y: EnsembleModel(X, Y, generator=generator()),
    "preset": lambda X, Y: EnsembleModel(X, Y, ensemble=gpe.ie_gp, generator=generator()),
    "knots": lambda X, Y: gpe.select_knots(X, Y.squeeze(-1), generator=generator()).model,
}


def moments(model, X):
    """Mean and variance at points, and the mean's gradients."""
    X = X.clone().requires_grad_()
    rest = X.new_full((len(X), model.train_inputs[0].shape[-1] - 2), 3.0)
    posterior = model.posterior(torch.cat([X, rest], -1).unsqueeze(-2))
    (gradient,) = torch.autograd.grad(posterior.mean.sum(), X)
    return posterior.mean.detach(), posterior.variance.detach(), gradient


@units
@pytest.mark.parametrize("name", MODELS)
def test_units_change_nothing_but_gradients(name, size, shift):
    (X, Y), (at, _) = rows(), rows(5, seed=3)
    plain = moments(MODELS[name](X, Y), at)
    mean, variance, gradient = moments(MODELS[name](X * size + shift, Y), at * size + shift)
    close((mean, variance, gradient * size), plain, 1e-5)  # the ends of searches differ by round-off


@units
def test_kernel_mixtures_have_no_units(size, shift):
    (X, Y), (at, _) = rows(), rows(5, seed=3)
    found = []
    for scale, zero in ((1.0, 0.0), (size, shift)):
        problem = RegressionProblem(X * scale + zero, Y.squeeze(-1))
        with pytest.warns(UserWarning, match="no evidence is reliable"):
            result = gpe.marginalize(problem, Budget(evaluations=20, draws=100), generator=generator())
        found.append(result.predict(at * scale + zero))
    close((found[0].mean, found[0].variance), (found[1].mean, found[1].variance), 1e-4)


def make(kind, X, Y, **options):
    return kind(X, Y, **options, **({} if kind is ExactEnsembleModel else {"generator": generator()}))


@pytest.mark.parametrize("kind", [ExactEnsembleModel, EnsembleModel])
def test_the_scale_is_that_of_the_first_rows(kind):
    """As with BoTorch's transform of their bounds, through everything that has further rows."""
    size, (X, Y), (more_X, more_Y) = 1e4, rows(), rows(3, seed=5)
    X, more_X, at = size * X, 3.0 * size * more_X, size * rows(4, seed=8)[0]
    theirs = Normalize(2, bounds=torch.stack([X.amin(0), X.amax(0)]))
    pairs = [tuple(make(kind, X, Y, input_transform=scale) for scale in (None, theirs))]
    pairs.append(tuple(model.condition_on_observations(more_X, more_Y) for model in pairs[0]))
    pairs.append(tuple(model.condition_on_observations(more_X[None], more_Y[None]) for model in pairs[0]))
    for pair in pairs[:2]:
        pairs.append(tuple(model.fantasize(more_X, IIDNormalSampler(Size([2]), seed=0)) for model in pair))
    for one, other in pairs:
        for noise in (False, True):
            p, q = (model.posterior(at, observation_noise=noise) for model in (one, other))
            close((p.mean, p.variance), (q.mean, q.variance))
    assert torch.equal(pairs[0][0].train_inputs[0], X)


@pytest.mark.parametrize("kind", [ExactEnsembleModel, EnsembleModel])
def test_the_scale_travels_with_the_state(kind):
    """Also from a model of other rows."""
    (X, Y), at = rows(), 50.0 * rows(4, seed=8)[0]
    ours, again, other = (make(kind, size * X, Y) for size in (50.0, 50.0, 200.0))
    for model in (again, other):
        model.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert torch.equal(other.inputs_at(at), ours.inputs_at(at))
    close(again.posterior(at).mean, ours.posterior(at).mean)


def test_what_is_taken_as_it_is():
    """The unit interval, constants in it, categories, and all inputs of ensembles that have hyperparameters."""
    _, Y = rows()
    column = torch.linspace(0, 1, len(Y), dtype=DTYPE)
    X = torch.stack([0.3 + 0.2 * column, 0.05 * column, 2.0 * column, 0.0 * column + 0.5, 0.0 * column + 8.0], -1)
    seen = ExactEnsembleModel(X, Y).inputs_at(X)
    zero = torch.zeros_like(column)
    close(seen, torch.stack([X[:, 0], column, column, X[:, 3], zero], -1))
    assert torch.equal(seen[:, 0], X[:, 0])
    assert torch.equal(ExactEnsembleModel(X, Y, cat_dims=[1, -3]).inputs_at(X)[:, 1:3], X[:, 1:3])
    ensemble = random_features(X, (0.1,), (0.5,))
    assert torch.equal(EnsembleModel(X, Y, ensemble=ensemble).inputs_at(X), X)


def test_every_data_set_of_a_batch_has_its_own_scale():
    X, Y = map(torch.stack, zip(*(rows(seed=seed) for seed in (1, 2)), strict=True))
    sizes = torch.tensor([1e3, 1e-3], dtype=DTYPE)[:, None, None]
    both, at = ExactEnsembleModel(X * sizes, Y), rows(4, seed=8)[0]
    found = both.posterior(at * sizes)
    for number in range(2):
        alone = ExactEnsembleModel(X[number], Y[number]).posterior(at)
        close((found.mean[number], found.variance[number]), (alone.mean, alone.variance))


def test_draws_are_functions_of_inputs_as_they_are_given():
    X, Y = rows()
    model = ExactEnsembleModel(1e6 * X, Y)
    path = draw_matheron_paths(model, Size([400]))
    posterior = model.posterior(1e6 * X[:, None])
    steps = (path(1e6 * X).mean(0) - posterior.mean.ravel()) / posterior.variance.sqrt().ravel()
    assert float(steps.abs().max()) < 5 / 400**0.5


@pytest.mark.parametrize("kernels", [(2.5,), (2.5, 1.5)])
def test_units_of_targets_scale_mean_and_deviation(kernels):
    # Far below GPyTorch's least variance.
    (X, Y), (at, _) = rows(), rows(5, seed=3)
    plain, small = (ExactEnsembleModel(X, size * Y, kernels=kernels).fit().posterior(at) for size in (1.0, 1e-6))
    close((1e6 * small.mean, 1e12 * small.variance), (plain.mean, plain.variance), 1e-5)
