r"""The posterior of the weights: D outputs, one covariance, updated one row or one block at a time.

With :math:`A = \Phi^\top \Phi + (\sigma_n^2/\sigma_\theta^2) I` the weights of output j are
:math:`N(A^{-1} \Phi^\top y^{(j)}, \sigma_n^2 A^{-1})` (Lu et al. 2022, section 6; their algorithm 2 leaves
:math:`\sigma_\theta^2` out of A). What is kept is a root W of the inverse, :math:`W^\top W = A^{-1}`: predictions then
need products only, and B new rows change W by a product with B columns. It is as sound as the Cholesky factor
:math:`R^\top R = A` that the paper updates, and :func:`information_factor` returns that one.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import cholesky


class WeightPosterior(NamedTuple):
    r"""Posterior of the weights of M experts for D outputs each.

    Attributes:
        root: W with :math:`W^\top W = A^{-1}`, shape (M, F, F); the covariance is this times the noise.
        mean: Posterior means, shape (M, F, D).
    """

    root: Tensor
    mean: Tensor


def weight_prior(ratio: Tensor, num_features: int, num_outputs: int) -> WeightPosterior:
    r"""The posterior before any row.

    Args:
        ratio: :math:`\sigma_n^2/\sigma_\theta^2` of each expert, shape (M,).
        num_features: Number of features F.
        num_outputs: Number of outputs D.

    Example:
        >>> import torch
        >>> weight_prior(torch.tensor([4.0]), 1, 2)
        WeightPosterior(root=tensor([[[0.5000]]]), mean=tensor([[[0., 0.]]]))
    """
    diagonal = ratio.rsqrt().unsqueeze(-1).expand(*ratio.shape, num_features)
    return WeightPosterior(torch.diag_embed(diagonal), ratio.new_zeros(*ratio.shape, num_features, num_outputs))


def learn_rows(posterior: WeightPosterior, Phi: Tensor, Y: Tensor) -> WeightPosterior:
    r"""The posterior after a block of rows; the same whether rows come one at a time or together, to round-off.

    With the rows' features in the root's coordinates, :math:`Z = \Phi W^\top`, and a lower triangular T for which
    :math:`T T^\top = I + Z Z^\top`, W loses :math:`Z^\top (T + I)^{-\top} T^{-1} Z W` and the gain is
    :math:`W^\top Z^\top (T T^\top)^{-1}` (Andrews, 1968; for one row Potter's square-root filter). T comes from an
    orthogonal decomposition, so nothing is squared. The price is O(F^2 + F D) a row.

    Args:
        posterior: The posterior before them.
        Phi: Their features, shape (M, B, F).
        Y: The rows as each expert sees them, shape (M, B, D) or (B, D). An entry equal to its own prediction (imputed)
            moves no mean, but the covariance is shared and shrinks for all outputs.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> posterior = learn_rows(weight_prior(one[0, 0], 1, 1), one, 3 * one)
        >>> round(posterior.mean.item(), 6), round(posterior.root.item() ** 2, 6)
        (1.5, 0.5)
    """
    length = posterior.root.shape[-1]  # more rows at once would cost more each
    for features, rows in zip(Phi.split(length, dim=-2), Y.split(length, dim=-2), strict=True):
        posterior = _learn_block(posterior, features, rows)
    return posterior


def walk(posterior: WeightPosterior, ratio: Tensor) -> WeightPosterior:
    r"""The posterior after the weights have taken a random step, in O(F^3).

    Args:
        posterior: The posterior before it.
        ratio: Variance of the step over the noise, :math:`\sigma_{rw}^2/\sigma_n^2`, shape (M,).

    Raises:
        NumericalError: If an expert's covariance is not positive definite.

    Example:
        >>> import torch
        >>> before = weight_prior(torch.tensor([4.0]), 1, 1)  # variance over noise: 1/4
        >>> round(walk(before, torch.tensor([0.75])).root.item() ** 2, 6)
        1.0
    """
    covariance = posterior.root.mT @ posterior.root
    covariance.diagonal(dim1=-2, dim2=-1).add_(ratio.unsqueeze(-1))
    return posterior._replace(root=cholesky(covariance, "the weights' covariance").mT)


def information_factor(posterior: WeightPosterior) -> Tensor:
    r"""The upper triangular R with :math:`R^\top R = A` and a positive diagonal, shape (M, F, F).

    Example:
        >>> import torch
        >>> information_factor(weight_prior(torch.tensor([4.0]), 1, 1))
        tensor([[[2.]]])
    """
    # A = W^-1 W^-T; after a walk W is not lower triangular any more, so its inverse is brought to that form.
    inverse = torch.linalg.inv(posterior.root).mT
    upper: Tensor = torch.linalg.qr(inverse, mode="r").R
    sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(upper)
    return upper * sign.unsqueeze(-1)


def predict_rows(posterior: WeightPosterior, Phi: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean (M, B, D) and variance (M, B) of rows with features Phi (M, B, F); all outputs have the same variance.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> mean, variance = predict_rows(weight_prior(one[0, 0], 1, 2), one, one[0, 0])
        >>> mean.shape, variance.item()
        (torch.Size([1, 1, 2]), 2.0)
    """
    whitened = Phi @ posterior.root.mT
    return Phi @ posterior.mean, noise.unsqueeze(-1) * (1 + whitened.square().sum(-1))


def _learn_block(posterior: WeightPosterior, Phi: Tensor, Y: Tensor) -> WeightPosterior:
    Z = Phi @ posterior.root.mT
    moved, error = Z @ posterior.root, Y - Phi @ posterior.mean
    T = _unit_plus_gram_factor(Z)
    plus = T.clone()
    plus.diagonal(dim1=-2, dim2=-1).add_(1.0)
    lost = torch.linalg.solve_triangular(plus.mT, torch.linalg.solve_triangular(T, moved, upper=False), upper=True)
    learned = torch.linalg.solve_triangular(T.mT, torch.linalg.solve_triangular(T, error, upper=False), upper=True)
    return WeightPosterior(posterior.root - Z.mT @ lost, posterior.mean + moved.mT @ learned)


def _unit_plus_gram_factor(Z: Tensor) -> Tensor:
    r"""The lower triangular T with positive diagonal and :math:`T T^\top = I + Z Z^\top`."""
    if Z.shape[-2] == 1:
        return (1 + Z.square().sum(-1, keepdim=True)).sqrt()
    unit = torch.diag_embed(torch.ones_like(Z[..., 0]))
    upper: Tensor = torch.linalg.qr(torch.cat([unit, Z.mT], dim=-2), mode="r").R
    sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(upper)
    return (upper * sign.unsqueeze(-1)).mT
