"""Our presets, as users meet them: rows go through :class:`~gp_ensembles.streaming.OnlineModel`."""

from dataclasses import replace
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.distributions import (
    Distribution,
    LatentMixture,
    Mixture,
    Recalibrated,
    StudentTMixture,
    WithPointMass,
)
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import PRESETS, auto, auto_for
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget, RealTarget
from gp_ensembles.metrics import crps_mixture
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.predictions import OnlinePredictions
from studies.arena.learners import Distributional
from studies.arena.scores import LEVEL, Array
from studies.arena.storage import ExpertDensities

_TOLERANCE = 1e-6  # of the CRPS of mixtures of normals
_POINTS, _REACH = 65, 6.0  # points of a distribution, and the inverse hyperbolic sine of the farthest


class Table(NamedTuple):
    r"""Distribution functions of N rows at points that are dense around the median and sparse far out.

    Attributes:
        points: :math:`z_j = m + s \sinh t_j` for equally spaced t, with the median m, shape (J, N).
        slopes: Their derivatives by t.
        cdf: The distribution functions there.
        step: Distance of the t.
    """

    points: Tensor
    slopes: Tensor
    cdf: Tensor
    step: float

    @classmethod
    def of(cls, distribution: Distribution) -> "Table":
        """The table of a distribution; s is half the distance of the quartiles."""
        quarter, median, rest = (distribution.quantile(p) for p in (0.25, 0.5, 0.75))
        t = torch.linspace(-_REACH, _REACH, _POINTS, dtype=median.dtype, device=median.device).unsqueeze(-1)
        scale = (rest - quarter) / 2
        points = median + scale * t.sinh()
        # One point of all rows at a time takes a third of the time.
        cdf = torch.stack([distribution.cdf(at) for at in points])
        return cls(points, scale * t.cosh(), cdf, 2 * _REACH / (_POINTS - 1))

    def mean(self) -> Tensor:
        r"""Means, :math:`m + \int 1[z > m] - F(z)\, dz`, shape (N,).

        Example:
            >>> one = torch.ones(1, 1, dtype=torch.float64)
            >>> Table.of(Mixture(0 * one[0], 3 * one, one)).mean()
            tensor([3.], dtype=torch.float64)
        """
        middle = _POINTS // 2
        beyond = torch.zeros_like(self.cdf)
        beyond[middle], beyond[middle + 1 :] = 0.5, 1.0
        return self.points[middle] + self.step * ((beyond - self.cdf) * self.slopes).sum(0)

    def crps(self, y: Tensor, cdf: Tensor) -> Tensor:
        r"""CRPS of targets, shape (N,).

        .. math:: E|Y - y| - \int F (1 - F)\, dz, \qquad E|Y - y| = E[Y] - y + 2 \int_{-\infty}^y F\, dz

        The last integral is taken by the trapezoidal rule in t, with the correction for its end, up to the point below
        the target, and from there in one piece.

        Args:
            y: Targets, shape (N,).
            cdf: Distribution functions there, shape (N,).

        Example:
            >>> one = torch.ones(1, 1, dtype=torch.float64)
            >>> normal = Mixture(0 * one[0], 0 * one, one)
            >>> Table.of(normal).crps(one[0], normal.cdf(one[0]))
            tensor([0.6024], dtype=torch.float64)
        """
        heights = self.cdf * self.slopes
        whole = self.step * (heights.cumsum(0) - heights / 2)
        whole[1:-1] -= self.step / 24 * (heights[2:] - heights[:-2])
        below = (self.points <= y).sum(0, keepdim=True).sub(1).clamp(1, _POINTS - 2)
        start, at, so_far = (part.gather(0, below).squeeze(0) for part in (self.points, self.cdf, whole))
        left = (so_far + (at + cdf) / 2 * (y - start)).clamp_min(0.0)
        spread = self.step * (self.cdf * (1 - self.cdf) * self.slopes).sum(0)
        return self.mean() - y + 2 * left - spread


