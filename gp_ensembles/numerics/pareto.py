"""Pareto-smoothed importance weights, and the Pareto shape that tells whether they can be trusted."""

import math

import torch
from torch import Tensor

# Zhang and Stephens (2009): scale of the prior of b, and the least number of grid points.
_PRIOR_SCALE, _FEWEST_POINTS = 3.0, 30
# Vehtari et al. (2024): k is shrunk towards a half by ten observations.
_PRIOR_COUNT, _PRIOR_SHAPE = 10.0, 0.5
# Exceedances that are too few for a fit, and numbers of a block of rows in memory.
_FEW, _BLOCK = 4, 10_000_000


def smooth_weights(log_ratios: Tensor) -> tuple[Tensor, Tensor]:
    """Pareto-smoothed importance weights (Vehtari, Simpson, Gelman, Yao and Gabry, 2024, section 2).

    Shapes: ``log_ratios`` (..., S, N). Returns: normalized log weights (..., S, N), and Pareto shapes (..., N).
    """
    if log_ratios.ndim < 2 or log_ratios.shape[-2] == 0:
        raise ValueError(f"log ratios have shape (..., draws, targets), got {tuple(log_ratios.shape)}")
    if bool((log_ratios.isnan() | (log_ratios == torch.inf)).any()):
        raise ValueError("importance ratios must be finite: drop draws whose log ratio is NaN or plus infinity")
    largest = log_ratios.amax(-2, keepdim=True)
    if bool((largest == -torch.inf).any()):
        raise ValueError("every draw of a target has an importance ratio of zero; draw from another proposal")
    rows = (log_ratios - largest).mT
    num_draws = rows.shape[-1]
    tail = math.ceil(min(num_draws / 5, 3.0 * math.sqrt(num_draws)))
    flat = rows.reshape(-1, num_draws)
    block = max(_BLOCK // ((_FEWEST_POINTS + math.isqrt(tail)) * tail), 1)
    done = [_smooth_rows(part, tail) for part in flat.split(block)]
    weights = torch.cat([part for part, _ in done]) if done else flat
    shapes = torch.cat([part for _, part in done]) if done else flat.new_empty(0)
    log_weights = weights - weights.logsumexp(-1, keepdim=True)
    return log_weights.reshape(rows.shape).mT, shapes.reshape(rows.shape[:-1])


def _smooth_rows(rows: Tensor, tail: int) -> tuple[Tensor, Tensor]:
    """Rows of log weights with maximum 0, shape (R, S), smoothed, and their shapes (R,)."""
    if rows.shape[-1] < tail + 1 or tail <= _FEW:
        return rows, rows.new_full(rows.shape[:1], torch.inf)
    top, where = rows.topk(tail + 1, dim=-1)
    cutoff = top[:, -1:].clamp(min=math.log(torch.finfo(rows.dtype).tiny))
    top, where = top[:, :-1].flip(-1), where[:, :-1].flip(-1)  # ascending
    inside = top > cutoff  # ties with the cutoff are no exceedances
    count = inside.sum(-1, keepdim=True)
    usable = count > _FEW
    excess = torch.where(inside, top.exp() - cutoff.exp(), 0.0)
    shape, scale = _fit_pareto(excess, inside, count.clamp(min=1))
    fitted = usable & shape.isfinite() & scale.isfinite() & (scale > 0.0)
    # Quantiles at (j - 1/2) / n of the n exceedances, which are the last n of the row.
    position = (inside.cumsum(-1).to(rows) - 0.5) / count
    quantile = _pareto_quantile(position, shape, scale)
    smoothed = (quantile + cutoff.exp()).log().clamp(max=0.0)
    changed = rows.scatter(-1, where, torch.where(inside & fitted, smoothed, top))
    return changed, torch.where(fitted, shape, torch.inf).squeeze(-1)


def _fit_pareto(excess: Tensor, inside: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Shape k and scale of generalized Pareto distributions, (R, 1) each, from ascending excesses, (R, M)."""
    size = excess.shape[-1]
    points = _FEWEST_POINTS + count.to(excess).sqrt().floor()
    index = torch.arange(1, _FEWEST_POINTS + math.isqrt(size) + 1, device=excess.device).to(excess)
    quartile_rank = (count.to(excess) / 4.0 + 0.5).floor().long() - 1
    quartile = excess.gather(-1, (size - count + quartile_rank).clamp(0, size - 1))
    grid = 1.0 / excess[:, -1:] + (1.0 - (points / (index - 0.5)).sqrt()) / (_PRIOR_SCALE * quartile)
    shape = _mean_log1p(grid, excess, inside, count)
    log_profile = count * ((-grid / shape).log() - shape - 1.0)
    log_profile = torch.where((index <= points) & log_profile.isfinite(), log_profile, -torch.inf)
    weight = log_profile.softmax(-1)
    weight = torch.where(weight >= 10.0 * torch.finfo(weight.dtype).eps, weight, 0.0)
    weight = weight / weight.sum(-1, keepdim=True)
    best = torch.where(weight > 0.0, weight * grid, 0.0).sum(-1, keepdim=True)
    raw = _mean_log1p(best, excess, inside, count)
    return (count * raw + _PRIOR_COUNT * _PRIOR_SHAPE) / (count + _PRIOR_COUNT), -raw / best


def _mean_log1p(b: Tensor, excess: Tensor, inside: Tensor, count: Tensor) -> Tensor:
    """Means of log(1 - b x) over the exceedances x of a row, shape (R, G) for b of that shape."""
    terms = torch.log1p(-b.unsqueeze(-1) * excess.unsqueeze(-2))
    return torch.where(inside.unsqueeze(-2), terms, 0.0).sum(-1) / count


def _pareto_quantile(probability: Tensor, shape: Tensor, scale: Tensor) -> Tensor:
    """Quantiles of generalized Pareto distributions, the exponential one for a shape of zero."""
    log_survival = torch.log1p(-probability)
    small = shape.abs() < torch.finfo(shape.dtype).eps
    safe = torch.where(small, 1.0, shape)
    return scale * torch.where(small, -log_survival, torch.expm1(-safe * log_survival) / safe)
