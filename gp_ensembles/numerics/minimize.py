"""The driver of an optimizer: many independent problems at once, by L-BFGS.

Each problem has its own history, step length and end. Several starts of one problem are several problems.
"""

import math
from collections.abc import Callable, Sequence
from itertools import compress
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

# Share of the promised decrease that a step must reach (Armijo), share of the slope that it may leave (Wolfe), and most
# trials of one line search: those of L-BFGS-B.
_ARMIJO, _WOLFE, _MAX_TRIALS = 1e-3, 0.9, 20
# Where the next trial may lie: this share of a bracket from its ends; this share of the way to a point without a value;
# from so many to so many times the last increase beyond a trial that is too short.
_INSIDE, _BEFORE_WALL, _BEYOND = 0.1, 0.2, (1.1, 4.0)

Differentiated = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Minimum(NamedTuple):
    """Results of M searches."""

    point: Tensor  # The points reached, shape (M, P)
    value: Tensor  # Their values, shape (M,); at most those of the starts
    gradient: Tensor  # Their gradients, shape (M, P)
    converged: Tensor  # Whether a tolerance was met, shape (M,), boolean
    num_iterations: Tensor  # Steps taken, shape (M,)
    num_evaluations: int  # Calls of the function, each for all problems still searched
    pairs: "CurvaturePairs"  # What L-BFGS remembers of their curvature, with which a similar search continues


class CurvaturePairs(NamedTuple):
    """The last steps of R searches and what the gradient did, each pair scaled so that their product is one."""

    steps: Tensor  # Changes of the points, oldest first, shape (R, m, P); zero where there was none yet
    changes: Tensor  # Changes of the gradient, shape (R, m, P)
    scale: Tensor  # Inverse curvature along the newest step, shape (R,); before the first, one over the gradient's norm


class _Place(NamedTuple):
    """Points (R, P), values (R,) and gradients (R, P)."""

    point: Tensor
    value: Tensor
    gradient: Tensor


class _Trial(NamedTuple):
    """A point of a line search: its distance from the origin, the value and the slope."""

    length: float
    value: float
    slope: float


class _Line(NamedTuple):
    """A line search."""

    origin: _Trial  # Where it starts
    low: _Trial  # The longest trial known to be too short: it fell enough, but is still steep
    high: _Trial | None = None  # The shortest trial known to be too long, if any
    length: float = 1.0  # Of the trial to be made
    number: int = 1  # Its number, from one


class _Search:
    """Progress of the search of one problem; its numbers here are rows of tensors in :func:`minimize`."""

    def __init__(self, converged: bool, remembers: bool) -> None:
        self.converged, self.stuck, self.remembers = converged, False, remembers
        self.num_iterations = 0
        self.line: _Line | None = None

    def judge(self, value: float, slope: float, steepest: float, tolerances: tuple[float, float]) -> bool | None:
        """Learn what the trial was like: take it (True), try another one (None), or give the line up (False)."""
        assert self.line is not None
        line = self.line
        finite = math.isfinite(value + steepest)
        trial = _Trial(line.length, value if finite else math.inf, slope)
        falls = trial.value <= line.origin.value + _ARMIJO * line.length * line.origin.slope
        if not (falls and slope >= _WOLFE * line.origin.slope) and line.number < _MAX_TRIALS:
            self.line = _next_trial(line, trial, falls)
            return None
        self.line = None
        if falls:
            size = max(abs(line.origin.value), abs(value), 1.0)
            self.converged = steepest <= tolerances[0] or line.origin.value - value <= tolerances[1] * size
            self.num_iterations += 1
        else:
            self.stuck = not self.remembers
        self.remembers = falls
        return falls


