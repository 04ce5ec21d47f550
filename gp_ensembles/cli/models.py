"""The ensembles a config can name: one frozen record per preset, with the preset's settings as its fields.

Where ``fit`` is left out it is :class:`QuasiNewton` as it comes.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from gp_ensembles.ensembles import presets
from gp_ensembles.ensembles.bases import Basis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.presets import DEFAULT_BASES, FAST_WALKS, WALKS
from gp_ensembles.ensembles.targets import RealTarget, Target
from gp_ensembles.experts.empirical_bayes import LBFGS, Adam

_REAL = RealTarget()


class Fit(ABC):
    """How hyperparameters are found from the warm-up rows."""

    @abstractmethod
    def settings(self) -> FitSettings:
        """The presets' record of these settings."""


@final
@dataclass(frozen=True)
class QuasiNewton(Fit):
    """The evidence is climbed by L-BFGS with a line search for every expert.

    Attributes:
        max_iterations: Most iterations per expert.
        num_samples: Experts per optimum: itself, and draws from a Laplace approximation around it.
        start_precision: Precision of a Gaussian prior around the starting values, on a log scale.
        prior_precision: Floor of the curvature of that approximation.
    """

    max_iterations: int = 200
    num_samples: int = FitSettings.num_samples
    start_precision: float = FitSettings.start_precision
    prior_precision: float = FitSettings.prior_precision

    def settings(self) -> FitSettings:
        """See :meth:`Fit.settings`."""
        return _settings(
            LBFGS(max_iterations=self.max_iterations), self.num_samples, self.start_precision, self.prior_precision
        )


@final
@dataclass(frozen=True)
class GradientSteps(Fit):
    """The evidence is climbed by Adam, as in the papers.

    Attributes:
        num_steps: Number of steps.
        learning_rate: Step size in the unconstrained space.
        num_samples: Experts per optimum: itself, and draws from a Laplace approximation around it.
        start_precision: Precision of a Gaussian prior around the starting values, on a log scale.
        prior_precision: Floor of the curvature of that approximation.
    """

    num_steps: int = 500
    learning_rate: float = 1e-2
    num_samples: int = FitSettings.num_samples
    start_precision: float = FitSettings.start_precision
    prior_precision: float = FitSettings.prior_precision

    def settings(self) -> FitSettings:
        """See :meth:`Fit.settings`."""
        return _settings(
            Adam(self.num_steps, self.learning_rate), self.num_samples, self.start_precision, self.prior_precision
        )


def _settings(method: LBFGS | Adam, num_samples: int, start_precision: float, prior_precision: float) -> FitSettings:
    if num_samples < 1:
        raise ValueError(f"num_samples of the fit must be at least 1, got {num_samples}")
    if not 0 <= start_precision < math.inf:
        raise ValueError(f"start_precision of the fit must be zero or positive, got {start_precision}")
    if not 0 < prior_precision < math.inf:
        raise ValueError(f"prior_precision of the fit must be positive, got {prior_precision}")
    return FitSettings(method, num_samples, start_precision, prior_precision)


def fit_settings(fit: Fit, structure_only: bool) -> FitSettings:
    """The presets' record of a fit; with ``structure_only`` nothing is optimized."""
    settings = fit.settings()
    return replace(settings, method=None) if structure_only else settings


