"""Likelihoods other than the dense one, against it: values, gradients, predictions, and inputs that contradict them."""

import math
import pickle
import re

import numpy as np
import pytest
import torch

from gp_ensembles.numerics import NumericalError
from gp_ensembles.papers.quadrature import Budget, RegressionProblem, Search, marginalize
from gp_ensembles.papers.quadrature.likelihoods import DenseLikelihood
from gp_ensembles.papers.quadrature.low_rank import SparseLikelihood
from gp_ensembles.papers.quadrature.marginalization import fingerprint
from gp_ensembles.papers.quadrature.prior import KernelHyperparameters
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures
from gp_ensembles.papers.quadrature.toeplitz import ToeplitzLikelihood, grid_of
from tests.papers.quadrature.cases import one_input_and_two, random_mixtures, seeded, single_precision, uniform

STEP = 0.07
GRIDS = {
    "whole": list(range(30)),
    "gaps": [0, 1, 2, 3, 7, 8, 9, 10, 11, 15, 16, 17, 20, 21],
    "shuffled": np.random.default_rng(0).permutation(20)[:15].tolist() + [20, 21],
    "two rows": [0, 1],
}


def grid(places):
    return STEP * torch.tensor(places, dtype=torch.float64).unsqueeze(-1) + 3.0


def rows(count, num_inputs, seed=0):
    return uniform(count, num_inputs, seed=seed)


def targets(X, seed=1):
    return torch.sin(5.0 * X.sum(-1)) + 0.3 * torch.tensor(np.random.default_rng(seed).normal(size=len(X)))


def kernels(num_inputs, count=6, size=3, noise=0.05):
    """Mixtures of one to three components, scales of their output and noise."""
    rng, mixtures = np.random.default_rng(2), random_mixtures(2, num_inputs, (count,), size, signed=True)
    mixtures = mixtures._replace(scales=0.6 * mixtures.scales)
    return mixtures, torch.tensor(rng.lognormal(size=count)), torch.tensor(noise * rng.lognormal(0.0, 0.3, count))


def value_and_gradients(likelihoods, mixtures, outputscale, noise):
    leaves = [part.clone().requires_grad_() for part in (*tuple(mixtures), outputscale, noise)]
    value = likelihoods(SpectralMixtures(*leaves[:3]), *leaves[3:])
    gradients = torch.autograd.grad(value.sum(), leaves)
    present = mixtures.weights != 0
    return value.detach(), (gradients[0].where(present, 0.0), *gradients[1:])


def assert_same(likelihood, X, y, kernel, tolerance=1e-9):
    dense, other = (way(X, y) for way in (DenseLikelihood, likelihood))
    expected, found = value_and_gradients(dense, *kernel), value_and_gradients(other, *kernel)
    torch.testing.assert_close(found[0], expected[0], rtol=tolerance, atol=tolerance)
    for a, b in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


