"""What kind of target an ensemble predicts, as recipes: each makes the experts for it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from gpytorch.likelihoods import BernoulliLikelihood
from torch import Tensor

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.experts.inference import Inference
from gp_ensembles.experts.laplace import LaplaceExpert
from gp_ensembles.experts.robust import RobustExpert
from gp_ensembles.experts.student_t import StudentTExpert
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.likelihoods import (
    LogisticLikelihood,
    LogPoissonLikelihood,
    MulticlassLikelihood,
    OrdinalLikelihood,
    Probit,
    check_classes,
    check_support,
)


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
        """Whether targets are real numbers, to be standardised."""

    @property
    def num_labels(self) -> int | None:
        """Number of classes; ``None`` where targets are numbers."""
        return None

    @property
    def is_ordered(self) -> bool:
        """Whether the order of targets has a meaning: numbers, levels, or just two classes."""
        return True


@final
@dataclass(frozen=True)
class RealTarget(Target):
    """Real numbers with Gaussian noise: :class:`~gp_ensembles.experts.GaussianExpert`."""

    def expert(self, features: FeatureMap) -> Expert:
        """See :meth:`Target.expert`."""
        return GaussianExpert(features)

    def check(self, y: Tensor) -> None:
        """See :meth:`Target.check`."""
        _check_varies(y)

    @property
    def is_real(self) -> bool:
        """Real numbers."""
        return True


@final
@dataclass(frozen=True)
class UnknownNoiseTarget(Target):
    """Real numbers whose noise variance is learned online: :class:`~gp_ensembles.experts.StudentTExpert`.

    Attributes:
        noise_discount: Memory of the noise variance, 1 / (1 - discount) rows; ``None`` for a constant one.
    """

    noise_discount: float | None = None

    def expert(self, features: FeatureMap) -> Expert:
        """See :meth:`Target.expert`."""
        return StudentTExpert(features, noise_discount=self.noise_discount)

    def check(self, y: Tensor) -> None:
        """See :meth:`Target.check`."""
        _check_varies(y)

    @property
    def is_real(self) -> bool:
        """Real numbers."""
        return True


@final
@dataclass(frozen=True)
class OutlierTarget(Target):
    """Real numbers among gross outliers: :class:`~gp_ensembles.experts.RobustExpert`.

    Attributes:
        threshold: Residual in predictive standard deviations that counts half.
    """

    threshold: float = 4.0

    def expert(self, features: FeatureMap) -> Expert:
        """See :meth:`Target.expert`."""
        return RobustExpert(features, threshold=self.threshold)

    def check(self, y: Tensor) -> None:
        """See :meth:`Target.check`."""
        _check_varies(y)

    @property
    def is_real(self) -> bool:
        """Real numbers."""
        return True


@final
@dataclass(frozen=True)
class BinaryTarget(Target):
    """Classes 0 and 1.

    Attributes:
        is_probit: Whether the link is probit and not logistic.
        inference: How experts learn; by Laplace's method if left out.
    """

    is_probit: bool = False
    inference: Inference | None = None

    def expert(self, features: FeatureMap) -> Expert:
        """See :meth:`Target.expert`."""
        likelihood = BernoulliLikelihood() if self.is_probit else LogisticLikelihood()
        return LaplaceExpert(features, likelihood, inference=self.inference)

    def check(self, y: Tensor) -> None:
        """See :meth:`Target.check`."""
        check_support(LogisticLikelihood(), y)
        check_classes(y)

    @property
    def is_real(self) -> bool:
        """Classes."""
        return False

    @property
    def num_labels(self) -> int | None:
        """Two."""
        return 2


@final
@dataclass(frozen=True)
class ClassTarget(Target):
    """Classes 0, 1, ..., C - 1 without an order.

    Attributes:
        num_classes: Number of classes C.
        inference: How experts learn; by Laplace's method if left out.
    """

    num_classes: int
    inference: Inference | None = None

    def expert(self, features: FeatureMap) -> Expert:
        """See :meth:`Target.expert`."""
        return LaplaceExpert(features, MulticlassLikelihood(self.num_classes), inference=self.inference)

    def check(self, y: Tensor) -> None:
        """See :meth:`Target.check`."""
        check_support(MulticlassLikelihood(self.num_classes), y)
        check_classes(y)

    @property
    def is_real(self) -> bool:
        """Classes."""
        return False

    @property
    def num_labels(self) -> int | None:
        """The classes."""
        return self.num_classes

    @property
    def is_ordered(self) -> bool:
        """They have no order."""
        return False


@final
@dataclass(frozen=True)
class LevelTarget(Target):
    """Levels 0, 1, ..., J - 1 with an order.

    Attributes:
        num_levels: Number of levels J.
        inference: How experts learn; by Laplace's method if left out.
    """

    num_levels: int
    inference: Inference | None = None

    def expert(self, features: FeatureMap) -> Expert:
        """See :meth:`Target.expert`."""
        likelihood = OrdinalLikelihood(self.num_levels, Probit(), batch_shape=features.batch_shape)
        return LaplaceExpert(features, likelihood, inference=self.inference)

    def check(self, y: Tensor) -> None:
        """See :meth:`Target.check`."""
        check_support(OrdinalLikelihood(self.num_levels, Probit()), y)
        check_classes(y)

    @property
    def is_real(self) -> bool:
        """Levels."""
        return False

    @property
    def num_labels(self) -> int | None:
        """The levels."""
        return self.num_levels


@final
@dataclass(frozen=True)
class CountTarget(Target):
    """Counts 0, 1, 2, ... whose log rate is the function.

    Attributes:
        inference: How experts learn; by Laplace's method if left out.
    """

    inference: Inference | None = None

    def expert(self, features: FeatureMap) -> Expert:
        """See :meth:`Target.expert`."""
        return LaplaceExpert(features, LogPoissonLikelihood(), inference=self.inference)

    def check(self, y: Tensor) -> None:
        """See :meth:`Target.check`."""
        check_support(LogPoissonLikelihood(), y)
        _check_varies(y)

    @property
    def is_real(self) -> bool:
        """Counts."""
        return False


def _check_varies(y: Tensor) -> None:
    seen = y[~torch.isnan(y)]
    if seen.numel() and bool((seen == seen[0]).all()):
        raise ValueError(f"all {seen.numel()} warm-up targets are {float(seen[0]):g}; there is nothing to fit to")
