"""The exact Gaussian process of the last rows: a Cholesky factor to which rows are appended, and dropped in lots."""

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from gp_ensembles.filters.states import StepPredictions, WindowState, concatenate_steps
from gp_ensembles.numerics.cholesky import cholesky

_WHAT = "the covariance of the targets"
# What a triangular solve costs for each entry of the matrix, in units of what it does for a right-hand side: without
# any, and when the matrix is copied first, as a part of a larger one is.
_READ, _COPY = 10, 100


class Covariance(Protocol):
    """A kernel as two functions of rows, their hyperparameters read, in double precision."""

    @property
    def between(self) -> "Between":
        r"""Covariances of rows (\*batch, K, D) and (\*batch, N, D), shape (\*batch, K, N)."""

    @property
    def diagonal(self) -> "Diagonal":
        r"""Variances of rows (\*batch, N, D), shape (\*batch, N)."""


class Between(Protocol):
    """See :class:`Covariance`."""

    def __call__(self, first: Tensor, second: Tensor, /) -> Tensor:
        """Covariances of two lists of rows."""


class PriorMean(Protocol):
    """What targets are expected to be before any is seen."""

    def __call__(self, X: Tensor, /) -> Tensor:
        r"""Prior means at rows (\*batch, N, D), shape (\*batch, N)."""


class Diagonal(Protocol):
    """See :class:`Covariance`."""

    def __call__(self, X: Tensor, /) -> Tensor:
        """Variances of rows."""


class Window(NamedTuple):
    r"""What stays the same while rows come and go.

    Attributes:
        covariance: The kernel.
        noise: Noise variance, double precision, shape (\*batch).
        keep: Rows that stay when the window is full.
        mean: Prior mean of the targets; ``None`` for zero.
    """

    covariance: Covariance
    noise: Tensor
    keep: int
    mean: PriorMean | None = None


class WindowRows(NamedTuple):
    r"""What a window gets from a block, n rows being in use before: the state's fields for b observed rows.

    Attributes:
        inputs: Rows, shape (\*batch, b, D).
        targets: Targets, shape (\*batch, b).
        noise_scale: What their noise variance is multiplied with, shape (\*batch, b).
        factor: New rows of the factor, shape (\*batch, b, n + b).
        projected: Shape (\*batch, b).
    """

    inputs: Tensor
    targets: Tensor
    noise_scale: Tensor
    factor: Tensor
    projected: Tensor


def window_state(batch_shape: torch.Size, num_inputs: int, num_rows: int, like: Tensor) -> WindowState:
    """State before any data, with room for ``num_rows`` rows, double precision whatever the dtype of ``like``.

    Example:
        >>> import torch
        >>> window_state(torch.Size([2]), 3, 5, torch.zeros(1)).factor.shape
        torch.Size([2, 5, 5])
    """
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
    on_diagonal = torch.eye(X.shape[-2], dtype=torch.bool, device=X.device)
    return torch.where(on_diagonal, (covariance.diagonal(X) + noise).unsqueeze(-1), matrix)


def update_window(state: WindowState, Phi: Tensor, y: Tensor, window: Window) -> tuple[WindowState, StepPredictions]:
    r"""Predict and learn a block of targets, one step ahead each; equal to single rows to round-off.

    With the factor :math:`L L^\top = K + \sigma^2 I` of the n rows of the window, :math:`A = L^{-1} k(X, X_*)` and
    :math:`z = L^{-1} y`, those of the block have, before any of them is seen, mean :math:`A^\top z` and covariance
    :math:`S = k(X_*, X_*) + \sigma^2 I - A^\top A` (Rasmussen and Williams 2006, section 2.2). Its factor
    :math:`S = M M^\top` has one row for each target: forward substitution makes the mean and the variance of each
    given those before it, and :math:`(A^\top, M)` are the new rows of L. A block costs O(B n² + B² n).

    A prior mean is taken off the targets and added to the predictions.

    When the window is full its oldest rows are dropped, all but ``window.keep``, and the factor is computed anew from
    what stays: once in a lot of rows, so that O(n²) a row remains.

    Args:
        state: The window before the block.
        Phi: Rows as :class:`~gp_ensembles.features.inputs.InputFeatures` give them, shape (\*batch, B, D + 1).
        y: Targets, shape (B,), NaN where missing, multiplied as the rows of ``Phi``.
        window: Kernel, noise and length.

    Returns:
        The window after the block, and the predictions made before each target.

    Raises:
        NumericalError: If a covariance is not positive definite.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from gp_ensembles.features.covariance import bind_covariance
        >>> one = torch.ones(2, 2, dtype=torch.float64)
        >>> window = Window(bind_covariance(RBFKernel().double()), torch.tensor(1.0).double(), keep=3)
        >>> _, steps = update_window(window_state(torch.Size(), 1, 4, one), one, one[0], window)
        >>> steps.mean.detach(), steps.variance.detach()
        (tensor([0.0000, 0.5000], dtype=torch.float64), tensor([2.0000, 1.5000], dtype=torch.float64))
    """
    seen = ~torch.isnan(y)
    capacity, num_rows = state.targets.shape[-1], y.shape[0]
    parts, start = [], 0
    while start < num_rows:
        stop = _end_of(seen, start, capacity - num_used(state))
        rows, part = condition_window(state, Phi[..., start:stop, :], y[start:stop], window)
        if rows.factor.shape[-1] < capacity:
            state = _appended(state, rows)
        else:
            state = _refilled(state, window, _last_rows(state, rows, window.keep))
        parts.append(part)
        start = stop
    return state, concatenate_steps(parts)


