"""Weights of experts that follow from their variances alone, for rules that learn none."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.ensembles.mixture import Mixture
from gp_ensembles.fusion.experts import ExpertPredictions, check_moments, check_noise
from gp_ensembles.numerics.cholesky import NumericalError

_SLACK = 1e-6  # relative; what a Gaussian process' variance may exceed its prior's by through round-off


class PriorMoments(NamedTuple):
    """What is known before any data, in the space in which experts are pooled.

    Attributes:
        variance: Prior variance of the function, shape () or (N,).
        mean: Its prior mean, shape () or (N,).
    """

    variance: Tensor
    mean: Tensor


class Weighting(ABC):
    """Weights of experts at each row."""

    @abstractmethod
    def weights(self, variance: Tensor, prior: PriorMoments | None) -> Tensor:
        """Weights (K, N), not negative.

        Args:
            variance: The experts' variances, shape (K, N).
            prior: What is known before any data, for weightings that compare with it.

        Raises:
            ValueError: If there must be a prior, or the experts do not fit it.
        """


@final
@dataclass(frozen=True)
class UnitWeights(Weighting):
    """Weight one for every expert.

    Example:
        >>> import torch
        >>> UnitWeights().weights(torch.full((2, 1), 0.3), None).squeeze(1)
        tensor([1., 1.])
    """

    def weights(self, variance: Tensor, prior: PriorMoments | None) -> Tensor:
        """Ones."""
        return torch.ones_like(variance)


@final
@dataclass(frozen=True)
class EqualWeights(Weighting):
    """Weight 1/K for every expert.

    Example:
        >>> import torch
        >>> EqualWeights().weights(torch.full((2, 1), 0.3), None).squeeze(1)
        tensor([0.5000, 0.5000])
    """

    def weights(self, variance: Tensor, prior: PriorMoments | None) -> Tensor:
        """1/K everywhere."""
        return torch.full_like(variance, 1 / variance.shape[0])


@final
@dataclass(frozen=True)
class EntropyWeights(Weighting):
    r"""What each expert has learned, :math:`\tfrac12 (\log v_0 - \log v_k)` nats (Cao and Fleet 2014).

    Args:
        normalized: Whether weights of a row sum to one; where no expert has learned anything they are then equal.

    Example:
        >>> import torch
        >>> prior = PriorMoments(torch.tensor(1.0), torch.tensor(0.0))
        >>> EntropyWeights(normalized=True).weights(torch.tensor([[0.01], [0.1]]), prior).squeeze(1)
        tensor([0.6667, 0.3333])
    """

    normalized: bool = False

    def weights(self, variance: Tensor, prior: PriorMoments | None) -> Tensor:
        """Losses of differential entropy from the prior."""
        learned = differential_entropy(variance, required(prior, "differential entropies").variance, "the prior")
        if not self.normalized:
            return learned
        total = learned.sum(0)
        return torch.where(total > 0, learned / torch.where(total > 0, total, 1.0), 1 / variance.shape[0])


@final
@dataclass(frozen=True)
class SoftmaxVariance(Weighting):
    r"""Weights :math:`\operatorname{softmax}_k(-T v_k)`, more even the smaller T is.

    Args:
        temperature: T, per unit of variance, not negative; :func:`~gp_ensembles.fusion.fit_temperature` finds one.

    Raises:
        ValueError: If T is negative or not finite.

    Example:
        >>> import torch
        >>> SoftmaxVariance(100.0).weights(torch.tensor([[0.01], [0.1]]), None).squeeze(1)
        tensor([9.9988e-01, 1.2339e-04])
    """

    temperature: float

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"the temperature must be finite and not negative, got {self.temperature}")

    def weights(self, variance: Tensor, prior: PriorMoments | None) -> Tensor:
        """Softmax over the experts."""
        return (-self.temperature * variance).softmax(0)


@final
@dataclass(frozen=True)
class GivenWeights(Weighting):
    """Weights learned elsewhere, for example by stacking.

    Args:
        log_weights: Log weights, shape (K,) or (K, N), in nats; minus infinity is no weight.

    Example:
        >>> import torch
        >>> GivenWeights(torch.tensor([0.25, 0.75]).log()).weights(torch.ones(2, 1), None).squeeze(1)
        tensor([0.2500, 0.7500])
    """

    log_weights: Tensor

    def weights(self, variance: Tensor, prior: PriorMoments | None) -> Tensor:
        """The weights given."""
        log_weights = self.log_weights if self.log_weights.ndim == 2 else self.log_weights.unsqueeze(-1)
        if log_weights.shape[0] != variance.shape[0] or log_weights.shape[-1] not in (1, variance.shape[1]):
            raise ValueError(
                f"the weights {tuple(self.log_weights.shape)} do not exist for all of {variance.shape[0]} experts and "
                f"{variance.shape[1]} rows; give shape (K,), or (K, N) for these rows"
            )
        return log_weights.exp().expand_as(variance)


def differential_entropy(variance: Tensor, reference: Tensor, name: str) -> Tensor:
    """Loss of differential entropy from a reference variance to variances, in nats and not negative.

    Args:
        variance: Variances, shape (K, N).
        reference: What they are compared with, shape () or (N,).
        name: What that is, for the message.

    Raises:
        ValueError: If a variance is above the reference by more than round-off; names the expert and the row.

    Example:
        >>> import torch
        >>> differential_entropy(torch.tensor([[1.0], [0.01]]), torch.tensor(1.0), "the prior").squeeze(1)
        tensor([0.0000, 2.3026])
    """
    above = variance > reference * (1 + _SLACK)
    if bool(above.any()):
        expert, row = above.nonzero()[0].tolist()
        raise ValueError(
            f"expert {expert} is less sure at row {row} than {name}, whose variance would have to be at least "
            f"{float(variance[expert, row]):.6g}; both must be in the same space and units"
        )
    return (0.5 * (reference.log() - variance.log())).clamp_min(0)


def required(prior: PriorMoments | None, what: str) -> PriorMoments:
    """The prior, if there is one.

    Raises:
        ValueError: If there is none, or its variance is not positive.

    Example:
        >>> import torch
        >>> required(PriorMoments(torch.tensor(1.0), torch.tensor(0.0)), "a committee").variance
        tensor(1.)
    """
    if prior is None:
        raise ValueError(f"{what} need a prior: give prior=PriorMoments(variance, mean) of the function")
    if not bool((torch.isfinite(prior.variance) & (prior.variance > 0) & torch.isfinite(prior.mean)).all()):
        raise ValueError("the prior's variance must be positive, and it and the prior's mean finite")
    return prior


Space = Literal["f", "y"]


class FusedMoments(NamedTuple):
    """Mean and variance of each of N rows.

    Attributes:
        mean: Means, shape (N,).
        variance: Variances, shape (N,).
    """

    mean: Tensor
    variance: Tensor


class FusionRule(ABC):
    """A rule that makes one normal prediction of K, for each row by itself."""

    @abstractmethod
    def combine(self, mean: Tensor, variance: Tensor, prior: PriorMoments | None) -> FusedMoments:
        """The fused moments, in the space in which the experts' are given.

        Args:
            mean: The experts' means, shape (K, N).
            variance: Their variances, shape (K, N), positive.
            prior: What is known before any data in that space; rules that do not compare with it ignore it.

        Raises:
            ValueError: If there must be a prior.
            NumericalError: If the fused precision of a row is not positive.
        """


@final
@dataclass(frozen=True)
class ProductOfExperts(FusionRule):
    r"""Generalized product of experts :math:`\prod_k p_k^{w_k}` (Cao and Fleet 2014), a log-linear pool.

    Args:
        weighting: The weights; one each, the default, is the product of experts (Hinton 2002), which is too sure.

    Example:
        >>> import torch
        >>> mean, variance = torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [0.5]])
        >>> ProductOfExperts().combine(mean, variance, None)
        FusedMoments(mean=tensor([2.]), variance=tensor([0.3333]))
    """

    weighting: Weighting = field(default_factory=UnitWeights)

    def combine(self, mean: Tensor, variance: Tensor, prior: PriorMoments | None) -> FusedMoments:
        """Precisions add, each times its weight."""
        return _by_precision(mean, self.weighting.weights(variance, prior) / variance)


@final
@dataclass(frozen=True)
class CommitteeMachine(FusionRule):
    r"""Bayesian committee machine: a product of experts in which the shared prior counts once.

    .. math:: \tau = \sum_k w_k / v_k + (1 - \sum_k w_k) / v_0

    Args:
        weighting: The weights; one each, the default, is the BCM (Tresp 2000), :class:`EntropyWeights` the robust one,
            rBCM (Deisenroth and Ng 2015). If they sum to one nothing of the prior is left.

    Example:
        >>> import torch
        >>> prior = PriorMoments(torch.tensor(1.0), torch.tensor(0.0))
        >>> CommitteeMachine().combine(torch.zeros(2, 1), torch.full((2, 1), 0.5), prior).variance
        tensor([0.3333])
    """

    weighting: Weighting = field(default_factory=UnitWeights)

    def combine(self, mean: Tensor, variance: Tensor, prior: PriorMoments | None) -> FusedMoments:
        """Precisions add, each times its weight, and the prior's makes up for its repetition."""
        known = required(prior, "committees")
        weights = self.weighting.weights(variance, known)
        return _corrected(mean, variance, weights, FusedMoments(known.mean, known.variance))


