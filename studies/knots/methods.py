"""The models of the knot-selection paper, each from training rows to predictions of the test rows."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import gpytorch
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from gp_ensembles.sparse import (
    FIC,
    VFE,
    BayesianOptimization,
    GreedyBlocks,
    OneAtATime,
    RandomSubset,
    Simultaneous,
    SparseGP,
    select_knots,
)
from gp_ensembles.sparse.collapsed import Approximation
from gp_ensembles.sparse.strategies import Selection, Strategy
from studies.knots.sets import KnotSplit

_EXACT_UP_TO = 20_000  # rows below which GPyTorch factorizes in place of approximating
_FIRST = 5  # knots that one-at-a-time selection begins with


class KnotAnswer(NamedTuple):
    """What a method found.

    Attributes:
        mean: Means of the function at the test rows, shape (M,).
        variance: Its variances, noise not included, shape (M,).
        noise: Noise variance.
        objective: Objective on the training rows, in nats: log evidence, lower bound or FIC.
        knots: Knots, shape (K, D); none of an exact model.
        history: Knots, objective, upper bound and seconds after each step of a selection.
    """

    mean: Tensor
    variance: Tensor
    noise: float
    objective: float
    knots: Tensor
    history: Mapping[str, list[float]]


class KnotTask(NamedTuple):
    """What a method is given.

    Attributes:
        split: The rows.
        max_knots: Most knots.
        start: Knots of OBVk, shape (K, D), for methods that build on it.
        generator: Source of randomness.
    """

    split: KnotSplit
    max_knots: int
    start: Tensor | None
    generator: torch.Generator


class KnotMethod(NamedTuple):
    """A model of the comparison.

    Attributes:
        title: What it is.
        run: From a task to an answer.
        needs: The method whose knots it starts from, if any.
    """

    title: str
    run: Callable[[KnotTask], KnotAnswer]
    needs: str | None = None


def start_values(y: Tensor) -> tuple[ScaleKernel, GaussianLikelihood]:
    """Kernel and likelihood where the paper starts: half the targets' variance each, length scale one.

    Example:
        >>> kernel, likelihood = start_values(torch.tensor([0.0, 2.0], dtype=torch.float64, device="cpu"))
        >>> round(kernel.outputscale.item(), 6), round(likelihood.noise.item(), 6)
        (1.0, 1.0)
    """
    kernel, likelihood = ScaleKernel(RBFKernel()).to(y), GaussianLikelihood().to(y)
    half = float(y.var()) / 2
    kernel.outputscale, kernel.base_kernel.lengthscale, likelihood.noise = half, 1.0, half
    return kernel, likelihood


def exact_process(task: KnotTask) -> KnotAnswer:
    """The full Gaussian process by maximum likelihood: what the sparse models approximate."""
    X, y, test_X = task.split.X, task.split.y, task.split.test_X
    center, unit = y.mean(), y.std()
    scaled = (y - center) / unit  # only for the optimizer: all hyperparameters begin near one
    kernel, likelihood = start_values(scaled)
    model = SingleTaskGP(
        X, scaled.unsqueeze(-1), likelihood=likelihood, covar_module=kernel, mean_module=ZeroMean(),
        outcome_transform=None,
    )  # fmt: skip
    objective = ExactMarginalLogLikelihood(likelihood, model)
    with gpytorch.settings.max_cholesky_size(_EXACT_UP_TO):
        fit_gpytorch_mll(objective)
        with torch.no_grad():
            model.train()
            value = float(objective(model(X), scaled)) * len(y) - len(y) * math.log(float(unit))
            model.eval()
            found = model(test_X)
            mean, variance = center + unit * found.mean, unit.square() * found.variance
    noise = float(unit.square() * likelihood.noise.detach())
    return KnotAnswer(mean, variance.clamp_min(1e-12 * float(unit) ** 2), noise, value, X[:0], {})


def _obvk(task: KnotTask) -> KnotAnswer:
    first = min(_FIRST, task.max_knots)
    return _selected(task, OneAtATime(BayesianOptimization(), start=first, max_knots=task.max_knots), VFE())


def _orvk(task: KnotTask) -> KnotAnswer:
    first = min(_FIRST, task.max_knots)
    return _selected(task, OneAtATime(RandomSubset(), start=first, max_knots=task.max_knots), VFE())


def _obfk(task: KnotTask) -> KnotAnswer:
    first = min(_FIRST, task.max_knots)
    return _selected(task, OneAtATime(BayesianOptimization(), start=first, max_knots=task.max_knots), FIC())


def _svk(task: KnotTask) -> KnotAnswer:
    return _selected(task, Simultaneous(start=len(_started(task))), VFE())


def _svo(task: KnotTask) -> KnotAnswer:
    return _selected(task, Simultaneous(start=_started(task)), VFE())


def _default(task: KnotTask) -> KnotAnswer:
    return _selected(task, GreedyBlocks(max_knots=task.max_knots), VFE())


def _started(task: KnotTask) -> Tensor:
    if task.start is None:
        raise ValueError("the knots of OBVk are needed; run it first")
    return task.start


def _selected(task: KnotTask, strategy: Strategy, approximation: Approximation) -> KnotAnswer:
    """Select knots and predict; an interrupted selection is no answer, but an interruption.

    Raises:
        KeyboardInterrupt: If the selection was interrupted.
    """
    kernel, likelihood = start_values(task.split.y)
    mean = ConstantMean().to(task.split.y)
    mean.constant.data.fill_(float(task.split.y.mean()))
    mean.requires_grad_(False)  # the paper's stays at the average of the training targets
    found = select_knots(
        task.split.X, task.split.y, kernel, likelihood, mean,
        strategy=strategy, approximation=approximation, generator=task.generator,
    )  # fmt: skip
    if found.stop_reason == "interrupted":
        raise KeyboardInterrupt
    return answered(found, task.split.test_X)


@torch.no_grad()
def answered(found: Selection[SparseGP], test_X: Tensor) -> KnotAnswer:
    """A selection's predictions, point by point."""
    model = found.model
    history = {
        "history_knots": [float(step.num_knots) for step in found.history],
        "history_objective": [step.objective for step in found.history],
        "history_upper_bound": [step.upper_bound for step in found.history],
        "history_seconds": [step.seconds for step in found.history],
    }
    # each row alone: no joint covariance is asked for
    mean, variance = (part.flatten() for part in model.latent(test_X.unsqueeze(-2)))
    floor = 1e-12 * float(model.kernel_diagonal(test_X[:1]))
    objective = float(model.objective())
    return KnotAnswer(mean, variance.clamp_min(floor), float(model.likelihood.noise), objective, found.knots, history)


METHODS: dict[str, KnotMethod] = {
    "FGP": KnotMethod("full Gaussian process", exact_process),
    "OBVk": KnotMethod("one at a time, Bayesian optimization, VFE", _obvk),
    "ORVk": KnotMethod("one at a time, random subset, VFE", _orvk),
    "OBFk": KnotMethod("one at a time, Bayesian optimization, FIC", _obfk),
    "SVk": KnotMethod("simultaneous from k-means, as many knots as OBVk, VFE", _svk, "OBVk"),
    "SVO": KnotMethod("simultaneous from OBVk's knots, hyperparameters from the start, VFE", _svo, "OBVk"),
    "default": KnotMethod("greedy blocks, VFE", _default),
}