def minimize(
    function: Differentiated,
    start: Tensor,
    *,
    max_iterations: int = 200,
    gradient_tolerance: float = 1e-5,
    loss_tolerance: float = 1e-7,
    memory: int = 10,
    pairs: CurvaturePairs | None = None,
    progress: str | None = None,
) -> Minimum:
    """Minimize M functions of P variables each by limited-memory BFGS (Nocedal and Wright, 2006, algorithm 7.5).

    ``function`` takes points (R, P) and the numbers of their problems (R,) to values (R,) and gradients (R, P);
    infinity where it cannot be computed. Searches begin with the ``pairs`` of others, of the same functions or of
    similar ones. A bar with the name ``progress`` is shown.

    Shapes: ``start`` (M, P).
    """
    start, problems = start.detach(), torch.arange(len(start), device=start.device)
    place = _Place(start, *function(start, problems))
    gradients = place.gradient.abs().amax(-1)
    bad = ~(place.value + gradients).isfinite()
    if bool(bad.any()):
        raise ValueError(f"the function of problem {int(bad.int().argmax())} is not finite at its start")
    searches = [_Search(steep <= gradient_tolerance, pairs is not None) for steep in gradients.tolist()]
    pairs = no_pairs(place.gradient, memory) if pairs is None else pairs
    end = _Place(*(part.clone() for part in place))
    kept = CurvaturePairs(*(part.clone() for part in pairs))
    running, direction, num_evaluations = searches, torch.zeros_like(start), 1
    with tqdm(desc=progress, unit="evaluation", disable=progress is None, leave=False) as bar:
        while True:
            stay = [not (one.converged or one.stuck or one.num_iterations >= max_iterations) for one in running]
            if not all(stay):
                rows = _flags(stay, start)
                for whole, part in zip((*end, *kept), (*place, *pairs), strict=True):
                    whole[problems[~rows]] = part[~rows]
                running, problems = list(compress(running, stay)), problems[rows]
                place, pairs, direction = _take(place, rows), _take(pairs, rows), direction[rows]
            if not running:
                break
            direction = _start_lines(running, place, pairs, direction)
            lengths = start.new_tensor([one.line.length for one in running if one.line is not None])
            point = torch.addcmul(place.point, lengths.unsqueeze(-1), direction)
            trial = _Place(point, *function(point, problems))
            num_evaluations += 1
            facts = torch.stack([trial.value, (trial.gradient * direction).sum(-1), trial.gradient.abs().amax(-1)])
            values, slopes, steeps = facts.tolist()
            if progress is not None:
                bar.update()
                bar.set_postfix(loss=f"{sum(values) / len(values):.4f}", active=len(values))
            verdicts = [
                one.judge(value, slope, steepest, (gradient_tolerance, loss_tolerance))
                for one, value, slope, steepest in zip(running, values, slopes, steeps, strict=True)
            ]
            if True in verdicts:
                moved = _flags([verdict is True for verdict in verdicts], start)
                pairs = remember(pairs, trial.point - place.point, trial.gradient - place.gradient, moved)
                place = _where(moved, trial, place)
            if False in verdicts:  # forget, and try the gradient
                failed = _flags([verdict is False for verdict in verdicts], start)
                pairs = _where(failed, no_pairs(place.gradient, memory), pairs)
    num_iterations = torch.tensor([one.num_iterations for one in searches], dtype=torch.int64, device=start.device)
    converged = _flags([one.converged for one in searches], start)
    return Minimum(*end, converged, num_iterations, num_evaluations, kept)


def no_pairs(gradient: Tensor, memory: int) -> CurvaturePairs:
    """Memory of searches with gradients (R, P) before their first steps, which go one unit downhill."""
    empty = gradient.new_zeros(len(gradient), memory, gradient.shape[-1])
    return CurvaturePairs(empty, empty, gradient.square().sum(-1).rsqrt())


def remember(pairs: CurvaturePairs, step: Tensor, change: Tensor, moved: Tensor) -> CurvaturePairs:
    """Memory of searches after one more step of some; a step without positive curvature is not kept.

    Shapes: ``step`` (R, P), ``change`` (R, P), ``moved`` (R,).
    """
    product, squares = (step * change).sum(-1), change.square().sum(-1)
    round_off = torch.finfo(step.dtype).eps * (step.square().sum(-1) * squares).sqrt()
    new = torch.stack([step, change]) / product.sqrt().unsqueeze(-1)
    steps, changes = (
        torch.cat([old[:, 1:], part.unsqueeze(1)], dim=1) for old, part in zip(pairs[:2], new, strict=True)
    )
    return _where(moved & (product > round_off), CurvaturePairs(steps, changes, product / squares), pairs)


