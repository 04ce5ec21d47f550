"""The exact Gaussian process of the last rows: a Cholesky factor that grows by rows and drops them in batches."""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.states import StepPredictions, WindowState, concatenate_steps
from gp_ensembles.numerics.cholesky import cholesky

_WHAT = "the covariance of the targets"
_SOLVED_AT_ONCE = 512  # rows of a factor that are copied for a triangular solve; the columns before them are multiplied
_COMPUTED_AT_ONCE = 60_000  # covariances, half a megabyte: a kernel makes several passes over them


class StationaryForm(Protocol):
    """A covariance that depends on the distance of two rows in length scales."""

    @property
    def inverse(self) -> Tensor:
        r"""Reciprocals of length scales, shape (\*batch, 1, D) or (\*batch, 1, 1)."""

    @property
    def profile(self) -> Callable[[Tensor], Tensor]:
        r"""Covariances (\*batch, K, N) of squared distances in length scales, of the same shape."""


class Covariance(Protocol):
    """A kernel as plain functions of rows, its hyperparameters read, in double precision."""

    @property
    def between(self) -> Callable[[Tensor, Tensor], Tensor]:
        r"""Covariances of rows (\*batch, K, D) and (\*batch, N, D), shape (\*batch, K, N)."""

    @property
    def diagonal(self) -> Callable[[Tensor], Tensor]:
        r"""Variances of rows (\*batch, N, D), shape (\*batch, N)."""

    @property
    def stationary(self) -> StationaryForm | None:
        """The same as a function of distances; ``None`` for kernels that are not stationary."""


class Window(NamedTuple):
    r"""Settings of a window: kernel, noise, size and prior mean.

    Attributes:
        covariance: The kernel.
        noise: Noise variance, double precision, shape (\*batch).
        keep: Rows that stay when the window is full.
        mean: Prior mean of the targets; ``None`` for zero.
    """

    covariance: Covariance
    noise: Tensor
    keep: int
    mean: Callable[[Tensor], Tensor] | None = None


class WindowRows(NamedTuple):
    r"""Fields of a window's state for the b observed rows of a block, n rows being in use before.

    Attributes:
        inputs: Rows, shape (\*batch, b, D).
        targets: Targets, shape (\*batch, b).
        noise_scale: Factor of their noise variance, shape (\*batch, b).
        cross: Their rows of the factor in its old columns, shape (\*batch, b, n).
        factor: The rest of these rows, lower triangular, shape (\*batch, b, b).
        projected: Shape (\*batch, b).
    """

    inputs: Tensor
    targets: Tensor
    noise_scale: Tensor
    cross: Tensor
    factor: Tensor
    projected: Tensor

    @property
    def end(self) -> int:
        """Rows in use with these."""
        return self.cross.shape[-1] + self.factor.shape[-1]


class WindowChange(NamedTuple):
    """Change of a window by a block.

    Attributes:
        kept: The rows that stayed when it was full, without unused capacity; ``None`` if it was not.
        rows: Rows behind these, or behind those of the window before the block; ``None`` for none.
    """

    kept: WindowState | None
    rows: WindowRows | None


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


def own_covariance(covariance: Covariance, X: Tensor, noise: Tensor) -> Tensor:
    r"""Covariance of the targets at rows X (\*batch, N, D) with noise variances (\*batch, N), shape (\*batch, N, N)."""
    matrix = covariance.between(X, X)
    # Distances of a row from itself are round-off, and their derivatives, too.
    variances = (covariance.diagonal(X) + noise).expand(matrix.shape[:-1])
    return torch.diagonal_scatter(matrix, variances, dim1=-2, dim2=-1)


def update_window(
    state: WindowState, Phi: Tensor, rows: Tensor | Rows, window: Window
) -> tuple[WindowState, StepPredictions]:
    r"""Predict and learn a block of targets, one step ahead each; equal to single rows to round-off.

    Shapes: ``Phi`` (\*batch, B, D + 1), ``rows`` or their targets (B,).

    Raises:
        NumericalError: If a covariance is not positive definite.
    """
    change, steps = stage_window(state, Phi, as_rows(rows), window)
    return changed(state, change), steps


