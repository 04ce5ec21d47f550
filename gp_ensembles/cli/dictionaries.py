"""The ensembles over the papers' dictionary of kernels, and the one to start with, that a config can name.

Where ``fit`` is left out it is :class:`QuasiNewton` with one expert per optimum.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from gp_ensembles.cli.models import Fit, Model, QuasiNewton, fit_settings
from gp_ensembles.ensembles import label_targets, presets  # noqa: F401 (configs name targets)
from gp_ensembles.ensembles.automatic import auto
from gp_ensembles.ensembles.bases import Basis
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.presets import WALKS
from gp_ensembles.ensembles.targets import Target

_OPTIMUM_ONLY = QuasiNewton(num_samples=1)


@final
@dataclass(frozen=True)
class IEGP(Model):
    """Kernel dictionary under model averaging; see :func:`gp_ensembles.ensembles.presets.ie_gp`."""

    num_features: int = 100
    fit: Fit | None = None
    target: Target | None = None

    @property
    def name(self) -> str:
        """Name of the preset."""
        return "ie_gp"

    def build(
        self, X: Tensor, y: Tensor, *, structure_only: bool, generator: torch.Generator, progress: bool
    ) -> OnlineEnsemble:
        """See :meth:`Model.build`."""
        fit = fit_settings(self.fit or _OPTIMUM_ONLY, structure_only)
        return presets.ie_gp(X, y, self.num_features, fit, target=self.kind, generator=generator, progress=progress)


@final
@dataclass(frozen=True)
class SIEGP(Model):
    """Kernel dictionary, Markov switching; see :func:`gp_ensembles.ensembles.presets.sie_gp`."""

    num_features: int = 100
    fit: Fit | None = None
    stay: float = 0.99
    target: Target | None = None

    @property
    def name(self) -> str:
        """Name of the preset."""
        return "sie_gp"

    def build(
        self, X: Tensor, y: Tensor, *, structure_only: bool, generator: torch.Generator, progress: bool
    ) -> OnlineEnsemble:
        """See :meth:`Model.build`."""
        fit = fit_settings(self.fit or _OPTIMUM_ONLY, structure_only)
        return presets.sie_gp(
            X, y, self.num_features, fit, stay=self.stay, target=self.kind, generator=generator, progress=progress
        )


@final
@dataclass(frozen=True)
class DIEGP(Model):
    """Kernel dictionary, dynamic experts; see :func:`gp_ensembles.ensembles.presets.die_gp`."""

    num_features: int = 100
    fit: Fit | None = None
    random_walk_variance: float = 1e-3
    target: Target | None = None

    @property
    def name(self) -> str:
        """Name of the preset."""
        return "die_gp"

    def build(
        self, X: Tensor, y: Tensor, *, structure_only: bool, generator: torch.Generator, progress: bool
    ) -> OnlineEnsemble:
        """See :meth:`Model.build`."""
        fit, walk = fit_settings(self.fit or _OPTIMUM_ONLY, structure_only), self.random_walk_variance
        return presets.die_gp(
            X,
            y,
            self.num_features,
            fit,
            random_walk_variance=walk,
            target=self.kind,
            generator=generator,
            progress=progress,
        )


@final
@dataclass(frozen=True)
class DSIEGP(Model):
    """Kernel dictionary, dynamic experts, switching; see :func:`gp_ensembles.ensembles.presets.dsie_gp`."""

    num_features: int = 100
    fit: Fit | None = None
    stay: float = 0.99
    random_walk_variance: float = 1e-3
    target: Target | None = None

    @property
    def name(self) -> str:
        """Name of the preset."""
        return "dsie_gp"

    def build(
        self, X: Tensor, y: Tensor, *, structure_only: bool, generator: torch.Generator, progress: bool
    ) -> OnlineEnsemble:
        """See :meth:`Model.build`."""
        fit, walk, size = (
            fit_settings(self.fit or _OPTIMUM_ONLY, structure_only),
            self.random_walk_variance,
            self.num_features,
        )
        return presets.dsie_gp(
            X,
            y,
            size,
            fit,
            stay=self.stay,
            random_walk_variance=walk,
            target=self.kind,
            generator=generator,
            progress=progress,
        )


@final
@dataclass(frozen=True)
class Auto(Model):
    """What did best over all our streams; see :func:`gp_ensembles.ensembles.automatic.auto`.

    Where ``bases`` are left out they are all of them.
    """

    bases: tuple[Basis, ...] | None = None
    fit: Fit | None = None
    random_walk_variances: tuple[float, ...] = WALKS
    target: Target | None = None

    @property
    def name(self) -> str:
        """Name of the preset."""
        return "auto"

    def build(
        self, X: Tensor, y: Tensor, *, structure_only: bool, generator: torch.Generator, progress: bool
    ) -> OnlineEnsemble:
        """See :meth:`Model.build`."""
        return auto(
            X,
            y,
            self.bases,
            fit_settings(self.fit or _OPTIMUM_ONLY, structure_only),
            random_walk_variances=self.random_walk_variances,
            target=self.kind,
            generator=generator,
            progress=progress,
        )
