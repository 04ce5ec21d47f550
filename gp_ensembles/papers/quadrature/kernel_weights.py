"""Weighted kernels that stand for the posterior over kernels, and how many draws are thinned to a few of them."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.display import record_text
from gp_ensembles.numerics.draws import generator_device

_MOST = 64  # kernels that many draws are thinned to
_FEWEST = 8
_BYTES = 2**28  # of the factors of their covariances


class WeightedKernels(NamedTuple):
    """Kernels with posterior weights, heaviest first, of equal weights the likeliest first.

    Args:
        cube: Rows of the prior's cube, shape (R, C).
        log_likelihood: Their log marginal likelihoods, shape (R,).
        log_weights: Logarithms of their weights, which have the sum one, shape (R,).
    """

    cube: Tensor
    log_likelihood: Tensor
    log_weights: Tensor

    def __repr__(self) -> str:
        return record_text(self)

    def ordered(self) -> "WeightedKernels":
        """The same, heaviest first, of equal weights the likeliest first."""
        by_likelihood = self.log_likelihood.argsort(descending=True, stable=True)
        order = by_likelihood[self.log_weights[by_likelihood].argsort(descending=True, stable=True)]
        return WeightedKernels(*(part[order] for part in self))

    def thin(self, count: int, *, generator: torch.Generator | None = None) -> "WeightedKernels":
        """At most ``count`` kernels, their expected weights these (Fearnhead and Clifford, 2003, section 3)."""
        kernels = WeightedKernels(*(part[self.log_weights > -torch.inf] for part in self)).ordered()
        if len(kernels.log_weights) <= count:
            return kernels._replace(log_weights=kernels.log_weights.log_softmax(-1))
        weights = kernels.log_weights.double().softmax(-1)
        left = weights.flip(0).cumsum(0).flip(0)  # of each kernel and all lighter ones
        rank = torch.arange(count, device=weights.device)
        levels = left[:count] / (count - rank)  # c if so many kernels stay as they are
        stay = int((weights[:count] > levels).long().cumprod(0).sum())
        level = levels[min(stay, count - 1)]
        start = torch.rand((), generator=generator, dtype=torch.float64, device=generator_device(generator)).to(
            weights.device
        )
        steps = (weights[stay:].cumsum(0) / level + start).floor()
        drawn = (steps.diff(prepend=steps.new_zeros(1)) > 0).nonzero().squeeze(-1) + stay
        chosen = torch.cat([torch.arange(stay, device=drawn.device), drawn])
        kept = torch.cat([weights[:stay], level.expand(len(drawn))]).log().log_softmax(-1)
        return WeightedKernels(
            kernels.cube[chosen], kernels.log_likelihood[chosen], kept.to(self.log_weights)
        ).ordered()


def affordable_kernels(bytes_each: int) -> int:
    """Kernels whose tables, of so many bytes each, take at most a quarter of a gibibyte: 8 to 64."""
    return max(_FEWEST, min(_MOST, _BYTES // bytes_each))
