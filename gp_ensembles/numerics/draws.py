"""Random numbers from a generator of any device: made where it is, and taken to where they are needed.

torch refuses a generator of the host for numbers on a GPU. Without a generator torch's global one is meant.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def generator_device(generator: torch.Generator | None, otherwise: torch.device | str = "cpu") -> torch.device:
    """Where a generator's numbers are made: its device, or another where there is no generator.

    Example:
        >>> generator_device(torch.Generator())
        device(type='cpu')
    """
    return torch.device(otherwise) if generator is None else generator.device


def normal_draws(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers of a shape, in the dtype and on the device of ``like``.

    Example:
        >>> normal_draws((2, 3), torch.zeros(1, dtype=torch.float64), torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3])
    """
    where = generator_device(generator, like.device)
    return torch.randn(tuple(shape), dtype=like.dtype, device=where, generator=generator).to(like.device)


def uniform_draws(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Numbers between zero and one of a shape, in the dtype and on the device of ``like``.

    Example:
        >>> bool(uniform_draws((9,), torch.zeros(1), torch.Generator().manual_seed(0)).max() < 1)
        True
    """
    where = generator_device(generator, like.device)
    return torch.rand(tuple(shape), dtype=like.dtype, device=where, generator=generator).to(like.device)


def categorical_draws(weights: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
    """Categories drawn with replacement for each row of weights (..., M), shape (..., num).

    Example:
        >>> categorical_draws(torch.tensor([0.0, 1.0]), 3, torch.Generator().manual_seed(0))
        tensor([1, 1, 1])
    """
    there = weights.to(generator_device(generator, weights.device))
    return torch.multinomial(there, num, replacement=True, generator=generator).to(weights.device)


def permutation(num: int, generator: torch.Generator | None, device: torch.device | str = "cpu") -> Tensor:
    """Numbers below ``num`` in a random order, on a device, where torch's global generator draws if there is no other.

    Example:
        >>> permutation(3, torch.Generator().manual_seed(0)).sort().values
        tensor([0, 1, 2])
    """
    return torch.randperm(num, generator=generator, device=generator_device(generator, device)).to(device)
