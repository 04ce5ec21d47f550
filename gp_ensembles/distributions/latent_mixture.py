"""Mixtures of a likelihood's distributions: predictions of an ensemble with this likelihood, one for each row."""

import copy
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions.counts import EXACT, CountDistributions, LogRateCounts, TabulatedCounts
from gp_ensembles.distributions.table import distribution_text
from gp_ensembles.likelihoods.classification import LogisticLikelihood, MulticlassLikelihood
from gp_ensembles.likelihoods.counts import count_parameters
from gp_ensembles.likelihoods.predictive import Predictive, ProbitApproximation, num_classes
from gp_ensembles.likelihoods.response import check_support, conditional
from gp_ensembles.numerics import mixtures
from gp_ensembles.numerics.display import counted
from gp_ensembles.numerics.draws import categorical_draws, normal_draws
from gp_ensembles.numerics.gpytorch_types import Likelihood

_CERTAIN = 1e-12  # latent variance of what is hardly uncertain
_LIGHT, _DWARFED = 0.05, 30.0  # weight of experts that are left out if their counts are so many times the others'


class Response(NamedTuple):
    """Likelihood and prediction method of the experts of one object."""

    likelihood: Likelihood  # their likelihood
    predictive: Predictive  # how predictions are computed
    num_experts: int  # how many experts the object has
    batch_shape: torch.Size  # their batch shape

    def frozen(self) -> "Response":
        """The same with a copy of the likelihood as it is now, through which no gradient flows."""
        return self._replace(likelihood=copy.deepcopy(self.likelihood).requires_grad_(False))


