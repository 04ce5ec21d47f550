"""The end of a warm-up: what learns the stream from then on, built from its rows."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.streaming.calibration import CalibrationState, calibration_of
from gp_ensembles.streaming.checks import Arrived, clean_arrivals, refuse
from gp_ensembles.streaming.columns import Columns, names_of, settings_for, warn_of_poor_forecasts
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.inputs import InputPath, InputState
from gp_ensembles.streaming.missed_structure import missed_share, missed_text
from gp_ensembles.streaming.point_mass import PointMass, find_point, without_point
from gp_ensembles.streaming.reports import AnomalyCounts
from gp_ensembles.streaming.warm_up_rows import clean_warm_up, num_far, warn_of_outliers


class FirstRows(NamedTuple):
    """Rows of a warm-up as they are kept."""

    config: StreamConfig  # with sizes in place of prices, which depend on the number of columns
    X: Tensor  # inputs, shape (N, D)
    y: Tensor  # targets, shape (N,) or (N, O)
    counts: AnomalyCounts  # what was unusual among them and before


def keep(
    config: StreamConfig, rows: Arrived, first_row: int, counts: AnomalyCounts, feature_names: Sequence[str] | None
) -> FirstRows:
    """Rows that arrive in a warm-up, the first of which has this number, after counts of those before."""
    clean = clean_arrivals(rows.X, rows.y, config)
    refuse(clean.refused, first_row, feature_names)
    config = settings_for(config, names_of(feature_names, range(clean.X.shape[1])))  # or an error, before any is kept
    return FirstRows(config, clean.X, clean.y, counts.with_bad(clean, first_row, feature_names))


class Started(NamedTuple):
    """A stream after its warm-up: the state of each stage."""

    X: Tensor  # inputs of the warm-up as they were learned, shape (N, D)
    y: Tensor  # its targets, shape (N,) or (N, O)
    counts: AnomalyCounts  # what was unusual among them
    path: InputPath  # how rows are standardized
    followed: InputState  # the state of that
    online: OnlineEnsemble  # experts, innovations, rule and mixture
    point: PointMass | None  # learns whether targets are at the point
    calibration: CalibrationState  # recalibration and levels


def start(
    config: StreamConfig,
    X: Tensor,
    y: Tensor,
    counts: AnomalyCounts,
    feature_names: Sequence[str] | None,
    *,
    progress: bool = False,
) -> Started:
    """Fit to the rows of a warm-up, X (N, D) and y (N,) or (N, O), after counts of what arrived."""
    rows, num_moved, num_out = clean_warm_up(X, y, config)
    X, y, is_real = rows.X.clone(), rows.y.clone(), config.ensemble.target.is_real
    at = find_point(y, config)
    others = without_point(y, at)
    path = InputPath(config, Columns.of(config, X, others, names_of(feature_names, range(X.shape[1]))))
    warm = path.warm_up(X)
    online, predictions = path.build_ensemble(warm, others, progress=progress)
    point = None if at is None else PointMass(at, config, path, warm, y)
    missed = missed_share(warm.scaled, path.targets(others), predictions.mean) if is_real and y.ndim == 1 else 0.0
    if missed > 0:
        warn_caller(missed_text(missed))
    followed = path.with_effects(warm, lambda rows: online.predict(rows).mean)
    num_kept = num_far(y) if is_real else 0
    counts = counts.with_bad(rows, 1, feature_names).after(num_moved, 0, int(followed.gaps.num_imputed.sum()))
    counts = counts._replace(targets_left_out=num_out, targets_far=num_kept, share_missed=missed)
    calibration = calibration_of(config, has_point=point is not None).init(y, predictions)
    warn_of_outliers(num_out, num_kept)
    warn_of_poor_forecasts(config.ensemble, X[:, path.columns.forecasts], y)
    return Started(X, y, counts, path, followed, config.ensemble.after_warm_up(online), point, calibration)
