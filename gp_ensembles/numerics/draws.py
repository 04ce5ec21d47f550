"""Random numbers from a generator of any device: made where it is, and taken to where they are needed.

torch refuses a generator of the host for numbers on a GPU. Without a generator torch's global one is meant.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def generator_device(generator: torch.Generator | None, otherwise: torch.device | str = "cpu") -> torch.device:
    """Where a generator's numbers are made: its device, or another where there is no generator."""
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
