"""What kind of target an ensemble predicts, as recipes: each makes the experts for it. Here: real numbers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from gp_ensembles.ensembles.recipe_checks import check_positive
from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.experts.robust import RobustExpert
from gp_ensembles.experts.student_t import StudentTExpert
from gp_ensembles.features.base import FeatureMap


class Target(ABC):
    """A kind of target."""

    @abstractmethod
    def expert(self, features: FeatureMap) -> Expert:
        """A static expert for it, not yet fitted."""

    @abstractmethod
    def check(self, y: Tensor) -> None:
        """Raise a clear error unless an expert can be fitted to warm-up targets (N,); NaN means missing.

        Raises:
            ValueError: Naming the value and the row, or what is missing.
        """

    @property
    @abstractmethod
    def is_real(self) -> bool:
        """Whether targets are real numbers, to be standardized."""

    @property
    @abstractmethod
    def num_labels(self) -> int | None:
        """Number of classes; ``None`` where targets are numbers."""

    @property
    @abstractmethod
    def is_ordered(self) -> bool:
        """Whether the order of targets has a meaning: numbers, levels, or just two classes."""


@final
@dataclass(frozen=True)
class RealTarget(Target):
    """Real numbers with Gaussian noise: :class:`~gp_ensembles.experts.GaussianExpert`."""

    def expert(self, features: FeatureMap) -> Expert:
        """See :meth:`Target.expert`."""
        return GaussianExpert(features)

    def check(self, y: Tensor) -> None:
        """See :meth:`Target.check`."""
        check_varies(y)

    @property
    def is_real(self) -> bool:
        """Real numbers."""
        return True

    @property
    def num_labels(self) -> int | None:
        """None: targets are numbers."""
        return None

    @property
    def is_ordered(self) -> bool:
        """They have an order."""
        return True


@final
@dataclass(frozen=True)
class UnknownNoiseTarget(Target):
    """Real numbers whose noise variance is learned online: :class:`~gp_ensembles.experts.StudentTExpert`.

    Attributes:
        noise_discount: Memory of the noise variance, 1 / (1 - discount) rows; ``None`` for a constant one.

    Raises:
        TypeError: If the discount is not a number.
        ValueError: If it is not in (0, 1].
    """

    noise_discount: float | None = None

    def __post_init__(self) -> None:
        if self.noise_discount is not None:
            check_positive(self, "noise_discount", self.noise_discount, most=1.0)

    def expert(self, features: FeatureMap) -> Expert:
        """See :meth:`Target.expert`."""
        return StudentTExpert(features, noise_discount=self.noise_discount)

    def check(self, y: Tensor) -> None:
        """See :meth:`Target.check`."""
        check_varies(y)

    @property
    def is_real(self) -> bool:
        """Real numbers."""
        return True

    @property
    def num_labels(self) -> int | None:
        """None: targets are numbers."""
        return None

    @property
    def is_ordered(self) -> bool:
        """They have an order."""
        return True


@final
@dataclass(frozen=True)
class OutlierTarget(Target):
    """Real numbers among gross outliers: :class:`~gp_ensembles.experts.RobustExpert`.

    Attributes:
        threshold: Residual in predictive standard deviations that counts half.

    Raises:
        TypeError: If the threshold is not a number.
        ValueError: If it is not positive and finite.
    """

    threshold: float = 4.0

    def __post_init__(self) -> None:
        check_positive(self, "threshold", self.threshold)

    def expert(self, features: FeatureMap) -> Expert:
        """See :meth:`Target.expert`."""
        return RobustExpert(features, threshold=self.threshold)

    def check(self, y: Tensor) -> None:
        """See :meth:`Target.check`."""
        check_varies(y)

    @property
    def is_real(self) -> bool:
        """Real numbers."""
        return True

    @property
    def num_labels(self) -> int | None:
        """None: targets are numbers."""
        return None

    @property
    def is_ordered(self) -> bool:
        """They have an order."""
        return True


def check_varies(y: Tensor) -> None:
    """Raise if all observed targets, (N,), are equal.

    Raises:
        ValueError: Naming the value.
    """
    seen = y[~torch.isnan(y)]
    if seen.numel() and bool((seen == seen[0]).all()):
        raise ValueError(f"all {seen.numel()} warm-up targets are {float(seen[0]):g}; there is nothing to fit to")
