r"""The exact Gaussian process of the last rows: a Cholesky factor that grows by rows and drops them in batches.

Rows come in blocks, or one at a time on plain arrays in the memory of the state (:class:`RowWindow`): the cost of a row
is that of reading the factor once, so the solution for a row that is predicted is kept for learning it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.blas import dtrsv
from scipy.linalg.lapack import dtrtri
from torch import Tensor

from gp_ensembles.filters.rows import RowExpert, Rows, as_rows
from gp_ensembles.filters.states import RefittedState, StepPredictions, WindowState, concatenate_steps
from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.numerics.exact_gp import TARGETS, Covariance, condition, target_weights, whiten_rows

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]
_PANEL = 128  # rows of a factor whose triangle is inverted once; the columns before them are read for every row


class Window(NamedTuple):
    """Settings of a window: kernel, noise, size and prior mean."""

    covariance: Covariance  # the kernel
    noise: Tensor  # noise variance, double precision, shape (*batch)
    keep: int  # rows that stay when the window is full
    mean: Callable[[Tensor], Tensor] | None = None  # prior mean of the targets; ``None`` for zero


class WindowRows(NamedTuple):
    """Fields of a window's state for the b observed rows of a block, n rows being in use before."""

    inputs: Tensor  # rows, shape (*batch, b, D)
    targets: Tensor  # targets, shape (*batch, b)
    noise_scale: Tensor  # factor of their noise variance, shape (*batch, b)
    cross: Tensor  # their rows of the factor in its old columns, shape (*batch, b, n)
    factor: Tensor  # the rest of these rows, lower triangular, shape (*batch, b, b)
    projected: Tensor  # shape (*batch, b)

    @property
    def end(self) -> int:
        """Rows in use with these."""
        return self.cross.shape[-1] + self.factor.shape[-1]


# Change of a window by a block: the rows that stayed if it was full, without unused capacity, and rows behind these,
# or behind those of the window before the block.
WindowChange = tuple[WindowState | None, WindowRows | None]


def window_state(batch_shape: torch.Size, num_inputs: int, num_rows: int, like: Tensor) -> WindowState:
    """State before any data, with room for ``num_rows`` rows, double precision whatever the dtype of ``like``."""
    zeros = torch.zeros((*batch_shape, num_rows), dtype=torch.float64, device=like.device)
    counts = torch.zeros(batch_shape, dtype=torch.int64, device=like.device)
    return WindowState(
        zeros.unsqueeze(-1).repeat(*([1] * zeros.ndim), num_inputs),
        zeros,
        torch.ones_like(zeros),
        torch.diag_embed(torch.ones_like(zeros)),
        zeros.clone(),
        counts,
        zeros[..., :0].clone(),
        counts.clone(),
        counts.clone(),
    )


def update_window(
    state: WindowState, Phi: Tensor, rows: Tensor | Rows, window: Window
) -> tuple[WindowState, StepPredictions]:
    r"""Predict and learn a block of targets, one step ahead each; equal to single rows to round-off.

    Shapes: ``Phi`` (\*batch, B, D + 1), ``rows`` or their targets (B,).
    """
    change, steps = stage_window(state, Phi, as_rows(rows), window)
    return changed(state, change), steps


def stage_window(state: WindowState, Phi: Tensor, rows: Rows, window: Window) -> tuple[WindowChange, StepPredictions]:
    """Predict a block, and what :func:`change_` or :func:`changed` makes of it; arguments as in `update_window`."""
    seen, held = ~torch.isnan(rows.y), state
    capacity, num_rows = state.targets.shape[-1], rows.y.shape[-1]
    kept: WindowState | None = None
    appended: WindowRows | None = None
    parts, start = [], 0
    while start < num_rows:
        stop = _end_of(seen, start, capacity - num_used(held))
        new, part = condition_window(held, Phi[..., start:stop, :], rows.part(slice(start, stop)), window)
        if new.end < capacity:
            appended = new
        else:
            held = kept = _filled(held, window, _last_rows(held, new, window.keep))
            appended = None
        parts.append(part)
        start = stop
    return (kept, appended), concatenate_steps(parts)


