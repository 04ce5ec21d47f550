r"""Distribution functions of predicted counts, row by row, at a cost that depends on each row's own spread."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from scipy import special
from torch import Tensor

from gp_ensembles.likelihoods.counts import POISSON
from gp_ensembles.numerics.gauss_hermite import gauss_hermite

EXACT = 1e-12  # probability beyond the largest quantile
_DEVIATIONS = 7.2  # a normal variable is further out with probability 3e-13 on each side
_NEGLIGIBLE = 1e-14  # weight of an expert that is left out
_LARGEST = 1e300
# Latent standard deviations, in widths of the step, up to which so many normal nodes do; fixed tiers, so that no row's
# result depends on what other rows it is computed with.
_NORMAL_NODES = ((0.1, 5), (0.25, 9), (0.5, 15))
_LOG_TAIL = 26.0  # minus the logarithm of the density, relative to its peak, where a rule for log rates ends
_THRESHOLD_NODES = 128
_FAR = 30.0  # above it exponentials might overflow
_PAIRS = 16_384  # pairs of an expert and a count at once, so that memory stays bounded
_FIRST_COUNTS = 32
_MOST_COUNTS = 1_000_000


class CountDistributions(ABC):
    """Predictive distributions of counts, one for each of N rows, in float64."""

    lower: Tensor  # Counts below which hardly anything lies, whole, shape (N,)
    upper: Tensor  # Counts from which on the distribution function is one for all purposes, whole, shape (N,)

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
class LogRateCounts(CountDistributions):
    r"""Mixtures over experts of counts whose log rates are normal: Poisson, negative binomial, zero inflated.

    With G and R gamma variables of shapes k + 1 and r, which is the size of a negative binomial,

    .. math:: P(y \le k) = E_z\, I(r, k + 1, r / (r + e^z)) = E\, \Phi\big((\log G - \log R / r - m) / \sqrt{s}\big)

    For Poisson counts R / r is one. An inflated zero has its probability on top.

    Shapes: ``log_weights`` (M,) or (M, N), ``mean`` and ``variance`` of the log rates (M, N), ``log_size`` and
    ``log_odds`` of inflation (M, 1), by default those of Poisson counts.
    """

    lower: Tensor
    upper: Tensor

    def __init__(
        self,
        log_weights: Tensor,
        mean: Tensor,
        variance: Tensor,
        log_size: Tensor | None = None,
        log_odds: Tensor | None = None,
    ) -> None:
        mean, variance = mean.double(), variance.double()
        column = mean.new_zeros(mean.shape[0], 1)
        weights = log_weights.double() if log_weights.ndim == 2 else log_weights.double().unsqueeze(-1)
        self.weights: Tensor = weights.expand(mean.shape).softmax(0)
        self.mean: Tensor = mean.clamp(-math.log(_LARGEST), math.log(_LARGEST))
        self.stddev: Tensor = variance.sqrt()
        self.size: Tensor = (column + POISSON if log_size is None else log_size.double()).exp()
        self.inflation: Tensor = column if log_odds is None else log_odds.double().sigmoid()
        counted = self.weights > _NEGLIGIBLE
        # A tail of the rate counts by its share of the mean, not only by its probability.
        tail = (2 * _LOG_TAIL / self.size).sqrt() + _LOG_TAIL / self.size
        highest = (self.mean + self.stddev * (_DEVIATIONS + self.stddev) + tail.log1p()).exp().clamp_max(_LARGEST)
        lowest = (self.mean - _DEVIATIONS * self.stddev - tail).exp()
        ends = (highest + 8 * highest.sqrt() + 30).ceil()
        starts = (lowest - 8 * lowest.sqrt()).floor().clamp_min(0.0)
        self.ends: Tensor = ends.masked_fill(~counted, 0.0)
        self.starts: Tensor = starts.masked_fill(~counted, torch.inf)
        self.lower = torch.where(self.inflation > 0, 0.0, self.starts).amin(0)
        self.upper = self.ends.amax(0)

    def cdf(self, counts: Tensor, rows: Tensor) -> Tensor:
        """See :meth:`CountDistributions.cdf`; counts may lie between whole numbers."""
        flat = counts.flatten()
        rows = rows.expand(counts.shape).flatten()
        size = max(1, _PAIRS // self.mean.shape[0])
        parts = [self._cdf(some, at) for some, at in zip(flat.split(size), rows.split(size), strict=True)]
        return torch.cat(parts).reshape(counts.shape)

    def reach(self, counts: Tensor, rows: Tensor) -> Tensor:
        """See :meth:`CountDistributions.reach`: that of the nearest step, whose scale is its own deviation."""
        spread = self.stddev[:, rows].square() + 1 / self.size
        scale = torch.minimum((counts + counts.square() * spread).sqrt(), 0.5 * counts)
        length = torch.maximum(2 * scale, self.starts[:, rows] - counts)
        return length.masked_fill(counts >= self.ends[:, rows], torch.inf).amin(0)

    def _cdf(self, counts: Tensor, rows: Tensor) -> Tensor:
        """The same for counts (P,) and rows (P,)."""
        weights, mean, stddev = self.weights[:, rows], self.mean[:, rows], self.stddev[:, rows]
        shape, size = (counts + 1).expand(mean.shape), self.size.expand(mean.shape)
        ratio = stddev / (1 / shape + 1 / size).sqrt().clamp_max(1.0)
        counted = weights > _NEGLIGIBLE
        value = torch.zeros_like(mean)
        wide = counted
        for widest, num_nodes in _NORMAL_NODES:
            sharp = wide & (ratio < widest)
            wide = wide & ~sharp
            if bool(sharp.any()):
                value[sharp] = _over_log_rates(shape[sharp], size[sharp], mean[sharp], stddev[sharp], num_nodes)
        if bool(wide.any()):
            log_rate, shares = _threshold_nodes(shape[wide], size[wide])
            distance = (mean[wide] - log_rate) / (stddev[wide] * math.sqrt(2.0))
            value[wide] = (shares * torch.erfc(distance)).sum(0) * 0.5
        return (weights * (self.inflation + (1 - self.inflation) * value)).sum(0)


@final
class TabulatedCounts(CountDistributions):
    """Distributions of counts that are only known by their probabilities, which are summed from zero.

    Shapes: ``log_prob`` of counts (P,) in rows (P,) is (P,); ``mean`` (N,), ``stddev`` (N,).

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


