r"""Expectations under normal distributions by fixed nodes: Gauss-Hermite, and quasi Monte Carlo in many dimensions.

Nodes :math:`x_k` and weights :math:`w_k` approximate :math:`E[g(x)] \approx \sum_k w_k\, g(x_k)` for standard normal x;
the weights sum to one. For :math:`z \sim N(m, s)` the nodes are :math:`m + \sqrt{s}\, x_k`.
"""

import functools
import math
from typing import Any, TypeVar

import torch
from torch import Tensor

A = TypeVar("A")  # a tensor or an array
_MOST_NODES = 256  # beyond, squared Hermite polynomials leave the range of float64
_POLISHING = 3  # Newton steps on the eigenvalues
_FEWEST_PER_AXIS = 6  # a coarser grid loses to quasi Monte Carlo of the same size
_SEED = 20110207


def gauss_hermite(num_nodes: int, like: A) -> tuple[A, A]:
    """Gauss-Hermite nodes and weights for the standard normal distribution, as tensors or arrays, as ``like`` is.

    Returns: nodes and weights, shape (K,) each.
    """
    if not 1 <= num_nodes <= _MOST_NODES:
        raise ValueError(f"the number of Gauss-Hermite nodes must be from 1 to {_MOST_NODES}, got {num_nodes}")
    nodes, weights = _rule(num_nodes)
    return _copy(nodes, like), _copy(weights, like)


def normal_nodes(num_nodes: int, dim: int, like: Tensor, most_nodes: int = 4096) -> tuple[Tensor, Tensor]:
    """Nodes and weights for the standard normal distribution in several dimensions.

    Returns: nodes, shape (K, D), and weights, shape (K,), which sum to one.
    """
    if dim < 1:
        raise ValueError(f"the number of dimensions must be positive, got {dim}")
    on_axis = num_nodes if dim == 1 else min(num_nodes, _root(most_nodes, dim))
    if on_axis == num_nodes or on_axis >= _FEWEST_PER_AXIS:
        axis, axis_weights = gauss_hermite(on_axis, like)
        nodes = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
        return nodes, torch.cartesian_prod(*[axis_weights] * dim).reshape(-1, dim).prod(-1)
    if most_nodes < 4 * dim:
        raise ValueError(f"{most_nodes} nodes are too few for {dim} dimensions; allow at least {4 * dim}")
    nodes = _copy(_sobol(most_nodes // 2, dim), like)
    return nodes, torch.full_like(nodes[:, 0], 1 / nodes.shape[0])


def log_expectation(log_values: Tensor, weights: Tensor) -> Tensor:
    r"""Logarithm of an expectation, :math:`\log \sum_k w_k \exp(\ell_k)`, in log space throughout.

    Shapes: ``log_values`` (K, ...), ``weights`` (K,); returns (...).
    """
    return (log_values + weights.log().reshape(-1, *[1] * (log_values.ndim - 1))).logsumexp(0)


def _copy(tensor: Tensor, like: A) -> A:
    of: Any = like
    if not isinstance(like, Tensor):
        copied: A = tensor.numpy().astype(of.dtype)  # type: ignore[assignment]
    else:
        copied = tensor.to(dtype=of.dtype, device=of.device, copy=True)  # type: ignore[assignment]
    return copied  # a copy: what is cached must not be changed


def _root(number: int, degree: int) -> int:
    """The largest integer whose power is at most the number."""
    guess = round(math.exp(math.log(number) / degree))
    return guess if guess**degree <= number else guess - 1


@functools.lru_cache(maxsize=64)
def _rule(num_nodes: int) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False), torch.no_grad():  # what is cached must serve autograd later
        order = torch.arange(1.0, num_nodes, dtype=torch.float64, device="cpu")
        jacobi = torch.diag_embed(order.sqrt(), offset=1) if num_nodes > 1 else order.new_zeros(1, 1)
        nodes = torch.linalg.eigvalsh(jacobi, UPLO="U")
        for _ in range(_POLISHING):
            values = _hermite(nodes, num_nodes)
            nodes = nodes - values[num_nodes] / (num_nodes**0.5 * values[num_nodes - 1])
        nodes = 0.5 * (nodes - nodes.flip(0))
        weights = 1 / _hermite(nodes, num_nodes)[:num_nodes].square().sum(0)
        return nodes, weights / weights.sum()


def _hermite(x: Tensor, degree: int) -> Tensor:
    """Normalized Hermite polynomials of degree 0 to ``degree``, shape (degree + 1, K)."""
    values = [torch.ones_like(x), x]
    for j in range(1, degree):
        values.append((x * values[j] - j**0.5 * values[j - 1]) / (j + 1) ** 0.5)
    return torch.stack(values)


@functools.lru_cache(maxsize=16)
def _sobol(num_pairs: int, dim: int) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        engine = torch.quasirandom.SobolEngine(dim, scramble=True, seed=_SEED)
        # The engine gives its first point in the default dtype, whatever is asked for: read it off its integers.
        first = engine.quasi.to(torch.float64).reshape(1, dim) * 2.0**-engine.MAXBIT
        engine.fast_forward(1)
        cells = torch.cat([first, engine.draw(num_pairs - 1, dtype=torch.float64)])
        half = torch.special.ndtri(cells + 2.0**-31)  # the middle of a cell: never the end of the unit interval
        factor = torch.linalg.cholesky(half.mT @ half / num_pairs)
        half = torch.linalg.solve_triangular(factor, half.mT, upper=False).mT
        return torch.cat([half, -half])
