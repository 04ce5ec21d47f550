"""What recalibration makes of sample paths: the map of one-step distributions, at the margin of each step."""

import torch
from torch import Tensor

from gp_ensembles.distributions import Recalibrated
from gp_ensembles.numerics import normal_scores
from gp_ensembles.streaming.predictions import StreamDistribution


def recalibrated_paths(paths: Tensor, first: StreamDistribution) -> Tensor:
    r"""Paths (S, H) whose margins went through the map G of the first step's distribution.

    The n-th smallest target of a step, at the normal score :math:`z_n = \Phi^{-1}((n - 1/2) / S)` of its margin F, goes
    to :math:`F^{-1}(G^{-1}(\Phi(z_n)))`, with F linear in normal scores between the targets and beyond the last ones.
    Ranks stay, and so does how steps hang together.
    """
    if not isinstance(first, Recalibrated):
        return paths
    levels = (torch.arange(paths.shape[0], dtype=torch.float64, device=paths.device) + 0.5) / paths.shape[0]
    log_weights = first.map_log_weights.reshape(-1, 1)
    before = normal_scores.inverse(levels, log_weights, first.map_shift, first.map_scale)
    knots, wanted = normal_scores.normal_score(levels), normal_scores.normal_score(before)
    ordered, places = paths.sort(dim=0)
    right = torch.searchsorted(knots, wanted).clamp(1, len(knots) - 1)
    share = ((wanted - knots[right - 1]) / (knots[right] - knots[right - 1])).unsqueeze(-1)
    inside = ordered[right - 1] + share.clamp(0, 1) * (ordered[right] - ordered[right - 1])
    # Beyond the last targets: as far from the middle as normal scores are.
    beyond = (wanted.abs() / knots[-1]).clamp_min(1.0).unsqueeze(-1)
    middle = ordered[len(knots) // 2]
    moved = torch.where(beyond > 1, middle + beyond * (inside - middle), inside)
    return torch.empty_like(paths).scatter_(0, places, moved)
