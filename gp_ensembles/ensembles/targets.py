"""Kinds of targets as frozen records, each of which makes the experts for it.

Real numbers: :class:`RealTarget`, :class:`UnknownNoiseTarget`, :class:`OutlierTarget`. Classes and counts:
:class:`BinaryTarget`, :class:`ClassTarget`, :class:`LevelTarget`, :class:`CountTarget`.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from gpytorch.likelihoods import BernoulliLikelihood
from torch import Tensor

from gp_ensembles.ensembles.spec_checks import check_fields
from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.experts.laplace import LaplaceExpert
from gp_ensembles.experts.multi_output import MultiOutputExpert
from gp_ensembles.experts.robust import RobustExpert
from gp_ensembles.experts.student_t import StudentTExpert
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.batch import take_experts
from gp_ensembles.filters.sites import LatentUpdate
from gp_ensembles.likelihoods import CountLikelihood, LogPoissonLikelihood, MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Probit
from gp_ensembles.likelihoods.counts import FAMILIES
from gp_ensembles.likelihoods.predictive import GaussHermite, ProbitApproximation
from gp_ensembles.likelihoods.response import check_support
from gp_ensembles.numerics.gpytorch_types import Likelihood

_COUNT_NODES = 32  # right to 1e-7 for log rates of variance one, to 3e-5 for four


class Target(ABC):
    """Kind of target.

    Attributes:
        is_real: Whether targets are real numbers, to be standardized.
        is_ordered: Whether targets are ordered: numbers, levels, or two classes.
        has_classes: Whether targets are two classes, or several without an order.
        may_be_constant: Whether warm-up targets may all be equal, as classes may; numbers then have no scale, and
            levels no cut points.
        num_labels: Number of classes; ``None`` where targets are numbers.
        num_outputs: Number of outputs O of targets (N, O); ``None`` where there is one, of shape (N,).
    """

    is_real: ClassVar[bool]
    is_ordered: ClassVar[bool] = True
    has_classes: ClassVar[bool] = False
    may_be_constant: ClassVar[bool] = False
    num_labels: int | None = None
    num_outputs: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def expert(self, features: FeatureMap, y: Tensor) -> Expert:
        """A batch of static experts on warm-up targets (N,) or (N, O), not yet fitted."""

    def class_likelihood(self) -> Likelihood | None:
        """Likelihood of the log probabilities of external models; ``None`` unless :attr:`has_classes`."""
        if not self.has_classes or self.num_labels is None:
            return None
        return LogisticLikelihood() if self.is_ordered else MulticlassLikelihood(self.num_labels)

    @abstractmethod
    def check(self, y: Tensor) -> None:
        """Raise unless an expert can be fitted to warm-up targets (N,) or (N, O), NaN where missing.

        Raises:
            ValueError: Naming the value and the row, or the problem.
        """


@final
@dataclass(frozen=True)
class RealTarget(Target):
    """Real numbers with Gaussian noise: :class:`~gp_ensembles.experts.GaussianExpert`.

    Attributes:
        num_outputs: Number of outputs O of targets (N, O), which share features and covariance
            (:class:`~gp_ensembles.experts.MultiOutputExpert`); ``None`` for one output, targets (N,).

    Raises:
        TypeError: If the number is not a whole one.
        ValueError: If it is not positive.
    """

    is_real = True
    num_outputs: int | None = None

    def expert(self, features: FeatureMap, y: Tensor) -> Expert:
        if self.num_outputs is not None:
            return MultiOutputExpert(features, self.num_outputs)
        return GaussianExpert(features)

    def check(self, y: Tensor) -> None:
        for column in y.unsqueeze(-1).flatten(1).unbind(-1):
            check_varies(column)


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

    is_real = True
    noise_discount: float | None = None

    def expert(self, features: FeatureMap, y: Tensor) -> Expert:
        return StudentTExpert(features, noise_discount=self.noise_discount)

    def check(self, y: Tensor) -> None:
        check_varies(y)


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

    is_real = True
    threshold: float = 4.0

    def expert(self, features: FeatureMap, y: Tensor) -> Expert:
        return RobustExpert(features, threshold=self.threshold)

    def check(self, y: Tensor) -> None:
        check_varies(y)


@final
@dataclass(frozen=True)
class BinaryTarget(Target):
    """Classes 0 and 1.

    Attributes:
        is_probit: Whether the link is probit and not logistic.
        latent_update: Approximation of the posterior; by default Laplace's method.

    Raises:
        TypeError: If a field is of another type.
    """

    is_real = False
    has_classes = True
    may_be_constant = True
    num_labels = 2
    is_probit: bool = False
    latent_update: LatentUpdate | None = None

    def expert(self, features: FeatureMap, y: Tensor) -> Expert:
        likelihood = BernoulliLikelihood() if self.is_probit else LogisticLikelihood()
        return LaplaceExpert(features, likelihood, latent_update=self.latent_update)

    def check(self, y: Tensor) -> None:
        check_support(_kept(LogisticLikelihood), y)


@final
@dataclass(frozen=True)
class ClassTarget(Target):
    """Classes 0, 1, ..., C - 1 without an order.

    Attributes:
        num_classes: Number of classes C.
        latent_update: Approximation of the posterior; by default Laplace's method.

    Raises:
        TypeError: If a field is of another type.
        ValueError: If there are fewer than two classes.
    """

    is_real = False
    is_ordered = False
    has_classes = True
    may_be_constant = True
    num_classes: int
    latent_update: LatentUpdate | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "num_labels", self.num_classes)

    def expert(self, features: FeatureMap, y: Tensor) -> Expert:
        likelihood = MulticlassLikelihood(self.num_classes)
        return LaplaceExpert(features, likelihood, latent_update=self.latent_update, predictive=ProbitApproximation())

    def check(self, y: Tensor) -> None:
        check_support(_kept(MulticlassLikelihood, self.num_classes), y)


@final
@dataclass(frozen=True)
class LevelTarget(Target):
    """Levels 0, 1, ..., J - 1 with an order.

    Attributes:
        num_levels: Number of levels J.
        latent_update: Approximation of the posterior; by default Laplace's method.

    Raises:
        TypeError: If a field is of another type.
        ValueError: If there are fewer than two levels.
    """

    is_real = False
    num_levels: int
    latent_update: LatentUpdate | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "num_labels", self.num_levels)

    def expert(self, features: FeatureMap, y: Tensor) -> Expert:
        likelihood = OrdinalLikelihood(self.num_levels, Probit(), batch_shape=features.batch_shape)
        return LaplaceExpert(features, likelihood, latent_update=self.latent_update)

    def check(self, y: Tensor) -> None:
        check_support(OrdinalLikelihood(self.num_levels, Probit()).to(y.device), y)
        check_varies(y)


@final
@dataclass(frozen=True)
class CountTarget(Target):
    """Counts from zero on, whose log rate is the function, on the scale of the warm-up's mean.

    Each family has experts of its own, which the rule weighs: ``"poisson"``, ``"negative binomial"`` for counts that
    spread more, ``"zero inflated"`` for negative binomial ones with zeros of another cause, as of sales on some days
    only (:class:`~gp_ensembles.likelihoods.CountLikelihood`).

    Attributes:
        latent_update: Approximation of the posterior; by default Laplace's method.
        families: Which families there are, the experts of the first one first.

    Raises:
        TypeError: If the latent update is not an object such as ``LaplaceUpdate()``, or families are not a tuple.
        ValueError: If there is no family, or one is unknown or named twice.
    """

    is_real = False
    latent_update: LatentUpdate | None = None
    families: tuple[str, ...] = FAMILIES

    def __post_init__(self) -> None:
        check_fields(self)
        where, families = "families of CountTarget", self.families
        if not isinstance(families, tuple) or not all(isinstance(family, str) for family in families):
            raise TypeError(f"{where} must be a tuple of names such as {FAMILIES[:2]}, got {families!r}")
        if not families or len(set(families)) < len(families) or not set(families) <= set(FAMILIES):
            raise ValueError(f"{where} must be distinct ones of {', '.join(FAMILIES)}, at least one, got {families}")

    def expert(self, features: FeatureMap, y: Tensor) -> Expert:
        num, own = len(self.families), features.batch_shape
        if num > 1:
            index = torch.arange(own.numel(), device="cpu").repeat(num)
            features = take_experts(features, own, index)
        families = [family for family in self.families for _ in range(own.numel())]
        likelihood = CountLikelihood(families, features.batch_shape).to(y)
        likelihood.start_from_(y)
        predictive = GaussHermite(_COUNT_NODES)
        return LaplaceExpert(features, likelihood, latent_update=self.latent_update, predictive=predictive)

    def check(self, y: Tensor) -> None:
        check_support(_kept(LogPoissonLikelihood), y)
        check_varies(y)


@functools.cache
def _kept(kind: Callable[..., Likelihood], *arguments: int) -> Likelihood:
    """A likelihood without parameters, built once, because building takes longer than the check."""
    return kind(*arguments)


def check_varies(y: Tensor) -> None:
    """Raise if all observed targets, (N,), are equal."""
    seen = y[~torch.isnan(y)]
    if seen.numel() and bool((seen == seen[0]).all()):
        raise ValueError(f"all {seen.numel()} warm-up targets are {float(seen[0]):g}; hyperparameters cannot be fitted")