@final
@dataclass(frozen=True)
class GRBCM(FusionRule):
    r"""Generalized robust Bayesian committee machine, GRBCM (Liu et al. 2018).

    The first expert is the communication expert, which learned from a random subset of the data; each of the others
    learned from this subset and from data of its own. The communication expert stands where a committee has the prior,
    and the second expert, the first of the others, has weight one. No prior is needed.

    Example:
        >>> import torch
        >>> variance = torch.tensor([[1.0], [0.5]])
        >>> GRBCM().combine(torch.zeros(2, 1), variance, None).variance
        tensor([0.5000])
    """

    def combine(self, mean: Tensor, variance: Tensor, prior: PriorMoments | None) -> FusedMoments:
        """Precisions add, each times its weight, less the communication expert's repetitions."""
        base = FusedMoments(mean[0], variance[0])
        if mean.shape[0] == 1:
            return base
        rest = variance[2:]
        weights = torch.cat(
            [torch.ones_like(variance[1:2]), differential_entropy(rest, base.variance, "the communication expert")]
        )
        return _corrected(mean[1:], variance[1:], weights, base)


@final
@dataclass(frozen=True)
class Barycenter(FusionRule):
    r"""Wasserstein-2 barycenter in one dimension: means and standard deviations are averaged (Agueh, Carlier 2011).

    Args:
        weighting: The weights, which are normalized here.

    Example:
        >>> import torch
        >>> Barycenter().combine(torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [9.0]]), None)
        FusedMoments(mean=tensor([1.5000]), variance=tensor([4.]))
    """

    weighting: Weighting = field(default_factory=EqualWeights)

    def combine(self, mean: Tensor, variance: Tensor, prior: PriorMoments | None) -> FusedMoments:
        """Averages of means and of standard deviations."""
        weights = self.weighting.weights(variance, prior)
        total = weights.sum(0)
        _require_positive(total, "sum of weights")
        weights = weights / total
        return FusedMoments((weights * mean).sum(0), (weights * variance.sqrt()).sum(0).square())