class LatentMixture(NamedTuple):
    r"""Mixture over the experts of :math:`\int p(y \mid z) N(z; m, s)\, dz`, for each of N rows by itself.

    Attributes:
        log_weights: Log weights, summing to one over the experts, shape (M,), or (M, N).
        latent_mean: The experts' latent means, shape (M, N), or (M, N, C) for C unordered classes.
        latent_variance: Their variances (M, N), or covariances (M, N, C, C).
        responses: How latent values become targets, one for each expert object in order.

    Example:
        >>> from gp_ensembles.likelihoods.predictive import GaussHermite
        >>> zero = torch.zeros(2, 3, dtype=torch.float64)
        >>> response = Response(LogisticLikelihood(), GaussHermite(), 2, torch.Size([2]))
        >>> log_weights = torch.log(zero[:, 0] + 0.5)
        >>> mixture = LatentMixture(log_weights, zero, zero + 1, (response,))
        >>> mixture.class_probabilities.shape, mixture.mean
        (torch.Size([3, 2]), tensor([0.5000, 0.5000, 0.5000], dtype=torch.float64))
    """

    log_weights: Tensor
    latent_mean: Tensor
    latent_variance: Tensor
    responses: tuple[Response, ...]

    @property
    def num_rows(self) -> int:
        """Number of rows N."""
        return self.latent_mean.shape[1]

    @property
    def mean(self) -> Tensor:
        """Mean of the target, shape (N,); probabilities (N, C) for unordered classes."""
        return self.moments()[0]

    @property
    def variance(self) -> Tensor:
        """Variance of the target, shape (N,); of each class's indicator, (N, C), for unordered classes."""
        return self.moments()[1]

    @property
    def stddev(self) -> Tensor:
        """Standard deviation of the target."""
        return self.variance.sqrt()

    @property
    def class_probabilities(self) -> Tensor:
        """Probabilities of the classes, shape (N, C).

        Raises:
            TypeError: If the likelihood has no classes.
        """
        parts = [r.predictive.class_probabilities(r.likelihood, mean, s) for r, mean, s in self._parts()]
        return mixtures.weighted(self._column_weights().exp().unsqueeze(-1), _stack(parts, 2)).sum(0)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the target, shapes as in :attr:`mean`."""
        parts = [r.predictive.moments(r.likelihood, mean, s) for r, mean, s in self._parts()]
        own = self.latent_mean.ndim - 1
        mean, variance = (_stack([part[k] for part in parts], own) for k in range(2))
        weights = self._column_weights().exp()
        weights = weights if mean.ndim == 2 else weights.unsqueeze(-1)
        if all(count_parameters(response.likelihood, mean) is not None for response in self.responses):
            weights = _without_runaway_rates(weights.expand_as(mean), (variance + mean.square()).sqrt())
        center = mixtures.weighted(weights, mean).sum(0)
        return center, mixtures.weighted(weights, variance + (mean - center).square()).sum(0)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log predictive probability (or density) of targets (..., N), of that shape; NaN where y is.

        Raises:
            ValueError: If the shape is another, or a target is outside the support of the likelihood.
        """
        self._check_shape(y)
        for response in self.responses:
            check_support(response.likelihood, y.reshape(-1))
        y = y.to(self.latent_mean.dtype)
        seen = ~torch.isnan(y)
        if not bool(seen.any()):
            return torch.full_like(y, torch.nan)
        rows = torch.arange(self.num_rows, device=y.device).expand(y.shape).flatten()
        filled = torch.where(seen, y, y[seen][0]).flatten()
        value = (self if y.ndim == 1 else self.take(rows))._log_prob(filled).reshape(y.shape)
        return torch.where(seen, value, torch.nan)

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of a target up to y (..., N), of that shape, for classes and counts; NaN where y is.

        Targets may be any numbers: it is zero below zero and one at infinity. For counts with the exponential
        link it is accurate to 1e-8; for others see :class:`~gp_ensembles.distributions.counts.TabulatedCounts`.

        Raises:
            ValueError: If the shape is another.
            TypeError: If targets are real numbers, for which torch's likelihoods have no distribution function.
        """
        self._check_shape(y)
        level = y.double().floor()
        inside = (level >= 0) & torch.isfinite(level)
        place = torch.where(inside, level, 0.0)
        table = self._class_cdf()
        if table is None:
            rows = torch.arange(self.num_rows, device=y.device)
            value = self.counts().cdf(place, rows)
        else:
            place = place.clamp_max(table.shape[-1] - 1).to(torch.int64)
            value = table.expand(*place.shape, -1).gather(-1, place.unsqueeze(-1)).squeeze(-1).double()
        value = torch.where(inside, value, (level > 0).double()).masked_fill(torch.isnan(level), torch.nan)
        return value.to(self.latent_mean.dtype)

    def quantile(self, p: float | Tensor) -> Tensor:
        """Smallest target whose probability of not being exceeded is at least p, for classes and counts.

        Args:
            p: One probability, or a tensor that broadcasts with (..., N).

        Returns:
            Quantiles, shape (N,) or (..., N). Probabilities within 1e-12 of one count as 1 - 1e-12, except that for
            counts one itself gives infinity.

        Raises:
            ValueError: If a probability is not in [0, 1], or the number of probabilities does not match the rows.
            TypeError: As in :meth:`cdf`.
        """
        level = p if isinstance(p, Tensor) else self.latent_mean.new_tensor(p)
        if not bool(((level >= 0) & (level <= 1)).all()):
            raise ValueError("p must be probabilities between 0 and 1")
        if level.ndim and level.shape[-1] not in (1, self.num_rows):
            raise ValueError(f"p must broadcast with (..., {self.num_rows}), got shape {tuple(level.shape)}")
        level = level.expand(torch.broadcast_shapes(level.shape, (self.num_rows,)))
        table = self._class_cdf()
        if table is None:
            return self.counts().quantile(level).to(self.latent_mean.dtype)
        below = table < level.clamp_max(1 - EXACT).unsqueeze(-1)
        return below.sum(-1).clamp_max(table.shape[1] - 1).to(table.dtype)

    def counts(self) -> CountDistributions:
        """The rows' distributions of counts, for repeated use: the table that some need is built here.

        Raises:
            TypeError: If targets are not counts.
            ValueError: If a row spreads over too many of them for a table; never where the link is exponential.
        """
        likelihoods = [response.likelihood for response in self.responses]
        known = [count_parameters(likelihood, self.latent_mean) for likelihood in likelihoods]
        found = [parameters for parameters in known if parameters is not None]
        if len(found) == len(known):
            each = zip(*found, strict=True)
            sizes = [response.num_experts for response in self.responses]
            log_scale, log_size, log_odds = (
                torch.cat([part.reshape(-1, 1).expand(size, 1) for part, size in zip(parts, sizes, strict=True)])
                for parts in each
            )
            mean = self.latent_mean + log_scale
            return LogRateCounts(self.log_weights, mean, self.latent_variance, log_size, log_odds)
        support = conditional(likelihoods[0], self.latent_mean.new_zeros(1)).support
        if num_classes(likelihoods[0]) is not None or support is None or not support.is_discrete:
            name = type(likelihoods[0]).__name__
            raise TypeError(f"predictions under {name} have no distribution function in torch; draw samples")
        mean, variance = self.moments()
        return TabulatedCounts(lambda count, rows: self.take(rows)._log_prob(count), mean, variance.sqrt())

    def sample(self, num: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws for each row: an expert, a latent value, a target; shape (S, N).

        torch's distributions draw from the global generator; it takes the state of ``generator`` meanwhile.
        """
        if num < 1:
            raise ValueError(f"the number of draws must be at least one, got {num}")
        mean, covariance = self.latent_mean, self.latent_variance
        shape = (num, *mean.shape)
        normal = normal_draws(shape, mean, generator)
        if mean.ndim == 2:
            latent = mean + covariance.sqrt() * normal
        else:
            values, axes = torch.linalg.eigh(covariance)
            root = axes * values.clamp_min(0.0).sqrt().unsqueeze(-2)
            latent = mean + (root @ normal.unsqueeze(-1)).squeeze(-1)
        weights = self._column_weights().exp().expand(mean.shape[:2])
        component = categorical_draws(weights.mT, num, generator).mT
        draws, start = [], 0
        with _borrowed(generator, mean.device):
            for response in self.responses:
                own = latent[:, start : start + response.num_experts]
                own = own.reshape(num, *response.batch_shape, *own.shape[2:])
                drawn = conditional(response.likelihood, own).sample()
                draws.append(drawn.reshape(num, response.num_experts, -1).to(mean.dtype))
                start += response.num_experts
        return torch.cat(draws, dim=1).gather(1, component.unsqueeze(1)).squeeze(1)

    def __repr__(self) -> str:
        likelihood = type(self.responses[0].likelihood).__name__
        sizes = counted((self.latent_mean.shape[0], "component"), (self.num_rows, "row"))
        return distribution_text(f"LatentMixture of {sizes}, {likelihood}", self)

    def _log_prob(self, y: Tensor) -> Tensor:
        """Log probabilities of legal targets (N,)."""
        parts = [r.predictive.log_prob(r.likelihood, mean, s, y) for r, mean, s in self._parts()]
        return (self._column_weights() + _stack(parts, 1)).logsumexp(0)

    def _class_cdf(self) -> Tensor | None:
        """Distribution function of the classes, (N, C); ``None`` without classes."""
        if num_classes(self.responses[0].likelihood) is None:
            return None
        return self.class_probabilities.cumsum(-1).clamp_max(1.0)

    def take(self, rows: Tensor) -> "LatentMixture":
        """The mixtures of some rows, in the order given."""
        log_weights = self.log_weights if self.log_weights.ndim == 1 else self.log_weights[:, rows]
        return self._replace(
            log_weights=log_weights,
            latent_mean=self.latent_mean[:, rows],
            latent_variance=self.latent_variance[:, rows],
        )

    def _check_shape(self, y: Tensor) -> None:
        if y.ndim == 0 or y.shape[-1] != self.num_rows:
            raise ValueError(f"y must have shape (..., {self.num_rows}), one value per row, got {tuple(y.shape)}")

    def _column_weights(self) -> Tensor:
        return self.log_weights.unsqueeze(-1) if self.log_weights.ndim == 1 else self.log_weights

    def _parts(self) -> list[tuple[Response, Tensor, Tensor]]:
        """Each object's response and latent moments, in the batch shape of its experts."""
        parts, start = [], 0
        for response in self.responses:
            rows = slice(start, start + response.num_experts)
            mean, variance = self.latent_mean[rows], self.latent_variance[rows]
            shape = response.batch_shape
            mean, variance = (part.reshape(*shape, *part.shape[1:]) for part in (mean, variance))
            parts.append((response, mean, variance))
            start += response.num_experts
        return parts


