"""Log marginal likelihoods of many kernels at once: what computes them, and the dense way, exact for any inputs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor

from gp_ensembles.numerics import exact_gp
from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.numerics.exact_gp import Conditioned, log_marginal
from gp_ensembles.papers.quadrature.prior import KernelHyperparameters
from gp_ensembles.papers.quadrature.spectral_mixture import (
    AT_ORIGIN,
    Reflection,
    SpectralMixtures,
    covariance,
    covariance_at_lags,
)

CHUNK_BYTES = 2**25  # of matrices per chunk: about the size of caches; more is slower
_SAME_LAG = 1e-9  # lags closer than this share of the range are one lag of a grid
_MATRICES = 12  # covariance, its factor, inverse and gradient, and the parts of the component being differentiated
_MEMORY_SHARE = 0.8  # of the available memory that one likelihood may take


class Processes(Protocol):
    """Gaussian processes with R kernels, conditioned on the data; any class with these members will do."""

    @property
    def X(self) -> Tensor:
        """Training inputs, shape (N, D)."""

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Joint predictions of the function at points (\*batch, q, D): (\*batch, R, q) and (\*batch, R, q, q)."""

    def marginals(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the function at points (M, D), one at a time: (R, M) each."""


class LogMarginalLikelihoods(Protocol):
    """Log marginal likelihoods of one data set under many kernels; any class with these members will do.

    Attributes:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,).
        reflection: How the kernels' components are made symmetric.
    """

    X: Tensor
    y: Tensor
    reflection: Reflection

    @property
    def bytes_each(self) -> int:
        """Bytes of the largest table of a kernel, by which kernels are worked on in chunks."""

    def __call__(self, mixtures: SpectralMixtures, outputscale: Tensor, noise: Tensor) -> Tensor:
        """Log marginal likelihoods of B mixtures, shape (B,), differentiable; NaN where there is none."""

    def condition(self, hyperparameters: KernelHyperparameters) -> Processes:
        """Gaussian processes with R kernels, conditioned on the data, by the same arithmetic."""


class Likelihood(Protocol):
    """A way to compute log marginal likelihoods, before it sees the data; any class with this method will do."""

    def bind(self, X: Tensor, y: Tensor, reflection: Reflection) -> LogMarginalLikelihoods:
        """The likelihoods of data X (N, D) and y (N,).

        Raises:
            ValueError: If the data contradict what the arithmetic takes for granted.
            MemoryError: If a likelihood does not fit into memory.
        """


@final
class DenseLikelihood:
    """Cholesky factorizations, exact for any inputs: O(N^3) operations and O(N^2) memory for a kernel."""

    def bind(self, X: Tensor, y: Tensor, reflection: Reflection) -> "DenseLikelihoods":
        """The likelihoods of data X (N, D) and y (N,), if they fit into memory."""
        check_matrix_memory(X)
        return DenseLikelihoods(X, y, reflection)


def in_chunks(values: Callable[[KernelHyperparameters], Tensor], kernels: KernelHyperparameters, count: int) -> Tensor:
    """Values of B kernels, (B,), so many kernels at a time, and those of one size together: no work on padding."""
    mixtures, outputscale, noise = kernels
    if not len(noise):
        return noise.new_zeros(0)
    order = mixtures.num_components.argsort(stable=True)
    parts = order.split(max(1, count))
    found = [
        values(KernelHyperparameters(mixtures.take(rows).trim(), outputscale[rows], noise[rows])) for rows in parts
    ]
    return torch.cat(found)[order.argsort()]


class Lags(NamedTuple):
    """The distinct lags of a set of inputs on a line.

    Args:
        values: Distinct absolute differences, shape (U,).
        inverse: Index of the lag at each place of the covariance matrix, shape (N, N).
    """

    values: Tensor
    inverse: Tensor


def distinct_lags(X: Tensor) -> Lags | None:
    """The distinct lags of inputs (N, D), or ``None`` where they are too many to save time, or D > 1."""
    if X.shape[-1] != 1 or X.shape[-2] < 2:
        return None
    lags = (X - X.mT).abs()
    unit = _SAME_LAG * lags.max()
    if not bool(unit > 0):
        return None
    steps, index = torch.unique((lags / unit).round(), return_inverse=True)
    if 4 * steps.numel() > lags.numel():
        return None
    # the mean of the lags that share a step, so that no lag changes by more than rounding
    sums = lags.new_zeros(steps.numel()).index_add(0, index.reshape(-1), lags.reshape(-1))
    return Lags(sums / index.reshape(-1).bincount(minlength=steps.numel()), index)


@final
class DenseLikelihoods:
    r"""Log marginal likelihoods of one data set under many kernels, batched over them.

    .. math:: \log N(y;\, 0,\, c\,K_\theta + \sigma^2 I)

    Shapes: ``X`` (N, D), ``y`` (N,).

    Raises:
        ValueError: If shapes do not fit, there is no row, or a value is not finite (the first is named).
    """

    def __init__(self, X: Tensor, y: Tensor, reflection: Reflection = AT_ORIGIN) -> None:
        check_data(X, y)
        self.X = X
        self.y = y
        self.reflection = reflection
        self._lags = distinct_lags(X)

    def __call__(self, mixtures: SpectralMixtures, outputscale: Tensor, noise: Tensor) -> Tensor:
        """Log marginal likelihoods.

        Shapes: ``outputscale`` (B,), ``noise`` (B,); returns (B,).
        """

        def values(some: KernelHyperparameters) -> Tensor:
            matrices = some.outputscale[:, None, None] * self.covariance(some.mixtures)
            matrices.diagonal(dim1=-2, dim2=-1).add_(some.noise[:, None])  # of a product, which nothing else sees
            return log_marginal(matrices, self.y)

        kernels = KernelHyperparameters(mixtures, outputscale, noise)
        return in_chunks(values, kernels, CHUNK_BYTES // self.bytes_each)

    @property
    def bytes_each(self) -> int:
        """Bytes of a covariance matrix."""
        return self.y.element_size() * self.y.shape[0] ** 2

    def condition(self, hyperparameters: KernelHyperparameters) -> Processes:
        """Gaussian processes with R kernels, conditioned on the data.

        Raises:
            NumericalError: If a covariance cannot be factorized.
        """
        return condition(hyperparameters, self.X, self.y, self.reflection)

    def covariance(self, mixtures: SpectralMixtures) -> Tensor:
        """Covariances of the training rows, shape (B, N, N), without noise and scale."""
        if self._lags is None:
            return covariance(mixtures, self.X, self.X, self.reflection)
        values = covariance_at_lags(mixtures, self._lags.values)
        inverse = self._lags.inverse
        places = inverse.flatten().expand(*values.shape[:-1], -1)
        # as an index with ``inverse``, whose derivative is slow
        matrices: Tensor = values.gather(-1, places).unflatten(-1, inverse.shape)
        return matrices


class ConditionedProcesses(NamedTuple):
    r"""Gaussian processes with R kernels, conditioned on the data.

    Args:
        hyperparameters: The kernels, of batch shape (R,).
        X: Training inputs, shape (N, D).
        learned: The training covariances' factors and the whitened targets, batch shape (R,).
        reflection: How components are made symmetric.
    """

    hyperparameters: KernelHyperparameters
    X: Tensor
    learned: Conditioned
    reflection: Reflection

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Joint predictions of the function at points (\*batch, q, D): (\*batch, R, q) and (\*batch, R, q, q)."""
        kernels, scale, _ = self.hyperparameters
        scale = scale[:, None, None]
        batch, q = X.shape[:-2], X.shape[-2]
        flat = X.reshape(-1, X.shape[-1])  # one solve for all batches: no copies of the factor
        cross = scale * covariance(kernels, self.X, flat, self.reflection)  # (R, N, batch * q)
        white = self.learned.whiten(cross)
        mean, white = (part.unflatten(-1, (*batch, q)) for part in (self.learned.mean(white), white))
        mean, white = mean.movedim(0, -2), white.movedim((0, 1), (-3, -2))  # (*batch, R, q) and (*batch, R, N, q)
        points = X.unsqueeze(-3)
        own = scale * covariance(kernels, points, points, self.reflection)
        return mean, own - white.mT @ white

    def marginals(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the function at points (M, D), one at a time: (R, M) each."""
        means, variances = [], []
        factors, targets, _ = self.learned
        for r in range(len(factors)):  # one kernel at a time: memory for one table of test and training points
            kernel, scale = self.hyperparameters.mixtures.take(r), self.hyperparameters.outputscale[r]
            known = Conditioned(factors[r], targets[r])
            white = known.whiten(scale * covariance(kernel, X, self.X, self.reflection).mT)
            means.append(known.mean(white))
            variances.append((scale * kernel.weights.sum() - white.square().sum(0)).clamp_min(0.0))
        return torch.stack(means), torch.stack(variances)


def condition(
    hyperparameters: KernelHyperparameters, X: Tensor, y: Tensor, reflection: Reflection = AT_ORIGIN
) -> ConditionedProcesses:
    """Gaussian processes with R kernels, conditioned on rows X (N, D) and targets y (N,).

    Raises:
        NumericalError: If a covariance cannot be factorized.
    """
    factors = []
    for r in range(hyperparameters.noise.shape[0]):
        matrix = hyperparameters.outputscale[r] * covariance(hyperparameters.mixtures.take(r), X, X, reflection)
        noise = torch.diag_embed(hyperparameters.noise[r].expand(y.shape[0]))
        factors.append(cholesky(matrix + noise, f"the covariance of the training rows under kernel {r}"))
    learned = exact_gp.condition(torch.stack(factors), y.expand(len(factors), -1))
    trimmed = hyperparameters._replace(mixtures=hyperparameters.mixtures.trim())
    return ConditionedProcesses(trimmed, X, learned, reflection)


def check_data(X: Tensor, y: Tensor) -> None:
    """Check inputs and targets, naming the first value that is not finite."""
    if not isinstance(X, Tensor) or not isinstance(y, Tensor):
        raise TypeError("inputs and targets must be tensors; torch.as_tensor(X) makes one of an array")
    if X.ndim != 2 or y.ndim != 1 or X.shape[0] != y.shape[0]:
        raise ValueError(
            f"inputs (N, D) and targets (N,) do not fit: {tuple(X.shape)} and {tuple(y.shape)}; "
            f"unsqueeze(-1) makes a column of inputs, squeeze(-1) a vector of targets"
        )
    if not X.is_floating_point() or X.dtype != y.dtype or X.device != y.device:
        raise ValueError(
            f"inputs and targets must be real numbers of one dtype on one device, got {X.dtype} on {X.device} and "
            f"{y.dtype} on {y.device}"
        )
    if X.shape[0] < 2:
        raise ValueError(
            "there are no rows of data; at least two are needed"
            if not X.shape[0]
            else "there is one row of data; at least two are needed"
        )
    for name, values in (("inputs", X), ("targets", y.unsqueeze(-1))):
        bad = (~values.isfinite()).nonzero()
        if bad.numel():
            row, column = bad[0].tolist()
            raise ValueError(
                f"{name} must be finite, but row {row}, column {column} is {float(values[row, column])}; leave out "
                f"rows with missing values"
            )


def check_matrix_memory(X: Tensor, available: int | None = None) -> int:
    """Bytes that a likelihood of inputs (N, D) with gradients takes, if that much memory is available.

    Raises:
        MemoryError: If the estimate is above four fifths of the available memory.
    """
    needed = _MATRICES * X.shape[0] ** 2 * X.element_size()
    limit = _available_memory(X.device) if available is None else available
    if limit is not None and needed > _MEMORY_SHARE * limit:
        most = int((_MEMORY_SHARE * limit / (_MATRICES * X.element_size())) ** 0.5)
        raise MemoryError(
            f"a likelihood of {X.shape[0]} rows takes about {needed / 2**30:.1f} GiB and {limit / 2**30:.1f} GiB are "
            f"available; choose another likelihood than the dense one, or use at most {most} rows, for instance every "
            f"{-(-X.shape[0] // max(most, 1))}th"
        )
    return needed


def _available_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not known on this system
        return None
