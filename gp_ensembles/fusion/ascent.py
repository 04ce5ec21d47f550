"""Limited-memory BFGS with all starts as one tensor."""

from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.fusion.leapfrog import LogDensity, Points, evaluate
from gp_ensembles.numerics.lbfgs import inverse_hessian_product, no_pairs, remember

# Armijo's constant, bounds of a backtracking factor, and most backtracking steps of one search.
_ARMIJO, _SHRINK, _MOST = 1e-4, (0.1, 0.5), 20


class Ascent(NamedTuple):
    """Where R ascents ended.

    Args:
        points: Positions, shape (R, P), log densities, shape (R,), and gradients.
        converged: Whether the tolerance was met, shape (R,).
        num_gradients: Gradients, each for all ascents still under way.
    """

    points: Points
    converged: Tensor
    num_gradients: int


@torch.no_grad()
def ascend(
    log_density: LogDensity,
    start: Tensor,
    *,
    max_iterations: int = 300,
    tolerance: float = 1e-7,
    memory: int = 10,
    progress: bool = False,
) -> Ascent:
    """Climb to local maxima from many starts at once, by L-BFGS (Nocedal and Wright, 2006, algorithm 7.4).

    Every start has its own directions and step lengths, but one gradient evaluation serves all that are still under
    way. Steps are shortened until they gain enough (Armijo); a value that is not finite counts as no gain.

    Args:
        log_density: From positions, shape (R, P), to log densities, shape (R,).
        start: Where to start, shape (R, P).
        max_iterations: Most steps of each.
        tolerance: An ascent ends where the quadratic model promises less than this many nats.
        memory: Pairs of steps and gradients that are kept.
        progress: Whether to show a progress bar.

    Example:
        >>> import torch
        >>> start = torch.tensor([[-3.0], [0.5]], dtype=torch.float64)
        >>> found = ascend(lambda theta: -(theta.square() - 4.0).square().sum(-1), start)
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
            # Where memory misleads, the gradient itself leads upwards.
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
            # Without a gain along the gradient itself, round-off is all that is left.
            active = active & (moved | ~fresh)
            pairs = pairs._replace(curvature=pairs.curvature.masked_fill(active & ~moved, 0.0))
            pairs = remember(pairs, found.theta - points.theta, points.gradient - found.gradient, memory)
            points = found
            bar.set_postfix_str(f"best {float(points.log_density.amax()):.2f}", refresh=False)
            bar.update()
    return Ascent(points, converged, num_gradients)


def _search(
    log_density: LogDensity, points: Points, direction: Tensor, slope: Tensor, length: Tensor, active: Tensor
) -> tuple[Points, Tensor, int]:
    """Steps that gain enough; which starts found one; gradients used."""
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
        # The top of the parabola through the value, the slope and the new value.
        promised = slope[waiting] * length[waiting]
        factor = (0.5 * promised / (promised - gain)).clamp(*_SHRINK)
        length[waiting] *= torch.where(finite, factor, _SHRINK[0])
        waiting = waiting[~good]
    return Points(theta, value, gradient), moved, used
