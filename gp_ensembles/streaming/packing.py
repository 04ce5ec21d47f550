"""States of ensembles in files: of the factors of windows only what is in use, to the bit."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.filters.states import WindowState


def packed(online: OnlineEnsemble) -> dict[str, Tensor]:
    """What ``state_dict`` holds, with the lower triangle of the rows in use for each factor of a window."""
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
    """What an ensemble loads, from what :func:`packed` made of one that was built alike.

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
    """A factor of the shape of ``like`` with a triangle in its first rows, of the identity elsewhere."""
    if triangle.shape != (*like.shape[:-2], num_used * (num_used + 1) // 2) or num_used > like.shape[-1]:
        raise RuntimeError(f"the factor of {num_used} rows of a window of {like.shape[-1]} does not fit")
    whole = torch.zeros(like.shape, dtype=triangle.dtype, device=triangle.device)
    whole.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    whole[..., :num_used, :num_used][..., _lower(num_used, triangle.device)] = triangle
    return whole