def fuse(
    predictions: ExpertPredictions,
    rule: FusionRule,
    *,
    space: Space,
    prior: PriorMoments | None = None,
    noise: Tensor | None = None,
) -> Mixture:
    """Fuse experts' predictions by a rule, to a normal prediction of the target.

    Rules of the committees' kind act on the function f, and the noise comes afterwards; the pools of Ajirak et al.
    (2024) act on the target y, whose variances contain it. The two differ, so the space has no default.

    Args:
        predictions: What the experts predict.
        rule: The rule.
        space: ``"f"``: fuse the function's moments and add the noise; ``"y"``: fuse the targets'.
        prior: What is known of the function before any data; in space ``"y"`` the noise is added to its variance.
        noise: Noise variance of the target, shape () or (N,); the experts' average if not given.

    Returns:
        The fused prediction of targets, a mixture of one component.

    Raises:
        ValueError: If predictions cannot be fused, the space is unknown, or the rule needs a prior.
        NumericalError: If the fused precision of a row is not positive.

    Example:
        >>> import torch
        >>> one = torch.ones(2, 1)
        >>> predictions = ExpertPredictions(0 * one, one, 0.5 * one)
        >>> fuse(predictions, ProductOfExperts(), space="f").variance
        tensor([1.])
        >>> fuse(predictions, ProductOfExperts(), space="y").variance
        tensor([0.7500])
    """
    if space not in ("f", "y"):
        raise ValueError(f'the space must be "f", the function, or "y", the target with its noise; got {space!r}')
    check_moments(predictions.mean, predictions.variance)
    check_noise(predictions.noise, predictions.mean)
    if predictions.mean.ndim != 2:
        raise ValueError(f"a rule takes means of shape (K, N), got {tuple(predictions.mean.shape)}")
    if noise is None:
        noise = predictions.noise.expand_as(predictions.mean).mean(0)
    else:
        noise = torch.as_tensor(noise).to(predictions.mean)
        if noise.ndim > 1:
            raise ValueError(f"the noise of the target must have shape () or (N,), got {tuple(noise.shape)}")
        check_noise(noise.expand_as(predictions.mean) if noise.ndim == 0 else noise, predictions.mean)
        noise = noise.expand_as(predictions.mean[0])
    if space == "y" and prior is not None and not _equal_noise(predictions.noise.expand_as(predictions.mean)):
        raise ValueError(
            'a rule with a prior fuses targets only where the experts agree about the noise; use space="f", or give '
            "all of them one noise"
        )
    if space == "f":
        mean, variance = rule.combine(predictions.mean, predictions.variance, prior)
        variance = variance + noise
    else:
        in_targets = None if prior is None else PriorMoments(prior.variance + noise, prior.mean)
        mean, variance = rule.combine(predictions.mean, predictions.target_variance, in_targets)
    return Mixture(mean.new_zeros(1), mean.unsqueeze(0), variance.unsqueeze(0))


