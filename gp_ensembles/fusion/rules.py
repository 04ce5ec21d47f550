"""Rules with fixed weights: products of experts, committees, barycenters. All have one signature."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.ensembles.mixture import Mixture
from gp_ensembles.fusion.experts import ExpertPredictions
from gp_ensembles.fusion.moment_checks import check_moments, check_noise
from gp_ensembles.fusion.weightings import EqualWeights, Prior, UnitWeights, Weighting, differential_entropy, required
from gp_ensembles.numerics.cholesky import NumericalError

Space = Literal["f", "y"]


class Moments(NamedTuple):
    """Mean and variance of each of N rows.

    Attributes:
        mean: Means, shape (N,).
        variance: Variances, shape (N,).
    """

    mean: Tensor
    variance: Tensor


class Rule(ABC):
    """A rule that makes one normal prediction of K, for each row by itself."""

    @abstractmethod
    def combine(self, mean: Tensor, variance: Tensor, prior: Prior | None) -> Moments:
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
class ProductOfExperts(Rule):
    r"""Generalized product of experts :math:`\prod_k p_k^{w_k}` (Cao and Fleet 2014), a log-linear pool.

    Args:
        weighting: The weights; one each, the default, is the product of experts (Hinton 2002), which is too sure.

    Example:
        >>> import torch
        >>> mean, variance = torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [0.5]])
        >>> ProductOfExperts().combine(mean, variance, None)
        Moments(mean=tensor([2.]), variance=tensor([0.3333]))
    """

    weighting: Weighting = field(default_factory=UnitWeights)

    def combine(self, mean: Tensor, variance: Tensor, prior: Prior | None) -> Moments:
        """Precisions add, each times its weight."""
        return _by_precision(mean, self.weighting.weights(variance, prior) / variance)


@final
@dataclass(frozen=True)
class CommitteeMachine(Rule):
    r"""Bayesian committee machine: a product of experts in which the shared prior counts once.

    .. math:: \tau = \sum_k w_k / v_k + (1 - \sum_k w_k) / v_0

    Args:
        weighting: The weights; one each, the default, is the BCM (Tresp 2000), :class:`EntropyWeights` the robust one,
            rBCM (Deisenroth and Ng 2015). If they sum to one nothing of the prior is left.

    Example:
        >>> import torch
        >>> prior = Prior(torch.tensor(1.0), torch.tensor(0.0))
        >>> CommitteeMachine().combine(torch.zeros(2, 1), torch.full((2, 1), 0.5), prior).variance
        tensor([0.3333])
    """

    weighting: Weighting = field(default_factory=UnitWeights)

    def combine(self, mean: Tensor, variance: Tensor, prior: Prior | None) -> Moments:
        """Precisions add, each times its weight, and the prior's makes up for its repetition."""
        known = required(prior, "committees")
        weights = self.weighting.weights(variance, known)
        return _corrected(mean, variance, weights, Moments(known.mean, known.variance))


@final
@dataclass(frozen=True)
class CommunicatingCommittee(Rule):
    r"""Generalized robust Bayesian committee machine, GRBCM (Liu et al. 2018).

    The first expert is the communication expert, which learned from a random subset of the data; each of the others
    learned from this subset and from data of its own. The communication expert stands where a committee has the prior,
    and the second expert, the first of the others, has weight one. No prior is needed.

    Example:
        >>> import torch
        >>> variance = torch.tensor([[1.0], [0.5]])
        >>> CommunicatingCommittee().combine(torch.zeros(2, 1), variance, None).variance
        tensor([0.5000])
    """

    def combine(self, mean: Tensor, variance: Tensor, prior: Prior | None) -> Moments:
        """Precisions add, each times its weight, less the communication expert's repetitions."""
        base = Moments(mean[0], variance[0])
        if mean.shape[0] == 1:
            return base
        rest = variance[2:]
        weights = torch.cat(
            [torch.ones_like(variance[1:2]), differential_entropy(rest, base.variance, "the communication expert")]
        )
        return _corrected(mean[1:], variance[1:], weights, base)


@final
@dataclass(frozen=True)
class Barycenter(Rule):
    r"""Wasserstein-2 barycenter in one dimension: means and standard deviations are averaged (Agueh, Carlier 2011).

    Args:
        weighting: The weights, which are normalized here.

    Example:
        >>> import torch
        >>> Barycenter().combine(torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [9.0]]), None)
        Moments(mean=tensor([1.5000]), variance=tensor([4.]))
    """

    weighting: Weighting = field(default_factory=EqualWeights)

    def combine(self, mean: Tensor, variance: Tensor, prior: Prior | None) -> Moments:
        """Averages of means and of standard deviations."""
        weights = self.weighting.weights(variance, prior)
        total = weights.sum(0)
        _require_positive(total, "sum of weights")
        weights = weights / total
        return Moments((weights * mean).sum(0), (weights * variance.sqrt()).sum(0).square())


def fuse(
    predictions: ExpertPredictions,
    rule: Rule,
    *,
    space: Space,
    prior: Prior | None = None,
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
        in_targets = None if prior is None else Prior(prior.variance + noise, prior.mean)
        mean, variance = rule.combine(predictions.mean, predictions.target_variance, in_targets)
    return Mixture(mean.new_zeros(1), mean.unsqueeze(0), variance.unsqueeze(0))


def _equal_noise(noise: Tensor) -> bool:
    """Whether noise variances (K, N) are those of the first expert."""
    return torch.allclose(noise, noise[:1].expand_as(noise), rtol=1e-5, atol=0.0)


def _corrected(mean: Tensor, variance: Tensor, weights: Tensor, base: Moments) -> Moments:
    """A product of experts in which the base, which all of them contain, counts once."""
    surplus = (1 - weights.sum(0, keepdim=True)) / base.variance
    base_mean = base.mean.expand_as(mean[0]).unsqueeze(0)
    return _by_precision(torch.cat([mean, base_mean]), torch.cat([weights / variance, surplus]))


def _by_precision(mean: Tensor, precision: Tensor) -> Moments:
    total = precision.sum(0)
    _require_positive(total, "fused precision")
    return Moments((precision * mean).sum(0) / total, 1 / total)


def _require_positive(total: Tensor, what: str) -> None:
    fine = (total > 0) & torch.isfinite(total)
    if not bool(fine.all()):
        row = int((~fine).int().argmax())
        raise NumericalError(
            f"the {what} is {float(total[row]):g} at row {row}: no expert has learned anything there, or they are "
            "surer of it than numbers can say; use normalized weights, or a committee machine with a prior"
        )
