"""Our presets, as users meet them: rows go through :class:`~gp_ensembles.streaming.OnlineModel`."""

from typing import final

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.distributions import Distribution, LatentMixture, Mixture, Recalibrated, StudentTMixture
from gp_ensembles.ensembles.presets import auto_for
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget
from gp_ensembles.metrics import crps_mixture
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.predictions import OnlinePredictions
from studies.arena.learners import Distributional
from studies.arena.scores import LEVEL, Array
from studies.arena.storage import ExpertDensities

_TOLERANCE = 1e-6  # of the CRPS of mixtures of normals
_GRID, _REACH = 64, 8.0  # points on each side of the median, and the inverse hyperbolic sine of the farthest


class Predicted:
    """Predictions of the library as the arena's.

    Args:
        predictions: Of N rows.
    """

    def __init__(self, predictions: OnlinePredictions) -> None:
        self.predictions = predictions
        assert not isinstance(predictions.distribution, LatentMixture)
        self.distribution = predictions.distribution

    @property
    def mean(self) -> Array:
        """Means, shape (N,)."""
        return _array(self.distribution.mean)

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
        """See :meth:`~studies.arena.scores.Predictive.crps`."""
        return _array(_crps(self.distribution, torch.from_numpy(y)))


def _crps(distribution: Distribution, y: Tensor) -> Tensor:
    if isinstance(distribution, Mixture):
        return crps_mixture(*distribution, y, tolerance=_TOLERANCE)
    return integrated_crps(distribution, y)


def integrated_crps(distribution: Distribution, y: Tensor) -> Tensor:
    r"""CRPS from the distribution function, :math:`\int (F(z) - 1[y \le z])^2 dz`, by the trapezoidal rule.

    Points are dense around the median, by its distance from the quartiles, and sparse far out; the target is one of
    them.

    Args:
        distribution: Of N rows.
        y: Targets, shape (N,).

    Returns:
        Scores, shape (N,).

    Example:
        >>> one = torch.zeros(1, 1, dtype=torch.float64)
        >>> integrated_crps(Mixture(one[0], one, one + 1), one[0]).round(decimals=2)
        tensor([0.2300], dtype=torch.float64)
    """
    quarter, median, rest = (distribution.quantile(p) for p in (0.25, 0.5, 0.75))
    steps = torch.linspace(-_REACH, _REACH, 2 * _GRID + 1, dtype=y.dtype, device=y.device).unsqueeze(-1)
    points = torch.cat([median + (rest - quarter) / 2 * steps.sinh(), y.unsqueeze(0)]).sort(0).values
    cdf = distribution.cdf(points)
    below, above = cdf.square(), (1 - cdf).square()
    heights = torch.where(points[1:] <= y, below[1:] + below[:-1], above[1:] + above[:-1]) / 2
    return (heights * points.diff(dim=0)).sum(0)


@final
class Ours(Distributional):
    """A preset on a stream of numbers.

    Args:
        spec: The preset.
        seed: Of its frequencies and centers.
        keep_densities: Keep what every expert says.
    """

    def __init__(self, spec: EnsembleSpec, seed: int, keep_densities: bool = False) -> None:
        self.spec = spec
        self.seed = seed
        self.keep_densities = keep_densities
        self.model: OnlineModel | None = None
        self.kept: list[ExpertDensities] = []

    def warm_up(self, X: Array, y: Array) -> None:
        """See :meth:`Distributional.warm_up`."""
        config = stream_config(self.spec, len(y), self.seed)
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
        found = predictions.distribution
        base = found.base if isinstance(found, Recalibrated) else found
        assert not isinstance(base, LatentMixture)
        mean, variance = _array(base.component_mean), _array(base.component_variance)
        df = _array(base.degrees_of_freedom) if isinstance(base, StudentTMixture) else np.full_like(mean, np.inf)
        log_weights = _array(predictions.log_weights)
        self.kept.append(ExpertDensities(mean, variance, df, log_weights, self.model.names, y))

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
        spec: The ensemble, its target one of classes.
        seed: Of its frequencies and centers.
    """

    def __init__(self, spec: EnsembleSpec, seed: int) -> None:
        self.inner = Ours(spec, seed)

    def warm_up(self, X: Array, y: Array) -> None:
        """See :meth:`Distributional.warm_up`."""
        self.inner.warm_up(X, y)

    def step(self, X: Array, y: Array) -> Array:
        """Probabilities (B, C) of each row of a block, from the rows before it; learns all of them."""
        found = self.inner.observe(X, y).distribution
        assert isinstance(found, LatentMixture)
        return _array(found.class_probabilities)


def stream_config(spec: EnsembleSpec, num_warmup: int, seed: int) -> StreamConfig:
    """How an ensemble meets a stream: by the defaults, constant columns left out.

    Example:
        >>> stream_config(class_spec(2), 200, 0).warmup
        200
    """
    return StreamConfig(spec, warmup=num_warmup, seed=seed, drop_constant=True)


def class_spec(num_classes: int) -> EnsembleSpec:
    """The default ensemble for so many classes.

    Example:
        >>> class_spec(3).target.num_labels
        3
    """
    return auto_for(BinaryTarget() if num_classes == 2 else ClassTarget(num_classes))


def _array(values: Tensor) -> Array:
    array: Array = values.detach().cpu().double().numpy()
    return array
