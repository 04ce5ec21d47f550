"""A single series of a fleet: its units, and the experts of the fleet with its own variances."""

import copy
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble, evaluate
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.experts.base import Expert, Variances
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.streaming.calibration import CalibrationState
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.inputs import InputPath, InputState


class SeriesModel(NamedTuple):
    """A single series of a :class:`~gp_ensembles.fleet.Fleet`.

    Attributes:
        online: Its ensemble, on standardized rows.
        path: Standardization of its rows, with its units.
        state: State of its inputs: last values, scales of columns that were constant in the warm-up, range.
        calibration: State of its recalibration and of its interval levels.
        point: Its point mass, see :mod:`gp_ensembles.fleet.point_mass`, shape (12,).

    Example:
        >>> from gp_ensembles.fleet import Fleet
        >>> X = torch.linspace(0, 9, 60, dtype=torch.float64).unsqueeze(-1)
        >>> fleet = Fleet(warmup=20, recalibrate=False)
        >>> fleet.fit(["north", "south"] * 30, X, X.squeeze(-1).sin())
        >>> model = fleet.export("north")
        >>> rows = model.path.follow(model.state, X[:1])
        >>> predicted = model.online.predict(rows.inputs, extra=rows.extra)
        >>> mean = model.path.columns.scales.inverse_mean(predicted.mean)
        >>> bool((mean - fleet.predict(["north"], X[:1]).mean).abs() < 1e-9)
        True
        >>> fleet.add(["a second north"], model)
    """

    online: OnlineEnsemble
    path: InputPath
    state: InputState
    calibration: CalibrationState
    point: Tensor

    def check(self, ensemble: Ensemble, X: Tensor, config: StreamConfig) -> None:
        """Raise unless this series can be added to a fleet.

        Args:
            ensemble: The ensemble that the fleet's series share.
            X: Some valid inputs, standardized, shape (N, D).
            config: The fleet's settings.

        Raises:
            ValueError: If the two differ; the message names the difference.
        """
        num, given = X.shape[1], len(self.path.columns.kept)
        if given != num:
            raise ValueError(f"the model has {given} input columns, the fleet has {num}")
        num = 0 if self.calibration.levels is None else len(self.calibration.levels.ends)
        if num != len(config.coverages):
            raise ValueError(f"the model has intervals for {num} coverages, the fleet for {config.coverages}")
        if (self.calibration.recalibration is not None) != config.recalibrate:
            raise ValueError(
                "model and fleet differ in recalibrate; export the model from a fleet with the same setting"
            )
        if not _see_alike(self.online.ensemble, ensemble, X):
            raise ValueError("the model's hyperparameters are not the fleet's; export it from a fleet that shares them")


@torch.no_grad()
def _see_alike(one: Ensemble, other: Ensemble, X: Tensor) -> bool:
    """Whether all feature maps of two ensembles agree on some rows."""
    widths = [e.num_inputs + (0 if e.memory is None else e.memory.num_columns) for e in (one, other)]
    if widths[0] != widths[1]:
        return False
    rows = torch.cat([X, X.new_zeros(len(X), widths[0] - X.shape[1])], dim=-1)
    maps = [evaluate(ensemble.bind(), rows) for ensemble in (one, other)]
    return len(maps[0]) == len(maps[1]) and all(torch.equal(left, right) for left, right in zip(*maps, strict=True))


@final
class OwnPriorVariance(FeatureMap):
    r"""A feature map with another, fixed prior variance of the weights.

    Args:
        features: The map, which may be shared.
        prior_variance: Its prior variance, shape (\*batch).
    """

    own: Tensor

    def __init__(self, features: FeatureMap, prior_variance: Tensor) -> None:
        super().__init__(features.num_inputs, features.num_features, features.batch_shape, features.domain)
        self.features = features
        self.register_buffer("own", prior_variance.detach().clone())

    @property
    def prior_variance(self) -> Tensor:
        r"""Prior variance of the weights, shape (\*batch)."""
        return self.own

    def bind(self) -> BoundFeatures:
        return self.features.bind()


@torch.no_grad()
def with_own_variances(ensemble: Ensemble, own: Sequence[Variances]) -> Ensemble:
    """A copy of the ensemble with other noise and prior variances; feature maps and rule are shared."""
    experts: list[Expert] = []
    for expert, variances in zip(ensemble.experts, own, strict=True):
        assert isinstance(expert, GaussianExpert)
        likelihood = copy.deepcopy(expert.likelihood)
        likelihood.noise = variances.noise.reshape(likelihood.noise.shape)
        features = OwnPriorVariance(expert.features, variances.prior)
        experts.append(GaussianExpert(features, likelihood, expert.transition, expert.initial_state))
    return ensemble.with_experts(experts)
