"""Modes of the joint density by L-BFGS with all starts as one tensor, and MAP inference from them."""

import time
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, final

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.fusion.base import FusionModel
from gp_ensembles.fusion.inference import (
    InferenceMethod,
    InferenceReport,
    PosteriorDraws,
    issue_cautions,
    without_parameters,
)
from gp_ensembles.fusion.leapfrog import LogDensity, Points, evaluate
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.lbfgs import inverse_hessian_product, no_pairs, remember

# Armijo's constant, bounds of a backtracking factor, and most backtracking steps of one line search.
_ARMIJO, _SHRINK, _MOST = 1e-4, (0.1, 0.5), 20
# Times that a start is halved towards the prior mean until its log joint density is finite.
_HALVINGS = 20


class ModeSearch(NamedTuple):
    """Results of R searches for a mode.

    Args:
        points: Positions, shape (R, P), log densities, shape (R,), and gradients.
        converged: Whether the tolerance was met, shape (R,).
        num_gradients: Gradient evaluations, each for all searches still under way.
    """

    points: Points
    converged: Tensor
    num_gradients: int


@torch.no_grad()
def lbfgs_ascent(
    log_density: LogDensity,
    start: Tensor,
    *,
    max_iterations: int = 300,
    tolerance: float = 1e-7,
    memory: int = 10,
    progress: bool = False,
) -> ModeSearch:
    """Local maxima from many starts at once, by L-BFGS (Nocedal and Wright, 2006, algorithm 7.4).

    Every start has its own directions and step lengths; one gradient evaluation serves all searches still under way.
    Backtracking line search with Armijo's condition; a value that is not finite fails it.

    Args:
        log_density: From positions, shape (R, P), to log densities, shape (R,).
        start: Where to start, shape (R, P).
        max_iterations: Most L-BFGS steps of each.
        tolerance: A search ends where the quadratic model predicts a gain below this many nats.
        memory: Pairs of steps and gradient changes that are kept.
        progress: Whether to show a progress bar.

    Example:
        >>> import torch
        >>> start = torch.tensor([[-3.0], [0.5]], dtype=torch.float64)
        >>> found = lbfgs_ascent(lambda theta: -(theta.square() - 4.0).square().sum(-1), start)
        >>> found.points.theta.squeeze(-1).round(decimals=4), found.converged
        (tensor([-2.,  2.], dtype=torch.float64), tensor([True, True]))
    """
    points = evaluate(log_density, start)
    active = torch.ones_like(points.log_density, dtype=torch.bool)
    converged = ~active
    pairs = no_pairs(start)
    num_gradients = 1
    with tqdm(total=max_iterations, desc="modes", unit="step", disable=not progress) as bar:
        for _ in range(max_iterations):
            direction = inverse_hessian_product(points.gradient, pairs)
            slope = (direction * points.gradient).sum(-1)
            # Where the memory gives no direction of ascent, use the gradient.
            bad = ~(slope > 0.0)
            if bool(bad.any()):
                pairs = pairs._replace(curvature=pairs.curvature.masked_fill(bad, 0.0))
                direction = inverse_hessian_product(points.gradient, pairs)
                slope = (direction * points.gradient).sum(-1)
            fresh = (pairs.curvature == 0.0).all(0)
            enough = (points.gradient == 0.0).all(-1) | (~fresh & (slope < tolerance))
            reached = active & enough
            converged, active = converged | reached, active & ~reached
            if not bool(active.any()):
                break
            length = torch.where(fresh, (1.0 / direction.norm(dim=-1)).clamp(max=1.0), 1.0)
            found, moved, used = _search(log_density, points, direction, slope, length, active)
            num_gradients += used
            # No gain along the gradient itself: the search is at round-off.
            active = active & (moved | ~fresh)
            pairs = pairs._replace(curvature=pairs.curvature.masked_fill(active & ~moved, 0.0))
            pairs = remember(pairs, found.theta - points.theta, points.gradient - found.gradient, memory)
            points = found
            bar.set_postfix_str(f"best {float(points.log_density.amax()):.2f}", refresh=False)
            bar.update()
    return ModeSearch(points, converged, num_gradients)


def _search(
    log_density: LogDensity, points: Points, direction: Tensor, slope: Tensor, length: Tensor, active: Tensor
) -> tuple[Points, Tensor, int]:
    """Backtracking line search: the points reached, which starts found one, and the number of gradients."""
    waiting = active.nonzero().squeeze(-1)
    moved = torch.zeros_like(active)
    theta, value, gradient = (tensor.clone() for tensor in points)
    used = 0
    while waiting.numel() and used < _MOST:
        used += 1
        tried = evaluate(log_density, points.theta[waiting] + length[waiting, None] * direction[waiting])
        gain = tried.log_density - points.log_density[waiting]
        finite = tried.log_density.isfinite() & tried.gradient.isfinite().all(-1)
        good = finite & (gain >= _ARMIJO * length[waiting] * slope[waiting])
        at = waiting[good]
        theta[at], value[at], gradient[at] = tried.theta[good], tried.log_density[good], tried.gradient[good]
        moved[at] = True
        # The maximum of the parabola through the value, the slope and the new value.
        linear = slope[waiting] * length[waiting]
        factor = (0.5 * linear / (linear - gain)).clamp(*_SHRINK)
        length[waiting] *= torch.where(finite, factor, _SHRINK[0])
        waiting = waiting[~good]
    return Points(theta, value, gradient), moved, used


