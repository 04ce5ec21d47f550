"""Monte Carlo standard errors, by which tests judge means of draws."""

from torch import Tensor

from gp_ensembles.papers.fusion.diagnostics import mean_ess


def mcse_mean(draws: Tensor) -> Tensor:
    """Of the mean of all draws (C, S, ...), shape (...)."""
    return draws.flatten(0, 1).std(dim=0) / mean_ess(draws).sqrt()
