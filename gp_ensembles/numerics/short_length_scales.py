"""Length scales of a function that changes too fast for a search that starts from long ones.

From a length scale of many oscillations a function looks like noise, and the gradient of the evidence leads nowhere.
So the evidence itself is scanned: of a process with an RBF kernel on a few blocks of rows, most of them of
neighbors, for scales down to the distance of neighbors, alike in all columns or short in one of them. The best noise is
known for each ratio of the variances of function and noise, which all blocks share
(:mod:`~gp_ensembles.numerics.profiled_evidence`); a few ratios are enough for the search.
"""

import math

import torch
from torch import Tensor

REACH = 0.15  # share of a column's range below which fits miss length scales that are not looked for
_ROWS, _BLOCKS = 64, 8  # rows of a block, and how many there are at most
_OF_ALL = 2  # blocks of rows from everywhere
_LONGEST = 0.5  # share of the range to begin with
_MOST_COLUMNS = 30  # columns beyond which scales are alike in all
_RATIOS = tuple(10.0**power for power in range(-2, 8))  # of the variances of function and noise
_FEW_RATIOS = (1.0, 1e2, 1e5)
_AT_ONCE = 1 << 16  # numbers of covariances that fit in the cache
_WORTH = 0.1  # nats per row that short scales must gain
_PROMISE = 0.025  # nats per row from which on columns are looked at one after the other


@torch.no_grad()
def short_length_scales(X: Tensor, y: Tensor) -> Tensor | None:
    """Length scales (D,) of X (N, D), y (N,) with more evidence than all that a search finds by itself, if any."""
    seen = ~y.isnan()
    rows, targets = X[seen].double(), y[seen].double()
    if len(targets) < 4 or not rows.numel() or not bool(targets.std() > 0):
        return None
    span = rows.amax(0) - rows.amin(0)
    moving = (span > 0).nonzero().flatten().tolist()
    rows = (rows - rows.amin(0)) / torch.where(span > 0, span, 1.0)
    places = _blocks(rows)
    rows, targets = rows[places], ((targets - targets.mean()) / targets.std())[places]
    gaps = torch.stack([_gap(column) for column in rows.flatten(0, 1).mT])
    scales = _candidates(gaps, _nearest(rows), moving)
    evidence = evidence_of_scales(rows, targets, scales, _FEW_RATIOS)
    long = scales[evidence.where((scales >= REACH).all(1), -torch.inf).argmax()]
    best, found = scales[evidence.argmax()], evidence.max()
    if not _gain(rows, targets, best, long, _FEW_RATIOS) > _PROMISE:
        return None
    if len(moving) <= _MOST_COLUMNS:
        for column in 2 * moving:
            moved = best.repeat(4, 1)
            moved[:, column] = (best[column] * best.new_tensor([0.25, 0.5, 2.0, 4.0])).clamp(float(gaps[column]), 2.0)
            evidence = evidence_of_scales(rows, targets, moved, _FEW_RATIOS)
            if bool(evidence.max() > found):
                best, found = moved[evidence.argmax()], evidence.max()
    is_found = _gain(rows, targets, best, long, _RATIOS) > _WORTH
    return (best * torch.where(span > 0, span, 1.0)).to(X) if is_found else None


def _gain(rows: Tensor, targets: Tensor, best: Tensor, long: Tensor, ratios: tuple[float, ...]) -> float:
    """Nats per row that scales have more than the best long ones, and than the same ones without short ones."""
    if bool((best >= REACH).all()):
        return 0.0
    three = torch.stack([best, long, best.clamp_min(2 * REACH)])
    evidence = evidence_of_scales(rows, targets, three, ratios)
    return float(evidence[0] - evidence[1:].max()) / targets.numel()


def _blocks(rows: Tensor) -> Tensor:
    """Places (K, n) of rows that are near one another, and of some from everywhere."""
    num_rows = len(rows)
    if num_rows <= _ROWS:
        return torch.arange(num_rows, device=rows.device).unsqueeze(0)
    num_near = max(1, min(_BLOCKS, num_rows // _ROWS) - _OF_ALL)
    centers = rows[_even(num_rows, num_near + 2, rows)[1:-1]]
    near = torch.cdist(centers, rows).topk(_ROWS, largest=False).indices
    return torch.cat([near, _even(num_rows, _OF_ALL * _ROWS, rows).reshape(_ROWS, _OF_ALL).mT])


def _even(num_rows: int, size: int, like: Tensor) -> Tensor:
    return torch.linspace(0, num_rows - 1, size, dtype=torch.float64, device=like.device).round().long()


def _gap(column: Tensor) -> Tensor:
    """The median distance of neighboring values of a column, or its range if there is one value only."""
    gaps = column.unique().diff()
    return gaps.median() if len(gaps) else column.new_ones(())


def _nearest(rows: Tensor) -> float:
    """The median distance (K, n, D) of a row and its nearest neighbor in its block."""
    distances = torch.cdist(rows, rows)
    distances.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    return float(distances.amin(-1).median())


def _candidates(gaps: Tensor, nearest: float, moving: list[int]) -> Tensor:
    """Sets of length scales to try, (S, D)."""
    start = torch.full_like(gaps, _LONGEST)
    sets = [torch.full_like(gaps, scale) for scale in _halved(nearest)]
    if 1 < len(moving) <= _MOST_COLUMNS:
        for column in moving:
            for scale in _halved(float(gaps[column]))[1:]:
                sets.append(start.clone())
                sets[-1][column] = scale
    return torch.stack(sets)


def _halved(shortest: float) -> list[float]:
    """The longest scale, halves of it and so on, down to below the shortest."""
    number = max(1, math.ceil(math.log2(_LONGEST / max(shortest, 1e-6))))
    return [_LONGEST * 0.5**power for power in range(number + 1)]


def evidence_of_scales(rows: Tensor, targets: Tensor, scales: Tensor, ratios: tuple[float, ...] = _RATIOS) -> Tensor:
    """Evidence in nats at the best ratio and noise, (S,), of rows (K, n, D) with targets (K, n)."""
    squares = (rows.unsqueeze(1) - rows.unsqueeze(2)).square().flatten(0, -2).mT
    ratio = rows.new_tensor(ratios).reshape(-1, 1, 1, 1, 1)
    unit, num_targets = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device), targets.numel()
    found = []
    for some in scales.split(max(1, _AT_ONCE // (len(ratios) * squares.shape[1]))):
        kernels = (-0.5 * some.square().reciprocal() @ squares).exp().reshape(len(some), *targets.shape, -1)
        factor = torch.linalg.cholesky_ex(ratio * kernels + unit).L  # (R, S, K, n, n)
        white = torch.linalg.solve_triangular(factor, targets.unsqueeze(-1), upper=False)
        noise = white.square().sum((-3, -2, -1)) / num_targets
        half_log_determinant = factor.diagonal(dim1=-2, dim2=-1).log().sum((-2, -1))
        values = -0.5 * num_targets * (1 + (2 * math.pi * noise).log()) - half_log_determinant
        found.append(values.amax(0))
    return torch.cat(found)
