"""The kinds of objects that files of a model on a stream consist of."""

from typing import Any

from gp_ensembles.calibration.classes import ClassState
from gp_ensembles.calibration.frequency import FrequencyState
from gp_ensembles.calibration.labels import LabelState
from gp_ensembles.calibration.levels import LevelsState
from gp_ensembles.calibration.recalibration import RecalibrationState
from gp_ensembles.distributions import LatentMixture, Mixture, Recalibrated, StudentTMixture
from gp_ensembles.distributions.latent_mixture import Response
from gp_ensembles.distributions.point_mass import WithPointMass
from gp_ensembles.ensembles.structure import ENSEMBLES
from gp_ensembles.files.checkpoint import Kind
from gp_ensembles.files.structure import Form, Table
from gp_ensembles.streaming.calibration import CalibrationState
from gp_ensembles.streaming.columns import Columns, Standardizer
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.input_states import Gaps, Imputation, InactiveColumns, InputRange
from gp_ensembles.streaming.inputs import InputPath, InputState
from gp_ensembles.streaming.point_mass import PointMass
from gp_ensembles.streaming.predictions import class_distribution
from gp_ensembles.streaming.reports import AnomalyCounts


def _latent_fields(one: LatentMixture) -> dict[str, Any]:
    """Of classes their probabilities, without the experts; of counts all."""
    try:
        return {"probabilities": one.class_probabilities}
    except TypeError:
        return one._asdict()


def _latent(**known: Any) -> LatentMixture:
    return class_distribution(**known) if "probabilities" in known else LatentMixture(**known)


KIND = Kind("gp_ensembles model", 12, "a model", "give what OnlineModel.save wrote; gp-ensembles resume continues runs")
STREAMS: Table = ENSEMBLES.with_kinds(
    StreamConfig, InputPath, Columns, Standardizer, Imputation, InputState, Gaps, InactiveColumns, InputRange,
    CalibrationState, RecalibrationState, LevelsState, LabelState, ClassState, FrequencyState, PointMass, AnomalyCounts,
    Mixture, StudentTMixture, Recalibrated, WithPointMass, Response,
    special={LatentMixture: Form(_latent_fields, _latent)},
)  # fmt: skip
