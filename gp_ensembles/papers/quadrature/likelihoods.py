"""Log marginal likelihoods of many kernels at once: the base class and the dense method, exact for any inputs."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.numerics import exact_gp
from gp_ensembles.numerics.arguments import memory_of
from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.numerics.exact_gp import Conditioned, log_marginal
from gp_ensembles.papers.quadrature.prior import KernelHyperparameters
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures, covariance, covariance_at_lags

CHUNK_BYTES = 2**25  # of matrices per chunk: about the cache size; larger is slower
_SAME_LAG = 1e-9  # lags closer than this share of the range count as equal
_MATRICES = 12  # covariance, factor, inverse, gradient, and parts of the component being differentiated
_LEAST_REST = 1e-8  # lower limit of 1 - v / noise, for tiny noise
_MEMORY_SHARE = 0.8  # share of the available memory that one likelihood may use


# Means (R, M) at M points, and pairs of rows (R, M, F) whose products are subtracted from their covariance.
Known = tuple[Tensor, tuple[tuple[Tensor, Tensor], ...]]


class Processes(NamedTuple):
    """Gaussian processes with R kernels, conditioned on the data."""

    hyperparameters: KernelHyperparameters  # of batch shape (R,)
    X: Tensor  # training inputs, (N, D)
    known: Callable[[Tensor], Known]  # at points (M, D)

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Joint predictions of the function at points (\*batch, q, D): (\*batch, R, q) and (\*batch, R, q, q)."""
        kernels, scale, _ = self.hyperparameters
        shape, points = X.shape[:-1], X.unsqueeze(-3)
        mean, pairs = self.known(X.reshape(-1, X.shape[-1]))  # one solve for all batches, without copies of the factor
        own = scale[:, None, None] * covariance(kernels, points, points)
        for pair in pairs:
            left, right = (part.unflatten(-2, shape).movedim(0, -3) for part in pair)  # (*batch, R, q, F)
            own = own - left @ right.mT
        return mean.unflatten(-1, shape).movedim(0, -2), own

    def marginals(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Marginal means and variances of the function at points (M, D): (R, M) each."""
        means, learned, left_open = self._parts(X)
        return means, (learned + left_open).clamp_min(0.0)

    def leave_one_out(self, y: Tensor) -> tuple[Tensor, Tensor]:
        r"""Leave-one-out errors of the training targets (N,), and their predictive variances: (R, N) each.

        .. math:: y_i - m_{-i} = \frac{y_i - m_i}{1 - v_i / \sigma^2}, \qquad
                  s_{-i}^2 = \frac{v_i}{1 - v_i / \sigma^2} + d_i + \sigma^2

        with v the part of the posterior variance that the targets affect, and d that not explained by knots (Rasmussen
        and Williams, 2006, section 5.4.2).
        """
        means, learned, left_open = self._parts(self.X)
        noise = self.hyperparameters.noise.unsqueeze(-1)
        rest = (1.0 - learned / noise).clamp_min(_LEAST_REST)
        return (y - means) / rest, learned.clamp_min(0.0) / rest + left_open + noise

    def _parts(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means at points (M, D), and the variances v and d of :meth:`leave_one_out`: (R, M) each."""
        kernels, scale, _ = self.hyperparameters
        prior = (scale * kernels.weights.sum(-1)).unsqueeze(-1)
        parts = []
        for some in X.split(max(1, CHUNK_BYTES // (X.element_size() * len(self.X) * len(scale)))):
            mean, pairs = self.known(some)
            of_features, *of_targets = [(left * right).sum(-1) for left, right in pairs]
            left_open = prior - of_features if of_targets else torch.zeros_like(of_features)
            learned = -of_targets[0] if of_targets else prior - of_features
            parts.append((mean, learned, left_open))
        means, learned, left_open = (torch.cat(part, -1) for part in zip(*parts, strict=True))
        return means, learned, left_open


class LogMarginalLikelihoods(ABC):
    """Log marginal likelihoods of one data set under many kernels. Shapes: ``X`` (N, D), ``y`` (N,)."""

    bytes_each: int  # of the largest table of a kernel, which sets the chunk size

    def __init__(self, X: Tensor, y: Tensor) -> None:
        self.X = X
        self.y = y

    def __call__(self, mixtures: SpectralMixtures, outputscale: Tensor, noise: Tensor) -> Tensor:
        """Log marginal likelihoods of B mixtures, shape (B,), differentiable; NaN if undefined."""
        if not len(noise):
            return noise.new_zeros(0)
        components = mixtures.num_components
        order = components.argsort(stable=True)  # grouped by size: no work on padding
        parts = order.split(max(1, self._at_once(int(components.max()))))
        found = [self._values(KernelHyperparameters(mixtures.take(k).trim(), outputscale[k], noise[k])) for k in parts]
        return torch.cat(found)[order.argsort()]

    @abstractmethod
    def condition(self, hyperparameters: KernelHyperparameters) -> Processes:
        """Gaussian processes with R kernels, conditioned on the data by the same method.

        Raises:
            NumericalError: If a covariance is not positive definite.
        """

    @abstractmethod
    def _at_once(self, components: int) -> int:
        """Number of kernels with this many components that are processed at once."""

    @abstractmethod
    def _values(self, kernels: KernelHyperparameters) -> Tensor:
        """Log marginal likelihoods of a few kernels, shape (B,)."""


# Creates log marginal likelihoods of data X (N, D) and y (N,), such as :class:`DenseLikelihood`.
Likelihood = Callable[[Tensor, Tensor], LogMarginalLikelihoods]


def distinct_lags(X: Tensor) -> tuple[Tensor, Tensor] | None:
    """The distinct lags (U,) of inputs (N, D), and their indices in the covariance, (N, N).

    ``None`` if there are too many to save time, or D > 1.
    """
    if X.shape[-1] != 1 or X.shape[-2] < 2:
        return None
    lags = (X - X.mT).abs()
    unit = _SAME_LAG * lags.max()
    if not bool(unit > 0):
        return None
    steps, index = torch.unique((lags / unit).round(), return_inverse=True)
    if 4 * steps.numel() > lags.numel():
        return None
    # the mean of the lags that count as equal, so that no lag changes by more than round-off
    sums = lags.new_zeros(steps.numel()).index_add(0, index.reshape(-1), lags.reshape(-1))
    return sums / index.reshape(-1).bincount(minlength=steps.numel()), index


@final
class DenseLikelihood(LogMarginalLikelihoods):
    r"""Log densities :math:`\log N(y;\, 0,\, c\,K_\theta + \sigma^2 I)`, batched over kernels, exact for any inputs.

    By Cholesky factorizations: O(N^3) operations and O(N^2) memory per kernel.

    Raises:
        MemoryError: If a likelihood does not fit into memory.
    """

    def __init__(self, X: Tensor, y: Tensor) -> None:
        super().__init__(X, y)
        check_matrix_memory(X)
        self.bytes_each = y.element_size() * len(y) ** 2
        self._lags = distinct_lags(X)

    def condition(self, hyperparameters: KernelHyperparameters) -> Processes:
        """See :meth:`LogMarginalLikelihoods.condition`; noise variances may be (R,) or, for every row, (R, N)."""
        kernels, outputscale, noises = hyperparameters
        factors = []
        for r in range(len(noises)):
            matrix = outputscale[r] * covariance(kernels.take(r), self.X, self.X)
            noise = torch.diag_embed(noises[r].expand(self.y.shape[0]))
            factors.append(cholesky(matrix + noise, f"the covariance of the training rows under kernel {r}"))
        learned = exact_gp.condition(torch.stack(factors), self.y.expand(len(factors), -1))
        trimmed = hyperparameters._replace(mixtures=kernels.trim())
        return Processes(trimmed, self.X, functools.partial(self._known, trimmed, learned))

    def covariance(self, mixtures: SpectralMixtures) -> Tensor:
        """Covariances of the training rows, shape (B, N, N), without noise and scale."""
        if self._lags is None:
            return covariance(mixtures, self.X, self.X)
        lags, inverse = self._lags
        values = covariance_at_lags(mixtures, lags)
        places = inverse.flatten().expand(*values.shape[:-1], -1)
        # equivalent to indexing by ``inverse``, whose derivative is slow
        matrices: Tensor = values.gather(-1, places).unflatten(-1, inverse.shape)
        return matrices

    def _known(self, kernels: KernelHyperparameters, learned: Conditioned, points: Tensor) -> Known:
        white = learned.whiten(kernels.outputscale[:, None, None] * covariance(kernels.mixtures, self.X, points))
        return learned.mean(white), ((white.mT, white.mT),)

    def _at_once(self, components: int) -> int:
        return CHUNK_BYTES // self.bytes_each

    def _values(self, kernels: KernelHyperparameters) -> Tensor:
        matrices = kernels.outputscale[:, None, None] * self.covariance(kernels.mixtures)
        matrices.diagonal(dim1=-2, dim2=-1).add_(kernels.noise[:, None])  # in place: the product is not used elsewhere
        return log_marginal(matrices, self.y)


def check_matrix_memory(X: Tensor, available: int | None = None) -> int:
    """Bytes needed by a likelihood of inputs (N, D) with gradients; raises if they are not available."""
    needed = _MATRICES * X.shape[0] ** 2 * X.element_size()
    limit = memory_of(X.device) if available is None else available
    if needed > _MEMORY_SHARE * limit:
        most = int((_MEMORY_SHARE * limit / (_MATRICES * X.element_size())) ** 0.5)
        raise MemoryError(
            f"a likelihood of {X.shape[0]} rows takes about {needed / 2**30:.1f} GiB, but only {limit / 2**30:.1f} GiB "
            f"are available; use a likelihood other than the dense one, or at most {most} rows, for instance "
            f"every {-(-X.shape[0] // max(most, 1))}th"
        )
    return needed
