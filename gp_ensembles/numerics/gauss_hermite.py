"""Nodes and weights for expectations under the standard normal distribution, in one dimension and in several."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

_MOST_TENSOR_NODES = 4096


def gauss_hermite(num_nodes: int, like: Tensor) -> tuple[Tensor, Tensor]:
    r"""Nodes and weights of Gauss-Hermite quadrature for N(0, 1).

    Exact for polynomials up to degree 2 K - 1. Made in float64, then brought to the dtype of ``like``.

    Args:
        num_nodes: Number of nodes K, from 1 to 100.
        like: A tensor with the dtype and device that the nodes shall have.

    Returns:
        Nodes and weights, each (K,); the weights sum to one.

    Raises:
        ValueError: If the number of nodes is out of range.

    Example:
        >>> import torch
        >>> nodes, weights = gauss_hermite(3, torch.zeros((), dtype=torch.float64))
        >>> (weights * nodes**4).sum()  # the fourth moment
        tensor(3.0000, dtype=torch.float64)
    """
    if not 1 <= num_nodes <= 100:
        raise ValueError(f"the number of nodes must lie between 1 and 100, got {num_nodes}")
    nodes, weights = _hermite(num_nodes)
    return torch.tensor(nodes).to(like), torch.tensor(weights).to(like)


def normal_nodes(num_nodes: int, num_dimensions: int, like: Tensor) -> tuple[Tensor, Tensor]:
    r"""Nodes and weights for N(0, I) in several dimensions.

    A product of Gauss-Hermite rules with ``num_nodes`` nodes per dimension while that makes at most 4 096 nodes; beyond,
    as many scrambled Sobol points (always the same), symmetric about zero and whitened, so that mean and covariance
    are exact.

    Args:
        num_nodes: Number of nodes per dimension of the product rule.
        num_dimensions: Number of dimensions.
        like: A tensor with the dtype and device that the nodes shall have.

    Returns:
        Nodes (K, num_dimensions) and weights (K,), which sum to one.

    Example:
        >>> import torch
        >>> nodes, weights = normal_nodes(5, 2, torch.zeros((), dtype=torch.float64))
        >>> nodes.shape, (weights * nodes.prod(-1) ** 2).sum()
        (torch.Size([25, 2]), tensor(1.0000, dtype=torch.float64))
    """
    if num_nodes**num_dimensions > _MOST_TENSOR_NODES:
        points = _sobol(num_dimensions)
        return torch.tensor(points).to(like), like.new_full((points.shape[0],), 1 / points.shape[0])
    nodes, weights = gauss_hermite(num_nodes, like.new_zeros((), dtype=torch.float64))
    grid = torch.cartesian_prod(*[nodes] * num_dimensions).reshape(-1, num_dimensions)
    shares = torch.cartesian_prod(*[weights] * num_dimensions).reshape(-1, num_dimensions).prod(-1)
    return grid.to(like), shares.to(like)


@lru_cache(maxsize=32)
def _hermite(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return nodes, weights / weights.sum()


@lru_cache(maxsize=32)
def _sobol(num_dimensions: int) -> np.ndarray:  # type: ignore[type-arg]
    engine = SobolEngine(num_dimensions, scramble=True, seed=0)
    uniform = engine.draw(_MOST_TENSOR_NODES // 2, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    half = torch.special.ndtri(uniform)
    points = torch.cat([half, -half])
    factor = torch.linalg.cholesky(points.mT @ points / points.shape[0])
    whitened: np.ndarray = torch.linalg.solve_triangular(factor, points.mT, upper=False).mT.numpy()  # type: ignore[type-arg]
    return whitened