def stage_window(state: WindowState, Phi: Tensor, rows: Rows, window: Window) -> tuple[WindowChange, StepPredictions]:
    """Predict a block, and what :func:`change_` or :func:`changed` makes of it; arguments as in `update_window`."""
    seen, held = ~torch.isnan(rows.y), state
    capacity, num_rows = state.targets.shape[-1], rows.y.shape[-1]
    change, parts, start = WindowChange(None, None), [], 0
    while start < num_rows:
        stop = _end_of(seen, start, capacity - num_used(held))
        new, part = condition_window(held, Phi[..., start:stop, :], rows.part(slice(start, stop)), window)
        if new.end < capacity:
            change = change._replace(rows=new)
        else:
            held = _filled(held, window, _last_rows(held, new, window.keep))
            change = WindowChange(held, None)
        parts.append(part)
        start = stop
    return change, concatenate_steps(parts)


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
    joint = own_covariance(covariance, rows, noise) - cross @ cross.mT
    before = _plus_mean(_projected(cross, state.projected[..., :n]), rows, window)
    errors = (targets - before).unsqueeze(-1)
    if bool(seen.all()):
        factor = cholesky(joint, _WHAT)
        whitened = torch.linalg.solve_triangular(factor, errors, upper=False).squeeze(-1)
        mean = before + _projected(factor.tril(-1), whitened)
        variance = torch.maximum(factor.diagonal(dim1=-2, dim2=-1).square(), noise)
        found = WindowRows(rows, targets, scale, cross, factor, whitened)
    else:
        factor = cholesky(joint[..., seen, :][..., seen], _WHAT)
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
    if change.kept is not None:
        state = _with_capacity(change.kept, state.targets.shape[-1])
    return state if change.rows is None else _appended(state, change.rows)


def change_(state: WindowState, change: WindowChange) -> None:
    """The same in place."""
    if change.kept is not None:
        _keep_(state, change.kept)
    if change.rows is not None:
        _append_(state, change.rows)


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
    return (own_covariance(window.covariance, rows, noise) - solved @ solved.mT).to(Phi.dtype)


def weights_of(state: WindowState) -> Tensor:
    r"""Weights of a window's n targets in its mean, :math:`(K + \sigma^2 I)^{-1} (y - m)`, (\*batch, n)."""
    n = num_used(state)
    factor, solved = state.factor, state.projected[..., :n].clone()
    for start in reversed(range(0, n, _SOLVED_AT_ONCE)):
        stop = min(start + _SOLVED_AT_ONCE, n)
        rest = solved[..., start:stop].unsqueeze(-1)
        if stop < n:
            rest = rest - factor[..., stop:n, start:stop].mT @ solved[..., stop:].unsqueeze(-1)
        lower = factor[..., start:stop, start:stop]
        solved[..., start:stop] = torch.linalg.solve_triangular(lower.mT, rest, upper=True).squeeze(-1)
    return solved


def mean_window(state: WindowState, Phi: Tensor, window: Window, weights: Tensor) -> Tensor:
    r"""Means at rows Phi (\*batch, N, D + 1) that all come next, from :func:`weights_of`, double precision."""
    rows, n = _rows(Phi), weights.shape[-1]
    if n == 0:
        return _plus_mean(rows.new_zeros(rows.shape[:-1]), rows, window)
    return _plus_mean(_projected(window.covariance.between(rows, state.inputs[..., :n, :]), weights), rows, window)


def refactored(state: WindowState, window: Window, keep: int) -> WindowState:
    """The newest rows only, their factor recomputed from the kernel, followed by unused capacity.

    Raises:
        NumericalError: If a covariance is not positive definite.
    """
    kept = _filled(state, window, _last_rows(state, None, keep))
    return _with_capacity(kept, state.targets.shape[-1])


def held_evidence(state: WindowState) -> Tensor:
    r"""Log density of the targets that a window holds, but for its constant, in nats, shape (\*batch)."""
    diagonal = state.factor.diagonal(dim1=-2, dim2=-1)
    return -0.5 * state.projected.square().sum(-1) - diagonal.log().sum(-1)


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


def _end_of(seen: Tensor, start: int, room: int) -> int:
    """The row after the ``room``-th observed one from ``start`` on, or the end."""
    number = seen[start:].cumsum(0)
    full = (number >= room).nonzero()
    return start + int(full[0]) + 1 if full.numel() else seen.shape[0]


