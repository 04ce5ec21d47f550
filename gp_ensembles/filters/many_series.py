r"""One row of each of many series by the covariance filter, in place.

The same recursion as in :mod:`~gp_ensembles.filters.block` with one row, for S series of M experts each. A series costs
two reads and one write of its state, so states are processed a few at a time, in the cache:

.. math:: c = \Sigma \phi + Q \phi, \quad v = \phi^\top c + \sigma^2, \quad m = \phi^\top \mu, \qquad
          [\Sigma \mid \mu] \leftarrow [\Sigma + Q \mid \mu] - \frac{c}{v}\, [c^\top \mid m - y]
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

_CACHE_BYTES = 1_000_000


class RowPredictions(NamedTuple):
    """Prediction of one row of each of S series.

    Attributes:
        joint: [c | m], shape (S, M, F + 1).
        variance: v, shape (S, M).
    """

    joint: Tensor
    variance: Tensor

    @property
    def mean(self) -> Tensor:
        """m, shape (S, M)."""
        return self.joint[..., -1]


def predict_rows(moments: Tensor, places: Tensor, Phi: Tensor, walk: Tensor | None, noise: Tensor) -> RowPredictions:
    """Predict one row of each of some series; the state is not touched.

    Shapes: ``moments`` (T, M, F, F + 1), ``places`` (S,), ``Phi`` (S, M, F), ``walk`` (M, 1) or (M, F), ``noise``
    (M,) or (S, M).
    """
    num_series, num_experts, width = Phi.shape
    joint = Phi.new_empty(num_series, num_experts, width + 1)
    for rows, part, _ in _parts(moments, places):
        torch.bmm(Phi[rows].reshape(-1, 1, width), part.flatten(0, 1), out=joint[rows].view(-1, 1, width + 1))
    cross = joint[..., :-1]
    if walk is not None:
        cross += Phi * walk
    return RowPredictions(joint, (cross * Phi).sum(-1) + noise)


def learn_rows(moments: Tensor, places: Tensor, rows: RowPredictions, y: Tensor, walk: Tensor | None) -> None:
    """Learn the targets of the rows that :func:`predict_rows` has predicted; states change in place.

    Shapes: ``y`` (S,).
    """
    width = moments.shape[-2]
    gain = rows.joint
    gain[..., -1] -= y.unsqueeze(-1)
    gain.mul_(rows.variance.rsqrt().unsqueeze(-1))
    gain.masked_fill_(y.isnan()[:, None, None], 0.0)
    added = None if walk is None else walk.expand(*gain.shape[:-1], width)
    for chosen, part, is_copy in _parts(moments, places):
        right = gain[chosen].view(-1, 1, width + 1)
        part.flatten(0, 1).baddbmm_(right[..., :-1].mT, right, alpha=-1.0)
        if added is not None:
            part.flatten(-2)[..., :: width + 2] += added[chosen]
        if is_copy:
            moments.index_copy_(0, places[chosen], part)


def as_range(places: Tensor) -> slice | None:
    """Places as a range, ascending one by one; ``None`` where they are none."""
    if places.numel() == 0:
        return slice(0, 0)
    first = int(places[0])
    is_range = bool((places == torch.arange(first, first + len(places), device=places.device)).all())
    return slice(first, first + len(places)) if is_range else None


def _parts(moments: Tensor, places: Tensor) -> Iterator[tuple[slice, Tensor, bool]]:
    """Some series at a time: which rows, their states (s, M, F, F + 1), and whether these are copies."""
    size = max(1, _CACHE_BYTES // max(1, moments[0].numel() * moments.element_size()))
    known = as_range(places)
    for start in range(0, len(places), size):
        rows = slice(start, min(start + size, len(places)))
        if known is not None:
            yield rows, moments[known.start + rows.start : known.start + rows.stop], False
        else:
            yield rows, moments.index_select(0, places[rows]), True