def inverse_hessian_product(vector: Tensor, pairs: CurvaturePairs) -> Tensor:
    r"""The inverse Hessians that searches estimate from their curvature pairs, times a vector each.

    .. math:: u = U^{-1} S g, \quad r = \gamma (g - Y^\top u), \quad H g = r + S^\top U^{-\top} (u - Y r).

    Shapes: ``vector`` (R, P).
    """
    steps, changes, column = pairs.steps, pairs.changes, vector.unsqueeze(-1)
    # The triangle's diagonal is one by scaling, or where no pair is kept yet, zero divided by one is zero.
    products = torch.bmm(steps, changes.mT)
    first = torch.linalg.solve_triangular(products, torch.bmm(steps, column), upper=True, unitriangular=True)
    rest = pairs.scale[:, None, None] * torch.baddbmm(column, changes.mT, first, alpha=-1)
    left = torch.baddbmm(first, changes, rest, alpha=-1)
    second = torch.linalg.solve_triangular(products.mT, left, upper=False, unitriangular=True)
    return torch.baddbmm(rest, steps.mT, second).squeeze(-1)


def _start_lines(searches: Sequence[_Search], place: _Place, pairs: CurvaturePairs, direction: Tensor) -> Tensor:
    """Directions of all searches: new ones, downhill, for those that begin a line search."""
    begins = [search.line is None for search in searches]
    if not any(begins):
        return direction
    new = -inverse_hessian_product(place.gradient, pairs)
    slopes = (new * place.gradient).sum(-1)
    uphill = ~(slopes < 0.0)
    if bool(uphill.any()):  # by round-off
        norms = place.gradient.square().sum(-1).sqrt()
        new = torch.where(uphill.unsqueeze(-1), -place.gradient / norms.unsqueeze(-1), new)
        slopes = torch.where(uphill, -norms, slopes)
    for search, value, slope in zip(searches, *torch.stack([place.value, slopes]).tolist(), strict=True):
        if search.line is None:
            origin = _Trial(0.0, value, slope)
            search.line = _Line(origin, origin)
    if all(begins):
        return new
    return torch.where(_flags(begins, new).unsqueeze(-1), new, direction)


def _next_trial(line: _Line, trial: _Trial, falls: bool) -> _Line:
    """The line search after a trial: into the bracket, or further out as long as there is none."""
    if falls and line.high is None:
        width = trial.length - line.low.length
        near, far = (trial.length + times * width for times in _BEYOND)
        lowest = _lowest(line.low, trial)
        length = far if lowest is None or lowest < trial.length else min(max(lowest, near), far)
        low, high = trial, None
    else:
        low, high = (trial, line.high) if falls else (line.low, trial)
        assert high is not None
        width = high.length - low.length
        lowest = _lowest(low, high)
        if not math.isfinite(high.value):
            length = low.length + _BEFORE_WALL * width
        elif lowest is None:
            length = low.length + 0.5 * width
        else:
            length = min(max(lowest, low.length + _INSIDE * width), high.length - _INSIDE * width)
    if line.number == _MAX_TRIALS - 1 and low.length > 0.0:
        length = low.length  # the last trial is one that fell enough
    return _Line(line.origin, low, high, length, line.number + 1)


def _lowest(left: _Trial, right: _Trial) -> float | None:
    """Where the cubic through two trials is lowest (Nocedal and Wright, 2006, equation 3.59), ``None`` if nowhere."""
    width = right.length - left.length
    middle = left.slope + right.slope - 3.0 * (right.value - left.value) / width
    square = middle * middle - left.slope * right.slope
    if not (math.isfinite(square) and square >= 0.0):
        return None
    bottom = right.slope - left.slope + 2.0 * math.sqrt(square)
    if bottom == 0.0:
        return None
    return right.length - width * (right.slope + math.sqrt(square) - middle) / bottom


def _flags(values: list[bool], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.bool, device=like.device)


_Parts = TypeVar("_Parts", _Place, CurvaturePairs)


def _take(parts: _Parts, rows: Tensor) -> _Parts:
    return type(parts)(*(part[rows] for part in parts))


def _where(rows: Tensor, new: _Parts, old: _Parts) -> _Parts:
    pairs = zip(new, old, strict=True)
    return type(old)(*(torch.where(rows.reshape(-1, *[1] * (one.ndim - 1)), one, other) for one, other in pairs))