def condition_window(
    state: WindowState, Phi: Tensor, given: Rows, window: Window
) -> tuple[WindowRows, StepPredictions]:
    """Predict a block whose observed rows fit into the window, and what :func:`append_` writes there."""
    covariance, y = window.covariance, given.y
    rows, targets, seen = _rows(Phi), y.double().expand(Phi.shape[:-1]), ~torch.isnan(y)
    root = given.root_weights(window.noise)
    scale = torch.ones_like(targets) if root is None else root.reciprocal().square().expand(targets.shape)
    noise = window.noise.unsqueeze(-1) * scale
    n = num_used(state)
    cross = _solved(state, rows, covariance, n)  # (*batch, B, n)
    joint = covariance.of_targets(rows, noise) - cross @ cross.mT
    before = _plus_mean(_projected(cross, state.projected[..., :n]), rows, window)
    errors = (targets - before).unsqueeze(-1)
    if bool(seen.all()):
        factor = cholesky(joint, TARGETS)
        whitened = torch.linalg.solve_triangular(factor, errors, upper=False).squeeze(-1)
        mean = before + _projected(factor.tril(-1), whitened)
        variance = torch.maximum(factor.diagonal(dim1=-2, dim2=-1).square(), noise)
        found = WindowRows(rows, targets, scale, cross, factor, whitened)
    else:
        factor = cholesky(joint[..., seen, :][..., seen], TARGETS)
        right = torch.cat([joint[..., seen, :], errors[..., seen, :]], dim=-1)
        solved = torch.linalg.solve_triangular(factor, right, upper=False)
        whitened = solved[..., -1]
        # Row i of the solution depends on the observed rows up to i only: what is left of each target is causal.
        place = torch.arange(y.shape[-1], device=y.device)
        causal = torch.where(place[seen].unsqueeze(-1) < place, solved[..., :-1], 0.0)
        mean = before + (causal * whitened.unsqueeze(-1)).sum(-2)
        variance = torch.maximum(joint.diagonal(dim1=-2, dim2=-1) - causal.square().sum(-2), noise)
        found = WindowRows(
            rows[..., seen, :], targets[..., seen], scale[..., seen], cross[..., seen, :], factor, whitened
        )
    if root is not None:  # all of a target is predicted, whatever counts of it
        whole = variance - noise + window.noise.unsqueeze(-1) + (0.0 if given.extra is None else given.extra)
        variance = torch.where(root == 1, variance, whole)
    log_prob = -0.5 * ((targets - mean).square() / variance + (2 * math.pi * variance).log())
    return found, StepPredictions(*(value.to(y.dtype) for value in (mean, variance, log_prob)))


def changed(state: WindowState, change: WindowChange) -> WindowState:
    """A window after a block."""
    after = WindowState(*(field.clone() for field in state))
    change_(after, change)
    return after


def change_(state: WindowState, change: WindowChange) -> None:
    """The same in place."""
    kept, appended = change
    if kept is not None:
        _keep_(state, kept)
    if appended is not None:
        _append_(state, appended)


def _keep_(state: WindowState, kept: WindowState) -> None:
    """Write what stayed of a full window, in place."""
    used, axis = kept.targets.shape[-1], state.targets.ndim - 1
    for old, new in zip(state[:3], kept[:3], strict=True):
        old.narrow(axis, 0, used).copy_(new)
    state.factor[..., :used, :used] = kept.factor
    state.projected[..., :used] = kept.projected
    cut_(state, kept.num_used)


def cut_(state: WindowState, num_used: Tensor) -> None:
    r"""Forget the rows behind the first ones, (\*batch) of them, in place."""
    stays, axis = int(num_used.max()), state.targets.ndim - 1
    for field, neutral in ((state.inputs, 0.0), (state.targets, 0.0), (state.noise_scale, 1.0), (state.projected, 0.0)):
        field.narrow(axis, stays, state.targets.shape[-1] - stays).fill_(neutral)
    state.factor[..., stays:, :] = 0.0
    state.factor.diagonal(dim1=-2, dim2=-1)[..., stays:] = 1.0
    state.num_used.copy_(num_used)


