r"""The posterior of the weights: D outputs, one covariance, updated one row or one block at a time.

With :math:`A = \Phi^\top \Phi + (\sigma_n^2/\sigma_\theta^2) I` the weights of output j are
:math:`N(A^{-1} \Phi^\top y^{(j)}, \sigma_n^2 A^{-1})` (Lu et al. 2022, section 6; their algorithm 2 leaves
:math:`\sigma_\theta^2` out of A). What is kept is a root W of the inverse, :math:`W^\top W = A^{-1}`: predictions then
need products only, and a new row changes W at the price of one product. With static weights W is the lower triangular
:math:`R^{-\top}` of the Cholesky factor :math:`R^\top R = A`.
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
    """The posterior after a block of rows; the same whether rows come one at a time or together, to round-off.

    A single row costs O(F^2 + F D) by the closed form of the Cholesky factor of I + z zᵀ (Gill, Golub, Murray and
    Saunders, 1974), several O(F^3 + F^2 D).

    Args:
        posterior: The posterior before them.
        Phi: Their features, shape (M, B, F).
        Y: The rows as each expert sees them, shape (M, B, D) or (B, D). An entry equal to its own prediction (imputed)
            moves no mean, but the covariance is shared and shrinks for all outputs.

    Raises:
        NumericalError: If the update of an expert's covariance is not positive definite.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> posterior = learn_rows(weight_prior(one[0, 0], 1, 1), one, 3 * one)
        >>> round(posterior.mean.item(), 6), round(posterior.root.item() ** 2, 6)
        (1.5, 0.5)
    """
    whitened = Phi @ posterior.root.mT  # z of each row, (M, B, F)
    error = Y - Phi @ posterior.mean
    if Phi.shape[-2] == 1:
        root = _learn_one(posterior.root, whitened.squeeze(-2))
    else:
        gram = whitened.mT @ whitened
        gram.diagonal(dim1=-2, dim2=-1).add_(1.0)
        lower = cholesky(gram, "the update of the weights' covariance")
        root = torch.linalg.solve_triangular(lower, posterior.root, upper=False)
    gain = root.mT @ (root @ Phi.mT)
    return WeightPosterior(root, posterior.mean + gain @ error)


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


def _learn_one(root: Tensor, z: Tensor) -> Tensor:
    r"""C⁻¹ W for the Cholesky factor C of I + z zᵀ, whose entries are known.

    With :math:`s_i = 1 + z_1^2 + \dots + z_i^2`, C⁻¹ has :math:`\sqrt{s_{i-1}/s_i}` on its diagonal and
    :math:`-z_i z_j / \sqrt{s_i s_{i-1}}` below it.
    """
    after = 1 + z.square().cumsum(-1)
    before = torch.cat([torch.ones_like(after[..., :1]), after[..., :-1]], dim=-1)
    weighed = root * z.unsqueeze(-1)
    past = weighed.cumsum(-2) - weighed
    return root * (before / after).sqrt().unsqueeze(-1) - past * (z * (before * after).rsqrt()).unsqueeze(-1)
