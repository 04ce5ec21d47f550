"""Base draws of random frequencies: standard normals and uniforms that no hyperparameter enters."""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine


class BaseDraws(NamedTuple):
    r"""Draws that a kernel turns into frequencies.

    Args:
        normals: Standard normal variables, shape (\*batch, R, D).
        uniforms: Uniform variables in (0, 1), one for each frequency (mixing variable), shape (\*batch, R).
    """

    normals: Tensor
    uniforms: Tensor


class FrequencyDraws(ABC):
    """A way to draw R base points: independent, orthogonal, or of low discrepancy."""

    @abstractmethod
    def draw(self, num_draws: int, num_inputs: int, *, generator: torch.Generator | None = None) -> BaseDraws:
        """Draw in double precision, on the generator's device.

        Args:
            num_draws: Number of frequencies R.
            num_inputs: Dimension D of a frequency.
            generator: Source of randomness; torch's global one if ``None``.

        Returns:
            Normals (R, D) and uniforms (R,).
        """


@final
class IIDDraws(FrequencyDraws):
    """Independent draws (Rahimi and Recht, 2007).

    Example:
        >>> import torch
        >>> IIDDraws().draw(6, 2, generator=torch.Generator().manual_seed(0)).normals.shape
        torch.Size([6, 2])
    """

    def draw(self, num_draws: int, num_inputs: int, *, generator: torch.Generator | None = None) -> BaseDraws:
        """Independent normals and uniforms."""
        return BaseDraws(_randn(num_draws, num_inputs, generator), _rand(num_draws, generator))


@final
class OrthogonalDraws(FrequencyDraws):
    """Frequencies orthogonal to one another in blocks of D, with independent lengths (Yu et al., 2016).

    Each frequency by itself is standard normal. The variance of the kernel estimate falls for D > 1; in one
    dimension these are independent draws.

    Example:
        >>> import torch
        >>> normals = OrthogonalDraws().draw(2, 2, generator=torch.Generator().manual_seed(0)).normals
        >>> bool((normals[0] @ normals[1]).abs() < 1e-12)
        True
    """

    def draw(self, num_draws: int, num_inputs: int, *, generator: torch.Generator | None = None) -> BaseDraws:
        """Uniformly distributed orthogonal bases, their rows with the lengths of normal vectors."""
        num_blocks = math.ceil(num_draws / num_inputs)
        square = _randn(num_blocks * num_inputs, num_inputs, generator).reshape(num_blocks, num_inputs, num_inputs)
        basis, triangle = torch.linalg.qr(square)
        basis = basis * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # makes it Haar distributed
        directions = basis.reshape(-1, num_inputs)[:num_draws]
        lengths = _randn(num_draws, num_inputs, generator).norm(dim=-1, keepdim=True)
        return BaseDraws(directions * lengths, _rand(num_draws, generator))


@final
class SobolDraws(FrequencyDraws):
    """Scrambled Sobol points through the normal quantile function (Avron et al., 2016).

    Example:
        >>> import torch
        >>> draws = SobolDraws().draw(64, 1, generator=torch.Generator().manual_seed(0))
        >>> bool(draws.normals.mean().abs() < 0.02)
        True
    """

    def draw(self, num_draws: int, num_inputs: int, *, generator: torch.Generator | None = None) -> BaseDraws:
        """Scrambled Sobol points; the last dimension gives the uniforms."""
        if num_inputs + 1 > SobolEngine.MAXDIM:
            raise ValueError(
                f"Sobol points exist for up to {SobolEngine.MAXDIM - 1} inputs, got {num_inputs}; use IIDDraws()"
            )
        device = _device(generator)
        seed = int(torch.randint(2**31 - 1, (), generator=generator, device=device))
        engine = SobolEngine(num_inputs + 1, scramble=True, seed=seed)
        points = engine.draw(num_draws, dtype=torch.float64).to(device)
        points = (points + 2.0**-32).clamp_max(1.0 - 2.0**-32)  # off the ends of [0, 1]
        return BaseDraws(torch.special.ndtri(points[:, :-1]), points[:, -1].clone())


def draw_batch(
    draws: FrequencyDraws,
    num_draws: int,
    num_inputs: int,
    batch_shape: torch.Size,
    *,
    generator: torch.Generator | None = None,
) -> BaseDraws:
    r"""Independent base draws for every expert of a batch.

    Args:
        draws: How to draw.
        num_draws: Number of frequencies R.
        num_inputs: Dimension D of a frequency.
        batch_shape: Shape of the batch of experts.
        generator: Source of randomness; torch's global one if ``None``.

    Returns:
        Normals (\*batch, R, D) and uniforms (\*batch, R), in double precision.

    Example:
        >>> import torch
        >>> draw_batch(IIDDraws(), 6, 2, torch.Size([3])).normals.shape
        torch.Size([3, 6, 2])
    """
    parts = [draws.draw(num_draws, num_inputs, generator=generator) for _ in range(batch_shape.numel())]
    normals = torch.stack([part.normals for part in parts]).reshape(*batch_shape, num_draws, num_inputs)
    uniforms = torch.stack([part.uniforms for part in parts]).reshape(*batch_shape, num_draws)
    return BaseDraws(normals, uniforms)


def _device(generator: torch.Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device


def _randn(num_rows: int, num_columns: int, generator: torch.Generator | None) -> Tensor:
    shape = (num_rows, num_columns)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device=_device(generator))


def _rand(num_rows: int, generator: torch.Generator | None) -> Tensor:
    value = torch.rand(num_rows, generator=generator, dtype=torch.float64, device=_device(generator))
    return value * (1.0 - 2.0**-51) + 2.0**-52  # the open interval
