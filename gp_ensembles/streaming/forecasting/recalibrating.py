"""What recalibration makes of sample paths: the map of one-step distributions, at the margin of each step."""

import torch
from torch import Tensor

from gp_ensembles.distributions import Recalibrated
from gp_ensembles.numerics import normal, normal_scores
from gp_ensembles.streaming.predictions import StreamDistribution

_TABLE_END, _TABLE_SIZE = 4.9, 393  # of the map that is inverted, in normal scores


def recalibrated_paths(paths: Tensor, first: StreamDistribution) -> Tensor:
    """Paths (S, H) whose margins went through the map G of the first step's distribution."""
    if not isinstance(first, Recalibrated):
        return paths
    levels = (torch.arange(paths.shape[0], dtype=torch.float64, device=paths.device) + 0.5) / paths.shape[0]
    knots = normal_scores.normal_score(levels)
    table = torch.linspace(-_TABLE_END, _TABLE_END, _TABLE_SIZE, dtype=torch.float64, device=paths.device)
    after = normal_scores.transform(
        normal.cdf(table), first.map_log_weights.reshape(-1, 1), first.map_shift, first.map_scale
    )
    left, share = _between(normal_scores.normal_score(after), knots)
    wanted = torch.lerp(table[left], table[left + 1], share)
    ordered, places = paths.sort(dim=0)
    left, share = _between(knots, wanted)
    inside = torch.lerp(ordered[left], ordered[left + 1], share.unsqueeze(-1))
    # Beyond the last targets: as far from the middle as normal scores are.
    beyond = (wanted.abs() / knots[-1]).clamp_min(1.0).unsqueeze(-1)
    middle = ordered[len(knots) // 2]
    moved = torch.where(beyond > 1, middle + beyond * (inside - middle), inside)
    return torch.empty_like(paths).scatter_(0, places, moved)


def _between(knots: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The knot left of each x, and where it stands on the way to the next one, from 0 to 1."""
    left = torch.searchsorted(knots, x).clamp(1, len(knots) - 1) - 1
    return left, ((x - knots[left]) / (knots[left + 1] - knots[left])).clamp(0, 1)
