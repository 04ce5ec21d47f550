r"""Likelihoods of many rows with F features of the kernel: inducing variables at fixed knots.

With features :math:`\Phi` (N, F), the covariance :math:`Q = \Phi\Phi^\top` of the rows,
:math:`A = \sigma^2 I + \Phi^\top\Phi` and :math:`b = \Phi^\top y`,

.. math:: -2 \log N(y; 0, Q + \sigma^2 I)
          = (y^\top y - b^\top A^{-1} b) / \sigma^2 + \log|A| + (N - F) \log\sigma^2 + N \log 2\pi

in O(N F^2) operations and O(N F) memory (Rasmussen and Williams, 2006, appendix A.3).
"""

import functools
import math
from typing import final

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.quadrature.likelihoods import CHUNK_BYTES, Known, Likelihood, LogMarginalLikelihoods, Processes
from gp_ensembles.papers.quadrature.prior import KernelHyperparameters
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures, covariance

_TABLES = 2  # feature tables alive at once: fewer than covariances, as they are multiplied once


def knot_features(
    mixtures: SpectralMixtures, outputscale: Tensor, X: Tensor, *, knots: Tensor, nugget: float
) -> Tensor:
    r"""Features :math:`L^{-1} k(Z, x)` of knots Z (K, D), with :math:`L L^\top` the covariance of u(Z): (B, N, K).

    The nugget is the variance added to u(Z), as a share of the output scale. Shapes:
    ``outputscale`` (B,), ``X`` (N, D).
    """
    scale = outputscale[:, None, None]
    factor, good = _factor(scale * (covariance(mixtures, knots, knots) + nugget * _eye(knots)))
    cross = scale * covariance(mixtures, knots, X)
    features = torch.linalg.solve_triangular(factor, cross, upper=False).mT
    return torch.where(good[:, None, None], features, torch.nan)


def _solved(features: Tensor, noise: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cholesky factors of A, (B, F, F), the coefficients A^{-1} b, (B, F), and a mask of valid kernels, (B,)."""
    gram = features.mT @ features
    factor, good = _factor(gram + noise[:, None, None] * _eye(gram))
    return factor, torch.cholesky_solve(features.mT @ y.unsqueeze(-1), factor).squeeze(-1), good


def _factor(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factors and a mask of valid ones; the identity elsewhere, so that derivatives are finite."""
    _, info = torch.linalg.cholesky_ex(matrix.detach())
    good = (info == 0) & matrix.detach().isfinite().all(-1).all(-1)
    factor, _ = torch.linalg.cholesky_ex(torch.where(good[:, None, None], matrix, _eye(matrix)))
    return factor, good


def _eye(like: Tensor) -> Tensor:
    return torch.diag_embed(like.new_ones(like.shape[-2]))


@final
class KnotLikelihood(LogMarginalLikelihoods):
    """Lower bounds of log marginal likelihoods with knots Z (K, D)."""

    def __init__(self, X: Tensor, y: Tensor, knots: Tensor, nugget: float) -> None:
        super().__init__(X, y)
        if knots.ndim != 2 or not len(knots) or knots.shape[1:] != X.shape[1:] or knots.dtype != X.dtype:
            raise ValueError(
                f"knots must be rows (K, {X.shape[-1]}) of {X.dtype} like the inputs, got {tuple(knots.shape)} of "
                f"{knots.dtype}"
            )
        if not bool(knots.isfinite().all()):
            raise ValueError("knots must be finite")
        if not nugget > 0:
            raise ValueError(f"the nugget of the knots must be positive, got {nugget}")
        self.features = functools.partial(knot_features, knots=knots.to(X.device), nugget=nugget)
        self.bytes_each = _TABLES * y.element_size() * len(y) * len(knots)

    def condition(self, hyperparameters: KernelHyperparameters) -> Processes:
        kernels = hyperparameters._replace(mixtures=hyperparameters.mixtures.trim())
        factors, means = [], []
        for r in range(len(kernels.noise)):
            one = slice(r, r + 1)
            features = self.features(kernels.mixtures.take(one), kernels.outputscale[one], self.X)
            factor, mean, good = _solved(features, kernels.noise[one], self.y)
            if not bool(good.all()):
                raise NumericalError(f"the covariance of the features of kernel {r} is not positive definite")
            factors.append(factor)
            means.append(mean)
        known = functools.partial(self._known, kernels, torch.cat(factors), torch.cat(means).unsqueeze(-1))
        return Processes(kernels, self.X, known)

    def _known(self, kernels: KernelHyperparameters, factors: Tensor, means: Tensor, points: Tensor) -> Known:
        features = self.features(kernels.mixtures, kernels.outputscale, points)
        white = torch.linalg.solve_triangular(factors, features.mT, upper=False).mT
        learned = (-kernels.noise[:, None, None] * white, white)
        return (features @ means).squeeze(-1), ((features, features), learned)

    def _at_once(self, components: int) -> int:
        return CHUNK_BYTES // self.bytes_each

    def _values(self, kernels: KernelHyperparameters) -> Tensor:
        mixtures, outputscale, noise = kernels
        features, y = self.features(mixtures, outputscale, self.X), self.y
        known = features.detach().isfinite().all(-1).all(-1)
        features = torch.where(known[:, None, None], features, 0.0)
        factor, coefficients, good = _solved(features, noise, y)
        # (y'y - b'A^{-1}b) / noise as a sum of two squares, which avoids cancellation
        rest = y - (features @ coefficients.unsqueeze(-1)).squeeze(-1)
        square = rest.square().sum(-1) / noise + coefficients.square().sum(-1)
        log_determinant = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        log_determinant = log_determinant + (len(y) - features.shape[-1]) * noise.log()
        value = -0.5 * (square + log_determinant + len(y) * math.log(2.0 * math.pi))
        prior = len(y) * outputscale * mixtures.weights.sum(-1)
        value = value - 0.5 * (prior - features.square().sum((-2, -1))) / noise
        return torch.where(good & known & value.isfinite(), value, torch.nan)


def SparseLikelihood(knots: Tensor, nugget: float = 1e-6) -> Likelihood:
    r"""The variational lower bound with inducing variables at fixed knots (Titsias, 2009): O(N K^2).

    .. math:: \log N(y; 0, Q + \sigma^2 I) - \frac{1}{2\sigma^2} \mathrm{tr}(K - Q) \le \log N(y; 0, K + \sigma^2 I)

    Data whose inputs differ from the knots in columns or dtype raise a ValueError.

    Args:
        knots: Knots, shape (K, D), for instance from :func:`~gp_ensembles.numerics.kmeans.kmeans`.
        nugget: Variance added to the inducing variables, as a share of the output scale, which
            keeps their covariance positive definite; single precision needs 1e-4.
    """
    return functools.partial(KnotLikelihood, knots=knots, nugget=nugget)