def _equal_noise(noise: Tensor) -> bool:
    """Whether noise variances (K, N) are those of the first expert."""
    return torch.allclose(noise, noise[:1].expand_as(noise), rtol=1e-5, atol=0.0)


def _corrected(mean: Tensor, variance: Tensor, weights: Tensor, base: FusedMoments) -> FusedMoments:
    """A product of experts in which the base, which all of them contain, counts once."""
    surplus = (1 - weights.sum(0, keepdim=True)) / base.variance
    base_mean = base.mean.expand_as(mean[0]).unsqueeze(0)
    return _by_precision(torch.cat([mean, base_mean]), torch.cat([weights / variance, surplus]))


def _by_precision(mean: Tensor, precision: Tensor) -> FusedMoments:
    total = precision.sum(0)
    _require_positive(total, "fused precision")
    return FusedMoments((precision * mean).sum(0) / total, 1 / total)


def _require_positive(total: Tensor, what: str) -> None:
    fine = (total > 0) & torch.isfinite(total)
    if not bool(fine.all()):
        row = int((~fine).int().argmax())
        raise NumericalError(
            f"the {what} is {float(total[row]):g} at row {row}: no expert has learned anything there, or they are "
            "surer of it than numbers can say; use normalized weights, or a committee machine with a prior"
        )


