"""Acquisition values against plain Monte Carlo over the weighted mixture, within four standard errors.

An expert is drawn by its weight with NumPy, then values from its joint normal distribution, then the utility is applied
that the acquisition function is the expectation of: nothing of the mixture's own sampling takes part.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.bo import acquisition_cases as cases

NUM_DRAWS, NUM_BATCHES, NUM_POINTS = 200_000, 3, 3
CLASSES = cases.exported()
pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.NumericsWarning")


class Draws(NamedTuple):
    """Draws from the mixture at candidates X (T, q, D) and at the baseline, (N, T, q, O) and (N, T, b, O)."""

    X: Tensor
    values: Tensor
    baseline: Tensor


@functools.cache
def setting(weights, dtype=torch.float64, num_samples=2**14):
    return cases.build(cases.WEIGHTS[weights], dtype, num_samples=num_samples, smoothing=1e-5)


@functools.cache
def draws(weights, models):
    """Brute force. Outputs draw their own expert, of one model or of several."""
    generator = np.random.default_rng(5)
    s = setting(weights)
    points = torch.Generator().manual_seed(9)
    X = torch.rand(NUM_BATCHES, NUM_POINTS, cases.NUM_INPUTS, generator=points, dtype=s.X.dtype)
    places = torch.cat([X, s.baseline.expand(NUM_BATCHES, -1, -1)], dim=1)
    sources = {
        "one": [(s.model, 0)],
        "exact": [(s.exact, 0)],
        "pair": [(s.pair, 0), (s.pair, 1)],
        "list": [(m, 0) for m in s.both.models],
    }
    values = []
    for model, output in sources[models]:
        w = model.log_weights.exp().detach().reshape(model.num_outputs, -1)[output].numpy()
        picked = generator.choice(len(w), size=NUM_DRAWS, p=w / w.sum())
        drawn = np.empty((NUM_DRAWS, *places.shape[:-1]))
        for t, points in enumerate(places):
            mixture = model.posterior(points)
            centers, covariances = mixture.component_mean[..., output], mixture.component_covariance[:, output]
            for m, (center, covariance) in enumerate(
                zip(centers.detach().numpy(), covariances.detach().numpy(), strict=True)
            ):
                chosen = picked == m
                factor = np.linalg.cholesky(covariance + 1e-10 * np.identity(len(points)))
                normals = generator.standard_normal((chosen.sum(), len(points)))
                drawn[chosen, t] = center + normals @ factor.T
        values.append(torch.from_numpy(drawn))
    values = torch.stack(values, dim=-1)
    return Draws(X, values[:, :, :NUM_POINTS], values[:, :, NUM_POINTS:])


# Utilities of each draw, (N, T).


def best(d):
    return d.values[..., 0].amax(-1)


def improvement(d):
    return (best(d) - cases.BEST).clamp_min(0)


def improves(d):
    return (best(d) > cases.BEST).double()


def feasible(d):
    return (d.values[..., 1] <= cases.BOUND).any(-1).double()


def feasible_improvement(d):
    return improvement(d) * feasible(d)


def over_baseline(d):
    return (best(d) - d.baseline[..., 0].amax(-1)).clamp_min(0)


def deviation(d):
    """Linear in the second moment, so that its mean is the standard deviation and its spread that one's error."""
    square = (d.values[:, :, 0, 0] - d.values[:, :, 0, 0].mean(0)).square()
    root = square.mean(0).sqrt()
    return root + (square - square.mean(0)) / (2 * root)


def hypervolume(points):
    """Area between points (..., P, 2) and the reference: strips from the highest first objective down."""
    reference = torch.tensor(cases.REFERENCE, dtype=torch.float64)
    above = (points - reference).clamp_min(0)
    order = above[..., 0].argsort(-1, descending=True)
    first, second = (above[..., o].gather(-1, order) for o in range(2))
    widths = first - torch.cat([first[..., 1:], torch.zeros_like(first[..., :1])], dim=-1)
    return (widths * second.cummax(-1).values).sum(-1)


def hypervolume_improvement(d):
    front = torch.tensor(cases.FRONT, dtype=torch.float64)
    both = torch.cat([front.expand(*d.values.shape[:2], *front.shape), d.values], dim=-2)
    return hypervolume(both) - hypervolume(front)


