"""Dense steps of the weights of one expert, and blocks of any sizes: what filters are compared with, and how."""

import torch

from gp_ensembles.filters import CorrelatedWalk, ExponentialForgetting, RandomWalk
from gp_ensembles.filters.sites import LikelihoodRule
from gp_ensembles.numerics.derivatives import automatic


def rule_of(log_density, update=None, num_latent=1):
    """Sites of any log density, by Laplace's method unless another update is given."""
    return LikelihoodRule(automatic(log_density, num_latent), update)


def advance(transition, mean, covariance, prior, m):
    """One step of the weights of expert m, written from the definitions; prior variances (M,)."""
    identity = torch.eye(len(mean), dtype=mean.dtype)
    if transition is None:
        return mean, covariance
    if isinstance(transition, RandomWalk):
        return mean, covariance + transition.variance.expand(len(prior), -1)[m] * identity
    if isinstance(transition, CorrelatedWalk):
        return mean, covariance + transition.covariance.expand(len(prior), *identity.shape)[m]
    factor = transition.factor.expand(len(prior))[m]
    if isinstance(transition, ExponentialForgetting):
        return mean, covariance / factor
    return factor.sqrt() * mean, factor * covariance + (1 - factor) * prior[m] * identity


def in_blocks(learn, state, sizes, dim=-1):
    """The state after all blocks and the predictions of all rows, from what ``learn`` makes of a state and rows."""
    parts, start = [], 0
    for size in sizes:
        state, steps = learn(state, slice(start, start + size))
        parts.append(steps)
        start += size
    return state, type(steps)(*(torch.cat(fields, dim) for fields in zip(*parts, strict=True)))