_GRID = 41  # temperatures looked at before the best is refined
_REFINEMENTS = 40  # of a golden-section search: each shrinks the interval to 0.618 of it
_GOLDEN = (math.sqrt(5) - 1) / 2


@torch.no_grad()
def fit_temperature(
    predictions: ExpertPredictions,
    y: Tensor,
    rule: Callable[[Weighting], FusionRule] = ProductOfExperts,
    *,
    space: Space,
    prior: PriorMoments | None = None,
) -> SoftmaxVariance:
    r"""The temperature with the best mean log density of validation targets.

    Zero, and a grid of :math:`10^{-3}` to :math:`10^{3}` over the average difference of the experts' variances, are
    tried; the best of the grid is refined by a golden-section search between its neighbors.

    Args:
        predictions: What the experts predict at the validation inputs.
        y: Validation targets, shape (N,); NaN is a missing one.
        rule: What is made of the weights; the generalized product of experts if not given.
        space: As in :func:`fuse`.
        prior: As in :func:`fuse`.

    Returns:
        The weighting with the best temperature found; zero where it does not matter.

    Raises:
        ValueError: If the targets do not fit the predictions or all are missing, or the predictions cannot be fused.

    Example:
        >>> import torch
        >>> mean = torch.tensor([[0.0, 0.0], [3.0, 5.0]]).double()
        >>> predictions = ExpertPredictions(mean, mean + 1, 0 * mean)
        >>> fit_temperature(predictions, torch.zeros(2).double(), space="y").temperature > 1
        True
    """
    if y.shape != predictions.mean.shape[-1:] or bool(torch.isnan(y).all()):
        raise ValueError(
            f"{predictions.mean.shape[-1]} validation targets were due, not all missing; got shape {tuple(y.shape)}"
        )

    def score(temperature: float) -> float:
        fused = fuse(predictions, rule(SoftmaxVariance(temperature)), space=space, prior=prior)
        return float(fused.log_prob(y).nanmean())

    variance = predictions.variance if space == "f" else predictions.target_variance
    scale = float((variance.amax(0) - variance.amin(0)).mean())
    even = score(0.0)
    if not scale > 0:  # the experts are equally sure: every temperature gives equal weights
        return SoftmaxVariance(0.0)
    exponents = [-3 + 6 * number / (_GRID - 1) for number in range(_GRID)]
    scores = [score(10**exponent / scale) for exponent in exponents]
    best = max(range(_GRID), key=scores.__getitem__)
    lower, upper = exponents[max(best - 1, 0)], exponents[min(best + 1, _GRID - 1)]
    found = _golden_section(lambda exponent: score(10**exponent / scale), lower, upper)
    candidates = [(even, 0.0), (scores[best], 10 ** exponents[best] / scale), (found[0], 10 ** found[1] / scale)]
    return SoftmaxVariance(max(candidates, key=lambda pair: pair[0])[1])


def _golden_section(function: Callable[[float], float], lower: float, upper: float) -> tuple[float, float]:
    """Largest value of a function of one peak, and where it is."""
    left, right = upper - _GOLDEN * (upper - lower), lower + _GOLDEN * (upper - lower)
    at_left, at_right = function(left), function(right)
    for _ in range(_REFINEMENTS):
        if at_left < at_right:
            lower, left, at_left = left, right, at_right
            right = lower + _GOLDEN * (upper - lower)
            at_right = function(right)
        else:
            upper, right, at_right = right, left, at_left
            left = upper - _GOLDEN * (upper - lower)
            at_left = function(left)
    return max((at_left, left), (at_right, right))