def assert_same_predictions(likelihood, X, y, kernel, tolerance=1e-9):
    dense, other = (way(X, y) for way in (DenseLikelihood, likelihood))
    hyperparameters = KernelHyperparameters(*kernel)
    expected, found = dense.condition(hyperparameters), other.condition(hyperparameters)
    places = X[:1] + 0.4 * rows(12, X.shape[-1], 5)
    for shape in ((12,), (3, 4), (2, 3, 2)):
        points = places.reshape(*shape, X.shape[-1])
        for a, b in zip(found.predict(points), expected.predict(points), strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    for a, b in zip(found.marginals(places), expected.marginals(places), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.processor
@pytest.mark.parametrize("places", GRIDS.values(), ids=GRIDS)
def test_toeplitz_is_dense_to_rounding(places):
    X = grid(places)
    assert_same(ToeplitzLikelihood, X, targets(X), kernels(1))
    assert_same_predictions(ToeplitzLikelihood, X, targets(X), kernels(1))


def test_toeplitz_chunks_change_nothing(monkeypatch):
    X = grid(GRIDS["gaps"])
    likelihoods = ToeplitzLikelihood(X, targets(X))
    whole = likelihoods(*kernels(1))
    monkeypatch.setattr("gp_ensembles.papers.quadrature.toeplitz.RECURSION_BYTES", 1)
    monkeypatch.setattr("gp_ensembles.papers.quadrature.toeplitz.COLUMNS", 3)
    torch.testing.assert_close(likelihoods(*kernels(1)), whole, rtol=1e-12, atol=1e-12)
    assert_same(ToeplitzLikelihood, X, targets(X), kernels(1))
    assert_same_predictions(ToeplitzLikelihood, X, targets(X), kernels(1))


@pytest.mark.parametrize("places", [GRIDS["whole"], GRIDS["gaps"]], ids=["whole", "gaps"])
def test_a_kernel_that_is_not_positive_definite_gives_nan_and_harms_no_other(places):
    X = grid(places)
    mixtures, outputscale, noise = kernels(1)
    noise[2] = -2.0 * outputscale[2]
    likelihoods = ToeplitzLikelihood(X, targets(X))
    good = likelihoods(*kernels(1))
    value, gradients = value_and_gradients(likelihoods, mixtures, outputscale, noise)
    assert value.isnan().tolist() == [False, False, True, False, False, False]
    keep = ~value.isnan()
    torch.testing.assert_close(value[keep], good[keep], rtol=1e-12, atol=1e-12)
    assert all(bool(part.isfinite().all()) for part in gradients)
    with pytest.raises(NumericalError, match="under kernel 2"):
        likelihoods.condition(KernelHyperparameters(mixtures, outputscale, noise))


OFF_GRID = {
    "uneven": (torch.tensor([[0.0], [0.5], [1.2], [2.0]]), "the smallest spacing is 0.5, but rows 1 and 2 are 0.7"),
    "drifting": (grid(range(20)) * (1.0 + 1e-4 * grid(range(20))), "rows on an equally spaced grid"),
    "two at one place": (torch.tensor([[0.0], [2.0], [1.0], [2.0]]), "rows 1 and 3 are both at 2"),
    "mostly empty": (grid([0, 1, 2, 40]), "at most half empty: with the smallest spacing of 0.07 there are 41"),
    "two inputs": (rows(5, 2), "one input on an equally spaced grid, but there are 2"),
}


def test_rows_that_are_no_grid_are_refused_with_the_spacing_found():
    for X, message in OFF_GRID.values():
        with pytest.raises(ValueError, match=re.escape(message)):
            RegressionProblem(X, torch.arange(len(X), dtype=X.dtype), likelihood=ToeplitzLikelihood)


def test_rounded_dates_are_a_grid():
    months = (1949.0 + torch.arange(48, dtype=torch.float64) / 12.0).mul(1e6).round().div(1e6).unsqueeze(-1)
    found = grid_of(months)
    assert found.size == 48
    assert not len(found.empty)
    assert float(found.step) == pytest.approx(1 / 12, rel=1e-6)


def test_single_precision_stays_single():
    X = grid(GRIDS["gaps"])
    exact = DenseLikelihood(X, targets(X))(*kernels(1))
    mixtures, outputscale, noise = kernels(1)
    single = single_precision(mixtures)
    for likelihood in (DenseLikelihood, ToeplitzLikelihood, SparseLikelihood(X.float(), 1e-4)):
        bound = likelihood(X.float(), targets(X).float())
        value = bound(single, outputscale.float(), noise.float())
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), exact, rtol=1e-2, atol=0.3)


@one_input_and_two
def test_knots_at_all_rows_are_dense(num_inputs):
    X = rows(25, num_inputs)
    # a nugget of 1e-10 moves log densities by 1e-10 times rows over noise, some 1e-7
    assert_same(SparseLikelihood(X, 1e-10), X, targets(X), kernels(num_inputs), 1e-5)
    assert_same_predictions(SparseLikelihood(X, 1e-10), X, targets(X), kernels(num_inputs), 1e-5)


