r"""One row of the exact Gaussian process of the last rows, in the memory of its state.

With the factor :math:`L L^\top = K + \sigma^2 I` of the window's rows, :math:`v = L^{-1} k(X, x)` and
:math:`z = L^{-1} y`, a target has mean :math:`v^\top z` and variance :math:`k(x, x) + \sigma^2 - v^\top v`, and
:math:`(v^\top, \sqrt{\text{variance}})` is the new row of L. The cost is that of reading L once, so the solution
for a row that is predicted is kept for learning it.
"""

from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.filters.states import WindowState
from gp_ensembles.filters.window import Covariance, Window
from gp_ensembles.numerics.cholesky import forward_row

Numbers = NDArray[np.float64]


class _Seen(NamedTuple):
    """A row x (D,) that E windows of n rows have predicted: v (E, n) and the moments (E,) of its target."""

    x: Numbers
    solved: Numbers
    mean: Numbers
    variance: Numbers


class _Scaled(NamedTuple):
    """Inputs of windows in length scales, as far as they have been needed, columns first for fast sums."""

    inverse: Tensor  # whose length scales these are
    scales: Numbers  # (E, D, 1)
    rows: Numbers  # (E, D, C)
    num_rows: int


@final
class RowWindow:
    """One row at a time for a batch of E windows."""

    def __init__(self, state: WindowState) -> None:
        self._state = state
        self._num_used = state.num_used.numpy().reshape(-1)
        inputs, targets, scale, factor, projected = (part.numpy() for part in state[:5])
        num_experts, capacity = len(self._num_used), targets.shape[-1]
        self._inputs = inputs.reshape(num_experts, capacity, -1)
        self._targets, self._scale, self._projected = (
            part.reshape(num_experts, capacity) for part in (targets, scale, projected)
        )
        self._factor = factor.reshape(num_experts, capacity, capacity)
        self._seen: _Seen | None = None
        self._scaled: _Scaled | None = None

    def predict(self, window: Window, x: Numbers) -> tuple[Numbers, Numbers]:
        """Means and variances (E,) of the target at a row x (D,); the state is not touched."""
        n, seen = int(self._num_used.max()), self._seen
        if seen is not None and seen.solved.shape[1] == n and np.array_equal(seen.x, x):
            return seen.mean, seen.variance
        row = torch.from_numpy(x.reshape(1, -1)).expand(*self._state.num_used.shape, 1, len(x))
        noise = window.noise.reshape(-1).numpy()
        own = window.covariance.diagonal(row).reshape(-1).numpy() + noise
        prior = np.zeros(1) if window.mean is None else window.mean(row).reshape(-1).numpy()
        solved = np.empty((len(self._num_used), n))
        if n > 0:
            for e, right in enumerate(self._across(window.covariance, x, n)):
                solved[e] = forward_row(self._factor[e], right)
        mean = prior + np.einsum("en,en->e", solved, self._projected[:, :n])
        variance = np.maximum(own - np.einsum("en,en->e", solved, solved), noise)
        self._seen = _Seen(x.copy(), solved, mean, variance)
        return mean, variance

    def _across(self, covariance: Covariance, x: Numbers, n: int) -> Numbers:
        """Covariances of a row x (D,) with the n rows of each window, (E, n)."""
        if covariance.stationary is None:
            row = torch.from_numpy(x.reshape(1, -1)).expand(*self._state.num_used.shape, 1, len(x))
            across = covariance.between(row, self._state.inputs[..., :n, :])
            return across.reshape(-1, n).numpy()
        inverse, profile = covariance.stationary.inverse, covariance.stationary.profile
        held = self._scaled
        if held is None or held.inverse is not inverse or held.num_rows > n:
            scales = np.broadcast_to(inverse.numpy().reshape(-1, 1, inverse.shape[-1]), self._inputs[:, :1].shape)
            held = _Scaled(inverse, scales[:, 0, :, None], np.empty_like(self._inputs.transpose(0, 2, 1), order="C"), 0)
        if held.num_rows < n:
            new = slice(held.num_rows, n)
            held.rows[:, :, new] = self._inputs[:, new].transpose(0, 2, 1) * held.scales
            held = self._scaled = held._replace(num_rows=n)
        apart = held.rows[:, :, :n] - x[:, None] * held.scales
        np.square(apart, out=apart)
        squared = torch.from_numpy(apart.sum(1)).reshape(*self._state.num_used.shape, 1, n)
        return profile(squared).reshape(-1, n).numpy()

    def learn(self, y: float) -> None:
        """Learn the target of the row that was predicted last; there must be room for it."""
        seen = self._seen
        assert seen is not None
        n, deviation = seen.solved.shape[1], np.sqrt(seen.variance)
        self._inputs[:, n], self._targets[:, n], self._scale[:, n] = seen.x, y, 1.0
        self._factor[:, n, :n], self._factor[:, n, n] = seen.solved, deviation
        self._projected[:, n] = (y - seen.mean) / deviation
        self._num_used[:] = n + 1
        self._seen = None

    def forget(self) -> None:
        """Forget what was solved for; needed where others have changed the state."""
        self._seen = self._scaled = None
