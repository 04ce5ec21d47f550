r"""Streaming sparse Gaussian process regression: inducing points and hyperparameters refitted with every batch.

Bui, Nguyen and Turner (2017) keep of all older rows the normal posterior :math:`q(a)` of the process at the old
inducing points and the prior :math:`p(a)` that it came from. What they say together, :math:`q(a) / p(a)`, is a normal
likelihood of the function at the old points, and enters the collapsed bound of the new ones together with the new rows.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.states import SquareRootState
from gp_ensembles.filters.update import update_block
from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.numerics.minimize import minimize

NUGGET = 1e-6  # share of the process's variance that an inducing variable has of its own
_BLOCK = 32  # rows that the filter takes at once
_WALL = 12.0  # logarithms of hyperparameters beyond which the bound counts as infinitely low
_LEAST_SPREAD = 0.01  # of a column, where length scales start: one that hardly moves at first may move later
_KEPT = 0.7  # share of the old inducing points that stay; the rest are drawn from the new rows, as in the authors' code


class Kernel(NamedTuple):
    """Logarithms of the hyperparameters of an RBF kernel with noise.

    Attributes:
        lengthscale: Of each column, shape (D,).
        variance: Of the process, shape ().
        noise: Variance of the noise, shape ().
    """

    lengthscale: Tensor
    variance: Tensor
    noise: Tensor

    def covariance(self, A: Tensor, B: Tensor) -> Tensor:
        """Covariances between rows (N, D) and (K, D), shape (N, K)."""
        A, B = A / self.lengthscale.exp(), B / self.lengthscale.exp()
        squared = A.square().sum(-1, keepdim=True) + B.square().sum(-1) - 2 * A @ B.mT
        return self.variance.exp() * (-0.5 * squared.clamp_min(0.0)).exp()


class Old(NamedTuple):
    r"""What is known of all older rows; the inducing variables are :math:`a = L v` with :math:`v \sim N(0, I)` before.

    Attributes:
        knots: Inducing points, shape (K, D).
        factor: L, a Cholesky factor of the prior covariance that they had, shape (K, K).
        precision: What the rows add to the identity in the posterior precision of v, shape (K, K).
        shift: The posterior precision of v times its mean, shape (K,).
        constant: Logarithm of :math:`q(a) / p(a)` at a = 0.
    """

    knots: Tensor
    factor: Tensor
    precision: Tensor
    shift: Tensor
    constant: Tensor

    @classmethod
    def nothing(cls, like: Tensor) -> "Old":
        """Before any row, for inputs (N, D)."""
        empty = like.new_zeros(0, 0)
        return cls(like[:0], empty, empty, like.new_zeros(0), like.new_zeros(()))


def absorb(kernel: Kernel, knots: Tensor, X: Tensor, y: Tensor, old: Old, nugget: float = NUGGET) -> tuple[Tensor, Old]:
    r"""The collapsed bound of a batch, and what is known after it.

    With :math:`K_{bb} = L L^\top`, :math:`W_f = L^{-1} K_{bf}`, :math:`T = L^{-1} K_{ba} L_a^{-\top}`, the old
    precision C and shift g, :math:`B = I + W_f W_f^\top / \sigma^2 + T C T^\top` and
    :math:`c = W_f y / \sigma^2 + T g`,

    .. math:: F = -\tfrac{N}{2} \log 2 \pi \sigma^2 - \frac{y^\top y + \mathrm{tr}(K_{ff} - W_f^\top W_f)}{2 \sigma^2}
        - \tfrac12 \mathrm{tr} \, C (L_a^{-1} K_{aa} L_a^{-\top} - T^\top T) + \log \frac{q(0)}{p(0)}
        - \tfrac12 \log |B| + \tfrac12 c^\top B^{-1} c,

    the expectation of the logarithms of both likelihoods under the process given the new inducing variables,
    integrated over these.

    Args:
        kernel: Hyperparameters; F is differentiable in them.
        knots: New inducing points, shape (K, D).
        X: Inputs, shape (N, D).
        y: Targets, shape (N,), all observed.
        old: What is known of the older rows.
        nugget: Share of the process's variance that each inducing variable has of its own, so that points may coincide.

    Raises:
        NumericalError: If a matrix is not positive definite to working precision.

    Example:
        >>> zero = torch.zeros((), dtype=torch.float64)
        >>> X = torch.zeros(1, 1, dtype=torch.float64)
        >>> bound, after = absorb(Kernel(zero.expand(1), zero, zero), X, X, X[0] + 1, Old.nothing(X), 0.0)
        >>> bound  # log N(1; 0, 2)
        tensor(-1.5155, dtype=torch.float64)
    """
    noise, own = kernel.noise.exp(), nugget * kernel.variance.exp()
    factor = cholesky(added(kernel.covariance(knots, knots), own), "the covariance of the inducing points")
    rows = torch.linalg.solve_triangular(factor, kernel.covariance(knots, X), upper=False)
    past = torch.linalg.solve_triangular(factor, kernel.covariance(knots, old.knots), upper=False)
    past = torch.linalg.solve_triangular(old.factor, past.mT, upper=False).mT
    precision = rows @ rows.mT / noise + past @ old.precision @ past.mT
    shift = rows @ y / noise + past @ old.shift
    root = cholesky(added(precision, precision.new_ones(())), "the posterior precision of the inducing variables")
    white = torch.linalg.solve_triangular(root, shift.unsqueeze(-1), upper=False)
    # Of the integral over the new inducing variables; less itself, the logarithm of q(b) / p(b) at b = 0.
    gained = 0.5 * white.square().sum() - root.diagonal().log().sum()
    unexplained = len(y) * kernel.variance.exp() - rows.square().sum()
    own_past = added(kernel.covariance(old.knots, old.knots), own)
    prior_past = torch.linalg.solve_triangular(old.factor, own_past, upper=False)
    prior_past = torch.linalg.solve_triangular(old.factor, prior_past.mT, upper=False)
    bound = (
        gained
        + old.constant
        - 0.5 * len(y) * (math.log(2 * math.pi) + kernel.noise)
        - 0.5 * (y.square().sum() + unexplained) / noise
        - 0.5 * (old.precision * (prior_past - past.mT @ past)).sum()
    )
    return bound, Old(knots, factor, precision, shift, -gained)


class Settings(NamedTuple):
    """How the model is refitted.

    Attributes:
        num_inducing: Inducing points K.
        batch: Rows between two refits.
        first_iterations: Steps of L-BFGS on the warm-up rows.
        iterations: Steps of L-BFGS with every batch.
    """

    num_inducing: int = 100
    batch: int = 300
    first_iterations: int = 60
    iterations: int = 10


class StreamingSparseGP:
    """Predicts each row before it learns it, and refits with every batch; made by :meth:`fit`.

    Between two refits rows are absorbed one by one with the current hyperparameters and inducing points, which is the
    same update with a batch of one; at a refit their batch is absorbed again.
    """

    def __init__(self, kernel: Kernel, old: Old, settings: Settings, generator: torch.Generator | None) -> None:
        self.kernel, self.old, self.settings = kernel, old, settings
        self._generator = generator
        self._X, self._y = old.knots[:0], old.shift[:0]
        self._state = _state(old)

    @classmethod
    def fit(
        cls, X: Tensor, y: Tensor, settings: Settings, generator: torch.Generator | None = None
    ) -> "StreamingSparseGP":
        """Fit hyperparameters and inducing points to the warm-up rows X (N, D) and y (N,); NaN rows are left out."""
        seen = ~y.isnan()
        X, y = X[seen], y[seen]
        order = torch.randperm(len(X), generator=generator, device="cpu")[: settings.num_inducing]
        absorbing = partial(absorb, X=X, y=y, old=Old.nothing(X))
        kernel, old = refit(first_kernel(X), X[order.to(X.device)], absorbing, len(y), settings.first_iterations)
        return cls(kernel, old, settings, generator)

    @torch.no_grad()
    def observe(self, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Predictive means and log densities of rows X (N, D), each made before y (N,) was seen; NaN is missing."""
        parts = []
        while len(X):
            room = min(self.settings.batch - len(self._y), _BLOCK)
            parts.append(self._block(X[:room], y[:room]))
            X, y = X[room:], y[room:]
        mean, log_prob = (torch.cat(part) for part in zip(*parts, strict=True))
        return mean, log_prob

    def _block(self, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.linalg.solve_triangular(self.old.factor, self.kernel.covariance(self.old.knots, X), upper=False).mT
        self._state, steps = update_block(self._state, rows.contiguous(), y, None, self.kernel.noise.exp())
        variance = steps.variance + (self.kernel.variance.exp() - rows.square().sum(-1)).clamp_min(0.0)
        log_prob = -0.5 * ((y - steps.mean).square() / variance + (2 * math.pi * variance).log())
        seen = ~y.isnan()
        self._X, self._y = torch.cat([self._X, X[seen]]), torch.cat([self._y, y[seen]])
        if len(self._y) >= self.settings.batch:
            self._refit()
        return steps.mean, log_prob

    def _refit(self) -> None:
        """Inducing points among the old and the new rows, then all of them and the hyperparameters moved uphill."""
        start = successors(self.old.knots, self._X, self._generator)
        absorbing = partial(absorb, X=self._X, y=self._y, old=self.old)
        self.kernel, self.old = refit(self.kernel, start, absorbing, len(self._y), self.settings.iterations)
        self._X, self._y, self._state = self._X[:0], self._y[:0], _state(self.old)


def first_kernel(X: Tensor) -> Kernel:
    """Hyperparameters to start from at rows (N, D)."""
    spread = (X.amax(0) - X.amin(0)).clamp_min(_LEAST_SPREAD)
    return Kernel((0.5 * math.sqrt(X.shape[1]) * spread).log(), X.new_zeros(()), X.new_tensor(math.log(0.1)))


def successors(knots: Tensor, X: Tensor, generator: torch.Generator | None) -> Tensor:
    """Inducing points to start from among the old ones (K, D) and the rows of a batch (N, D), shape (K, D)."""
    count = len(knots)
    kept = torch.randperm(count, generator=generator, device="cpu")[: round(_KEPT * count)]
    fresh = torch.randperm(len(X), generator=generator, device="cpu")[: count - len(kept)]
    return torch.cat([knots[kept.to(knots.device)], X[fresh.to(knots.device)]])


def refit(
    kernel: Kernel,
    knots: Tensor,
    absorbing: Callable[[Kernel, Tensor], tuple[Tensor, Old]],
    num_rows: int,
    iterations: int,
) -> tuple[Kernel, Old]:
    """Climb the bound of a batch from a kernel and inducing points; what is known after it, where the climb ended.

    ``absorbing`` has the bound of the batch of ``num_rows``, and what is known after it.

    Raises:
        NumericalError: If the bound cannot be computed where it starts.
    """
    size = len(kernel.lengthscale)

    def unpack(point: Tensor) -> tuple[Kernel, Tensor]:
        own = Kernel(point[:size], point[size], point[size + 1])
        return own, point[size + 2 :].reshape(knots.shape)

    def losses(points: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = points[0].clone().requires_grad_()
            own, places = unpack(point)
            try:
                bound, _ = absorbing(own, places)
            except NumericalError:
                return points.new_full((1,), torch.inf), torch.zeros_like(points)
            (gradient,) = torch.autograd.grad(bound, point)
        if bool((point[: size + 2].abs() > _WALL).any()):
            return points.new_full((1,), torch.inf), torch.zeros_like(points)
        return -bound.detach().reshape(1) / num_rows, -gradient.unsqueeze(0) / num_rows

    start = torch.cat([kernel.lengthscale, kernel.variance.reshape(1), kernel.noise.reshape(1), knots.flatten()])
    with torch.no_grad():
        absorbing(kernel, knots)  # raises where it cannot be computed
    found = minimize(losses, start.unsqueeze(0), max_iterations=iterations)
    with torch.no_grad():
        own, places = unpack(found.point[0])
        return own, absorbing(own, places)[1]


def _state(old: Old) -> SquareRootState:
    """The posterior of the whitened inducing variables."""
    root = cholesky(added(old.precision, old.precision.new_ones(())), "the posterior precision")
    mean = torch.cholesky_solve(old.shift.unsqueeze(-1), root).squeeze(-1)
    inverse = torch.linalg.solve_triangular(root, torch.diag_embed(torch.ones_like(old.shift)), upper=False)
    return SquareRootState(mean, inverse.mT.contiguous())


def added(matrix: Tensor, value: Tensor) -> Tensor:
    """A matrix (N, N) with a number added to its diagonal."""
    return matrix + torch.diag_embed(value.expand(len(matrix)))
