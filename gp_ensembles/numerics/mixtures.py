r"""Mixtures of normal distributions, one for each of N rows: density, moments, distribution, draws.

All functions take ``log_weights``, ``mean`` and ``variance`` with the experts' (components') axis last but
one: log weights (\*batch, M, N), or (\*batch, M, 1) where all rows share them, mean and variance
(\*batch, M, N). Log weights sum to one in linear space along the axis; minus infinity is a dead component,
whose mean and variance must be finite all the same but for moments. Variances are positive. The bits of a row's
numbers do not depend on the other rows.
"""

import torch
from torch import Tensor

from gp_ensembles.numerics import normal
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.draws import categorical_draws, normal_draws
from gp_ensembles.numerics.reductions import logsumexp_over_experts, sum_over_experts

_MAX_ITERATIONS = 2200  # more than bisection needs between any two float64 numbers
LOST = 1e-15  # weights up to which round-off of the others is as large
_COLUMNS = 4096  # quantiles solved at once, so that memory stays bounded


def log_prob(log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    r"""Log density, :math:`\log \sum_m w_m N(y; \mu_m, v_m)`, in log space throughout."""
    return logsumexp_over_experts(log_weights + normal.log_prob(y.unsqueeze(-2), mean, variance))


def moments(log_weights: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and variance, :math:`\mu = \sum_m w_m \mu_m`, :math:`v = \sum_m w_m (v_m + (\mu_m - \mu)^2)`."""
    weights = log_weights.exp()
    center = sum_over_experts(weighted(weights, mean))
    return center, sum_over_experts(weighted(weights, variance + (mean - center.unsqueeze(-2)).square()))


def typical_width(log_weights: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    r"""A width that is robust to a few far components, :math:`(\sum_m w_m (v_m + (\mu_m - \mu)^2)^{1/4})^2`."""
    weights = log_weights.exp()
    center = sum_over_experts(weighted(weights, mean)).unsqueeze(-2)
    return sum_over_experts(weighted(weights, (variance + (mean - center).square()).sqrt().sqrt())).square()


def weighted(weights: Tensor, values: Tensor) -> Tensor:
    """Weights times values of experts; zero for weights lost in round-off, whose values may be anything."""
    return weights * values.masked_fill(weights <= LOST, 0.0)


def cdf(log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    r"""Distribution function, :math:`\sum_m w_m \Phi((y - \mu_m) / \sqrt{v_m})`."""
    return sum_over_experts(log_weights.exp() * normal.cdf((y.unsqueeze(-2) - mean) * variance.rsqrt()))


def icdf(log_weights: Tensor, mean: Tensor, variance: Tensor, p: Tensor) -> Tensor:
    """Quantiles: where the distribution function reaches p.

    Shapes: ``log_weights`` (M, N) or (M, 1), ``mean`` (M, N), ``variance`` (M, N), ``p`` (..., N); returns (...,
    N).
    """
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise ValueError("p must be probabilities between 0 and 1")
    num_rows = mean.shape[-1]
    levels = p.to(mean.dtype).expand(torch.broadcast_shapes(p.shape, mean.shape[-1:]))
    with torch.no_grad():
        flat = levels.reshape(-1)
        rows = torch.arange(flat.shape[0], device=mean.device) % num_rows
        weights = log_weights.exp().expand(mean.shape)
        stddev = variance.sqrt()
        solved = [
            _solve(weights[:, some], mean[:, some], stddev[:, some], level)
            for some, level in zip(rows.split(_COLUMNS), flat.split(_COLUMNS), strict=True)
        ]
        root = torch.cat(solved).reshape(levels.shape)
    if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in (log_weights, mean, variance, p)):
        return root
    inner = torch.isfinite(root)
    at = torch.where(inner, root, 0.0)
    density = log_prob(log_weights, mean, variance, at).detach().exp()
    excess = cdf(log_weights, mean, variance, at) - levels
    return root - torch.where(inner, (excess - excess.detach()) / density, 0.0)


def _solve(weights: Tensor, mean: Tensor, stddev: Tensor, p: Tensor) -> Tensor:
    """Quantiles p (K,) of K mixtures, all others (M, K)."""
    # Solved in the nearer tail, reflected where that is the upper one: 1 - p is exact there.
    upper_tail = p > 0.5
    target = torch.where(upper_tail, 1 - p, p)
    inner = target > 0
    target = torch.where(inner, target, 0.5)
    center = torch.where(upper_tail, -mean, mean)
    ends = center + stddev * torch.special.ndtri(target)
    dead = weights == 0
    lower = ends.masked_fill(dead, torch.inf).amin(0)
    upper = ends.masked_fill(dead, -torch.inf).amax(0)
    if not bool((torch.isfinite(lower) & torch.isfinite(upper)).all()):
        raise NumericalError(
            "a mixture has no quantiles: it has no weight, or its means or variances are not finite and positive"
        )
    finest = stddev.masked_fill(dead, torch.inf).amin(0)
    root = _chandrupatla(weights, center, stddev, target.log(), lower, upper, finest)
    root = torch.where(upper_tail, -root, root)
    return root.masked_fill(~inner & upper_tail, torch.inf).masked_fill(~inner & ~upper_tail, -torch.inf)


def _chandrupatla(
    weights: Tensor, center: Tensor, stddev: Tensor, log_target: Tensor, lower: Tensor, upper: Tensor, finest: Tensor
) -> Tensor:
    """Where the log distribution functions of K mixtures meet their targets, each in its bracket."""

    def tail(x: Tensor) -> Tensor:
        return sum_over_experts(weights * normal.cdf((x - center) / stddev)).log() - log_target

    eps = torch.finfo(lower.dtype).eps
    roots = torch.empty_like(lower)
    active = torch.arange(lower.shape[0], device=lower.device)
    x1, x2 = lower, upper
    f1, f2 = tail(x1), tail(x2)
    x3, f3 = x1, f1
    for _ in range(_MAX_ITERATIONS):
        nearest = torch.where(f1.abs() < f2.abs(), x1, x2)
        width = (x2 - x1).abs()
        tolerance = 2 * eps * (nearest.abs() + finest) / width
        # Equal signs: the root is an end, and round-off has pushed it just outside.
        done = (tolerance >= 0.5) | (torch.minimum(f1.abs(), f2.abs()) <= 2 * eps) | (f1.sign() == f2.sign())
        if bool(done.any()):
            roots[active[done]] = nearest[done]
            going = (~done).nonzero().squeeze(-1)
            if going.shape[0] == 0:
                return roots
            weights, center, stddev = (part[..., going] for part in (weights, center, stddev))  # what has not converged
            active, finest, log_target, tolerance = (part[going] for part in (active, finest, log_target, tolerance))
            x1, x2, x3, f1, f2, f3 = (tensor[going] for tensor in (x1, x2, x3, f1, f2, f3))
        step = torch.full_like(x1, 0.5)
        place, height = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
        smooth = (height.square() < place) & ((1 - height).square() < 1 - place)
        quadratic = f1 / (f2 - f1) * f3 / (f2 - f3) + (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
        step = torch.where(smooth & torch.isfinite(quadratic), quadratic, step)
        step = torch.maximum(torch.minimum(step, 1 - tolerance), tolerance)
        x = x1 + step * (x2 - x1)
        f = tail(x)
        same = f.sign() == f1.sign()
        x3, f3 = torch.where(same, x1, x2), torch.where(same, f1, f2)
        x2, f2 = torch.where(same, x2, x1), torch.where(same, f2, f1)
        x1, f1 = x, f
    raise NumericalError("quantiles of a mixture did not converge; its means or variances are out of range")


def rsample(
    log_weights: Tensor, mean: Tensor, variance: Tensor, num: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """Independent draws for each row: a component by its weight, then a normal draw from it.

    Shapes: ``log_weights`` (M, N) or (M, 1), ``mean`` (M, N), ``variance`` (M, N); returns (S, N).
    """
    if num < 1:
        raise ValueError(f"the number of draws must be at least one, got {num}")
    weights = log_weights.detach().exp().expand(mean.shape)
    component = categorical_draws(weights.mT, num, generator).mT
    noise = normal_draws(component.shape, mean, generator)
    return mean.gather(-2, component) + variance.gather(-2, component).sqrt() * noise