def _over_log_rates(shape: Tensor, size: Tensor, mean: Tensor, stddev: Tensor, num_nodes: int) -> Tensor:
    """Expectations of the step over normal log rates (P,)."""
    nodes, weights = gauss_hermite(num_nodes, mean)
    value = torch.zeros_like(mean)
    for node, weight in zip(nodes, weights, strict=True):
        value += weight * _below(shape, size, mean + stddev * node)
    return value


def _below(shape: Tensor, size: Tensor, log_rate: Tensor) -> Tensor:
    """Distribution functions of counts (P,) at shape - 1."""
    is_dispersed = size < math.exp(POISSON - 1)
    value: Tensor = torch.special.gammaincc(shape, log_rate.exp())
    if bool(is_dispersed.any()):
        a, b, x = (part[is_dispersed].cpu() for part in (size, shape, (size.log() - log_rate).sigmoid()))
        value[is_dispersed] = torch.as_tensor(special.betainc(a.numpy(), b.numpy(), x.numpy())).to(value)
    return value


def _threshold_nodes(shape: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights for the log rates above which gamma variables of shapes (P,) are exceeded, each (J, P)."""
    spread = (1 / shape + 1 / size).sqrt()
    core, width = spread.clamp_max(1.0), (2 * _LOG_TAIL) ** 0.5 * spread
    # Density exp(a d - (a + r) log(1 - q + q exp d)) at log a + d, with q = a / (a + r), falls to exp(-26) of its peak
    # inside of these ends; with a and r exchanged it is that of -d.
    left, right = -((width + _LOG_TAIL / shape) / core).asinh(), ((width + _LOG_TAIL / size) / core).asinh()
    share = torch.linspace(0, 1, _THRESHOLD_NODES, dtype=shape.dtype, device=shape.device).unsqueeze(-1)
    place = left + (right - left) * share
    d, less, total = core * place.sinh(), torch.minimum(shape, size), shape + size
    q, to = less / total, torch.where(shape < size, d, -d)
    near, far = to.clamp_max(_FAR), to.clamp_min(_FAR)
    log_sum = torch.where(to < _FAR, torch.log1p(q * torch.expm1(near)), far + torch.log(q + (1 - q) * (-far).exp()))
    weights = (less * to - total * log_sum).exp() * place.cosh()
    return shape.log() + d, weights / weights.sum(0)