def _append_(state: WindowState, rows: WindowRows) -> None:
    """Write observed rows behind those of a window, in place."""
    end = rows.end
    start = end - rows.targets.shape[-1]
    state.inputs[..., start:end, :] = rows.inputs
    state.targets[..., start:end] = rows.targets
    state.noise_scale[..., start:end] = rows.noise_scale
    state.factor[..., start:end, :start] = rows.cross
    state.factor[..., start:end, start:end] = rows.factor
    state.projected[..., start:end] = rows.projected
    state.num_used.fill_(end)


def predict_window(state: WindowState, Phi: Tensor, window: Window) -> StepPredictions:
    r"""Predict rows Phi (\*batch, N, D + 1) that all come next, each on its own; learns nothing."""
    n, rows = num_used(state), _rows(Phi)
    solved = _solved(state, rows, window.covariance, n)
    mean = _plus_mean(_projected(solved, state.projected[..., :n]), rows, window)
    variance = window.covariance.diagonal(rows) + window.noise.unsqueeze(-1) - solved.square().sum(-1)
    variance = torch.maximum(variance, window.noise.unsqueeze(-1)).to(Phi.dtype)
    return StepPredictions(mean.to(Phi.dtype), variance, torch.full_like(variance, torch.nan))


def joint_window(state: WindowState, Phi: Tensor, window: Window) -> Tensor:
    r"""Joint covariance of the targets of rows Phi (\*batch, N, D + 1) that all come next, (\*batch, N, N)."""
    rows = _rows(Phi)
    solved = _solved(state, rows, window.covariance, num_used(state))
    noise = window.noise.unsqueeze(-1).expand(*rows.shape[:-1])
    return (window.covariance.of_targets(rows, noise) - solved @ solved.mT).to(Phi.dtype)


def weights_of(state: WindowState) -> Tensor:
    r"""Weights of a window's n targets in its mean, :math:`(K + \sigma^2 I)^{-1} (y - m)`, (\*batch, n)."""
    return target_weights(state.factor, state.projected[..., : num_used(state)])


def mean_window(state: WindowState, Phi: Tensor, window: Window, weights: Tensor) -> Tensor:
    r"""Means at rows Phi (\*batch, N, D + 1) that all come next, from :func:`weights_of`, double precision."""
    rows, n = _rows(Phi), weights.shape[-1]
    if n == 0:
        return _plus_mean(rows.new_zeros(rows.shape[:-1]), rows, window)
    return _plus_mean(_projected(window.covariance.between(rows, state.inputs[..., :n, :]), weights), rows, window)


def refactored(state: WindowState, window: Window, keep: int) -> WindowState:
    """The newest rows only, their factor recomputed from the kernel."""
    return changed(state, (_filled(state, window, _last_rows(state, None, keep)), None))


def _rows(Phi: Tensor) -> Tensor:
    """Inputs, without the column of ones behind them."""
    return Phi[..., :-1].double()


def _projected(solved: Tensor, projected: Tensor) -> Tensor:
    r"""What was solved for, (\*batch, B, n), times the projected targets of n rows, (\*batch, n)."""
    return (solved @ projected.unsqueeze(-1)).squeeze(-1)


def _plus_mean(value: Tensor, rows: Tensor, window: Window) -> Tensor:
    return value if window.mean is None else value + window.mean(rows)


def num_used(state: WindowState) -> int:
    """Rows in the window; an expert that is not run any more may have fewer than the others of its batch."""
    return int(state.num_used.max())


def rows_until_refit(state: WindowState | RefittedState) -> int:
    """Rows until the next refit."""
    return int(state.due.max()) - int(state.num_rows.max())


def _end_of(seen: Tensor, start: int, room: int) -> int:
    """The row after the ``room``-th observed one from ``start`` on, or the end."""
    number = seen[start:].cumsum(0)
    full = (number >= room).nonzero()
    return start + int(full[0]) + 1 if full.numel() else seen.shape[0]


