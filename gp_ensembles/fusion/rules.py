"""Fusion rules with fixed weights: products of experts, committee machines, barycenters; all called by :func:`fuse`."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.fusion.experts import ExpertPredictions, check_moments, check_noise
from gp_ensembles.fusion.gathering import Experts, gather_predictions
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.display import record_text

Space = Literal["f", "y"]
_GRID = 41  # temperatures evaluated before the best is refined
_REFINEMENTS = 40  # of a golden-section search: each shrinks the interval to 0.618 of it
_GOLDEN = (math.sqrt(5) - 1) / 2
_SLACK = 1e-6  # relative; what a Gaussian process' variance may exceed its prior's by through round-off


class PriorMoments(NamedTuple):
    """Moments of the Gaussian process prior, in the space (function or target) in which experts are fused.

    Attributes:
        variance: Prior variance of the function, shape () or (N,).
        mean: Its prior mean, shape () or (N,).
    """

    variance: Tensor
    mean: Tensor


class Weighting(ABC):
    """A rule for the weights of experts at each row, from their variances."""

    @abstractmethod
    def weights(self, variance: Tensor, prior: PriorMoments | None) -> Tensor:
        """Weights (K, N), not negative.

        Args:
            variance: The experts' variances, shape (K, N).
            prior: The prior, for weightings that compare with it.

        Raises:
            ValueError: If a prior is needed and missing, or an expert's variance exceeds the prior's.
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
    r"""Reduction of differential entropy, :math:`\tfrac12 (\log v_0 - \log v_k)` nats (Cao and Fleet 2014).

    Args:
        normalized: Whether weights of a row sum to one; where all reductions are zero they are then equal.

    Example:
        >>> import torch
        >>> prior = PriorMoments(torch.tensor(1.0), torch.tensor(0.0))
        >>> EntropyWeights(normalized=True).weights(torch.tensor([[0.01], [0.1]]), prior).squeeze(1)
        tensor([0.6667, 0.3333])
    """

    normalized: bool = False

    def weights(self, variance: Tensor, prior: PriorMoments | None) -> Tensor:
        """Reductions of differential entropy from the prior."""
        learned = _entropy_loss(variance, _required_prior(prior, "differential entropies").variance, "the prior")
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
    """Given weights, for example from :func:`stacking_weights`.

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
                f"log weights must be (K,) or (K, N) = ({variance.shape[0]}, {variance.shape[1]}), got "
                f"{tuple(self.log_weights.shape)}"
            )
        return log_weights.exp().expand_as(variance)


def _entropy_loss(variance: Tensor, reference: Tensor, name: str) -> Tensor:
    """Reduction of differential entropy from a reference variance to variances, in nats and not negative.

    Args:
        variance: Variances, shape (K, N).
        reference: Reference variance, shape () or (N,).
        name: Its name for the message.

    Raises:
        ValueError: If a variance is above the reference by more than round-off; names the expert and the row.
    """
    above = variance > reference * (1 + _SLACK)
    if bool(above.any()):
        expert, row = above.nonzero()[0].tolist()
        raise ValueError(
            f"the variance of expert {expert} at row {row}, {float(variance[expert, row]):.6g}, is above {name}'s; "
            "both must be in the same space and units"
        )
    return (0.5 * (reference.log() - variance.log())).clamp_min(0)


def _required_prior(prior: PriorMoments | None, what: str) -> PriorMoments:
    """The prior, checked.

    Raises:
        ValueError: If there is none, or its variance is not positive.
    """
    if prior is None:
        raise ValueError(f"{what} need a prior: give prior=PriorMoments(variance, mean) of the function")
    if not bool((torch.isfinite(prior.variance) & (prior.variance > 0) & torch.isfinite(prior.mean)).all()):
        raise ValueError("the prior's variance must be positive, and it and the prior's mean finite")
    return prior


class FusedMoments(NamedTuple):
    """Fused mean and variance of each of N rows.

    Attributes:
        mean: Means, shape (N,).
        variance: Variances, shape (N,).
    """

    mean: Tensor
    variance: Tensor

    def __repr__(self) -> str:
        return record_text(self)


class FusionRule(ABC):
    """A rule that fuses K normal predictions into one, for each row by itself."""

    @abstractmethod
    def combine(self, mean: Tensor, variance: Tensor, prior: PriorMoments | None) -> FusedMoments:
        """The fused moments, in the space in which the experts' are given.

        Args:
            mean: The experts' means, shape (K, N).
            variance: Their variances, shape (K, N), positive.
            prior: The prior in that space; only committee machines and entropy weights use it.

        Raises:
            ValueError: If a prior is needed and missing.
            NumericalError: If the fused precision of a row is not positive.
        """


@final
@dataclass(frozen=True)
class ProductOfExperts(FusionRule):
    r"""Generalized product of experts :math:`\prod_k p_k^{w_k}` (Cao and Fleet 2014), a log-linear pool.

    Args:
        weighting: The weights; one each, the default, is the product of experts (Hinton 2002), which is overconfident.

    Example:
        >>> import torch
        >>> mean, variance = torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [0.5]])
        >>> ProductOfExperts().combine(mean, variance, None)
        FusedMoments(mean=tensor([2.]), variance=tensor([0.3333]))
    """

    weighting: Weighting = field(default_factory=UnitWeights)

    def combine(self, mean: Tensor, variance: Tensor, prior: PriorMoments | None) -> FusedMoments:
        """Weighted precisions add."""
        return _by_precision(mean, self.weighting.weights(variance, prior) / variance)


@final
@dataclass(frozen=True)
class CommitteeMachine(FusionRule):
    r"""Bayesian committee machine: a product of experts in which the shared prior counts once.

    .. math:: \tau = \sum_k w_k / v_k + (1 - \sum_k w_k) / v_0

    Args:
        weighting: The weights; one each, the default, is the BCM (Tresp 2000), :class:`EntropyWeights` the robust one,
            rBCM (Deisenroth and Ng 2015). If they sum to one the prior cancels.

    Example:
        >>> import torch
        >>> prior = PriorMoments(torch.tensor(1.0), torch.tensor(0.0))
        >>> CommitteeMachine().combine(torch.zeros(2, 1), torch.full((2, 1), 0.5), prior).variance
        tensor([0.3333])
    """

    weighting: Weighting = field(default_factory=UnitWeights)

    def combine(self, mean: Tensor, variance: Tensor, prior: PriorMoments | None) -> FusedMoments:
        """Weighted precisions add; the prior's precision corrects for its repetition."""
        prior = _required_prior(prior, "committee machines")
        weights = self.weighting.weights(variance, prior)
        return _corrected(mean, variance, weights, FusedMoments(prior.mean, prior.variance))


