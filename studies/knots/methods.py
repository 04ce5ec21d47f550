"""The models of the knot-selection paper, each from training rows to predictions of the test rows."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from torch import Tensor

from gp_ensembles.distributions import StudentTMixture
from gp_ensembles.papers.sparse import (
    FIC,
    VFE,
    Adadelta,
    BayesianOptimization,
    ExactGP,
    GreedyBlocks,
    OneAtATime,
    RandomSubset,
    Simultaneous,
    select_knots,
)
from gp_ensembles.papers.sparse.base import SparseModel
from gp_ensembles.papers.sparse.collapsed import Approximation
from gp_ensembles.papers.sparse.fitting import copy_hyperparameters
from gp_ensembles.papers.sparse.one_at_a_time import KnotProposal
from gp_ensembles.papers.sparse.strategies import LBFGSB, KnotOptimizer, Selection, Strategy
from studies.knots.sets import KnotSplit

_FIRST = 5  # knots that one-at-a-time selection begins with
SUBSET = 1000  # rows whose exact fit is the start of that of many more


class KnotAnswer(NamedTuple):
    """What a method found.

    Attributes:
        mean: Means of the function at the test rows, shape (M,).
        variance: Its variances, noise not included, shape (M,).
        noise: Noise variance.
        objective: Objective on the training rows, in nats: log evidence, lower bound or FIC.
        knots: Knots, shape (K, D); none of an exact model.
        history: Knots, objective, upper bound and seconds after each step of a selection.
        targets: Predictions of the test targets where they are not normal.
    """

    mean: Tensor
    variance: Tensor
    noise: float
    objective: float
    knots: Tensor
    history: Mapping[str, list[float]]
    targets: StudentTMixture | None = None


class KnotTask(NamedTuple):
    """What a method is given.

    Attributes:
        split: The rows.
        max_knots: Maximum number of knots.
        start: Knots of OBVk, shape (K, D), for methods that build on it.
        generator: Source of randomness.
        nugget: The authors' nugget, a variance in the targets' unit, squared; it is used only as published.
        as_published: The authors' choices: see :mod:`studies.knots.study`.
    """

    split: KnotSplit
    max_knots: int
    start: Tensor | None
    generator: torch.Generator
    nugget: float = 0.0
    as_published: bool = False


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


def fixed_mean(y: Tensor) -> ConstantMean:
    """The paper's prior mean, which stays at the average of the training targets.

    Example:
        >>> fixed_mean(torch.tensor([0.0, 2.0], dtype=torch.float64, device="cpu")).constant.item()
        1.0
    """
    mean = ConstantMean().to(y)
    mean.constant.data.fill_(float(y.mean()))
    return mean.requires_grad_(False)


def optimizer_of(as_published: bool, max_iterations: int = 20) -> KnotOptimizer:
    """The authors' ADADELTA, or L-BFGS of so many iterations.

    Example:
        >>> optimizer_of(True)
        Adadelta(decay=0.95, epsilon=0.0001, damping=1000.0, tolerance=0.001, max_iterations=1000)
    """
    return Adadelta() if as_published else LBFGSB(max_iterations)


def _exact(task: KnotTask) -> KnotAnswer:
    """The full Gaussian process by maximum likelihood: what the sparse models approximate."""
    X, y = task.split.X, task.split.y
    model = ExactGP(X, y, *start_values(y), fixed_mean(y))
    optimizer = optimizer_of(task.as_published, 200)
    if len(y) > 2 * SUBSET:  # an evaluation of all rows takes seconds, and they end where some of them point
        order = torch.randperm(len(y), generator=task.generator, device="cpu")
        subset = model.subset_of_data(order[:SUBSET].to(y.device))
        optimizer.optimize(subset)
        copy_hyperparameters(subset, model)
    optimizer.optimize(model)
    return _answered(model, task.split.test_X)._replace(knots=X[:0])


def _obvk(task: KnotTask) -> KnotAnswer:
    return _one_at_a_time(task, _bayesian_optimization(task), VFE)


def _orvk(task: KnotTask) -> KnotAnswer:
    return _one_at_a_time(task, RandomSubset(), VFE)


def _obfk(task: KnotTask) -> KnotAnswer:
    return _one_at_a_time(task, _bayesian_optimization(task), FIC)


def _svk(task: KnotTask) -> KnotAnswer:
    return _selected(task, Simultaneous(len(_started(task)), optimizer_of(task.as_published, 200)), VFE)


def _svo(task: KnotTask) -> KnotAnswer:
    return _selected(task, Simultaneous(_started(task), optimizer_of(task.as_published, 200)), VFE)


def _obvk_published(task: KnotTask) -> KnotAnswer:
    return _obvk(task._replace(as_published=True))


def _blocks(task: KnotTask) -> KnotAnswer:
    return _selected(task, GreedyBlocks(max_knots=task.max_knots), VFE)


def _default(task: KnotTask) -> KnotAnswer:
    """What ``select_knots`` does where nothing is chosen, with the predictions that it recommends."""
    found = select_knots(task.split.X, task.split.y, generator=task.generator)
    _refuse_interrupted(found)
    answer = answered(found, task.split.test_X)
    return answer._replace(targets=found.predict(task.split.test_X))


def _bayesian_optimization(task: KnotTask) -> BayesianOptimization:
    return BayesianOptimization(all_if_cheap=not task.as_published)


def _started(task: KnotTask) -> Tensor:
    if task.start is None:
        raise ValueError("the knots of OBVk are needed; run it first")
    return task.start


def _one_at_a_time(task: KnotTask, proposal: KnotProposal, approximation: Approximation) -> KnotAnswer:
    first = min(_FIRST, task.max_knots)
    strategy = OneAtATime(proposal, optimizer_of(task.as_published), start=first, max_knots=task.max_knots)
    return _selected(task, strategy, approximation)


def _selected(task: KnotTask, strategy: Strategy, approximation: Approximation) -> KnotAnswer:
    """Select knots and predict; an interrupted selection is no answer, but an interruption.

    Raises:
        KeyboardInterrupt: If the selection was interrupted.
    """
    kernel, likelihood = start_values(task.split.y)
    # the authors' nugget is absolute, ours a share of the kernel's variance: equal where both start
    nugget = task.nugget / float(kernel.outputscale.detach()) if task.as_published else None
    found = select_knots(
        task.split.X, task.split.y, kernel, likelihood, fixed_mean(task.split.y),
        strategy=strategy, approximation=approximation, nugget=nugget, generator=task.generator,
    )  # fmt: skip
    _refuse_interrupted(found)
    return answered(found, task.split.test_X)


def _refuse_interrupted(found: Selection) -> None:
    if found.stop_reason == "interrupted":
        raise KeyboardInterrupt


def answered(found: Selection, test_X: Tensor) -> KnotAnswer:
    """A selection's predictions, point by point."""
    history = {
        "history_knots": [float(step.num_knots) for step in found.history],
        "history_objective": [step.objective for step in found.history],
        "history_upper_bound": [step.upper_bound for step in found.history],
        "history_seconds": [step.seconds for step in found.history],
    }
    return _answered(found.model, test_X)._replace(history=history)


