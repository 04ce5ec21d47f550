"""Structure that a fit misses: one-step errors of a warm-up that are alike where inputs are alike.

A fit of hyperparameters may end where everything is noise although there is a function, such as one that varies fast.
The one-step errors of the warm-up then are the targets less their mean, and those of neighbors agree. Their rank
correlation needs no model (Moran 1950, for one neighbor and normal scores).
"""

import math
from collections.abc import Hashable, Mapping
from statistics import NormalDist

import torch
from torch import Tensor

from gp_ensembles.numerics.normal_scores import normal_score
from gp_ensembles.numerics.warn_caller import warn_caller

_LITTLE = 0.1  # share of the variance that a fit explains which is next to nothing
_FALSE = 1e-3  # share of tables of noise in which a correlation may be taken for structure
_TIE = 1e-6  # of a column's range, a distance that does not count
_MOST_ROWS, _FIRST = 1000, 0.1  # the last rows that are looked at, without this share of them: little was learned then


@torch.no_grad()
def missed_share(X: Tensor, y: Tensor, predicted: Tensor) -> float:
    """The share of the variance of targets y (N,) that neighbors in X (N, D) have in common and predictions (N,) miss.

    Zero unless this is certain and predictions, each made before its target was learned, explain next to nothing.
    """
    seen = (~y.isnan()).nonzero().flatten()
    seen = seen[int(_FIRST * len(seen)) :][-_MOST_ROWS:]
    rows, targets, errors = X[seen].double(), y[seen].double(), (y - predicted)[seen].double()
    half = len(seen) // 2
    if half < 2 or not float(errors[half:].square().mean()) > (1 - _LITTLE) * float(targets[half:].var()):
        return 0.0
    scores, best = normal_score((errors.argsort().argsort().double() + 0.5) / len(errors)), 0.0
    neighbors = _neighbors(rows)
    sure = -NormalDist().inv_cdf(_FALSE / max(len(neighbors), 1))
    for neighbor in neighbors:
        common = float((scores * scores[neighbor]).sum())
        is_mutual = neighbor[neighbor] == torch.arange(len(neighbor), device=neighbor.device)
        if common > sure * math.sqrt(len(scores) + int(is_mutual.sum())):
            best = max(best, common / float(scores.square().sum()))
    return best


def _neighbors(rows: Tensor) -> list[Tensor]:
    """The nearest row of each of some rows (N, D) by all columns, and by each column that has many values, (N,)."""
    span = rows.amax(0) - rows.amin(0)
    columns = (rows / span)[:, span > 0]
    parts = [columns, *(column.unsqueeze(-1) for column in columns.mT if 2 * len(column.unique()) > len(column))]
    return [_nearest(part) for part in (parts[:1] if columns.shape[1] == 1 else parts) if part.shape[1]]


def _nearest(rows: Tensor) -> Tensor:
    """The nearest other row of each of some rows (N, D), (N,); of several that are equal the next in a random order."""
    generator = torch.Generator("cpu").manual_seed(0)  # neighbors in time may be alike without inputs
    place = torch.randperm(len(rows), generator=generator, device="cpu").to(rows)
    later = (place - place.unsqueeze(-1)) % len(rows) / len(rows)
    return (torch.cdist(rows, rows) + _TIE * later).fill_diagonal_(torch.inf).argmin(1)


def missed_text(share: float) -> str:
    """A sentence about a share that a fit misses, for reports."""
    return (
        f"the fit explains almost none of the variance of the targets, yet rows with similar inputs share {share:.0%} "
        f"or more of it: it missed a function; use a longer warm-up, leave out irrelevant inputs, or add WindowGP() to "
        f"extra_experts"
    )


def warn_of_missed(shares: Mapping[Hashable, float]) -> None:
    """A ``UserWarning`` where fits miss something in any of the series that were looked at, which it names."""
    missed = [name for name, share in shares.items() if share > 0]
    if missed:
        which = f"{len(missed)} of {len(shares)} series that were checked, such as {missed[0]!r}"
        warn_caller(f"{which}: {missed_text(min(shares[name] for name in missed))}")
