"""The weights one step ahead: what an adaptation makes of mean and covariance before the next row."""

import torch
from torch import Tensor

from gp_ensembles.filters.adaptation import Adaptation
from gp_ensembles.filters.adaptive import walk_ahead


def step_ahead(
    mean: Tensor, covariance: Tensor, adaptation: Adaptation | None, prior_variance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Moments of the weights before the next row.

    Args:
        mean: Mean of the weights, shape (\*batch, F).
        covariance: Covariance of the weights, shape (\*batch, F, F).
        adaptation: How the weights change; ``None`` for static weights.
        prior_variance: Prior variance of the weights, shape (\*batch).

    Returns:
        Factor of the mean, shape () or (\*batch, 1); covariance (\*batch, F, F); and the factor, () or (\*batch, 1), of
        a square root of whatever has been taken from the covariance.

    Example:
        >>> import torch
        >>> from gp_ensembles.filters.walking import RandomWalk
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> step_ahead(one, one.unsqueeze(0), RandomWalk(0.5), one[0])[1]
        tensor([[1.5000]], dtype=torch.float64)
    """
    one = mean.new_ones(())
    if adaptation is None:
        return one, covariance, one
    schedule = adaptation.schedule(1, prior_variance)
    walk = walk_ahead(schedule)
    if walk is not None:
        is_matrix = walk.ndim == covariance.ndim
        covariance = covariance + (walk if is_matrix else torch.diag_embed(walk.expand_as(mean)))
    rows = one if schedule.row_scale is None else schedule.row_scale
    targets = one if schedule.target_scale is None else schedule.target_scale
    return rows * targets, covariance * rows.square().unsqueeze(-1), rows