@torch.no_grad()
def _answered(model: SparseModel, test_X: Tensor) -> KnotAnswer:
    # each row alone: no joint covariance is asked for
    mean, variance = (part.flatten() for part in model.latent(test_X.unsqueeze(-2)))
    floor = 1e-12 * float(model.kernel_diagonal(test_X[:1]))
    noise, objective = float(model.likelihood.noise), float(model.objective())
    return KnotAnswer(mean, variance.clamp_min(floor), noise, objective, model.knots.detach(), {})


METHODS: dict[str, KnotMethod] = {
    "FGP": KnotMethod("full Gaussian process", _exact),
    "OBVk": KnotMethod("one at a time, Bayesian optimization, VFE", _obvk),
    "ORVk": KnotMethod("one at a time, random subset, VFE", _orvk),
    "OBFk": KnotMethod("one at a time, Bayesian optimization, FIC", _obfk),
    "SVk": KnotMethod("simultaneous from k-means, as many knots as OBVk, VFE", _svk, "OBVk"),
    "SVO": KnotMethod("simultaneous from OBVk's knots, hyperparameters from the start, VFE", _svo, "OBVk"),
    "OBVk-AD": KnotMethod("OBVk by the authors' ADADELTA, proposals and nugget", _obvk_published),
    "blocks": KnotMethod("greedy blocks, VFE", _blocks),
    "default": KnotMethod(
        "select_knots where nothing is chosen: Matern-5/2, a length scale for each input, a linear mean, all rows up "
        "to 15 000, Student's t",
        _default,
    ),
}
PUBLISHED = tuple(name for name in METHODS if name not in ("OBVk-AD", "blocks", "default"))
