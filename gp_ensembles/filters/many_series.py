r"""A block of each of many series by the covariance filter, in place.

The same recursion as in :mod:`~gp_ensembles.filters.block`, for S series of M experts each. A series costs two reads
and one write of its state, so states are processed a few at a time, in the cache. A block of one row needs no factor:

.. math:: c = \Sigma \phi + Q \phi, \quad v = \phi^\top c, \quad m = \phi^\top \mu, \qquad
          [\Sigma \mid \mu] \leftarrow [\Sigma + Q \mid \mu] - \frac{r^2 c}{r^2 v + \sigma^2}\, [c^\top \mid m - y]
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.block import condition_joint, joint_covariance
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import StepPredictions
from gp_ensembles.numerics import normal

_CACHE_BYTES = 1_000_000


class SeriesGain(NamedTuple):
    """What a block teaches the experts of S series."""

    right: Tensor  # [W | -e], shape (S, M, B, F + 1)
    # What the walk adds to the diagonal of the covariance, up to shape (S, M, F); ``None`` for none
    drift: Tensor | None

    def take(self, series: Tensor) -> "SeriesGain":
        """That of some of the series, integers."""
        drift = self.drift
        return SeriesGain(self.right[series], drift[series] if drift is not None and drift.ndim == 3 else drift)


def condition_series(
    moments: Tensor, places: Tensor, Phi: Tensor, rows: Rows, noise: Tensor, walk: Tensor | None
) -> tuple[SeriesGain, StepPredictions]:
    """Predict a block of each of some series, and compute what it teaches; the states are not touched.

    Shapes: ``moments`` (T, M, F, F + 1), ``places`` (S,), ``Phi`` (S, M, B, F), rows (S, B), ``noise`` (M,) or
    (S, M), ``walk`` (M, 1) or (M, F). Uneven steps are for blocks of one row. Returns predictions (S, M, B).

    Raises:
        NumericalError: If the predictive covariance of a block is not positive definite.
    """
    num_experts, num_rows, width = Phi.shape[1:]
    joint = torch.empty(*Phi.shape[:-1], width + 1, dtype=Phi.dtype, device=Phi.device)
    design, product = Phi.reshape(-1, num_rows, width), joint.view(-1, num_rows, width + 1)
    for chosen, part, _ in _parts(moments, places):
        experts = slice(chosen.start * num_experts, chosen.stop * num_experts)
        torch.bmm(design[experts], part.flatten(0, 1), out=product[experts])
    rows = rows.mapped(lambda value: value.unsqueeze(1))
    if num_rows == 1:
        return _condition_row(joint, Phi, rows, noise, walk)
    cross, covariance, drift = joint_covariance(joint[..., :width], Phi, noise, walk, None)
    gain, steps = condition_joint(cross, joint[..., width], covariance, drift, rows, noise)
    return SeriesGain(gain.right, drift), steps


def _condition_row(
    joint: Tensor, Phi: Tensor, rows: Rows, noise: Tensor, walk: Tensor | None
) -> tuple[SeriesGain, StepPredictions]:
    """The same for one row, with the products [ΦΣ | Φμ], (S, M, 1, F + 1), whose memory is taken."""
    y, drift, noise = rows.y, None, noise.unsqueeze(-1)
    cross, last = joint[..., :-1], joint[..., -1]
    if walk is not None:
        drift = walk if rows.steps is None else walk * rows.steps
        cross += Phi * drift.unsqueeze(-2)
    latent, mean = (cross * Phi).sum(-1), last.clone()
    variance = latent + noise if rows.extra is None else latent + noise + rows.extra
    log_prob = normal.log_prob(y, mean, variance)
    root = rows.root_weights(noise.squeeze(-1))
    last -= y
    joint.mul_((variance.rsqrt() if root is None else root * (root.square() * latent + noise).rsqrt()).unsqueeze(-1))
    joint.masked_fill_(y.isnan().unsqueeze(-1), 0.0)
    return SeriesGain(joint, drift), StepPredictions(mean, variance, log_prob)


def predict_series(moments: Tensor, places: Tensor, Phi: Tensor, noise: Tensor, walk: Tensor | None) -> StepPredictions:
    """Predict a row of each of some series, which may come several times; arguments as in :func:`condition_series`."""
    missing = Rows(Phi.new_full((len(places), 1), torch.nan))
    return condition_series(moments, places, Phi, missing, noise, walk)[1]


def learn_series(moments: Tensor, places: Tensor, gain: SeriesGain) -> None:
    """Learn a block of each of some series, (S,), which are distinct; states change in place."""
    num_series, num_experts, num_rows, width = gain.right.shape
    added = None if gain.drift is None else gain.drift.expand(num_series, num_experts, width - 1)
    right = gain.right.reshape(-1, num_rows, width)
    left = right[..., :-1].mT
    for chosen, part, is_copy in _parts(moments, places):
        experts = slice(chosen.start * num_experts, chosen.stop * num_experts)
        part.flatten(0, 1).baddbmm_(left[experts], right[experts], alpha=-1.0)
        if added is not None:
            part.flatten(-2)[..., :: width + 1] += added[chosen]
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
