"""What a model has followed over a stream, as plain containers and tensors for files, and back."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.files.checkpoint import Kind
from gp_ensembles.streaming.after_mixture import CalibrationState, calibration_from_plain, calibration_to_plain
from gp_ensembles.streaming.anomaly_counts import AnomalyCounts
from gp_ensembles.streaming.inputs import InputState
from gp_ensembles.streaming.packing import packed, unpacked

KIND = Kind(
    "gp_ensembles model",
    7,
    "a model",
    "give a file that OnlineModel.save wrote",
    ("config", "warm_X", "warm_y"),
)


class Parts(NamedTuple):
    """What changes in a model while a stream is read.

    Attributes:
        num_rows: Rows so far.
        warm_X: Inputs of the warm-up so far, shape (N, D).
        warm_y: Its targets, shape (N,) or (N, O).
        calibration: What is known of past errors.
        inputs: What is followed of the inputs; ``None`` in the warm-up.
        anomaly_counts: What was treated in a special way.
        online: The ensemble; ``None`` in the warm-up.
    """

    num_rows: int
    warm_X: Tensor | None
    warm_y: Tensor | None
    calibration: CalibrationState
    inputs: InputState | None
    anomaly_counts: AnomalyCounts
    online: OnlineEnsemble | None = None


def content_of(parts: Parts) -> dict[str, Any]:
    """Plain containers and tensors, which :func:`parts_of` and :func:`restore` read back."""
    online, inputs = parts.online, parts.inputs
    return {
        "num_rows": parts.num_rows,
        "warm_X": None if parts.warm_X is None else parts.warm_X.clone().cpu(),
        "warm_y": None if parts.warm_y is None else parts.warm_y.clone().cpu(),
        "ensemble": None if online is None else packed(online),
        "block_size": None if online is None else online.block_size,
        "calibration": copy.deepcopy(calibration_to_plain(parts.calibration)),
        "inputs": None if inputs is None else copy.deepcopy(inputs.to_plain()),
        "anomaly_counts": list(parts.anomaly_counts),
    }


def parts_of(content: Mapping[str, Any], device: torch.device) -> Parts:
    """What :func:`content_of` described, on a device; the ensemble is to be built first, see :func:`restore`."""
    X, y = content["warm_X"], content["warm_y"]
    inputs, calibration = copy.deepcopy((content["inputs"], content["calibration"]))  # both are changed in place
    return Parts(
        content["num_rows"],
        None if X is None else X.to(device),
        None if y is None else y.to(device),
        calibration_from_plain(calibration),
        None if inputs is None else InputState.from_plain(inputs, device),
        AnomalyCounts(*content["anomaly_counts"]),
    )


def restore(online: OnlineEnsemble, content: Mapping[str, Any]) -> None:
    """Bring an ensemble that was built alike to the state that :func:`content_of` described."""
    online.load_state_dict(unpacked(online, content["ensemble"]))
    online.block_size = content["block_size"]
