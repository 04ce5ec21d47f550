"""Quantiles that frequencies are drawn by, differentiable in the distribution's parameters to third order.

Each root is found without gradients, inside a bracket that is certain; two Newton steps of plain operations then give
the implicit function's derivatives, in reverse and in forward mode. All is computed in double precision.
"""

import math

import torch
from torch import Tensor

_NUM_NODES = 140
_LOWER, _UPPER = -4.0, 5.5  # ends of the double-exponential rule, see _scaled_integral
_NUM_NEWTON = 40
_NUM_HALVINGS = 64
_SPARSE = 1e-8  # hazard, in units of the mixture's width, below which derivatives are dropped, see below


def log_gamma_quantile(shape: Tensor, probability: Tensor) -> Tensor:
    r"""Logarithm of the quantile of a gamma distribution of unit rate.

    .. math:: s(a, u) = \log t \quad\text{with}\quad P(a, t) = \frac{1}{\Gamma(a)} \int_0^t v^{a-1} e^{-v} dv = u
    """
    a, u = torch.broadcast_tensors(shape.double(), probability.detach().double())
    log_t = _solve_gamma(a.detach(), u)
    for _ in range(2):
        # (P - u) / dP/ds with s = log t, dP/ds = exp(a s - t) / Gamma(a)
        log_slope = a * log_t - log_t.exp() - torch.lgamma(a)
        log_t = log_t - (_scaled_integral(a, log_t) - (u.log() - log_slope).exp())
    return log_t.to(shape.dtype)


def mixture_quantile(weights: Tensor, means: Tensor, scales: Tensor, normals: Tensor) -> Tensor:
    r"""Map a standard normal variable z to a symmetric mixture of normals, by quantiles.

    .. math:: \sum_q \tfrac{p_q}{2} \Big[\Phi\Big(\frac{v - \mu_q}{s_q}\Big) + \Phi\Big(\frac{v + \mu_q}{s_q}\Big)\Big]
              = \Phi(z)

    Shapes: ``weights`` (..., Q), ``means`` (..., Q), ``scales`` (..., Q).
    """
    p, m, s = weights.double(), means.double(), scales.double()
    z = normals.detach().double()
    tail = 0.5 * torch.erfc(z.abs() / math.sqrt(2.0))  # torch.special.ndtr loses the digits of small tails
    width = (m.detach().abs() + s.detach() * z.abs().unsqueeze(-1)).amax(-1)
    root = _solve_mixture(p.detach(), m.detach(), s.detach(), tail, width)
    for _ in range(2):
        excess, density = _upper_tail(p, m, s, root) - tail, _density(p, m, s, root)
        steep = density.detach() * width > _SPARSE * tail
        root = root + torch.where(steep, excess / torch.where(steep, density, 1.0), 0.0)
    return (root * z.sign()).to(means.dtype)


def _solve_gamma(a: Tensor, u: Tensor) -> Tensor:
    """Root in log t, without derivatives; bracketed by P <= t^a / Gamma(a + 1) and a Chernoff bound on 1 - P."""
    lower = (u.log() + torch.lgamma(a + 1.0)) / a
    upper = torch.maximum((1.4 * a - 2.0 * torch.log1p(-u)).log(), lower)
    log_t = 0.5 * (lower + upper)
    for _ in range(_NUM_NEWTON):
        excess = torch.special.gammainc(a, log_t.exp()) - u
        upper = torch.where(excess > 0, log_t, upper)
        lower = torch.where(excess > 0, lower, log_t)
        proposal = log_t - excess * (torch.lgamma(a) + log_t.exp() - a * log_t).exp()
        inside = (proposal >= lower) & (proposal <= upper)
        log_t = torch.where(inside, proposal, 0.5 * (lower + upper))
    return log_t


def _scaled_integral(a: Tensor, log_t: Tensor) -> Tensor:
    """P(a, t) / (dP / d log t) = int_0^inf exp(-a y + t (1 - exp(-y))) dy by the trapezoidal rule."""
    step = (_UPPER - _LOWER) / (_NUM_NODES - 1)
    x = _LOWER + step * torch.arange(_NUM_NODES, dtype=a.dtype, device=a.device)
    scale = (1.0 / a + a.rsqrt()).detach().unsqueeze(-1)
    y = scale * (x - (-x).exp()).exp()
    jacobian = y * (1.0 + (-x).exp()) * step
    exponent = -a.unsqueeze(-1) * y - log_t.exp().unsqueeze(-1) * torch.expm1(-y)
    return (exponent + jacobian.clamp_min(math.exp(-700.0)).log()).exp().sum(-1)


def _solve_mixture(p: Tensor, m: Tensor, s: Tensor, tail: Tensor, width: Tensor) -> Tensor:
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