def _without_runaway_rates(weights: Tensor, sizes: Tensor) -> Tensor:
    """Weights (M, N) without light experts whose counts are of sizes (M, N) that dwarf those of all others.

    An expert whose latent value is far off keeps the little weight that the rule redistributes; its rate, which is an
    exponential, would dominate the mean.
    """
    order = sizes.argsort(0, descending=True)
    is_light = weights.gather(0, order).cumsum(0) <= _LIGHT
    is_light = torch.zeros_like(is_light).scatter(0, order, is_light)
    others = weights.masked_fill(is_light, 0.0)
    rest = mixtures.weighted(others, sizes).sum(0) / others.sum(0)
    kept = weights.masked_fill(is_light & (sizes > _DWARFED * rest), 0.0)
    return kept / kept.sum(0)


def log_prob_of_classes(mixture: LatentMixture, rows_at_once: int) -> Tensor:
    """Log probabilities of the classes of rows, (N, C), on the CPU; some rows at a time, for quadrature takes room."""
    rows = torch.arange(mixture.num_rows, device=mixture.latent_mean.device).split(rows_at_once)
    predicted = torch.cat([mixture.take(part).class_probabilities for part in rows])
    return predicted.double().clamp_min(torch.finfo(torch.float64).tiny).log().cpu()