class Predicted:
    """Predictions of the library as the arena's.

    Args:
        predictions: Of N rows.
    """

    def __init__(self, predictions: OnlinePredictions) -> None:
        self.predictions = predictions
        assert not isinstance(predictions.distribution, LatentMixture)
        self.distribution = predictions.distribution
        self._table: Table | None = None

    @property
    def mean(self) -> Array:
        """Means, shape (N,)."""
        mean = self._tabulated().mean() if isinstance(self._others, Recalibrated) else self._others.mean
        found = self.distribution
        return _array(found.mixed_moments(mean, mean)[0] if isinstance(found, WithPointMass) else mean)

    def log_prob(self, y: Array) -> Array:
        """See :meth:`~studies.arena.scores.Predictive.log_prob`."""
        return _array(self.distribution.log_prob(torch.from_numpy(y)))

    def cdf(self, y: Array) -> Array:
        """See :meth:`~studies.arena.scores.Predictive.cdf`."""
        return _array(self.distribution.cdf(torch.from_numpy(y)))

    def interval(self) -> tuple[Array, Array]:
        """Adaptive where the model has such intervals, else the distribution's own quantiles."""
        lower, upper = self.predictions.interval(LEVEL)
        return _array(lower), _array(upper)

    def crps(self, y: Array) -> Array:
        """See :meth:`~studies.arena.scores.Predictive.crps`; by integration unless components are normal."""
        given, found = torch.from_numpy(y), self.distribution
        if isinstance(found, WithPointMass):
            return _array(found.crps(given, self._crps(given), self._crps(found.at[0])))
        return _array(self._crps(given))

    @property
    def _others(self) -> Mixture | StudentTMixture | Recalibrated:
        """The distribution, that of the targets that are not at a point mass."""
        found = self.distribution
        base = found.base if isinstance(found, WithPointMass) else found
        assert not isinstance(base, LatentMixture)
        return base

    def _crps(self, y: Tensor) -> Tensor:
        if isinstance(self._others, Mixture):
            return crps_mixture(*self._others, y, tolerance=_TOLERANCE)
        return self._tabulated().crps(y, self._others.cdf(y))

    def _tabulated(self) -> Table:
        if self._table is None:
            self._table = Table.of(self._others)
        return self._table


@final
class Variant(NamedTuple):
    """One of our models.

    Attributes:
        title: What it is.
        spec: Its ensemble.
        changes: Fields of the stream's config that differ from the defaults.
    """

    title: str
    spec: EnsembleSpec
    changes: dict[str, Any] = {}  # noqa: RUF012 (not changed)


def _without(name: str) -> EnsembleSpec:
    """``auto`` without one of its further experts."""
    return replace(auto, extra_experts=tuple(record for record in auto.extra_experts if record.name != name))


# The default before it had further experts: all bases, static and at three speeds.
_BASES = replace(auto_for(RealTarget(), one_step=False), name="bases", lags=TargetLags(), extra_experts=())
_BASES = replace(_BASES, rule=auto.rule, innovations=auto.innovations)
_BARE = replace(_BASES, innovations=(), lags=None, outlier_threshold=None, rank_on_warm_up=False)
# ``auto`` without each of its parts, and without all of them.
ABLATIONS: dict[str, Variant] = {
    "auto_no_window": Variant("our auto without a window", _without("window")),
    "auto_no_wide": Variant("our auto without wide features", _without("wide")),
    "auto_no_boosting": Variant("our auto without boosted trees", _without("boosting")),
    "auto_bases": Variant("our auto before: all bases, nothing further", _BASES),
    "auto_no_innovations": Variant("our auto without innovation models", replace(auto, innovations=())),
    "auto_no_lags": Variant("our auto without lags", replace(auto, lags=None)),
    "auto_no_threshold": Variant("our auto without an outlier threshold", replace(auto, outlier_threshold=None)),
    "auto_no_ranking": Variant("our auto not ranked on the warm-up", replace(auto, rank_on_warm_up=False)),
    "auto_no_limits": Variant("our auto without limits on inputs", auto, {"limit_inputs": False}),
    "auto_no_recalibration": Variant("our auto not recalibrated", auto, {"recalibrate": False}),
    "auto_no_levels": Variant("our auto with central intervals", auto, {"coverages": ()}),
    "auto_bare": Variant(
        "our auto without any of these", _BARE, {"limit_inputs": False, "recalibrate": False, "coverages": ()}
    ),
}
VARIANTS: dict[str, Variant] = {
    **{name: Variant(f"our {name}", PRESETS[name]) for name in ("auto", "light", "deep", "e_doebe", "oebe")},
    **ABLATIONS,
}


