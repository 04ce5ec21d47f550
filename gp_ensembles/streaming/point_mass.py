"""Targets with a point mass, such as zeros of sales and rain: a hurdle model of two ensembles.

One learns whether a target equals the point, the ensemble of the stream learns the others, and counts targets at the
point as missing (Cragg 1971).
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from gp_ensembles.calibration.frequency import FrequencyState, init_frequency, mix_frequency, update_frequency
from gp_ensembles.distributions import LatentMixture
from gp_ensembles.distributions.latent_mixture import certain_classes
from gp_ensembles.distributions.point_mass import WithPointMass
from gp_ensembles.engine.access_lock import uninterrupted
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.predictions import EnsemblePredictions
from gp_ensembles.ensembles.bases import FourierBasis, LinearBasis
from gp_ensembles.ensembles.presets import auto_for
from gp_ensembles.ensembles.targets import BinaryTarget
from gp_ensembles.filters.rows import Rows
from gp_ensembles.streaming.calibration import CalibrationState, calibration_of
from gp_ensembles.streaming.config import MIN_WARM_UP, StreamConfig
from gp_ensembles.streaming.inputs import InputPath, Standard
from gp_ensembles.streaming.predictions import StreamDistribution

_LEAST, _TIMES = 0.05, 3  # share of the commonest target, and how many times as common as any other it is
_LEAST_SHARE, _FARTHEST, _ROUND_OFF = 1e-6, 10.0, 1e-6
# On fourteen made streams as good as more bases, for half of their time.
_OCCURRENCE = replace(auto_for(BinaryTarget()), bases=(FourierBasis(), LinearBasis()), extra_experts=())


def find_point(y: Tensor, config: StreamConfig) -> float | None:
    """The value that a share of the targets (N,) of a warm-up equals; ``None`` if there is none.

    At least 5 % equal it and three times as many as any other value, and ten others are not all the same.
    """
    target = config.ensemble.target
    if not target.is_real or target.num_outputs is not None:
        return None
    values, counts = y[~y.isnan()].unique(return_counts=True)
    if len(values) < 3:
        return None
    (most, second), (place, _) = (part.tolist() for part in counts.topk(2))
    num = int(counts.sum())
    if most < max(_LEAST * num, _TIMES * second) or num - most < MIN_WARM_UP:
        return None
    return float(values[place])


def without_point(y: Tensor, at: float | Tensor | None) -> Tensor:
    """Targets (N,) of which those at the point, one for all or each its own (N,), count as missing."""
    return y if at is None else torch.where(y == at, torch.nan, y)


def point_labels(y: Tensor, at: float | Tensor) -> Tensor:
    """Whether targets (N,) are at the point, one or zero; NaN where missing."""
    return torch.where(y.isnan(), y, (y == at).to(y))


class PointMass:
    """The probability that the next target is at a point, learned from the rows of a stream.

    Args:
        at: The point.
        config: Settings of the stream.
        path: How its rows are standardized.
        warm: Rows of its warm-up.
        y: Targets of these, shape (N,); NaN where missing.
    """

    def __init__(self, at: float, config: StreamConfig, path: InputPath, warm: Standard, y: Tensor) -> None:
        self.at = at
        self._config = replace(config, ensemble=_OCCURRENCE)
        scales = path.columns.scales
        plain = scales._replace(y_mean=torch.zeros_like(scales.y_mean), y_scale=torch.ones_like(scales.y_scale))
        self._num_inputs, self._at_standard = warm.scaled.shape[-1], float((at - scales.y_mean) / scales.y_scale)
        known = InputPath(self._config, path.columns._replace(scales=plain))
        rows = warm._replace(inputs=self._seen(warm.inputs))
        self.online, _ = known.build_ensemble(rows, point_labels(y, self.at))
        self._calibration: CalibrationState = calibration_of(self._config).init(point_labels(y, self.at))
        self._frequency: FrequencyState = init_frequency(point_labels(y, self.at))
        self._shift = _shift_to(self._frequency, _share(self.online.predict(rows.inputs)))

    @torch.no_grad()
    def learn(
        self, online: OnlineEnsemble, inputs: Tensor, rows: Rows, y: Tensor
    ) -> tuple[EnsemblePredictions, Tensor]:
        """Learn rows (N, ...) as the ensemble takes them, with it, and targets (N,) in their units; both or neither.

        Returns: its predictions, and log probabilities of the point before each target, (N,).
        """
        labels, frequency, shares = point_labels(y, self.at), self._frequency, list[Tensor]()
        undo = [part.snapshot(len(y)) for part in (online, self.online)]
        try:
            of_others = online.learn(inputs, rows)
            predictions = self.online.learn(self._seen(inputs), Rows(labels.to(inputs), steps=rows.steps))
            mixture = self._shifted(predictions.mixture)
            known = self._calibration, mixture, labels, self.online.block_size
            calibration, predicted, *_ = calibration_of(self._config).update(*known)
            for share, label in zip(_share(predicted).unbind(), labels.unbind(), strict=True):
                frequency, mixed = update_frequency(frequency, share, label)
                shares.append(mixed)
        except BaseException:
            with uninterrupted():
                for restore in undo:
                    restore()
            raise
        self._calibration, self._frequency = calibration, frequency
        return of_others, torch.stack(shares).log()

    def predict(self, inputs: Tensor, steps: Tensor | None = None) -> Tensor:
        """Log probabilities of rows that all come next, as the ensemble takes them, (N,)."""
        mixture = self.online.predict(self._seen(inputs), steps=steps)
        calibrated = calibration_of(self._config).predict(self._calibration, self._shifted(mixture))
        return mix_frequency(self._frequency, _share(calibrated)).log()

    def mixed(self, base: StreamDistribution, log_share: Tensor) -> WithPointMass:
        """The distribution of all targets, from that of the others, and log probabilities of the point (N,)."""
        assert not isinstance(base, LatentMixture | WithPointMass)
        share = log_share.unsqueeze(0)
        return WithPointMass(base, torch.full_like(share, self.at), share)

    def move(self, device: torch.device) -> None:
        """Bring what was read from a file to a device."""
        self.online.to(device)
        self._frequency = FrequencyState(*(value.to(device) for value in self._frequency))

    def _shifted(self, mixture: StreamDistribution) -> LatentMixture:
        """The two classes with log odds moved by the shift, as one expert that is certain of them."""
        odds = torch.logit(_share(mixture).clamp(_LEAST_SHARE, 1 - _LEAST_SHARE)) + self._shift
        return certain_classes(logsigmoid(torch.stack([-odds, odds], dim=-1)), like=odds.unsqueeze(0))

    def _seen(self, inputs: Tensor) -> Tensor:
        """Inputs and forecasts, a missing one at its mean, and whether each forecast is at the point."""
        is_at = (inputs[..., self._num_inputs :] - self._at_standard).abs() < _ROUND_OFF
        return torch.cat([inputs.nan_to_num(0.0), is_at.to(inputs)], dim=-1)


def _shift_to(frequency: FrequencyState, shares: Tensor) -> float:
    """What log odds of shares (N,) are moved by so that their mean is the frequency.

    Averaging over uncertain latent values draws small probabilities towards one half.
    """
    odds = torch.logit(shares.clamp(_LEAST_SHARE, 1 - _LEAST_SHARE))
    wanted = frequency.counts[1] / frequency.counts.sum()
    lower, upper = -_FARTHEST, _FARTHEST
    for _ in range(40):
        middle = (lower + upper) / 2
        lower, upper = (middle, upper) if bool((odds + middle).sigmoid().mean() < wanted) else (lower, middle)
    return (lower + upper) / 2


def _share(predicted: StreamDistribution) -> Tensor:
    assert isinstance(predicted, LatentMixture)
    share: Tensor = predicted.class_probabilities[:, 1].double()
    return share
