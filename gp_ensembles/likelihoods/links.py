"""Links of ordinal regression: the distribution of what is added to the latent value before it is cut into levels."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor


class OrdinalLink(ABC):
    """A symmetric standard distribution of the noise on the latent value."""

    @abstractmethod
    def log_cdf(self, z: Tensor) -> Tensor:
        """Logarithm of the distribution function, exact in both tails; at -z that of its complement."""

    @abstractmethod
    def log_difference(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Logarithm of the probability between two values, lower < upper, exact in both tails."""

    @abstractmethod
    def widen(self, scale: Tensor, variance: Tensor) -> Tensor:
        """Scale of the noise once a normal error of that variance is added to it; all broadcast."""


class Probit(OrdinalLink):
    r"""Standard normal noise; the sum of it and a normal error is normal, so predictions are exact.

    Example:
        >>> import torch
        >>> Probit().log_cdf(torch.tensor(-10.0))
        tensor(-53.2313)
    """

    def log_cdf(self, z: Tensor) -> Tensor:
        r"""Logarithm of :math:`\Phi(z)`."""
        return log_normal_cdf(z)

    def log_difference(self, lower: Tensor, upper: Tensor) -> Tensor:
        r"""Logarithm of :math:`\Phi(b) - \Phi(a)`, by the difference in the lower tail of a and b or their mirror."""
        mirrored = lower + upper > 0
        near, far = torch.where(mirrored, -lower, upper), torch.where(mirrored, -upper, lower)
        log_near, log_far = log_normal_cdf(torch.stack([near, far])).unbind()
        return log_near + _log1mexp(log_far - log_near)

    def widen(self, scale: Tensor, variance: Tensor) -> Tensor:
        r"""Exactly :math:`\sqrt{c^2 + s}`."""
        return (scale.square() + variance).sqrt()


class Logit(OrdinalLink):
    r"""Standard logistic noise (proportional odds, McCullagh 1980).

    Example:
        >>> import torch
        >>> Logit().log_cdf(torch.tensor(-40.0))
        tensor(-40.)
    """

    def log_cdf(self, z: Tensor) -> Tensor:
        """Logarithm of the logistic function."""
        return torch.nn.functional.logsigmoid(z)

    def log_difference(self, lower: Tensor, upper: Tensor) -> Tensor:
        r"""By :math:`\sigma(b) - \sigma(a) = \sigma(b)\, \sigma(-a)\, (1 - e^{a - b})`, where nothing cancels."""
        ends = torch.nn.functional.logsigmoid(upper) + torch.nn.functional.logsigmoid(-lower)
        return ends + _log1mexp(lower - upper)

    def widen(self, scale: Tensor, variance: Tensor) -> Tensor:
        r"""By the probit approximation, :math:`\sqrt{c^2 + \pi s / 8}` (MacKay 1992)."""
        return (scale.square() + math.pi / 8 * variance).sqrt()


def log_normal_cdf(z: Tensor) -> Tensor:
    r"""Logarithm of :math:`\Phi(z)` by erfcx below zero and by erfc above, exact with its derivatives in both tails.

    ``torch.special.log_ndtr`` has no rule for ``vmap``, and its second derivative loses half of its digits at -300.
    The branch not taken is fed a harmless value, for the sake of derivatives.
    """
    lower = z < 0
    below, above = torch.where(lower, z, 0.0), torch.where(lower, 0.0, z)
    log_lower = (0.5 * torch.special.erfcx(below * -math.sqrt(0.5))).log() - 0.5 * below.square()
    return torch.where(lower, log_lower, torch.log1p(-0.5 * torch.special.erfc(above * math.sqrt(0.5))))


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0; the branch not taken is fed a harmless value, for the sake of derivatives."""
    close = x > -math.log(2)
    harmless = torch.full_like(x, -1.0)
    return torch.where(
        close,
        (-torch.expm1(torch.where(close, x, harmless))).log(),
        torch.log1p(-torch.where(close, harmless, x).exp()),
    )