class Model(ABC):
    """An ensemble by the name of its paper.

    Attributes:
        target: What kind of target it predicts; real numbers if left out.
    """

    target: Target | None

    @property
    def kind(self) -> Target:
        """What kind of target it predicts."""
        return self.target or _REAL

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the preset."""

    @abstractmethod
    def build(
        self, X: Tensor, y: Tensor, *, structure_only: bool, generator: torch.Generator, progress: bool
    ) -> OnlineEnsemble:
        """The ensemble, fitted to standardized warm-up rows and conditioned on them.

        Args:
            X: Warm-up inputs, shape (N, D).
            y: Warm-up targets, shape (N,); NaN where missing.
            structure_only: Skip the optimization: the sizes are right, the numbers come from a checkpoint.
            generator: Source of all randomness.
            progress: Show a progress bar.
        """


@final
@dataclass(frozen=True)
class OEBE(Model):
    """Static experts under Bayesian model averaging; see :func:`gp_ensembles.ensembles.presets.oebe`."""

    bases: tuple[Basis, ...] = DEFAULT_BASES
    fit: Fit | None = None
    target: Target | None = None

    @property
    def name(self) -> str:
        """Name of the preset."""
        return "oebe"

    def build(
        self, X: Tensor, y: Tensor, *, structure_only: bool, generator: torch.Generator, progress: bool
    ) -> OnlineEnsemble:
        """See :meth:`Model.build`."""
        fit = fit_settings(self.fit or QuasiNewton(), structure_only)
        return presets.oebe(X, y, self.bases, fit, target=self.kind, generator=generator, progress=progress)


@final
@dataclass(frozen=True)
class DOEBE(Model):
    """Dynamic experts under Bayesian model averaging; see :func:`gp_ensembles.ensembles.presets.doebe`."""

    bases: tuple[Basis, ...] = DEFAULT_BASES
    fit: Fit | None = None
    random_walk_variances: tuple[float, ...] = WALKS
    target: Target | None = None

    @property
    def name(self) -> str:
        """Name of the preset."""
        return "doebe"

    def build(
        self, X: Tensor, y: Tensor, *, structure_only: bool, generator: torch.Generator, progress: bool
    ) -> OnlineEnsemble:
        """See :meth:`Model.build`."""
        fit, walks = fit_settings(self.fit or QuasiNewton(), structure_only), self.random_walk_variances
        return presets.doebe(
            X,
            y,
            self.bases,
            fit,
            random_walk_variances=walks,
            target=self.kind,
            generator=generator,
            progress=progress,
        )


@final
@dataclass(frozen=True)
class SOEBE(Model):
    """Static experts, Markov switching; see :func:`gp_ensembles.ensembles.presets.soebe`."""

    bases: tuple[Basis, ...] = DEFAULT_BASES
    fit: Fit | None = None
    stay: float = 0.99
    target: Target | None = None

    @property
    def name(self) -> str:
        """Name of the preset."""
        return "soebe"

    def build(
        self, X: Tensor, y: Tensor, *, structure_only: bool, generator: torch.Generator, progress: bool
    ) -> OnlineEnsemble:
        """See :meth:`Model.build`."""
        fit = fit_settings(self.fit or QuasiNewton(), structure_only)
        return presets.soebe(
            X, y, self.bases, fit, stay=self.stay, target=self.kind, generator=generator, progress=progress
        )


@final
@dataclass(frozen=True)
class SDOEBE(Model):
    """Dynamic experts, Markov switching; see :func:`gp_ensembles.ensembles.presets.sdoebe`."""

    bases: tuple[Basis, ...] = DEFAULT_BASES
    fit: Fit | None = None
    stay: float = 0.99
    random_walk_variances: tuple[float, ...] = WALKS
    target: Target | None = None

    @property
    def name(self) -> str:
        """Name of the preset."""
        return "sdoebe"

    def build(
        self, X: Tensor, y: Tensor, *, structure_only: bool, generator: torch.Generator, progress: bool
    ) -> OnlineEnsemble:
        """See :meth:`Model.build`."""
        fit, walks = fit_settings(self.fit or QuasiNewton(), structure_only), self.random_walk_variances
        return presets.sdoebe(
            X,
            y,
            self.bases,
            fit,
            stay=self.stay,
            random_walk_variances=walks,
            target=self.kind,
            generator=generator,
            progress=progress,
        )


@final
@dataclass(frozen=True)
class EDOEBE(Model):
    """Static experts and their dynamic twins; see :func:`gp_ensembles.ensembles.presets.e_doebe`."""

    bases: tuple[Basis, ...] = DEFAULT_BASES
    fit: Fit | None = None
    delta: float = 0.01
    random_walk_variances: tuple[float, ...] = FAST_WALKS
    target: Target | None = None

    @property
    def name(self) -> str:
        """Name of the preset."""
        return "e_doebe"

    def build(
        self, X: Tensor, y: Tensor, *, structure_only: bool, generator: torch.Generator, progress: bool
    ) -> OnlineEnsemble:
        """See :meth:`Model.build`."""
        fit, walks = fit_settings(self.fit or QuasiNewton(), structure_only), self.random_walk_variances
        return presets.e_doebe(
            X,
            y,
            self.bases,
            fit,
            delta=self.delta,
            random_walk_variances=walks,
            target=self.kind,
            generator=generator,
            progress=progress,
        )
