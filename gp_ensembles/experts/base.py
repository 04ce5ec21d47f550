"""The one abstraction of this package: features, a likelihood and a filter make an expert."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.filters.states import FilterState, StepPredictions


class BoundExpert(NamedTuple):
    r"""An expert's numbers, read from its hyperparameters once: what loops use.

    Attributes:
        features: The feature map as a plain function, X (..., N, D) to Phi (..., \*batch, N, F).
        noise: Observation noise variance, shape (\*batch).
        random_walk_variance: Diagonal of the random walk per step, shape (\*batch, 1) or (\*batch, F);
            ``None`` for static weights.
    """

    features: BoundFeatures
    noise: Tensor
    random_walk_variance: Tensor | None


class Expert(nn.Module, ABC):
    """A model that predicts each target before it learns it; one object may be a batch of experts.

    Args:
        features: Feature map; its ``batch_shape`` is the expert's.
    """

    def __init__(self, features: FeatureMap) -> None:
        super().__init__()
        self.features = features

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of experts in this object."""
        return self.features.batch_shape

    @property
    def num_experts(self) -> int:
        """Number of experts in this object."""
        return self.batch_shape.numel()

    @abstractmethod
    def init(self) -> FilterState:
        """State before any data."""

    @abstractmethod
    def bind(self) -> BoundExpert:
        """Read the hyperparameters once, differentiably."""

    @abstractmethod
    def update(self, state: FilterState, X: Tensor, y: Tensor) -> tuple[FilterState, StepPredictions]:
        r"""Predict and learn a block of targets.

        Args:
            state: Posterior before the block.
            X: Inputs in the order of time, shape (B, D).
            y: Targets, shape (B,); NaN where missing.

        Returns:
            The posterior after the block, and the predictions made before each target, (\*batch, B).
        """

    @abstractmethod
    def predict(self, state: FilterState, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean and variance (noise included) one step ahead at X (N, D), each (\*batch, N); learns nothing."""
