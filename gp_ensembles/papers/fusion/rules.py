"""Products of experts with fixed weights, called by :func:`fuse`."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.display import record_text
from gp_ensembles.papers.fusion.experts import ExpertPredictions, check_moments, check_noise
from gp_ensembles.papers.fusion.gathering import Experts, gather_predictions

Space = Literal["f", "y"]
_SLACK = 1e-6  # relative; what a Gaussian process' variance may exceed its prior's by through round-off


class Weighting(ABC):
    """A rule for the weights of experts at each row, from their variances."""

    @abstractmethod
    def weights(self, variance: Tensor, prior_variance: Tensor | None) -> Tensor:
        """Weights (K, N), not negative.

        Args:
            variance: The experts' variances, shape (K, N).
            prior_variance: The prior's variance, shape () or (N,), for weightings that compare with it.

        Raises:
            ValueError: If it is needed and missing, or an expert's variance exceeds it.
        """


@final
@dataclass(frozen=True)
class UnitWeights(Weighting):
    """Weight one for every expert."""

    def weights(self, variance: Tensor, prior_variance: Tensor | None) -> Tensor:
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

    def weights(self, variance: Tensor, prior_variance: Tensor | None) -> Tensor:
        """1/K everywhere."""
        return torch.full_like(variance, 1 / variance.shape[0])


@final
@dataclass(frozen=True)
class EntropyWeights(Weighting):
    r"""Reduction of differential entropy, :math:`\tfrac12 (\log v_0 - \log v_k)` nats (Cao and Fleet 2014).

    Args:
        normalized: Whether weights of a row sum to one; where all reductions are zero they are then equal.
    """

    normalized: bool = False

    def weights(self, variance: Tensor, prior_variance: Tensor | None) -> Tensor:
        """Reductions of differential entropy from the prior."""
        if prior_variance is None:
            raise ValueError("entropy weights need a prior: give prior_variance=, that of the function")
        if not bool((torch.isfinite(prior_variance) & (prior_variance > 0)).all()):
            raise ValueError("the prior's variance must be positive and finite")
        above = variance > prior_variance * (1 + _SLACK)
        if bool(above.any()):
            expert, row = above.nonzero()[0].tolist()
            raise ValueError(
                f"the variance of expert {expert} at row {row}, {float(variance[expert, row]):.6g}, is above the "
                "prior's; both must be in the same space and units"
            )
        learned = (0.5 * (prior_variance.log() - variance.log())).clamp_min(0)
        if not self.normalized:
            return learned
        total = learned.sum(0)
        return torch.where(total > 0, learned / torch.where(total > 0, total, 1.0), 1 / variance.shape[0])


@final
@dataclass(frozen=True)
class GivenWeights(Weighting):
    """Given weights, for example from :func:`stacking_weights`.

    Args:
        log_weights: Log weights, shape (K,) or (K, N), in nats; minus infinity is no weight.
    """

    log_weights: Tensor

    def weights(self, variance: Tensor, prior_variance: Tensor | None) -> Tensor:
        """The weights given."""
        log_weights = self.log_weights if self.log_weights.ndim == 2 else self.log_weights.unsqueeze(-1)
        if log_weights.shape[0] != variance.shape[0] or log_weights.shape[-1] not in (1, variance.shape[1]):
            raise ValueError(
                f"log weights must be (K,) or (K, N) = ({variance.shape[0]}, {variance.shape[1]}), got "
                f"{tuple(self.log_weights.shape)}"
            )
        return log_weights.exp().expand_as(variance)


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


@final
@dataclass(frozen=True)
class ProductOfExperts:
    r"""Generalized product of experts :math:`\prod_k p_k^{w_k}` (Cao and Fleet 2014), a log-linear pool.

    Args:
        weighting: The weights; one each, the default, is the product of experts (Hinton 2002), which is overconfident.

    Example:
        >>> import torch
        >>> mean, variance = torch.tensor([[0.0], [3.0]]), torch.tensor([[1.0], [0.5]])
        >>> ProductOfExperts().combine(mean, variance, None)
        FusedMoments
          mean      [2]
          variance  [0.3333]
    """

    weighting: Weighting = field(default_factory=UnitWeights)

    def combine(self, mean: Tensor, variance: Tensor, prior_variance: Tensor | None) -> FusedMoments:
        """The fused moments, whose precision is the weighted sum, in the space in which the experts' are given.

        Args:
            mean: The experts' means, shape (K, N).
            variance: Their variances, shape (K, N), positive.
            prior_variance: The prior's variance in that space, which entropy weights use.

        Raises:
            ValueError: If it is needed and missing.
            NumericalError: If the fused precision of a row is not positive.
        """
        precision = self.weighting.weights(variance, prior_variance) / variance
        total = precision.sum(0)
        fine = (total > 0) & torch.isfinite(total)
        if not bool(fine.all()):
            row = int((~fine).int().argmax())
            raise NumericalError(
                f"the fused precision is {float(total[row]):g} at row {row}: all weights are zero there, or variances "
                "underflow; use normalized weights"
            )
        return FusedMoments((precision * mean).sum(0) / total, 1 / total)


def fuse(
    predictions: Experts,
    rule: ProductOfExperts,
    *,
    space: Space,
    prior_variance: Tensor | None = None,
    noise: Tensor | None = None,
    X: Tensor | None = None,
) -> Mixture:
    """Fuse experts' predictions by a product of experts, to a normal prediction of the target.

    The product of the densities of the function f has the noise added afterwards; the pools of Ajirak et al. (2024) are
    of the target y, whose variances contain it. The two differ, so the space has no default.

    Args:
        predictions: What the experts predict; or a list of forecasts and, where X is given, of experts, as
            :func:`gather_predictions` takes them.
        rule: The product, with its weights.
        space: ``"f"``: fuse the function's moments and add the noise; ``"y"``: fuse the targets'.
        prior_variance: Prior variance of the function, shape () or (N,), for entropy weights; in space ``"y"`` the
            noise is added to it.
        noise: Noise variance of the target, shape () or (N,); the experts' average if not given.
        X: Inputs at which experts predict, shape (N, D); not needed for forecasts.

    Returns:
        The fused prediction of targets, a mixture of one component.

    Raises:
        ValueError: If predictions cannot be fused, the space is unknown, or the weights need a prior.
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
        raise ValueError(f"products of experts take means of shape (K, N), got {tuple(predictions.mean.shape)}")
    if noise is None:
        noise = predictions.noise.expand_as(predictions.mean).mean(0)
    else:
        noise = torch.as_tensor(noise).to(predictions.mean)
        if noise.ndim > 1:
            raise ValueError(f"the noise of the target must have shape () or (N,), got {tuple(noise.shape)}")
        check_noise(noise.expand_as(predictions.mean) if noise.ndim == 0 else noise, predictions.mean)
        noise = noise.expand_as(predictions.mean[0])
    if space == "y" and prior_variance is not None and not _equal_noise(predictions.noise.expand_as(predictions.mean)):
        raise ValueError(
            'weights with a prior fuse targets only where the experts agree about the noise; use space="f", or give '
            "all of them one noise"
        )
    if space == "f":
        mean, variance = rule.combine(predictions.mean, predictions.variance, prior_variance)
        variance = variance + noise
    else:
        in_targets = None if prior_variance is None else prior_variance + noise
        mean, variance = rule.combine(predictions.mean, predictions.target_variance, in_targets)
    return Mixture(mean.new_zeros(1), mean.unsqueeze(0), variance.unsqueeze(0))


def _equal_noise(noise: Tensor) -> bool:
    """Whether noise variances (K, N) are those of the first expert."""
    return torch.allclose(noise, noise[:1].expand_as(noise), rtol=1e-5, atol=0.0)