def certain_classes(log_prob: Tensor, *, like: Tensor) -> LatentMixture:
    """One expert that is certain of these log probabilities, with latent means of the kind and number of ``like``.

    Shapes: ``log_prob`` (N, C), ``like`` (M, N) of two classes, (M, N, C) of several.
    """
    log_prob, is_binary = log_prob.to(like), like.ndim == 2
    latent = (log_prob[:, 1] - log_prob[:, 0] if is_binary else log_prob).unsqueeze(0)
    variance = torch.full_like(latent, _CERTAIN)
    variance = variance if is_binary else torch.diag_embed(variance)
    response = _response_of_classes(None if is_binary else log_prob.shape[-1])
    return LatentMixture(latent.new_zeros(1), latent, variance, (response,))


@functools.cache
def _response_of_classes(num_classes: int | None) -> Response:
    """Two classes, or several without an order; cached, as building a likelihood costs more than using it."""
    likelihood = LogisticLikelihood() if num_classes is None else MulticlassLikelihood(num_classes)
    return Response(likelihood, ProbitApproximation(), 1, torch.Size([1]))


def _stack(parts: Sequence[Tensor], num_axes: int) -> Tensor:
    """Results of all objects, each with ``num_axes`` axes after its batch shape, as (M, ...)."""
    cuts = [part.ndim - num_axes for part in parts]
    return torch.cat(
        [part.reshape(part.shape[:cut].numel(), *part.shape[cut:]) for part, cut in zip(parts, cuts, strict=True)]
    )


@contextmanager
def _borrowed(generator: torch.Generator | None, device: torch.device) -> Iterator[None]:
    """Within it, a device's global generator has the state of this one; both are restored and advanced afterwards."""
    if generator is None:
        yield
        return
    own = generator
    if generator.device != device:
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        own = torch.Generator(device).manual_seed(seed)
    on_gpu = device.type == "cuda"
    before = torch.cuda.get_rng_state(device) if on_gpu else torch.random.get_rng_state()
    put = functools.partial(torch.cuda.set_rng_state, device=device) if on_gpu else torch.random.set_rng_state
    put(own.get_state())
    try:
        yield
    finally:
        own.set_state(torch.cuda.get_rng_state(device) if on_gpu else torch.random.get_rng_state())
        put(before)
