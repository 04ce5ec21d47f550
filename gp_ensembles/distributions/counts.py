r"""Distribution functions of predicted counts, row by row, at a cost that depends on each row's own spread."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from gp_ensembles.numerics.gauss_hermite import gauss_hermite

EXACT = 1e-12  # probability beyond the largest quantile
_DEVIATIONS = 7.2  # a normal variable is further out with probability 3e-13 on each side
_NEGLIGIBLE = 1e-14  # weight of an expert that is left out
_LARGEST = 1e300
# Latent standard deviations, in widths of the step, up to which so many normal nodes do; fixed tiers, so that no row's
# result depends on what other rows it is computed with.
_NORMAL_NODES = ((0.1, 5), (0.25, 9), (0.5, 15))
_LOG_TAIL = 26.0  # minus the logarithm of the density, relative to its peak, where the log-gamma rule ends
_LOG_GAMMA_NODES = 96
_PAIRS = 16_384  # pairs of an expert and a count at once, so that memory stays bounded
_FIRST_COUNTS = 32
_MOST_COUNTS = 1_000_000


class CountDistributions(ABC):
    """Predictive distributions of counts, one for each of N rows, in float64.

    Attributes:
        lower: Counts below which hardly anything lies, whole, shape (N,).
        upper: Counts from which on the distribution function is one for all purposes, whole, shape (N,).
    """

    lower: Tensor
    upper: Tensor

    @abstractmethod
    def cdf(self, counts: Tensor, rows: Tensor) -> Tensor:
        """Probability of a target up to a count.

        Shapes: ``counts`` (..., R), ``rows`` (R,); returns (..., R).
        """

    @abstractmethod
    def reach(self, counts: Tensor, rows: Tensor) -> Tensor:
        """Over how many counts from the given ones, (R,), the function is nearly a polynomial, (R,)."""

    @torch.no_grad()
    def quantile(self, level: Tensor) -> Tensor:
        """Smallest counts whose probability of not being exceeded is at least ``level`` (..., N), of its shape."""
        wanted = level.double().clamp_max(1 - EXACT).flatten()
        rows = torch.arange(self.lower.shape[0], device=level.device).expand(level.shape).flatten()
        # The answer lies above low, which starts at -1, and not above high.
        high, low = self.upper[rows], torch.full_like(wanted, -1.0)
        going = torch.arange(wanted.shape[0], device=level.device)
        while going.shape[0]:
            short = self.cdf(high[going], rows[going]) < wanted[going]
            going = going[short & (high[going] < _LARGEST)]
            low[going], high[going] = high[going], 4 * high[going] + 1
        going = (high - low > 1).nonzero().squeeze(-1)
        while going.shape[0]:
            a, b = low[going], high[going]
            # Orders of magnitude apart they are halved on the scale of logarithms.
            middle = torch.where(b > 16 * (a + 2), ((a + 2) * b).sqrt(), 0.5 * (a + b)).floor()
            enough = self.cdf(middle, rows[going]) >= wanted[going]
            low[going], high[going] = torch.where(enough, a, middle), torch.where(enough, middle, b)
            going = going[(high[going] - low[going] > 1) & (middle > a) & (middle < b)]
        return high.reshape(level.shape).masked_fill(level == 1, torch.inf)


@final
class PoissonCounts(CountDistributions):
    r"""Mixtures over experts of Poisson distributions whose log rates are normal.

    .. math:: P(y \le k) = E_z\, Q(k + 1, e^z) = E_G\, \Phi\big((\log G - m) / \sqrt{s}\big)

    Shapes: ``log_weights`` (M,) or (M, N), ``mean`` and ``variance`` of the log rates (M, N).
    """

    ends: Tensor
    starts: Tensor
    lower: Tensor
    upper: Tensor

    def __init__(self, log_weights: Tensor, mean: Tensor, variance: Tensor) -> None:
        mean, variance = mean.double(), variance.double()
        weights = log_weights.double() if log_weights.ndim == 2 else log_weights.double().unsqueeze(-1)
        self.weights: Tensor = weights.expand(mean.shape).softmax(0)
        self.mean: Tensor = mean.clamp(-math.log(_LARGEST), math.log(_LARGEST))
        self.stddev: Tensor = variance.sqrt()
        counted = self.weights > _NEGLIGIBLE
        # A tail of the rate counts by its share of the mean, not only by its probability.
        highest = (self.mean + self.stddev * (_DEVIATIONS + self.stddev)).exp().clamp_max(_LARGEST)
        lowest = (self.mean - _DEVIATIONS * self.stddev).exp()
        ends = (highest + 8 * highest.sqrt() + 30).ceil()
        starts = (lowest - 8 * lowest.sqrt()).floor().clamp_min(0.0)
        self.ends, self.starts = ends.masked_fill(~counted, 0.0), starts.masked_fill(~counted, torch.inf)
        self.lower, self.upper = self.starts.amin(0), self.ends.amax(0)

    def cdf(self, counts: Tensor, rows: Tensor) -> Tensor:
        """See :meth:`CountDistributions.cdf`; counts may lie between whole numbers."""
        flat = counts.flatten()
        rows = rows.expand(counts.shape).flatten()
        size = max(1, _PAIRS // self.mean.shape[0])
        parts = [self._cdf(some, at) for some, at in zip(flat.split(size), rows.split(size), strict=True)]
        return torch.cat(parts).reshape(counts.shape)

    def reach(self, counts: Tensor, rows: Tensor) -> Tensor:
        """See :meth:`CountDistributions.reach`: that of the nearest step, whose scale is its own deviation."""
        scale = torch.minimum((counts + (counts * self.stddev[:, rows]).square()).sqrt(), 0.5 * counts)
        length = torch.maximum(2 * scale, self.starts[:, rows] - counts)
        return length.masked_fill(counts >= self.ends[:, rows], torch.inf).amin(0)

    def _cdf(self, counts: Tensor, rows: Tensor) -> Tensor:
        """The same for counts (P,) and rows (P,)."""
        weights, mean, stddev = self.weights[:, rows], self.mean[:, rows], self.stddev[:, rows]
        shape = (counts + 1).expand(mean.shape)
        ratio = stddev * shape.sqrt()
        counted = weights > _NEGLIGIBLE
        value = torch.zeros_like(mean)
        wide = counted
        for widest, num_nodes in _NORMAL_NODES:
            sharp = wide & (ratio < widest)
            wide = wide & ~sharp
            if bool(sharp.any()):
                value[sharp] = _over_log_rates(shape[sharp], mean[sharp], stddev[sharp], num_nodes)
        if bool(wide.any()):
            expert, place = wide.nonzero(as_tuple=True)
            log_gamma, shares = _log_gamma_nodes(counts + 1)
            distance = (mean[expert, place] - log_gamma[:, place]) / (stddev[expert, place] * math.sqrt(2.0))
            value[wide] = (shares[:, place] * torch.erfc(distance)).sum(0) * 0.5
        return (weights * value).sum(0)


@final
class TabulatedCounts(CountDistributions):
    """Distributions of counts that are only known by their probabilities, which are summed from zero.

    Args:
        log_prob: Log probabilities of counts (P,) in rows (P,), shape (P,).
        mean: Mean of the target, shape (N,).
        stddev: Its standard deviation, shape (N,).

    Raises:
        ValueError: If a row spreads over more than a million counts.
    """

    sizes: Tensor
    offsets: Tensor

    def __init__(self, log_prob: Callable[[Tensor, Tensor], Tensor], mean: Tensor, stddev: Tensor) -> None:
        num_rows, far = mean.shape[0], mean + 4 * stddev
        negligible = torch.finfo(mean.dtype).eps ** 0.625
        active = torch.arange(num_rows, device=mean.device)
        reached = mean.new_zeros(num_rows, dtype=torch.float64)
        sizes = torch.zeros_like(active)
        parts: list[tuple[int, Tensor, Tensor]] = []
        start, width = 0, _FIRST_COUNTS
        while active.shape[0]:
            if start >= _MOST_COUNTS:
                raise ValueError(
                    f"the counts of row {int(active[0])} spread over more than {_MOST_COUNTS} values; draw samples "
                    f"instead, or count in larger units"
                )
            counts = torch.arange(start, start + width, dtype=mean.dtype, device=mean.device)
            table = reached[active] + _probabilities(log_prob, counts, active).cumsum(0)
            mass = table[-1] - reached[active]
            reached[active] = table[-1]
            parts.append((start, active, table.clamp_max(1.0)))
            sizes[active] = start + width
            done = (table[-1] >= 1 - negligible) | ((mass < negligible) & (far[active] < start))
            active, start, width = active[~done], start + width, max(_FIRST_COUNTS, (start + width) // 2)
        self.upper: Tensor = sizes.double()
        self.lower: Tensor = torch.zeros_like(self.upper)
        self.sizes, self.offsets = sizes, sizes.cumsum(0) - sizes
        self.table: Tensor = mean.new_empty(int(sizes.sum()), dtype=torch.float64)
        for first, rows, values in parts:
            steps = torch.arange(values.shape[0], device=mean.device).unsqueeze(-1)
            self.table[self.offsets[rows] + first + steps] = values

    def cdf(self, counts: Tensor, rows: Tensor) -> Tensor:
        """See :meth:`CountDistributions.cdf`."""
        sizes = self.sizes[rows].expand(counts.shape)
        place = torch.minimum(counts, (sizes - 1).double()).long()
        return torch.where(counts < sizes, self.table[self.offsets[rows] + place], 1.0)

    def reach(self, counts: Tensor, rows: Tensor) -> Tensor:
        """See :meth:`CountDistributions.reach`: one, since the function is a step function."""
        return torch.ones_like(counts)


def _probabilities(log_prob: Callable[[Tensor, Tensor], Tensor], counts: Tensor, rows: Tensor) -> Tensor:
    """Probabilities of all counts (K,) in each of the rows (R,), float64, shape (K, R)."""
    flat, at = counts.repeat_interleave(rows.shape[0]), rows.repeat(counts.shape[0])
    size = _PAIRS // 8
    parts = [log_prob(some, row) for some, row in zip(flat.split(size), at.split(size), strict=True)]
    return torch.cat(parts).double().exp().reshape(counts.shape[0], rows.shape[0])


def _over_log_rates(shape: Tensor, mean: Tensor, stddev: Tensor, num_nodes: int) -> Tensor:
    """Expectations of the step over normal log rates (P,)."""
    nodes, weights = gauss_hermite(num_nodes, mean)
    value = torch.zeros_like(mean)
    for node, weight in zip(nodes, weights, strict=True):
        value += weight * torch.special.gammaincc(shape, (mean + stddev * node).exp())
    return value


def _log_gamma_nodes(shape: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights for the logarithms of gamma variables of shapes (P,), each (J, P)."""
    level = _LOG_TAIL / shape
    width = (2 * level).sqrt()
    # Density exp(a (t - exp t)) at log a + t falls to exp(-26) of its peak inside of these ends.
    left, right = -(width + level), torch.log1p(width + level)
    share = torch.linspace(0, 1, _LOG_GAMMA_NODES, dtype=shape.dtype, device=shape.device).unsqueeze(-1)
    t = left + (right - left) * share
    weights = (shape * (t - torch.expm1(t))).exp()
    return shape.log() + t, weights / weights.sum(0)
