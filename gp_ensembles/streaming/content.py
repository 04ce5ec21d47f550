"""The state of a model on a stream as plain containers and tensors for files, and back.

Of the factors of windows, files hold only the rows in use; what is read is equal to the bit.
"""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.files.checkpoint import Kind
from gp_ensembles.filters.states import WindowState
from gp_ensembles.streaming.after_mixture import CalibrationState, calibration_from_plain, calibration_to_plain
from gp_ensembles.streaming.inputs import InputState
from gp_ensembles.streaming.reports import AnomalyCounts

KIND = Kind(
    "gp_ensembles model",
    7,
    "a model",
    "give a file that OnlineModel.save wrote",
    ("config", "warm_X", "warm_y"),
)


class Parts(NamedTuple):
    """The state of a model that changes over a stream.

    Attributes:
        num_rows: Rows so far.
        warm_X: Inputs of the warm-up so far, shape (N, D).
        warm_y: Its targets, shape (N,) or (N, O).
        calibration: State of the calibration.
        inputs: State of the inputs; ``None`` in the warm-up.
        anomaly_counts: Counts of unusual numbers.
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


def packed(online: OnlineEnsemble) -> dict[str, Tensor]:
    """The ``state_dict``, with only the lower triangle of the rows in use of each factor of a window."""
    content: dict[str, Tensor] = dict(online.state_dict())
    windows = dict(_windows(online))
    for name, value in content.items():
        content[name] = value if name in windows else value.clone()  # the state is changed in place
    for name, state in windows.items():
        whole, num_used = state.factor, int(state.num_used.max())
        triangle = whole[..., :num_used, :num_used][..., _lower(num_used, whole.device)]
        if torch.equal(_with_capacity(triangle, num_used, whole), whole):
            content[name] = triangle
        else:
            content[name] = whole.clone()
    return content


def unpacked(online: OnlineEnsemble, content: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The ``state_dict`` from what :func:`packed` made of an ensemble that was built alike.

    Raises:
        RuntimeError: If a factor is of another window.
    """
    whole = dict(content)
    for name, state in _windows(online):
        saved, num_used = content[name], int(content[name.replace("factor", "num_used")].max())
        if saved.ndim < state.factor.ndim:
            whole[name] = _with_capacity(saved, num_used, state.factor)
    return whole


def _windows(online: OnlineEnsemble) -> list[tuple[str, WindowState]]:
    """The states of windows, each with the name of its factor."""
    parts = enumerate(online.state.experts)
    return [(f"expert_{number}_factor", part) for number, part in parts if isinstance(part, WindowState)]


def _lower(num_rows: int, device: torch.device) -> Tensor:
    return torch.ones(num_rows, num_rows, dtype=torch.bool, device=device).tril()


def _with_capacity(triangle: Tensor, num_used: int, like: Tensor) -> Tensor:
    """A factor of the shape of ``like`` with a triangle in its first rows, the identity elsewhere."""
    if triangle.shape != (*like.shape[:-2], num_used * (num_used + 1) // 2) or num_used > like.shape[-1]:
        raise RuntimeError(f"the factor of {num_used} rows of a window of {like.shape[-1]} does not fit")
    whole = torch.zeros(like.shape, dtype=triangle.dtype, device=triangle.device)
    whole.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    whole[..., :num_used, :num_used][..., _lower(num_used, triangle.device)] = triangle
    return whole