@final
class ModeWeights(Enum):
    """Weights of the modes found from different starts.

    ``EQUAL`` averages their predictions, which hedges against poor modes; ``JOINT`` weighs by the joint density, in
    effect the best mode alone unless others are within a few nats.

    Example:
        >>> ModeWeights("equal") is ModeWeights.EQUAL
        True
    """

    EQUAL = "equal"
    JOINT = "joint"


@final
@dataclass(frozen=True)
class MAP(InferenceMethod):
    """Maximum a posteriori parameters: modes of the joint density, searched from draws of the prior.

    All restarts climb as one tensor by L-BFGS. Sampled hyperparameters are maximized with everything else, under their
    priors; that is not type-II maximum likelihood, for which see :func:`maximize_evidence`.

    Args:
        num_restarts: Number of starts R.
        max_iterations: Most L-BFGS steps of each.
        weights: Weights of the modes.

    Raises:
        ValueError: If a number is not at least one.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.models import HetGP
        >>> from gp_ensembles.fusion.function_priors import FourierPrior
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:2]))
        >>> model = HetGP(X, X.squeeze(-1), prior, prior)
        >>> found = MAP(num_restarts=3).infer(model, generator=torch.Generator().manual_seed(0))
        >>> found.theta.shape, found.log_weights.exp().sum().round(decimals=6)
        (torch.Size([3, 8]), tensor(1., dtype=torch.float64))
    """

    num_restarts: int = 8
    max_iterations: int = 1000
    weights: ModeWeights = field(default=ModeWeights.EQUAL)

    def __post_init__(self) -> None:
        if self.num_restarts < 1 or self.max_iterations < 1:
            raise ValueError("num_restarts and max_iterations must be at least 1")

    def infer(
        self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> PosteriorDraws:
        """The modes, shape (R, P), with their weights."""
        began = time.perf_counter()
        if not model.num_parameters:
            return without_parameters(model, "MAP")
        found = find_modes(model, self.num_restarts, self.max_iterations, generator=generator, progress=progress)
        value = found.points.log_density
        chosen = value if self.weights is ModeWeights.JOINT else torch.zeros_like(value)
        cautions = issue_cautions(_unconverged(found))
        report = InferenceReport("MAP", time.perf_counter() - began, found.num_gradients, value, cautions=cautions)
        return PosteriorDraws(found.points.theta, chosen.log_softmax(0), report)


def find_modes(
    model: FusionModel,
    num_restarts: int,
    max_iterations: int,
    *,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> ModeSearch:
    """Modes of a model's joint density from draws of its prior, all at once.

    Args:
        model: The model, with at least one parameter.
        num_restarts: Number of starts R.
        max_iterations: Most L-BFGS steps of each.
        generator: Source of randomness.
        progress: Whether to show a progress bar.

    Raises:
        NumericalError: If the log joint density is not finite at a start, nor nearer to the prior mean.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.models import HetGP
        >>> from gp_ensembles.fusion.function_priors import FourierPrior
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:2]))
        >>> model = HetGP(X, X.squeeze(-1), prior, prior)
        >>> modes = find_modes(model, 2, 500, generator=torch.Generator().manual_seed(0))
        >>> bool((modes.points.gradient.abs() < 1e-2).all())
        True
    """
    start = finite_starts(model, model.draw_prior(num_restarts, generator=generator))
    return lbfgs_ascent(model.log_joint, start, max_iterations=max_iterations, progress=progress)


@torch.no_grad()
def finite_starts(model: FusionModel, start: Tensor) -> Tensor:
    """Starts (R, P), each halved towards the prior mean until its log joint density is finite.

    Raises:
        NumericalError: If one is not finite even near the prior mean.
    """
    for _ in range(_HALVINGS):
        bad = ~model.log_joint(start).isfinite()
        if not bool(bad.any()):
            return start
        start = torch.where(bad.unsqueeze(-1), 0.5 * (start + model.prior_mean), start)
    raise NumericalError(
        "the log joint density is not finite even near the prior mean; check that targets, variances and amplitudes "
        "are of moderate size (standardize the targets) and use float64"
    )


def _unconverged(found: ModeSearch) -> list[str]:
    """A caution if the best search has not converged."""
    best = int(found.points.log_density.argmax())
    if bool(found.converged[best]):
        return []
    slope = float(found.points.gradient[best].abs().amax())
    if slope < 1e-3:
        return []
    return [f"the search for the mode has not converged (largest gradient {slope:.2g}); raise max_iterations"]
