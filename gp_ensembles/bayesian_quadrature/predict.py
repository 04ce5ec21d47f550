"""Predictions of the evaluated kernels, and their mixtures."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.hyperprior import Hyperparameters
from gp_ensembles.bayesian_quadrature.spectral_mixture import AT_ORIGIN, Reflection, covariance
from gp_ensembles.numerics.cholesky import cholesky

_MISSING = 0.05  # share of the weights of products of roots that may be left out


class Conditioned(NamedTuple):
    r"""R kernels' processes given the data.

    Args:
        hyperparameters: The kernels, of batch shape (R,).
        X: Training inputs, shape (N, D).
        factor: Cholesky factors of the training covariances, shape (R, N, N).
        solved: Their inverses times the targets, shape (R, N).
        reflection: How components are made symmetric.
    """

    hyperparameters: Hyperparameters
    X: Tensor
    factor: Tensor
    solved: Tensor
    reflection: Reflection

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Joint predictions of the function at points (\*batch, q, D): (\*batch, R, q) and (\*batch, R, q, q)."""
        kernels, scale, _ = self.hyperparameters
        scale = scale[:, None, None]
        batch, q = X.shape[:-2], X.shape[-2]
        flat = X.reshape(-1, X.shape[-1])  # one solve for all batches: no copies of the factor
        cross = scale * covariance(kernels, self.X, flat, self.reflection)  # (R, N, batch * q)
        white = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        mean = (self.solved.unsqueeze(-2) @ cross).squeeze(-2)
        mean, white = (part.unflatten(-1, (*batch, q)) for part in (mean, white))
        mean, white = mean.movedim(0, -2), white.movedim((0, 1), (-3, -2))  # (*batch, R, q) and (*batch, R, N, q)
        points = X.unsqueeze(-3)
        own = scale * covariance(kernels, points, points, self.reflection)
        return mean, own - white.mT @ white

    def marginals(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the function at points (M, D), one at a time: (R, M) each."""
        means, variances = [], []
        for r in range(self.solved.shape[0]):  # one kernel at a time: memory for one table of test and training points
            kernel, scale = self.hyperparameters.mixtures.take(r), self.hyperparameters.outputscale[r]
            cross = scale * covariance(kernel, X, self.X, self.reflection)
            white = torch.linalg.solve_triangular(self.factor[r], cross.mT, upper=False)
            means.append(cross @ self.solved[r])
            variances.append((scale * kernel.weights.sum() - white.square().sum(0)).clamp_min(0.0))
        return torch.stack(means), torch.stack(variances)


def condition(
    hyperparameters: Hyperparameters, X: Tensor, y: Tensor, reflection: Reflection = AT_ORIGIN
) -> Conditioned:
    """Processes of R kernels given rows X (N, D) and targets y (N,).

    Raises:
        NumericalError: If a covariance cannot be factorized.
    """
    factors = []
    for r in range(hyperparameters.noise.shape[0]):
        matrix = hyperparameters.outputscale[r] * covariance(hyperparameters.mixtures.take(r), X, X, reflection)
        noise = torch.diag_embed(hyperparameters.noise[r].expand(y.shape[0]))
        factors.append(cholesky(matrix + noise, f"the covariance of the training rows under kernel {r}"))
    factor = torch.stack(factors)
    solved = torch.cholesky_solve(y.unsqueeze(-1).expand(factor.shape[0], -1, 1), factor).squeeze(-1)
    trimmed = hyperparameters._replace(mixtures=hyperparameters.mixtures.trim())
    return Conditioned(trimmed, X, factor, solved, reflection)


class RootMixture(NamedTuple):
    r"""Products of roots of normal densities, point by point and normalized (Hamid et al., 2022, section 3.4).

    .. math:: p(y) \propto \sum_{ij} W_{ij} \sqrt{N_i(y) N_j(y)}
              = \sum_{ij} W_{ij} B_{ij} N(y; c_{ij}, V_{ij})

    with Bhattacharyya coefficients B. Each point stands for itself, so predictions do not depend on one another.
    Weights may be negative; where the mass :math:`\sum W B` is far from one, a variance comes out negative, or kernels
    were left out that the others' weights count on, ``usable`` is false and the mixture is not to be trusted there.

    Args:
        weights: :math:`W_{ij} B_{ij}` over their sum, shape (P, M), pairs first.
        mean: Means c, shape (P, M).
        variance: Variances V, shape (P, M).
        mass: Sum of W B before normalization, shape (M,): one if the surrogate were exact (and alpha zero).
        complete: Whether the kept kernels' weights have the sum of all, shape ().

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature.predict import root_mixture
        >>> means, variances = torch.tensor([[0.0], [2.0]]), torch.ones(2, 1)
        >>> mixture = root_mixture(torch.full((2, 2), 0.25), means, variances)
        >>> [round(float(moment), 3) for moment in mixture.moments()]
        [1.0, 1.622]
    """

    weights: Tensor
    mean: Tensor
    variance: Tensor
    mass: Tensor
    complete: Tensor

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance at each point, shapes (M,)."""
        mean = (self.weights * self.mean).sum(0)
        return mean, (self.weights * (self.variance + (self.mean - mean).square())).sum(0)

    def density(self, y: Tensor) -> Tensor:
        r"""Density at values (\*sample, M); it integrates to one, and may be negative where weights are."""
        z = (y.unsqueeze(-2) - self.mean).square() / self.variance
        each = (-0.5 * z).exp() / (2.0 * math.pi * self.variance).sqrt()
        return (self.weights * each).sum(-2)

    @property
    def usable(self) -> Tensor:
        """Where the mass is between one half and two and the variance positive, if no kernel is missing, shape (M,)."""
        return self.complete & (self.mass >= 0.5) & (self.mass <= 2.0) & (self.moments()[1] > 0)


def root_mixture(matrix: Tensor, mean: Tensor, variance: Tensor, total_weight: Tensor | None = None) -> RootMixture:
    """The mixture of products of roots at each of M points.

    Args:
        matrix: Weights W of the kept kernels, shape (R, R).
        mean: Their predictive means, shape (R, M).
        variance: Their predictive variances of the targets, noise included, shape (R, M).
        total_weight: Sum of the weights of all kernels, kept or not; of the kept ones if ``None``.

    Returns:
        The mixture of R^2 pairs.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1)
        >>> mixture = root_mixture(one, one, one)
        >>> mixture.moments(), float(mixture.mass)
        ((tensor([1.]), tensor([1.])), 1.0)
    """
    total = variance.unsqueeze(0) + variance.unsqueeze(1)
    product = variance.unsqueeze(0) * variance.unsqueeze(1)
    gap = mean.unsqueeze(0) - mean.unsqueeze(1)
    coefficient = (2.0 * product.sqrt() / total).sqrt() * (-0.25 * gap.square() / total).exp()
    spread = 2.0 * product / total
    center = (variance.unsqueeze(1) * mean.unsqueeze(0) + variance.unsqueeze(0) * mean.unsqueeze(1)) / total
    weighted = (matrix.unsqueeze(-1) * coefficient).flatten(0, 1)
    mass = weighted.sum(0)
    total_weight = matrix.sum() if total_weight is None else total_weight
    complete = (matrix.sum() - total_weight).abs() <= _MISSING * total_weight.abs()
    return RootMixture(weighted / mass, center.flatten(0, 1), spread.flatten(0, 1), mass, complete)
