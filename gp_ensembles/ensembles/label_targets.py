"""Targets that are no real numbers: classes, levels, counts."""

from dataclasses import dataclass
from typing import final

from gpytorch.likelihoods import BernoulliLikelihood
from torch import Tensor

from gp_ensembles.ensembles.recipe_checks import check_count, check_flag, check_inference
from gp_ensembles.ensembles.targets import Target, check_varies
from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.inference import Inference
from gp_ensembles.experts.laplace import LaplaceExpert
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


@final
@dataclass(frozen=True)
class BinaryTarget(Target):
    """Classes 0 and 1.

    Attributes:
        is_probit: Whether the link is probit and not logistic.
        inference: How experts learn; by Laplace's method if left out.

    Raises:
        TypeError: If a field is of another type.
    """

    is_probit: bool = False
    inference: Inference | None = None

    def __post_init__(self) -> None:
        check_flag(self, "is_probit", self.is_probit)
        check_inference(self, self.inference)

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

    @property
    def is_ordered(self) -> bool:
        """They have an order."""
        return True


@final
@dataclass(frozen=True)
class ClassTarget(Target):
    """Classes 0, 1, ..., C - 1 without an order.

    Attributes:
        num_classes: Number of classes C.
        inference: How experts learn; by Laplace's method if left out.

    Raises:
        TypeError: If a field is of another type.
        ValueError: If there are fewer than two classes.
    """

    num_classes: int
    inference: Inference | None = None

    def __post_init__(self) -> None:
        check_count(self, "num_classes", self.num_classes, least=2)
        check_inference(self, self.inference)

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

    Raises:
        TypeError: If a field is of another type.
        ValueError: If there are fewer than two levels.
    """

    num_levels: int
    inference: Inference | None = None

    def __post_init__(self) -> None:
        check_count(self, "num_levels", self.num_levels, least=2)
        check_inference(self, self.inference)

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

    @property
    def is_ordered(self) -> bool:
        """They have an order."""
        return True


@final
@dataclass(frozen=True)
class CountTarget(Target):
    """Counts 0, 1, 2, ... whose log rate is the function.

    Attributes:
        inference: How experts learn; by Laplace's method if left out.

    Raises:
        TypeError: If the inference is not an object that makes rules.
    """

    inference: Inference | None = None

    def __post_init__(self) -> None:
        check_inference(self, self.inference)

    def expert(self, features: FeatureMap) -> Expert:
        """See :meth:`Target.expert`."""
        return LaplaceExpert(features, LogPoissonLikelihood(), inference=self.inference)

    def check(self, y: Tensor) -> None:
        """See :meth:`Target.check`."""
        check_support(LogPoissonLikelihood(), y)
        check_varies(y)

    @property
    def is_real(self) -> bool:
        """Counts."""
        return False

    @property
    def num_labels(self) -> int | None:
        """None: targets are numbers."""
        return None

    @property
    def is_ordered(self) -> bool:
        """They have an order."""
        return True
