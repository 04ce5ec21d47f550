"""Random numbers from a generator on any device: drawn on its device, then moved to where they are needed.

torch refuses a CPU generator for numbers on a GPU. Without a generator, torch's global one is used.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def generator_device(generator: torch.Generator | None, otherwise: torch.device | str = "cpu") -> torch.device:
    """Device on which a generator draws, or another one where there is no generator."""
    return torch.device(otherwise) if generator is None else generator.device


def normal_draws(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers of a shape, in the dtype and on the device of ``like``."""
    where = generator_device(generator, like.device)
    return torch.randn(tuple(shape), dtype=like.dtype, device=where, generator=generator).to(like.device)


def uniform_draws(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Numbers between zero and one of a shape, in the dtype and on the device of ``like``."""
    where = generator_device(generator, like.device)
    return torch.rand(tuple(shape), dtype=like.dtype, device=where, generator=generator).to(like.device)


def categorical_draws(weights: Tensor, num: int, generator: torch.Generator | None) -> Tensor:
    """Categories drawn with replacement for each row of weights (..., M), shape (..., num)."""
    there = weights.to(generator_device(generator, weights.device))
    return torch.multinomial(there, num, replacement=True, generator=generator).to(weights.device)


def permutation(num: int, generator: torch.Generator | None, device: torch.device | str = "cpu") -> Tensor:
    """Numbers below ``num`` in a random order, on a device."""
    return torch.randperm(num, generator=generator, device=generator_device(generator, device)).to(device)