@final
@dataclass(frozen=True)
class GRBCM(FusionRule):
    r"""Generalized robust Bayesian committee machine, GRBCM (Liu et al. 2018).

    The first expert is the communication expert, trained on a random subset of the data; each of the others
    was trained on this subset and on data of its own. It takes the place of the prior,
    and the second expert, the first of the others, has weight one. No prior is needed.

    Example:
        >>> import torch
        >>> variance = torch.tensor([[1.0], [0.5]])
        >>> GRBCM().combine(torch.zeros(2, 1), variance, None).variance
        tensor([0.5000])
    """

    def combine(self, mean: Tensor, variance: Tensor, prior: PriorMoments | None) -> FusedMoments:
        """Weighted precisions add; the communication expert's corrects for its repetition."""
        base = FusedMoments(mean[0], variance[0])
        if mean.shape[0] == 1:
            return base
        rest = variance[2:]
        weights = torch.cat(
            [torch.ones_like(variance[1:2]), _entropy_loss(rest, base.variance, "the communication expert")]
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
    predictions: Experts,
    rule: FusionRule,
    *,
    space: Space,
    prior: PriorMoments | None = None,
    noise: Tensor | None = None,
    X: Tensor | None = None,
) -> Mixture:
    """Fuse experts' predictions by a rule, to a normal prediction of the target.

    Committee machines act on the function f, and the noise is added afterwards; the pools of Ajirak et al. (2024) act
    on the target y, whose variances contain it. The two differ, so the space has no default.

    Args:
        predictions: What the experts predict; or a list of forecasts and, where X is given, of experts, as
            :func:`gather_predictions` takes them.
        rule: The rule.
        space: ``"f"``: fuse the function's moments and add the noise; ``"y"``: fuse the targets'.
        prior: Prior of the function; in space ``"y"`` the noise is added to its variance.
        noise: Noise variance of the target, shape () or (N,); the experts' average if not given.
        X: Inputs at which experts predict, shape (N, D); not needed for forecasts.

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
    if not isinstance(predictions, ExpertPredictions):
        predictions = gather_predictions(predictions, X)
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
    """A product of experts in which the base, that all of them contain counts once."""
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
            f"the {what} is {float(total[row]):g} at row {row}: all weights are zero there, or variances underflow; "
            "use normalized weights, or a committee machine with a prior"
        )


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
        The weighting with the best temperature; zero if all give the same weights.

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
            f"targets must have shape ({predictions.mean.shape[-1]},) and not all be NaN, got {tuple(y.shape)}"
        )

    def score(temperature: float) -> float:
        fused = fuse(predictions, rule(SoftmaxVariance(temperature)), space=space, prior=prior)
        return float(fused.log_prob(y).nanmean())

    variance = predictions.variance if space == "f" else predictions.target_variance
    scale = float((variance.amax(0) - variance.amin(0)).mean())
    even = score(0.0)
    if not scale > 0:  # equal variances: every temperature gives equal weights
        return SoftmaxVariance(0.0)
    exponents = [-3 + 6 * number / (_GRID - 1) for number in range(_GRID)]
    scores = [score(10**exponent / scale) for exponent in exponents]
    best = max(range(_GRID), key=scores.__getitem__)
    lower, upper = exponents[max(best - 1, 0)], exponents[min(best + 1, _GRID - 1)]
    found = _golden_section(lambda exponent: score(10**exponent / scale), lower, upper)
    candidates = [(even, 0.0), (scores[best], 10 ** exponents[best] / scale), (found[0], 10 ** found[1] / scale)]
    return SoftmaxVariance(max(candidates, key=lambda pair: pair[0])[1])


def _golden_section(function: Callable[[float], float], lower: float, upper: float) -> tuple[float, float]:
    """Maximum of a unimodal function, and its argument."""
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
