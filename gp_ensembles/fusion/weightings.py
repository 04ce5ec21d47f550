"""Weights of experts that follow from their variances alone, for rules that learn none."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

_SLACK = 1e-6  # relative; what a Gaussian process' variance may exceed its prior's by through round-off


class Prior(NamedTuple):
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
    def weights(self, variance: Tensor, prior: Prior | None) -> Tensor:
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

    def weights(self, variance: Tensor, prior: Prior | None) -> Tensor:
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

    def weights(self, variance: Tensor, prior: Prior | None) -> Tensor:
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
        >>> prior = Prior(torch.tensor(1.0), torch.tensor(0.0))
        >>> EntropyWeights(normalized=True).weights(torch.tensor([[0.01], [0.1]]), prior).squeeze(1)
        tensor([0.6667, 0.3333])
    """

    normalized: bool = False

    def weights(self, variance: Tensor, prior: Prior | None) -> Tensor:
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

    def weights(self, variance: Tensor, prior: Prior | None) -> Tensor:
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

    def weights(self, variance: Tensor, prior: Prior | None) -> Tensor:
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


def required(prior: Prior | None, what: str) -> Prior:
    """The prior, if there is one.

    Raises:
        ValueError: If there is none, or its variance is not positive.

    Example:
        >>> import torch
        >>> required(Prior(torch.tensor(1.0), torch.tensor(0.0)), "a committee").variance
        tensor(1.)
    """
    if prior is None:
        raise ValueError(f"{what} need a prior: give prior=Prior(variance, mean) of the function")
    if not bool((torch.isfinite(prior.variance) & (prior.variance > 0) & torch.isfinite(prior.mean)).all()):
        raise ValueError("the prior's variance must be positive, and it and the prior's mean finite")
    return prior
