r"""The probability of a class under the logistic link where the latent value is normal, in both tails.

The logistic function is a probit curve and a small odd remainder that vanishes within a few units of zero:

.. math:: \sigma(z) = \Phi(\lambda z) + r(z), \qquad
          E\,\sigma(z) = \Phi\big(\lambda m / \sqrt{1 + \lambda^2 s}\big) + \int r(z)\, N(z; m, s)\, dz

The integrand is analytic in a strip and falls exponentially, so the trapezoidal rule on a fixed grid is right to eight
digits or more however wide the normal distribution is; where it is narrow, Gauss-Hermite nodes are. Far below zero,
where the remainder is no longer small beside the rest, :math:`E\,\sigma(z) = e^{m + s/2}\, E\,\sigma(-z - s)` takes
over.
"""

import functools
import math

import torch
from torch import Tensor

from gp_ensembles.numerics.gauss_hermite import gauss_hermite, log_expectation

_SLOPE = math.sqrt(math.pi / 8)
_STEP, _REACH = 0.75, 48.0
_NARROW = 1.0  # variance up to which nodes are used
_NUM_NODES = 64


def logit_normal_log_odds(mean: Tensor, variance: Tensor) -> Tensor:
    r"""Log odds of :math:`E\,\sigma(z)` for :math:`z \sim N(m, s)`, to eight digits of either probability or better.

    Args:
        mean: m, any shape.
        variance: s, not negative, of the same shape.

    Example:
        >>> import torch
        >>> mean, variance = torch.tensor([0.0, 1.0]).double(), torch.tensor([9.0, 400.0]).double()
        >>> logit_normal_log_odds(mean, variance)
        tensor([0.0000, 0.0795], dtype=torch.float64)
    """
    low = -mean.abs()
    narrow = variance <= _NARROW
    if _all(narrow):
        log_prob = _by_nodes(low, variance)
    elif _all(~narrow):
        log_prob = _by_grid(low, variance)
    else:  # each branch is fed what it can digest, for the sake of derivatives
        wide = _by_grid(low, torch.where(narrow, 1.0, variance))
        log_prob = torch.where(narrow, _by_nodes(low, torch.where(narrow, variance, 1.0)), wide)
    log_odds = log_prob - torch.log(-torch.expm1(log_prob))
    return torch.where(mean <= 0, log_odds, -log_odds)


def _by_nodes(mean: Tensor, variance: Tensor) -> Tensor:
    nodes, weights = gauss_hermite(_NUM_NODES, mean)
    latent = mean + variance.sqrt() * nodes.reshape(-1, *[1] * mean.ndim)
    return log_expectation(torch.nn.functional.logsigmoid(latent), weights)


def _by_grid(mean: Tensor, variance: Tensor) -> Tensor:
    """Log probability for means that are not positive and variances of at least one."""
    tiny = mean < -0.5 * variance
    tilted = mean + variance
    log_prob = _sum(torch.where(tiny, -tilted.abs(), mean), variance)
    beyond = torch.where(tiny & (tilted < 0), log_prob, -1.0)  # there the rest is what is wanted
    rest = torch.where(tilted < 0, torch.log(-torch.expm1(beyond)), log_prob)
    return torch.where(tiny, mean + 0.5 * variance + rest, log_prob)


def _sum(mean: Tensor, variance: Tensor) -> Tensor:
    places, remainder = _grid(mean.dtype, str(mean.device))
    places, remainder = (v.reshape(-1, *[1] * mean.ndim) for v in (places, remainder))
    log_main = torch.special.log_ndtr(_SLOPE * mean / (1 + _SLOPE**2 * variance).sqrt())
    log_normal = -0.5 * ((places - mean).square() / variance + variance.log() + math.log(2 * math.pi))
    correction = _STEP * (remainder * (log_normal - log_main).exp()).sum(0)
    log_prob: Tensor = log_main + torch.log1p(correction)
    return log_prob


@functools.cache
def _grid(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Places of the trapezoidal rule and the remainder there, built in float64."""
    places = torch.arange(-_REACH, _REACH + _STEP / 2, _STEP, dtype=torch.float64, device="cpu")
    remainder = torch.sigmoid(places) - torch.special.ndtr(_SLOPE * places)
    return places.to(device=device, dtype=dtype), remainder.to(device=device, dtype=dtype)


def _all(flags: Tensor) -> bool:
    try:
        return bool(flags.all())
    except RuntimeError:  # in vmap and on the meta device values cannot be read
        return False