def condition_window(state: WindowState, Phi: Tensor, y: Tensor, window: Window) -> tuple[WindowRows, StepPredictions]:
    """Predict a block whose observed rows fit into the window, and what :func:`append_` writes there."""
    covariance, seen = window.covariance, ~torch.isnan(y)
    weight = Phi[..., -1].double()
    rows, targets = _rows(Phi), y.double() / weight
    scale = weight.reciprocal().square()
    noise = window.noise.unsqueeze(-1) * scale
    n = num_used(state)
    above = _solved(state, rows, covariance, n)  # (*batch, n, B)
    joint = own_covariance(covariance, rows, noise) - above.mT @ above
    before = _plus_mean((above * state.projected[..., :n, None]).sum(-2), rows, window)
    factor = cholesky(joint[..., seen, :][..., seen], _WHAT)
    errors = (targets - before)[..., seen].unsqueeze(-1)
    right = torch.cat([joint[..., seen, :], errors], dim=-1)
    solved = torch.linalg.solve_triangular(factor, right, upper=False)
    whitened = solved[..., -1]
    # Row i of the solution depends on the observed rows up to i only: what is left of each target is causal.
    place = torch.arange(y.shape[0], device=y.device)
    causal = torch.where(place[seen].unsqueeze(-1) < place, solved[..., :-1], 0.0)
    mean = before + (causal * whitened.unsqueeze(-1)).sum(-2)
    variance = torch.maximum(joint.diagonal(dim1=-2, dim2=-1) - causal.square().sum(-2), noise)
    log_prob = -0.5 * ((targets - mean).square() / variance + (2 * math.pi * variance).log())
    of_factor = torch.cat([above.mT[..., seen, :], factor], dim=-1)
    found = WindowRows(rows[..., seen, :], targets[..., seen], scale[..., seen], of_factor, whitened)
    return found, StepPredictions(*(value.to(y.dtype) for value in (mean, variance, log_prob)))


def append_(state: WindowState, rows: WindowRows) -> None:
    """Write observed rows behind those of a window, in place."""
    end = rows.factor.shape[-1]
    start = end - rows.targets.shape[-1]
    state.inputs[..., start:end, :] = rows.inputs
    state.targets[..., start:end] = rows.targets
    state.noise_scale[..., start:end] = rows.noise_scale
    state.factor[..., start:end, :end] = rows.factor
    state.projected[..., start:end] = rows.projected
    state.num_used.fill_(end)


def predict_window(state: WindowState, Phi: Tensor, window: Window) -> StepPredictions:
    r"""Predict rows Phi (\*batch, N, D + 1) that all come next, each on its own; learns nothing."""
    n, rows = num_used(state), _rows(Phi)
    solved = _solved(state, rows, window.covariance, n)
    mean = _plus_mean((solved * state.projected[..., :n, None]).sum(-2), rows, window)
    variance = window.covariance.diagonal(rows) + window.noise.unsqueeze(-1) - solved.square().sum(-2)
    variance = torch.maximum(variance, window.noise.unsqueeze(-1)).to(Phi.dtype)
    return StepPredictions(mean.to(Phi.dtype), variance, torch.full_like(variance, torch.nan))


def joint_window(state: WindowState, Phi: Tensor, window: Window) -> Tensor:
    r"""Joint covariance of the targets of rows Phi (\*batch, N, D + 1) that all come next, (\*batch, N, N)."""
    rows = _rows(Phi)
    solved = _solved(state, rows, window.covariance, num_used(state))
    noise = window.noise.unsqueeze(-1).expand(*rows.shape[:-1])
    return (own_covariance(window.covariance, rows, noise) - solved.mT @ solved).to(Phi.dtype)


