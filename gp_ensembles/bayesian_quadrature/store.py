"""The evaluated likelihoods, kept as logarithms."""

from typing import NamedTuple

import torch
from torch import Tensor


class Evaluations(NamedTuple):
    r"""Kernels whose likelihood is known.

    Likelihoods differ by hundreds of nats; they are kept as logarithms and divided by the largest of all whenever they
    are needed as numbers, so that there is one running maximum and no bookkeeping.

    Args:
        cube: Kernels as rows of the prior's cube, shape (h, C).
        log_likelihood: Their log marginal likelihoods, shape (h,); NaN where a covariance could not be factorized.

    Example:
        >>> import torch
        >>> store = Evaluations(torch.rand(2, 3), torch.tensor([-1e3, torch.nan]))
        >>> store.num_failed, store.usable().log_likelihood.tolist()
        (1, [-1000.0])
    """

    cube: Tensor
    log_likelihood: Tensor

    def append(self, cube: Tensor, log_likelihood: Tensor) -> "Evaluations":
        """With further evaluations behind these."""
        return Evaluations(torch.cat([self.cube, cube]), torch.cat([self.log_likelihood, log_likelihood]))

    @property
    def num_failed(self) -> int:
        """Kernels whose covariance could not be factorized."""
        return int(self.log_likelihood.isnan().sum())

    def usable(self) -> "Evaluations":
        """Those with a finite log-likelihood."""
        good = self.log_likelihood.isfinite()
        return Evaluations(self.cube[good], self.log_likelihood[good])

    def best(self, count: int) -> "Evaluations":
        """The ``count`` most likely kernels, best first."""
        usable = self.usable()
        order = usable.log_likelihood.argsort(descending=True, stable=True)[:count]
        return Evaluations(usable.cube[order], usable.log_likelihood[order])