def test_the_bound_is_titsias_formula():
    X, y = rows(12, 1), targets(rows(12, 1))
    mixtures, scale, noise = kernels(1, 1)
    likelihoods = DenseLikelihood(X, y)
    K = (scale[:, None, None] * likelihoods.covariance(mixtures))[0].numpy()
    chosen, nugget = [0, 4, 7], 1e-6
    Kuu = K[np.ix_(chosen, chosen)] + nugget * float(scale) * np.eye(3)
    Q = K[:, chosen] @ np.linalg.solve(Kuu, K[chosen])
    covariance = Q + float(noise) * np.eye(12)
    expected = -0.5 * (y.numpy() @ np.linalg.solve(covariance, y.numpy()) + np.linalg.slogdet(covariance)[1])
    expected -= 6 * math.log(2 * math.pi) + np.trace(K - Q) / (2 * float(noise))
    value = SparseLikelihood(X[chosen], nugget)(X, y)(mixtures, scale, noise)
    assert float(value) == pytest.approx(expected, rel=1e-9)


WAYS = {"toeplitz": ToeplitzLikelihood, "knots": SparseLikelihood(grid(range(0, 24, 3)))}


ON_GRID = {name: (way, grid(range(24))) for name, way in WAYS.items()}
PLANES = {"knots, plane": SparseLikelihood(rows(8, 2))}
SETTINGS = ON_GRID | {name: (way, rows(30, 2, 4)) for name, way in PLANES.items()}


@pytest.mark.parametrize(("likelihood", "X"), SETTINGS.values(), ids=SETTINGS)
def test_every_likelihood_marginalizes_and_predicts(likelihood, X):
    problem = RegressionProblem(X, targets(X), likelihood=likelihood)
    found = marginalize(problem, Budget(12, draws=0), generator=seeded())
    prediction = found.predict(X[:5] + 0.01)
    assert bool(prediction.mean.isfinite().all())
    assert bool((prediction.variance > 0).all())
    assert torch.equal(pickle.loads(pickle.dumps(found)).predict(X[:5] + 0.01).mean, prediction.mean)
    posterior = found.model().posterior(X[:4] + 0.01, observation_noise=True)
    assert bool(torch.linalg.eigvalsh(posterior.component_covariance[0]).gt(0).all())


@pytest.mark.parametrize(("likelihood", "X"), [(DenseLikelihood, rows(12, 2)), *ON_GRID.values()])
def test_errors_of_rows_left_out_are_those_of_processes_without_them(likelihood, X):
    """Each row's error and variance beside a process conditioned on all others, by the same arithmetic or densely."""
    y, (mixtures, scale, noise) = targets(X), kernels(X.shape[-1], 3)
    chosen = KernelHyperparameters(mixtures, scale, noise)
    errors, variances = likelihood(X, y).condition(chosen).leave_one_out(y)
    # a grid without one of its ends is another grid; a gap is none
    other = DenseLikelihood if likelihood is ToeplitzLikelihood else likelihood
    for row in range(len(X)):
        kept = torch.arange(len(X)) != row
        mean, variance = other(X[kept], y[kept]).condition(chosen).marginals(X[row : row + 1])
        torch.testing.assert_close(errors[:, row], y[row] - mean[:, 0], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(variances[:, row], variance[:, 0] + noise, rtol=1e-6, atol=1e-8)


def test_settings_are_part_of_the_fingerprint():
    X = grid(range(24))
    knots = SparseLikelihood(X[:3]), SparseLikelihood(X[:4]), SparseLikelihood(X[1:4])
    ways = (*knots, ToeplitzLikelihood, DenseLikelihood)
    marks = {fingerprint(RegressionProblem(X, targets(X), likelihood=way), Search()) for way in ways}
    assert len(marks) == len(ways)


BAD_SETTINGS = {
    "knots of two inputs": (SparseLikelihood(rows(3, 2)), "knots must be rows (K, 1)"),
    "no knots": (SparseLikelihood(rows(0, 1)), "knots must be rows (K, 1)"),
    "a missing knot": (SparseLikelihood(torch.full((2, 1), torch.nan).double()), "knots must be finite"),
    "no nugget": (SparseLikelihood(rows(3, 1), 0.0), "nugget"),
}


def test_bad_settings_are_refused():
    X = rows(6, 1)
    for likelihood, message in BAD_SETTINGS.values():
        with pytest.raises(ValueError, match=re.escape(message)):
            RegressionProblem(X, targets(X), likelihood=likelihood)
