"""Fourier features where every expert has inputs of its own, with their derivatives."""

import math

import torch
from torch import Tensor


def latent_features(omega: Tensor, X: Tensor) -> Tensor:
    r"""Sines, then cosines, of every expert at its own inputs, so that :math:`\phi(x)^\top \phi(x) = 1`.

    .. math:: \phi(x) = R^{-1/2} \big[\sin(\omega_1^\top x), \dots, \sin(\omega_R^\top x),
              \cos(\omega_1^\top x), \dots, \cos(\omega_R^\top x)\big]

    (Rahimi and Recht, 2007). It is ``RandomFourierFeatures`` of one kernel, except that inputs are not shared.

    Args:
        omega: Angular frequencies in radians per unit of the inputs, shape (\*batch, R, d).
        X: Inputs, shape (\*batch, N, d).

    Returns:
        Features, shape (\*batch, N, 2 R).

    Example:
        >>> import torch
        >>> latent_features(torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
        tensor([[0., 1.]], dtype=torch.float64)
    """
    angles = X @ omega.mT
    return torch.cat([angles.sin(), angles.cos()], dim=-1) / math.sqrt(omega.shape[-2])


def feature_jacobian(omega: Tensor, Phi: Tensor) -> Tensor:
    r"""Derivatives of the features, shape (\*batch, N, d, 2 R), from the features (\*batch, N, 2 R) themselves."""
    sines, cosines = Phi.chunk(2, dim=-1)
    directions = omega.mT.unsqueeze(-3)  # (*batch, 1, d, R)
    return torch.cat([cosines.unsqueeze(-2) * directions, -sines.unsqueeze(-2) * directions], dim=-1)


def contract_curvature(omega: Tensor, Phi: Tensor, gradient: Tensor) -> Tensor:
    r"""The features' second derivatives, weighed with a gradient (\*batch, N, 2 R): shape (\*batch, N, d, d)."""
    both = -(gradient * Phi)
    sines, cosines = both.chunk(2, dim=-1)
    directions = omega.unsqueeze(-3)  # (*batch, 1, R, d)
    curvature: Tensor = (directions * (sines + cosines).unsqueeze(-1)).mT @ directions
    return curvature
