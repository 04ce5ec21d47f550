"""Quantiles of a symmetric mixture of normals, differentiable in its weights, means and scales to third order."""

import math

import torch
from torch import Tensor

_NUM_HALVINGS = 64
_SPARSE = 1e-8  # hazard, in units of the mixture's width, below which derivatives are dropped, see below


def mixture_quantile(weights: Tensor, means: Tensor, scales: Tensor, normals: Tensor) -> Tensor:
    r"""Map a standard normal variable z to a symmetric mixture of normals, by quantiles.

    The result is the root v of

    .. math:: \sum_q \tfrac{p_q}{2} \Big[\Phi\Big(\frac{v - \mu_q}{s_q}\Big) + \Phi\Big(\frac{v + \mu_q}{s_q}\Big)\Big]
              = \Phi(z)

    Standard normal variables become draws from the mixture that rise with z. The root of :math:`|z|` is found
    without gradients (bisection in a bracket that is certain, on upper tails, which lose no digits). Two Newton
    steps of plain operations give the implicit function's derivatives of order one to three, in reverse and in
    forward mode. All is computed in double precision.

    Between components that lie far apart there may be next to no probability, and the derivative, one over the
    density, is huge; where the hazard is below 1e-8 over the mixture's width (the chance of a draw there is of that
    order) the derivatives are taken as zero.

    Args:
        weights: Weights p of Q components, positive, summing to one, shape (..., Q).
        means: Means, shape (..., Q); their signs do not matter.
        scales: Standard deviations, positive, shape (..., Q).
        normals: Standard normal variables, any shape that broadcasts with the others without their last axis;
            they are taken as fixed.

    Returns:
        Quantiles of the broadcast shape, in the dtype of ``means``.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> values = mixture_quantile(one, 0.0 * one, 2.0 * one, one.new_tensor([-1.0, 0.0, 3.0]))
        >>> [round(value, 6) for value in values.tolist()]
        [-2.0, 0.0, 6.0]
    """
    p, m, s = weights.double(), means.double(), scales.double()
    z = normals.detach().double()
    tail = 0.5 * torch.erfc(z.abs() / math.sqrt(2.0))  # torch.special.ndtr loses the digits of small tails
    width = (m.detach().abs() + s.detach() * z.abs().unsqueeze(-1)).amax(-1)
    root = _solve(p.detach(), m.detach(), s.detach(), tail, width)
    for _ in range(2):
        excess, density = _upper_tail(p, m, s, root) - tail, _density(p, m, s, root)
        steep = density.detach() * width > _SPARSE * tail
        root = root + torch.where(steep, excess / torch.where(steep, density, 1.0), 0.0)
    return (root * z.sign()).to(means.dtype)


def _solve(p: Tensor, m: Tensor, s: Tensor, tail: Tensor, width: Tensor) -> Tensor:
    """Root without derivatives: the upper tail is a half at zero, and at most ``tail`` at ``width``."""
    upper = width.clone()
    lower = torch.zeros_like(upper)
    for _ in range(_NUM_HALVINGS):
        middle = 0.5 * (lower + upper)
        below = _upper_tail(p, m, s, middle) > tail
        lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
    return 0.5 * (lower + upper)


def _upper_tail(p: Tensor, m: Tensor, s: Tensor, v: Tensor) -> Tensor:
    near, far = _standardized(m, s, v)
    # erfc and not the logarithm of a tail: the derivatives of all orders are finite for every argument
    return 0.25 * (p * (torch.erfc(near) + torch.erfc(far))).sum(-1)


def _density(p: Tensor, m: Tensor, s: Tensor, v: Tensor) -> Tensor:
    near, far = _standardized(m, s, v)
    heights = (-near.square()).exp() + (-far.square()).exp()
    return (p / s * heights).sum(-1) / math.sqrt(8.0 * math.pi)


def _standardized(m: Tensor, s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Distances from the two means of each component, over the square root of two scales."""
    scale, v = math.sqrt(2.0) * s, v.unsqueeze(-1)
    return (v - m) / scale, (v + m) / scale