class Ours(Distributional):
    """A model of ours on a stream of numbers.

    Args:
        variant: The model.
        seed: Of its frequencies and centers.
        keep_densities: Keep what every expert says.
    """

    def __init__(self, variant: Variant, seed: int, keep_densities: bool = False) -> None:
        self.variant = variant
        self.seed = seed
        self.keep_densities = keep_densities
        self.model: OnlineModel | None = None
        self.kept: list[ExpertDensities] = []

    def warm_up(self, X: Array, y: Array) -> None:
        """See :meth:`Distributional.warm_up`."""
        config = stream_config(self.variant, len(y), self.seed)
        self.model = OnlineModel(config).fit(torch.from_numpy(X), torch.from_numpy(y))

    def step(self, X: Array, y: Array) -> Predicted:
        """See :meth:`Distributional.step`."""
        return Predicted(self.observe(X, y))

    def observe(self, X: Array, y: Array) -> OnlinePredictions:
        """Predict each row of a block, and learn all of them."""
        assert self.model is not None
        predictions = self.model.observe(torch.from_numpy(X), torch.from_numpy(y))
        if self.keep_densities:
            self._keep(predictions, y)
        return predictions

    def _keep(self, predictions: OnlinePredictions, y: Array) -> None:
        assert self.model is not None
        assert self.model.online is not None
        found = predictions.distribution
        inner = found.base if isinstance(found, WithPointMass) else found
        base = inner.base if isinstance(inner, Recalibrated) else inner
        assert not isinstance(base, LatentMixture | WithPointMass)
        mean, variance = _array(base.component_mean), _array(base.component_variance)
        df = _array(base.degrees_of_freedom) if isinstance(base, StudentTMixture) else np.full_like(mean, np.inf)
        log_weights = _array(base.log_weights)
        self.kept.append(ExpertDensities(mean, variance, df, log_weights, self.model.online.names, y))

    def densities(self) -> ExpertDensities | None:
        """What every expert said so far, if it was kept."""
        if not self.kept:
            return None
        mean, variance, df, log_weights, (names, *_), y = zip(*self.kept, strict=True)
        columns = [np.concatenate(part, -1) for part in (mean, variance, df, log_weights)]
        return ExpertDensities(columns[0], columns[1], columns[2], columns[3], names, np.concatenate(y))


@final
class OurClasses:
    """An ensemble on a stream of classes: probabilities block by block.

    Args:
        variant: The model, its target one of classes.
        seed: Of its frequencies and centers.
    """

    def __init__(self, variant: Variant, seed: int) -> None:
        self.inner = Ours(variant, seed)

    def warm_up(self, X: Array, y: Array) -> None:
        """See :meth:`Distributional.warm_up`."""
        self.inner.warm_up(X, y)

    def step(self, X: Array, y: Array) -> Array:
        """Probabilities (B, C) of each row of a block, from the rows before it; learns all of them."""
        found = self.inner.observe(X, y).distribution
        assert isinstance(found, LatentMixture)
        return _array(found.class_probabilities)


def stream_config(variant: Variant, num_warmup: int, seed: int) -> StreamConfig:
    """How a model meets a stream: by the defaults, constant columns left out.

    Example:
        >>> stream_config(of_classes(2), 200, 0).warmup
        200
    """
    config = StreamConfig(variant.spec, warmup=num_warmup, seed=seed)
    return replace(config, **variant.changes)


def of_classes(num_classes: int) -> Variant:
    """The default model for so many classes.

    Example:
        >>> of_classes(3).spec.target.num_labels
        3
    """
    return Variant("our auto", auto_for(BinaryTarget() if num_classes == 2 else ClassTarget(num_classes)))


def _array(values: Tensor) -> Array:
    array: Array = values.detach().cpu().double().numpy()
    return array
