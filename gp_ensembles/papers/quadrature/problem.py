"""Regression problem: data, a prior over kernels and a likelihood; kernels with posterior weights."""

import copy
import functools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.numerics.display import prints_fields
from gp_ensembles.numerics.draws import generator_device
from gp_ensembles.papers.quadrature.likelihoods import DenseLikelihood, Likelihood, LogMarginalLikelihoods
from gp_ensembles.papers.quadrature.prior import Hyperprior, default_prior
from gp_ensembles.papers.quadrature.surrogate import KernelDistance, matern_distance
from gp_ensembles.papers.rows import check_rows

_BANDWIDTH = 2.0  # of the discrepancy's kernel on standardized atoms, for one input
_MOST = 64  # number of kernels to which draws are thinned
_FEWEST = 8
_FEWEST_ROWS = 2
_BYTES = 2**28  # for the factors of their covariances


class OutOfTimeError(Exception):
    """The time budget has run out."""


@final
class Deadline:
    """A call's time limit, accurate to one evaluation; the first evaluation always takes place."""

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.end: float = math.inf if seconds is None else clock() + seconds
        self._each: float | None = None  # seconds of the last evaluation

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.clock() >= self.end

    def parts(self, rows: Tensor) -> Iterator[Tensor]:
        """Split rows into parts that should take half of the remaining time, or one evaluation, if there is a limit."""
        if math.isinf(self.end):
            yield rows
            return
        while len(rows):
            before = self.clock()
            if self._each is not None and before >= self.end:
                raise OutOfTimeError
            count = max(1, int(0.5 * (self.end - before) / self._each)) if self._each else 1
            yield rows[:count]
            self._each = (self.clock() - before) / len(rows[:count])
            rows = rows[count:]


class RegressionProblem:
    r"""Regression data with a prior over kernels, for marginalization.

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,) or (N, 1); rows whose target is NaN are dropped, and ``num_missing`` counts them.
        prior: Prior over kernels; :func:`default_prior` of the remaining rows if ``None``.
        mean: Prior mean of the targets, not inferred; their average if ``None``.
        likelihood: Method for likelihoods and predictions: the dense one is exact for any inputs and costs
            O(N^3); see :mod:`~gp_ensembles.papers.quadrature.toeplitz` for series on a grid, and
            :mod:`~gp_ensembles.papers.quadrature.low_rank` for many rows.

    Raises:
        ValueError: If the data are not real or shapes do not match, an input is not finite, all targets are missing,
            an input or the targets are constant and no prior is given, the prior is for another number of inputs, or
            the likelihood does not support the inputs.
        TypeError: If the data are not tensors.
        MemoryError: If a likelihood does not fit into memory.

    Example:
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = RegressionProblem(X, X.squeeze(-1).sin())
        >>> problem.evaluate(problem.prior.draw(3, 1)).shape
        torch.Size([3])
    """

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        prior: Hyperprior | None = None,
        *,
        mean: float | None = None,
        likelihood: Likelihood = DenseLikelihood,
    ) -> None:
        y, there = check_rows(X, y)
        self.num_missing: int = len(y) - int(there.sum())
        X, y = X[there], y[there]
        if len(y) < _FEWEST_ROWS:
            raise ValueError(f"only one row has a target; at least {_FEWEST_ROWS} are needed")
        self.prior: Hyperprior = default_prior(X, y) if prior is None else prior
        if self.prior.num_inputs != X.shape[1]:
            raise ValueError(f"the prior is for {self.prior.num_inputs} input(s), but the data have {X.shape[1]}")
        if mean is not None and not math.isfinite(mean):
            raise ValueError(f"the prior mean of the targets must be finite, got {mean}")
        self.mean: Tensor = y.mean() if mean is None else y.new_tensor(mean)
        self.likelihood = likelihood
        self.likelihoods: LogMarginalLikelihoods = likelihood(X, y - self.mean)
        self.deadline: Deadline = Deadline()

    def within(self, deadline: Deadline) -> "RegressionProblem":
        """The same problem with a deadline for its evaluations."""
        other = copy.copy(self)
        other.deadline = deadline
        return other

    @property
    def X(self) -> Tensor:
        """Inputs, shape (N, D)."""
        return self.likelihoods.X

    @property
    def y(self) -> Tensor:
        """Targets minus their prior mean, shape (N,)."""
        return self.likelihoods.y

    @property
    def kernel_distance(self) -> KernelDistance:
        r"""Distances between kernels, for the surrogate of the likelihood.

        Maximum mean discrepancies of a Matern-5/2 kernel of bandwidth :math:`2 \sqrt{D}` between atoms standardized by
        the prior.
        """
        return KernelDistance(
            self.prior, functools.partial(matern_distance, bandwidth=_BANDWIDTH * self.prior.num_inputs**0.5)
        )

    def log_likelihood(self, cube: Tensor) -> Tensor:
        """Log marginal likelihoods (A,) of rows (A, C) of the prior's cube, differentiable; NaN if undefined.

        Raises:
            OutOfTimeError: If the deadline comes before the last of them.
        """
        parts = [self.likelihoods(*self.prior.hyperparameters(rows)) for rows in self.deadline.parts(cube)]
        return torch.cat(parts) if parts else self.y[:0]

    @torch.no_grad()
    def evaluate(self, cube: Tensor) -> Tensor:
        """The same without derivatives; NaN if a covariance cannot be factorized."""
        return self.log_likelihood(cube)

    @torch.no_grad()
    def evaluate_in_time(self, cube: Tensor) -> Tensor:
        """Log marginal likelihoods (B,) of as many of the first rows as the deadline allows."""
        values = [self.y[:0]]
        with suppress(OutOfTimeError):
            for rows in self.deadline.parts(cube):
                values.append(self.likelihoods(*self.prior.hyperparameters(rows)))
        return torch.cat(values)


@prints_fields
class WeightedKernels(NamedTuple):
    """Kernels with posterior weights."""

    cube: Tensor  # rows of the prior's cube, (R, C)
    log_likelihood: Tensor  # (R,)
    log_weights: Tensor  # (R,); the weights sum to one

    def ordered(self) -> "WeightedKernels":
        """The same kernels, sorted by weight, then by likelihood."""
        by_likelihood = self.log_likelihood.argsort(descending=True, stable=True)
        order = by_likelihood[self.log_weights[by_likelihood].argsort(descending=True, stable=True)]
        return WeightedKernels(*(part[order] for part in self))

    def thin(self, count: int, *, generator: torch.Generator | None = None) -> "WeightedKernels":
        """At most ``count`` kernels, with the same expected weights (Fearnhead and Clifford, 2003, section 3)."""
        kernels = WeightedKernels(*(part[self.log_weights > -torch.inf] for part in self)).ordered()
        if len(kernels.log_weights) <= count:
            return kernels._replace(log_weights=kernels.log_weights.log_softmax(-1))
        weights = kernels.log_weights.double().softmax(-1)
        left = weights.flip(0).cumsum(0).flip(0)  # weight of each kernel and all lighter ones
        rank = torch.arange(count, device=weights.device)
        levels = left[:count] / (count - rank)  # c if this many kernels are kept unchanged
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
    """Number of kernels, 8 to 64, whose tables of this size fit into a quarter of a gibibyte."""
    return max(_FEWEST, min(_MOST, _BYTES // bytes_each))
