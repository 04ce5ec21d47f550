"""One-dimensional priors by their quantiles: what a point of the unit cube is mapped by."""

import math
from typing import Any, NamedTuple, Protocol

import torch
from scipy import special
from torch import Tensor


class Marginal(Protocol):
    r"""Prior of one positive (or signed) number for each input; any such class will do.

    ``icdf`` maps probabilities (\*batch, D) to values, differentiably; ``log_prob`` is the density of the values;
    ``standardize`` maps values to a scale on which the prior's width is about one (what distances are measured on).
    """

    @property
    def scale(self) -> Tensor:
        """A width for each input, shape (D,); says how many inputs there are, in which dtype and where."""

    def icdf(self, probability: Tensor) -> Tensor:
        """Quantiles, of the shape of the probabilities."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density, of the shape of the values."""

    def standardize(self, value: Tensor) -> Tensor:
        """Values on a scale where the prior's width is about one."""


class HalfNormal(NamedTuple):
    r"""Absolute value of N(0, scale^2), one scale for each input, shape (D,).

    Example:
        >>> import torch
        >>> prior = HalfNormal(torch.tensor([2.0], dtype=torch.float64))
        >>> round(float(prior.icdf(torch.tensor([0.5], dtype=torch.float64))), 3)  # the median, 0.674 scales
        1.349
    """

    scale: Tensor

    def icdf(self, probability: Tensor) -> Tensor:
        """Quantiles."""
        value: Tensor = self.scale * math.sqrt(2.0) * torch.special.erfinv(probability)
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density."""
        inside = 0.5 * math.log(2.0 / math.pi) - self.scale.log() - 0.5 * (value / self.scale).square()
        return torch.where(value >= 0, inside, -torch.inf)

    def standardize(self, value: Tensor) -> Tensor:
        """Values in units of the scale."""
        return value / self.scale


class Normal(NamedTuple):
    r"""N(location, scale^2), one for each input, shapes (D,); for signed mean frequencies.

    Example:
        >>> import torch
        >>> prior = Normal(torch.zeros(1), torch.ones(1))
        >>> prior.icdf(torch.tensor([0.5]))
        tensor([0.])
    """

    location: Tensor
    scale: Tensor

    def icdf(self, probability: Tensor) -> Tensor:
        """Quantiles."""
        value: Tensor = self.location + self.scale * torch.special.ndtri(probability)
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density."""
        z = (value - self.location) / self.scale
        return -0.5 * (z.square() + math.log(2.0 * math.pi)) - self.scale.log()

    def standardize(self, value: Tensor) -> Tensor:
        """Values in units of the scale, from the location."""
        return (value - self.location) / self.scale


class LogNormal(NamedTuple):
    r"""Exponential of N(location, scale^2), one for each input, shapes (D,).

    Example:
        >>> import torch
        >>> prior = LogNormal(torch.zeros(1), torch.ones(1))
        >>> prior.icdf(torch.tensor([0.5]))
        tensor([1.])
    """

    location: Tensor
    scale: Tensor

    def icdf(self, probability: Tensor) -> Tensor:
        """Quantiles."""
        value: Tensor = (self.location + self.scale * torch.special.ndtri(probability)).exp()
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density."""
        z = (value.log() - self.location) / self.scale
        return -0.5 * (z.square() + math.log(2.0 * math.pi)) - self.scale.log() - value.log()

    def standardize(self, value: Tensor) -> Tensor:
        """Logarithms in units of the scale, from the location."""
        return (value.log() - self.location) / self.scale


class _BetaQuantile(torch.autograd.Function):
    """Quantiles of Beta(a, b) with the slope one over the density; the shapes are constants."""

    @staticmethod
    def forward(ctx: Any, probability: Tensor, a: Tensor, b: Tensor) -> Tensor:
        value = special.betaincinv(*(t.detach().cpu().double().numpy() for t in (a, b, probability)))
        quantile = torch.as_tensor(value).to(probability)
        ctx.save_for_backward(quantile, a, b)
        return quantile

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        quantile, a, b = ctx.saved_tensors
        log_density = torch.distributions.Beta(a, b, validate_args=False).log_prob(quantile)
        return gradient * (-log_density).exp(), None, None


def beta_quantile(probability: Tensor, a: Tensor, b: Tensor) -> Tensor:
    r"""Quantiles of the beta distribution, differentiable in the probability (shapes broadcast).

    Example:
        >>> import torch
        >>> half = torch.tensor(0.5, dtype=torch.float64)
        >>> round(float(beta_quantile(half, 4.0 * half, 2.0 * half)), 4)  # Beta(2, 1): the square root
        0.7071
    """
    value: Tensor = _BetaQuantile.apply(*torch.broadcast_tensors(probability, a, b))  # type: ignore[no-untyped-call]
    return value
