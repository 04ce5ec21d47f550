r"""The block filter in place, on memory set aside once: for long streams, and for blocks of many series.

A block is predicted without touching the state: :meth:`BlockStream.set_block` computes its moments once, and
:meth:`BlockStream.condition` factors them, again where an outlier among its targets turns out to count less. Only
:meth:`BlockStream.commit` changes the state, and it cannot fail; so several experts predict a block, all are checked,
and then all commit or none does. No gradient flows here: use :func:`gp_ensembles.filters.update_block` for that.

Of S series of M experts each, every series costs two reads and one write of its state, so states are processed a few at
a time, in the cache. A block of one row needs no factor:

.. math:: c = \Sigma \phi + Q \phi, \quad v = \phi^\top c, \quad m = \phi^\top \mu, \qquad
          [\Sigma \mid \mu] \leftarrow [\Sigma + Q \mid \mu] - \frac{r^2 c}{r^2 v + \sigma^2}\, [c^\top \mid m - y]
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gp_ensembles.filters.block import BlockGain, condition_joint, joint_covariance
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import StepPredictions
from gp_ensembles.filters.transitions import is_full
from gp_ensembles.numerics import normal
from gp_ensembles.numerics.cholesky import cholesky

_WHAT = "the predictive covariance of the block"
_MANY_FEATURES = 300
_CACHE_NUMBERS = 125_000  # a megabyte in double precision
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class BlockStream:
    r"""Runs a batch of experts over blocks of one length, changing their state in place.

    Shapes: ``moments`` (\*batch, F, F + 1), ``noise`` (\*batch).
    """

    def __init__(
        self,
        moments: Tensor,
        noise: Tensor,
        random_walk_variance: Tensor | None,
        num_rows: int,
        steps: Tensor | None = None,
    ) -> None:
        batch_shape, num_features = moments.shape[:-2], moments.shape[-2]
        num_experts = batch_shape.numel()
        self._design_shape = torch.Size([num_experts, num_rows, num_features])
        self._prediction_shape = (*batch_shape, num_rows)
        self._state = moments.view(num_experts, num_features, num_features + 1)
        self._joint = moments.new_empty(num_experts, num_rows, num_features + 1)  # [C | Φ μ - y]
        self._cross, self._last = self._joint[..., :num_features], self._joint[..., num_features]
        self._cross_transposed = self._cross.mT
        # Many features: the inverse of the small factor and a product beat a triangular solve in place.
        self._identity: Tensor | None = None
        if num_rows > 1 and num_features >= _MANY_FEATURES:
            self._identity = torch.diag_embed(moments.new_ones(num_experts, num_rows))
        self._covariance = moments.new_empty(num_experts, num_rows, num_rows)
        self._noisy = self._covariance.diagonal(dim1=-2, dim2=-1)
        self._latent = moments.new_empty(num_experts, num_rows)  # variances of the latent values
        self._has_gaps = False
        self._factor: Tensor | None = None  # L, of the block that was predicted
        self._right: Tensor | None = None  # [W | -e], if it is known
        self._noise = noise.detach().reshape(num_experts, 1)
        self._walk: Tensor | None = None  # steps times the diagonal of Q
        self._full_walk: Tensor | None = None  # Q, if it is a matrix
        self._steps: Tensor | None = None
        self._drift: Tensor | None = None
        if random_walk_variance is not None:
            if steps is None:
                steps = torch.arange(1, num_rows + 1, dtype=moments.dtype, device=moments.device)
            flat_steps = steps.detach().expand(*batch_shape, num_rows).reshape(num_experts, num_rows, 1)
            own = random_walk_variance.shape[len(batch_shape) :]
            walk = random_walk_variance.detach().reshape(num_experts, *own)
            if is_full(random_walk_variance, noise):
                self._full_walk, self._steps = walk, flat_steps
                self._drift = flat_steps[:, -1:] * walk
            else:
                self._walk = flat_steps * walk.unsqueeze(1)
                self._drift = flat_steps[:, -1] * walk
        covariance = self._state[..., :num_features]
        self._drifting = covariance if self._full_walk is not None else covariance.diagonal(dim1=-2, dim2=-1)

    def set_block(self, Phi: Tensor, y: Tensor, has_gaps: bool) -> None:
        r"""Take a block of features (\*batch, B, F) and targets, (B,) or (\*batch, B); the state is not touched."""
        design = Phi if Phi.shape == self._design_shape else Phi.reshape(self._design_shape)
        torch.bmm(design, self._state, out=self._joint)
        if self._walk is not None:
            self._cross.addcmul_(design, self._walk)
        elif self._full_walk is not None and self._steps is not None:
            self._cross.addcmul_(design @ self._full_walk, self._steps)
        # Φ Cᵀ carries min(s, t) Q on and below its diagonal, the only part that the factorization reads.
        torch.bmm(design, self._cross_transposed, out=self._covariance)
        self._latent.copy_(self._noisy)
        self._has_gaps = has_gaps
        if not has_gaps:
            self._last -= y if y.ndim == 1 else y.reshape(self._last.shape)

    def condition(self, rows: Rows) -> StepPredictions:
        """Predict the block one step ahead, and keep what it teaches, given what counts of its targets."""
        target, own = rows.y if rows.y.ndim == 1 else rows.y.reshape(self._last.shape), self._noise
        self._factor = self._right = None
        if self._has_gaps:
            lower = self._covariance.tril()
            known = self._cross, self._last, lower + lower.tril(-1).mT, None
            gain, steps = condition_joint(*known, rows._replace(y=target), own.squeeze(-1))
            self._right = gain.right
            return StepPredictions(*(part.reshape(self._prediction_shape) for part in steps))
        own = own if rows.extra is None else own + rows.extra
        torch.add(self._latent, own if rows.share is None else own / rows.share, out=self._noisy)
        if len(self._covariance[0]) == 1:
            if not bool((self._noisy > 0).all()):
                cholesky(self._covariance, _WHAT)
            factor = self._covariance.sqrt()
            scale, error = factor.squeeze(-1), self._last / factor.squeeze(-1)
        else:
            factor = cholesky(self._covariance, _WHAT)
            scale = factor.diagonal(dim1=-2, dim2=-1)
            error = torch.linalg.solve_triangular(factor, self._last.unsqueeze(-1), upper=False).squeeze(-1)
        self._factor, mean = factor, torch.addcmul(target, scale, error)
        if rows.share is None:
            variance = scale.square()
            log_prob = torch.rsub(scale.log(), -_HALF_LOG_TWO_PI).addcmul_(error, error, value=-0.5)
        else:
            variance = self._latent + own - factor.tril(-1).square().sum(-1)
            log_prob = normal.log_prob(target, mean, variance)
        if len(self._prediction_shape) == 2:
            return StepPredictions(mean, variance, log_prob)
        return StepPredictions(*(part.reshape(self._prediction_shape) for part in (mean, variance, log_prob)))

    def commit(self) -> None:
        """Apply the block that was predicted to the state."""
        right = self._whitened() if self._right is None else self._right
        self._state.baddbmm_(right[..., :-1].mT, right, alpha=-1.0)
        if self._drift is not None:
            self._drifting += self._drift

    def _whitened(self) -> Tensor:
        """[W | -e], in the memory of [C | Φ μ - y] where there are few features."""
        factor, joint = self._factor, self._joint
        assert factor is not None
        if factor.shape[-1] == 1:
            return joint.div_(factor)
        if self._identity is None:
            torch.linalg.solve_triangular(factor, joint, upper=False, out=joint)
            return joint
        return torch.bmm(torch.linalg.solve_triangular(factor, self._identity, upper=False), joint)


def choose_block_size(num_features: int, num_experts: int) -> int:
    """Rows per block that run fastest on a CPU, from measurements."""
    if num_features >= _MANY_FEATURES:
        return 64
    best = 48 if num_experts == 1 else 24
    in_cache = _CACHE_NUMBERS // (num_features * num_experts) // 8 * 8
    return max(16, min(best, in_cache))


_CACHE_BYTES = 1_000_000


def condition_series(
    moments: Tensor, places: Tensor, Phi: Tensor, rows: Rows, noise: Tensor, walk: Tensor | None
) -> tuple[BlockGain, StepPredictions]:
    """Predict a block of each of some series, and compute what it teaches; the states are not touched.

    Shapes: ``moments`` (T, M, F, F + 1), ``places`` (S,), ``Phi`` (S, M, B, F), rows (S, B), ``noise`` (M,) or
    (S, M), ``walk`` (M, 1) or (M, F). Uneven steps are for blocks of one row. Returns predictions (S, M, B).
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
    return condition_joint(cross, joint[..., width], covariance, drift, rows, noise)


def _condition_row(
    joint: Tensor, Phi: Tensor, rows: Rows, noise: Tensor, walk: Tensor | None
) -> tuple[BlockGain, StepPredictions]:
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
    return BlockGain(joint[..., :-1], joint, drift), StepPredictions(mean, variance, log_prob)


def predict_series(moments: Tensor, places: Tensor, Phi: Tensor, noise: Tensor, walk: Tensor | None) -> StepPredictions:
    """Predict a row of each of some series, which may come several times; arguments as in :func:`condition_series`."""
    missing = Rows(Phi.new_full((len(places), 1), torch.nan))
    return condition_series(moments, places, Phi, missing, noise, walk)[1]


def learn_series(moments: Tensor, places: Tensor, gain: BlockGain) -> None:
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