def refactored(state: WindowState, window: Window, keep: int) -> WindowState:
    """The newest rows only, their factor computed anew from the kernel, behind them what is not used yet.

    Args:
        state: The window.
        window: Kernel, noise and prior mean from now on.
        keep: How many rows stay.

    Raises:
        NumericalError: If a covariance is not positive definite.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from gp_ensembles.features.covariance import bind_covariance
        >>> one = torch.ones(2, 2, dtype=torch.float64)
        >>> window = Window(bind_covariance(RBFKernel().double()), torch.tensor(1.0).double(), keep=3)
        >>> state, _ = update_window(window_state(torch.Size(), 1, 4, one), one, one[0], window)
        >>> int(refactored(state, window, 1).num_used)
        1
    """
    return _refilled(state, window, _last_rows(state, None, keep))


def held_evidence(state: WindowState) -> Tensor:
    r"""Log density of the targets that a window holds, but for its constant, in nats, shape (\*batch).

    Example:
        >>> import torch
        >>> state = window_state(torch.Size(), 1, 3, torch.zeros(1))
        >>> float(held_evidence(state._replace(projected=torch.tensor([2.0, 0.0, 0.0]))))
        -2.0
    """
    diagonal = state.factor.diagonal(dim1=-2, dim2=-1)
    return -0.5 * state.projected.square().sum(-1) - diagonal.log().sum(-1)


def _rows(Phi: Tensor) -> Tensor:
    """Inputs, whatever their weight."""
    return (Phi[..., :-1] / Phi[..., -1:]).double()


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
        return rows.new_zeros(*rows.shape[:-2], 0, rows.shape[-2])
    crossed = covariance.between(state.inputs[..., :n, :], rows)
    capacity = state.targets.shape[-1]
    num_columns = rows.shape[-2]
    if n * n * (_COPY + num_columns) < capacity * capacity * (_READ + num_columns):
        solved: Tensor = torch.linalg.solve_triangular(state.factor[..., :n, :n], crossed, upper=False)
        return solved
    # What is not used yet is of the identity, and leaves zeros as they are.
    right = pad(crossed, (0, 0, 0, capacity - n))
    whole: Tensor = torch.linalg.solve_triangular(state.factor, right, upper=False)
    return whole[..., :n, :]


def _last_rows(state: WindowState, rows: WindowRows | None, keep: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and noise scales of the newest rows, those of a block that is not yet learned behind."""
    axis, end = state.targets.ndim - 1, num_used(state)
    fields = (field.narrow(axis, 0, end) for field in (state.inputs, state.targets, state.noise_scale))
    if rows is not None:
        fields = (torch.cat([old, new], dim=axis) for old, new in zip(fields, rows[:3], strict=True))
    inputs, targets, scale = (field.narrow(axis, field.shape[axis] - keep, keep) for field in fields)
    return inputs, targets, scale


def _refilled(state: WindowState, window: Window, rows: tuple[Tensor, Tensor, Tensor]) -> WindowState:
    """A window of these rows: inputs, targets and noise scales."""
    inputs, targets, scale = rows
    covariance = own_covariance(window.covariance, inputs, window.noise.unsqueeze(-1) * scale)
    factor = cholesky(covariance, _WHAT)
    errors = targets if window.mean is None else targets - window.mean(inputs)
    projected = torch.linalg.solve_triangular(factor, errors.unsqueeze(-1), upper=False).squeeze(-1)
    used, capacity = targets.shape[-1], state.targets.shape[-1]
    free = capacity - used
    factor = pad(factor, (0, free, 0, free))
    factor.diagonal(dim1=-2, dim2=-1)[..., used:] = 1.0
    return WindowState(
        pad(inputs, (0, 0, 0, free)),
        pad(targets, (0, free)),
        pad(scale, (0, free), value=1.0),
        factor,
        pad(projected, (0, free)),
        torch.full_like(state.num_used, used),
        *state[6:],
    )


def _appended(state: WindowState, rows: WindowRows) -> WindowState:
    """The window with observed rows behind its own."""
    end, axis = rows.factor.shape[-1], state.targets.ndim - 1
    start, capacity = end - rows.targets.shape[-1], state.targets.shape[-1]
    rest = rows.factor.new_zeros(*rows.factor.shape[:-1], capacity - end)
    new = rows._replace(factor=torch.cat([rows.factor, rest], dim=-1))
    inputs, targets, scale, factor, projected = (
        torch.cat([old.narrow(axis, 0, start), value, old.narrow(axis, end, capacity - end)], dim=axis)
        for old, value in zip(state[:5], new, strict=True)
    )
    return WindowState(inputs, targets, scale, factor, projected, torch.full_like(state.num_used, end), *state[6:])
