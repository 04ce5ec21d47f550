"""The state of a model on a stream as plain containers and tensors for files, and back.

Of the factors of windows, files hold only the rows in use; what is read is equal to the bit.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.files.checkpoint import Kind
from gp_ensembles.filters.states import WindowState

KIND = Kind("gp_ensembles model", 10, "a model", "give a file that OnlineModel.save wrote")


def saved(online: OnlineEnsemble | None) -> dict[str, Any]:
    """The state of an ensemble, :func:`packed`, with its size of blocks, which :func:`restore` reads back."""
    if online is None:
        return {"ensemble": None, "block_size": None}
    return {"ensemble": packed(online), "block_size": online.block_size}


def restore(online: OnlineEnsemble, content: Mapping[str, Any]) -> None:
    """Bring an ensemble that was built alike to the state that was :func:`saved`."""
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
    """The ``state_dict`` from what :func:`packed` made of an ensemble that was built alike."""
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
