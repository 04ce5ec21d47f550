r"""Functions drawn from a Gaussian process with an unknown kernel, another kernel and draw for every seed."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.minimize import minimize

DIMENSION = 3
SMOOTHNESSES = (0.5, 1.5, 2.5, math.inf)
SHORTEST, LONGEST = 0.1, 1.0
_NUM_FREQUENCIES, _NUM_PLACES, _NUM_SEARCHES, _STEPS = 500, 2**13, 64, 100


class Draw(NamedTuple):
    r"""The function :math:`f(x) = \sqrt{2/F} \sum_i a_i \cos(\omega_i^\top x + b_i)`.

    Attributes:
        frequencies: :math:`\omega`, shape (F, D).
        phases: b, shape (F,).
        heights: a, shape (F,).
        smoothness: Of the Matern kernel whose spectral density the frequencies have; infinite for the RBF kernel.
    """

    frequencies: Tensor
    phases: Tensor
    heights: Tensor
    smoothness: float

    def at(self, X: Tensor) -> Tensor:
        """Values at inputs (q, D), shape (q, 1)."""
        waves = (X @ self.frequencies.to(X).mT + self.phases.to(X)).cos()
        return math.sqrt(2 / self.heights.shape[0]) * (waves @ self.heights.to(X)).unsqueeze(-1)


def draw(seed: int) -> Draw:
    r"""A function of three inputs with prior variance one.

    The smoothness is 1/2, 3/2, 5/2 or infinite, the length scale of each input log-uniform from 0.1 to 1. Frequencies
    have the spectral density of that kernel: normal ones, divided for a Matern kernel by the root of
    :math:`\chi^2_{2\nu} / 2\nu` (a multivariate Student-t).

    Example:
        >>> draw(0).frequencies.shape, draw(0).smoothness == draw(0).smoothness
        (torch.Size([500, 3]), True)
    """
    generator = torch.Generator().manual_seed(seed)
    smoothness = SMOOTHNESSES[int(torch.randint(len(SMOOTHNESSES), (), generator=generator, device="cpu"))]
    places = torch.rand(DIMENSION, generator=generator, dtype=torch.float64, device="cpu")
    lengthscale = SHORTEST * (LONGEST / SHORTEST) ** places
    normal = torch.randn(_NUM_FREQUENCIES, DIMENSION, generator=generator, dtype=torch.float64, device="cpu")
    frequencies = normal / lengthscale
    if not math.isinf(smoothness):
        degrees = int(2 * smoothness)
        squares = torch.randn(
            _NUM_FREQUENCIES, degrees, generator=generator, dtype=torch.float64, device="cpu"
        ).square()
        frequencies = frequencies / squares.mean(-1, keepdim=True).sqrt()
    phases = 2 * math.pi * torch.rand(_NUM_FREQUENCIES, generator=generator, dtype=torch.float64, device="cpu")
    heights = torch.randn(_NUM_FREQUENCIES, generator=generator, dtype=torch.float64, device="cpu")
    return Draw(frequencies, phases, heights, smoothness)


def highest(function: Draw) -> float:
    r"""The highest value found in the unit cube, by searches from the best of many places.

    Searches go in u with :math:`x = (1 - \cos \pi u) / 2`, which does not leave the cube.

    Example:
        >>> best = highest(draw(0))
        >>> X = torch.rand(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> best > float(draw(0).at(X).max())
        True
    """
    places = torch.quasirandom.SobolEngine(DIMENSION, scramble=True, seed=0).draw(_NUM_PLACES, dtype=torch.float64)
    values = function.at(places).squeeze(-1)
    starts = places[values.topk(_NUM_SEARCHES).indices].clamp(0.01, 0.99)

    def loss(points: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            u = points.detach().requires_grad_()
            value = -function.at(0.5 * (1 - (math.pi * u).cos())).squeeze(-1)
            (gradient,) = torch.autograd.grad(value.sum(), u)
        return value.detach(), gradient

    found = minimize(loss, (1 - 2 * starts).acos() / math.pi, max_iterations=_STEPS)
    return max(float(values.max()), -float(found.value.min()))