class Value(NamedTuple):
    """What an acquisition function is the expectation of, and of which candidates and models."""

    utility: Callable[[Draws], Tensor]
    sizes: tuple[int, ...] = (1, 3)
    models: tuple[str, ...] = ("one",)
    num_samples: int = 2**14


_TWO = ("pair", "list")
_FEW = 2**12  # subsets of candidates for each sample

VALUES = {
    "LogExpectedImprovement": Value(improvement, (1,), ("exact",)),
    "qAnalyticProbabilityOfImprovement": Value(improves, (1,), ("exact",)),
    "LogConstrainedExpectedImprovement": Value(feasible_improvement, (1,), ("pair",)),
    "LogProbabilityOfFeasibility": Value(feasible, (1,), ("pair",)),
    "PosteriorMean": Value(best, (1,)),
    "PosteriorStandardDeviation": Value(deviation, (1,)),
    "UpperConfidenceBound": Value(lambda d: best(d) + math.sqrt(cases.BETA) * deviation(d), (1,)),
    "qExpectedImprovement": Value(improvement),
    "qLogExpectedImprovement": Value(improvement),
    "qLogNoisyExpectedImprovement": Value(over_baseline),
    "qProbabilityOfImprovement": Value(improves),
    "qLogProbabilityOfFeasibility": Value(feasible, models=_TWO),
    "qSimpleRegret": Value(best),
    "MultiOutputPosteriorMean": Value(lambda d: d.values[:, :, 0], (1,), _TWO),
    "ExpectedHypervolumeImprovement": Value(hypervolume_improvement, (1,), ("pair",)),
    "qExpectedHypervolumeImprovement": Value(hypervolume_improvement, models=_TWO),
    "qLogExpectedHypervolumeImprovement": Value(hypervolume_improvement, models=_TWO, num_samples=_FEW),
}


@functools.cache
def brute_force(utility, weights, models, size):
    """Mean and variance of a utility, (T,) each."""
    d = draws(weights, models)
    utilities = utility(d._replace(values=d.values[:, :, :size]))
    return utilities.mean(0), utilities.var(0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("weights", cases.WEIGHTS)
@pytest.mark.parametrize(
    ("name", "models", "size"), [(n, models, q) for n, v in VALUES.items() for models in v.models for q in v.sizes]
)
def test_values_are_expectations_over_the_weighted_mixture(name, models, size, weights, dtype):
    """Four standard errors of brute force and, where it draws samples, of the acquisition function."""
    value = VALUES[name]
    s = setting(weights, dtype, value.num_samples)
    s = s._replace(pair=s.both, listed=True) if models == "list" else s
    mean, variance = brute_force(value.utility, weights, models, size)
    is_moment = name.startswith(("Posterior", "Upper", "MultiOutput"))
    of_members = cases.CASES[name].given == cases.MEMBERS
    sampled = not of_members and not is_moment
    with torch.no_grad():
        found = cases.CASES[name].make(CLASSES[name], s)(draws("uneven", "one").X[:, :size].to(dtype)).double()
    found = found.exp() if "Log" in name else found
    assert found.shape == mean.shape
    error = (variance / NUM_DRAWS + (variance / value.num_samples if sampled else 0)).sqrt()
    rounding = variance.sqrt() / cases.NUM_MEMBERS if of_members else 0  # of weights
    assert bool(((found - mean).abs() <= 4 * error + rounding + 1e-4).all()), (found, mean)


def test_the_knowledge_gradient_obeys_the_tower_rule():
    """Where the same point is chosen whatever is observed, nothing is gained: E[E[f(x) | y]] = E[f(x)]."""
    s = setting("uneven")
    kind, count = CLASSES["qKnowledgeGradient"], 512
    d = draws("uneven", "one")
    acquisition = kind(s.model, num_fantasies=None, sampler=s.sampler(count))
    chosen = s.X[:1] / 2
    X = torch.cat([d.X, chosen.expand(NUM_BATCHES, count, -1)], dim=1)
    posterior = s.model.posterior(chosen)
    with torch.no_grad():
        assert float((acquisition(X) - posterior.mean).abs().max()) < 4 * float(posterior.variance.sqrt()) / count**0.5