def _solved(state: WindowState, rows: Tensor, covariance: Covariance, n: int) -> Tensor:
    if n == 0:
        return rows.new_zeros(*rows.shape[:-1], 0)
    return _forward(state.factor, _between(covariance, rows, state.inputs[..., :n, :]))


def _between(covariance: Covariance, rows: Tensor, others: Tensor) -> Tensor:
    r"""Covariances of rows (\*batch, K, D) and (\*batch, N, D), by blocks of rows that fit in the cache."""
    size = _rows_at_once(others)
    if rows.shape[-2] <= size:
        return covariance.between(rows, others)
    return torch.cat([covariance.between(part, others) for part in rows.split(size, dim=-2)], dim=-2)


def _rows_at_once(others: Tensor) -> int:
    return max(1, _COMPUTED_AT_ONCE // max(1, others[..., 0].numel()))


def _forward(factor: Tensor, right: Tensor) -> Tensor:
    r"""Rows (\*batch, B, n) times the inverse of the transpose of n rows of a lower factor (\*batch, C, C)."""
    solved = right[..., :0]
    for start in range(0, right.shape[-1], _SOLVED_AT_ONCE):
        stop = min(start + _SOLVED_AT_ONCE, right.shape[-1])
        rest = right[..., start:stop]
        if start > 0:
            rest = rest - solved @ factor[..., start:stop, :start].mT
        lower = factor[..., start:stop, start:stop]
        part = torch.linalg.solve_triangular(lower.mT, rest, upper=True, left=False)
        solved = torch.cat([solved, part], dim=-1)
    return solved


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
    factor = cholesky(_lower_covariance(window.covariance, inputs, window.noise.unsqueeze(-1) * scale), _WHAT)
    errors = targets if window.mean is None else targets - window.mean(inputs)
    projected = torch.linalg.solve_triangular(factor, errors.unsqueeze(-1), upper=False).squeeze(-1)
    used = torch.full_like(state.num_used, targets.shape[-1])
    return WindowState(inputs, targets, scale, factor, projected, used, *state[6:])


def _lower_covariance(covariance: Covariance, X: Tensor, noise: Tensor) -> Tensor:
    """As :func:`own_covariance`, but zero where a factorization reads nothing; by blocks that fit in the cache."""
    parts, num_rows, size = [], X.shape[-2], _rows_at_once(X)
    for start in range(0, num_rows, size):
        rows = X[..., start : start + size, :]
        end = start + rows.shape[-2]
        parts.append(pad(covariance.between(rows, X[..., :end, :]), (0, num_rows - end)))
    variances = covariance.diagonal(X) + noise
    return torch.diagonal_scatter(torch.cat(parts, dim=-2), variances, dim1=-2, dim2=-1)


def _with_capacity(state: WindowState, capacity: int) -> WindowState:
    """The same window with room for ``capacity`` rows."""
    used = state.targets.shape[-1]
    free = capacity - used
    factor = pad(state.factor, (0, free, 0, free))
    factor.diagonal(dim1=-2, dim2=-1)[..., used:] = 1.0
    return state._replace(
        inputs=pad(state.inputs, (0, 0, 0, free)),
        targets=pad(state.targets, (0, free)),
        noise_scale=pad(state.noise_scale, (0, free), value=1.0),
        factor=factor,
        projected=pad(state.projected, (0, free)),
    )


def _appended(state: WindowState, rows: WindowRows) -> WindowState:
    """The window with observed rows behind its own."""
    end, axis = rows.end, state.targets.ndim - 1
    start, capacity = end - rows.targets.shape[-1], state.targets.shape[-1]
    rest = rows.factor.new_zeros(*rows.factor.shape[:-1], capacity - end)
    factor = torch.cat([rows.cross, rows.factor, rest], dim=-1)
    inputs, targets, scale, factor, projected = (
        torch.cat([old.narrow(axis, 0, start), value, old.narrow(axis, end, capacity - end)], dim=axis)
        for old, value in zip(state[:5], (*rows[:3], factor, rows.projected), strict=True)
    )
    return WindowState(inputs, targets, scale, factor, projected, torch.full_like(state.num_used, end), *state[6:])