def _solved(state: WindowState, rows: Tensor, covariance: Covariance, n: int) -> Tensor:
    if n == 0:
        return rows.new_zeros(*rows.shape[:-1], 0)
    return whiten_rows(state.factor, covariance.in_blocks(rows, state.inputs[..., :n, :]))


def _last_rows(state: WindowState, rows: WindowRows | None, keep: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and noise scales of the newest rows, those of a block that is not yet learned behind."""
    axis, end = state.targets.ndim - 1, num_used(state)
    fields = (field.narrow(axis, 0, end) for field in (state.inputs, state.targets, state.noise_scale))
    if rows is not None:
        fields = (torch.cat([old, new], dim=axis) for old, new in zip(fields, rows[:3], strict=True))
    inputs, targets, scale = (field.narrow(axis, field.shape[axis] - keep, keep) for field in fields)
    return inputs, targets, scale


def _filled(state: WindowState, window: Window, rows: tuple[Tensor, Tensor, Tensor]) -> WindowState:
    """A window of these rows, inputs, targets and noise scales, without room for more."""
    inputs, targets, scale = rows
    errors = targets if window.mean is None else targets - window.mean(inputs)
    factor = cholesky(window.covariance.lower_half(inputs, window.noise.unsqueeze(-1) * scale), TARGETS)
    used = torch.full_like(state.num_used, targets.shape[-1])
    return WindowState(inputs, targets, scale, factor, condition(factor, errors).white, used, *state[6:])


@final
class RowWindow(RowExpert):
    """One row at a time for a batch of E windows, which see ``columns`` of it; ``refitted`` gives their settings."""

    def __init__(
        self,
        state: WindowState,
        window: Window,
        columns: Places,
        refitted: Callable[[WindowState], Window] | None = None,
    ) -> None:
        self._state, self._window, self._columns, self._refitted = state, window, columns, refitted
        self._num_used = state.num_used.numpy().reshape(-1)
        inputs, targets, scale, factor, projected = (part.numpy() for part in state[:5])
        num_experts, capacity = len(self._num_used), targets.shape[-1]
        self._inputs = inputs.reshape(num_experts, capacity, -1)
        self._targets, self._scale, self._projected = (
            part.reshape(num_experts, capacity) for part in (targets, scale, projected)
        )
        self._factor = factor.reshape(num_experts, capacity, capacity)
        # The row that was predicted last, x (D,), what it was solved for (E, n), and the moments (E,) of its target.
        self._seen: tuple[Numbers, Numbers, Numbers, Numbers] | None = None
        # Inputs in length scales as far as they have been needed, columns first for fast sums, these scales, variances.
        self._inverse: Tensor | None = None
        self._variance = np.empty(0)
        self._scales, self._scaled = np.empty((num_experts, self._inputs.shape[-1], 1)), np.empty(0)
        self._num_scaled = 0
        # The version of the factors, and inverses of the triangles of whole panels of each.
        self._panels: tuple[int, list[list[Numbers]]] = -1, []

    def is_ready(self) -> bool:
        room = self._targets.shape[1] - int(self._num_used.max())
        return (room if self._refitted is None else min(room, rows_until_refit(self._state))) > 1

    def predict(self, x: Numbers) -> tuple[Numbers, Numbers]:
        x, n = x[self._columns], int(self._num_used.max())
        window = self._window if self._refitted is None else self._refitted(self._state)
        if self._seen is not None:
            last, solved, mean, variance = self._seen
            if solved.shape[1] == n and np.array_equal(last, x):
                return mean, variance
        noise, prior, solved = window.noise.reshape(-1).numpy(), np.zeros(1), np.empty((len(self._num_used), n))
        if window.mean is not None:
            prior = window.mean(self._row(x)).reshape(-1).numpy()
        across, own = self._covariances(window.covariance, x, n)
        if self._panels[0] != self._state.factor._version:  # a block has changed them
            self._panels = self._state.factor._version, [[] for _ in self._factor]
        for e, right in enumerate(across if n > 0 else ()):
            solved[e] = forward_row(self._factor[e], right, self._panels[1][e])
        mean = prior + np.einsum("en,en->e", solved, self._projected[:, :n])
        variance = np.maximum(own + noise - np.einsum("en,en->e", solved, solved), noise)
        self._seen = x.copy(), solved, mean, variance
        return mean, variance

    def _row(self, x: Numbers) -> Tensor:
        return torch.from_numpy(x.reshape(1, -1)).expand(*self._state.num_used.shape, 1, len(x))

    def _covariances(self, covariance: Covariance, x: Numbers, n: int) -> tuple[Numbers, Numbers]:
        """Covariances of a row x (D,) with the n rows of each window, (E, n), and its variances, (E,) or (1,)."""
        if covariance.stationary is None:
            row = self._row(x)
            across = covariance.between(row, self._state.inputs[..., :n, :]).reshape(len(self._num_used), n)
            return across.numpy(), covariance.diagonal(row).reshape(-1).numpy()
        inverse, nu, variance = covariance.stationary
        if self._inverse is not inverse or self._num_scaled > n:
            self._inverse, self._num_scaled, self._variance = inverse, 0, variance.reshape(-1).numpy()
            self._scales[..., 0] = inverse.numpy().reshape(-1, inverse.shape[-1])
            self._scaled = np.empty_like(self._inputs.transpose(0, 2, 1), order="C")
        if self._num_scaled < n:
            new = slice(self._num_scaled, n)
            self._scaled[:, :, new] = self._inputs[:, new].transpose(0, 2, 1) * self._scales
            self._num_scaled = n
        apart = self._scaled[:, :, :n] - x[:, None] * self._scales
        np.square(apart, out=apart)
        return self._variance[:, None] * _profile(apart.sum(1), nu), self._variance

    def learn(self, y: float) -> None:
        assert self._seen is not None
        x, solved, mean, variance = self._seen
        n, deviation = solved.shape[1], np.sqrt(variance)
        self._inputs[:, n], self._targets[:, n], self._scale[:, n] = x, y, 1.0
        self._factor[:, n, :n], self._factor[:, n, n] = solved, deviation
        self._projected[:, n] = (y - mean) / deviation
        self._num_used[:] = n + 1
        self._seen = None
        if self._refitted is not None:
            self._state.num_rows.add_(1)

    def forget(self) -> None:
        self._seen = self._inverse = None


def _profile(squared: Numbers, nu: float) -> Numbers:
    """Matern correlations of squared distances in length scales, see :func:`.matern_covariance`."""
    if math.isinf(nu):
        found: Numbers = np.exp(-0.5 * squared)
        return found
    distance = np.sqrt(2.0 * nu * squared)
    decay: Numbers = np.exp(-distance)
    if nu > 0.5:
        decay *= 1.0 + distance + (np.square(distance) / 3.0 if nu > 1.5 else 0.0)
    return decay


def forward_row(factor: Numbers, right: Numbers, panels: list[Numbers]) -> Numbers:
    """Solve :math:`L v = r` with the first n rows and columns of a lower factor, which are read once, in its memory.

    Shapes: ``factor`` (C, C), ``right`` (n,); returns (n,). Inverses of the triangles of whole panels are added to
    ``panels``, for the next row of the same factor.
    """
    solved = right.copy()
    for number, start in enumerate(range(0, len(right), _PANEL)):
        part = slice(start, min(start + _PANEL, len(right)))
        if start > 0:
            solved[part] -= factor[part, :start] @ solved[:start]
        if part.stop - start < _PANEL:
            lower = np.ascontiguousarray(factor[part, part])
            solved[part] = dtrsv(lower.T, solved[part], lower=0, trans=1)
            break
        if number == len(panels):
            panels.append(np.tril(dtrtri(factor[part, part].T)[0].T))
        solved[part] = panels[number] @ solved[part]
    return solved
