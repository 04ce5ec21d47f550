"""What an inference found as arrays by name, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gp_ensembles.fusion.chain_state import ChainState
from gp_ensembles.fusion.draws import Draws
from gp_ensembles.fusion.inference import Inferred
from gp_ensembles.fusion.report import ChainReport, Report

Array = npt.NDArray[Any]


def pack(inferred: Inferred) -> dict[str, Array]:
    """Arrays by name, none of them of objects.

    Example:
        >>> import torch
        >>> report = Report("MAP", 0.1, 10, torch.zeros(2))
        >>> content = pack(Inferred(torch.zeros(2, 3), torch.zeros(2).log_softmax(0), report))
        >>> unpack(content, torch.zeros(1)).theta.shape
        torch.Size([2, 3])
    """
    report = inferred.report
    content: dict[str, Array] = {
        "report.method": np.asarray(report.method),
        "report.seconds": np.asarray(report.seconds),
        "report.num_gradients": np.asarray(report.num_gradients),
        "report.complaints": np.asarray(report.complaints, dtype=np.str_),
    }
    tensors = {"theta": inferred.theta, "log_weights": inferred.log_weights, "report.log_joint": report.log_joint}
    if report.log_evidence is not None:
        content["report.log_evidence"] = np.asarray(report.log_evidence)
    if report.chains is not None:
        tensors |= {f"chains.{name}": value for name, value in report.chains._asdict().items()}
    if inferred.draws is not None:
        tensors |= {f"draws.{name}": value for name, value in inferred.draws._asdict().items() if name != "state"}
        tensors |= {f"state.{name}": value for name, value in inferred.draws.state.to_tensors().items()}
    return content | {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def unpack(content: Mapping[str, Array], like: Tensor) -> Inferred:
    """What :func:`pack` packed, on the device and in the dtype of ``like``.

    Raises:
        KeyError: If something is missing.

    Example:
        >>> import torch
        >>> unpack({}, torch.zeros(1))
        Traceback (most recent call last):
        ...
        KeyError: 'theta'
    """

    def read(name: str) -> Tensor:
        tensor = torch.as_tensor(content[name], device=like.device)
        return tensor.to(like.dtype) if tensor.is_floating_point() and tensor.ndim else tensor

    theta, log_weights = read("theta"), read("log_weights")
    chains = None
    if "chains.weights" in content:
        chains = ChainReport(*(read(f"chains.{name}") for name in ChainReport._fields))
    draws = None
    if "draws.theta" in content:
        names = [name for name in content if name.startswith("state.")]
        state = ChainState.from_tensors({name.removeprefix("state."): read(name) for name in names})
        draws = Draws(*(read(f"draws.{name}") for name in Draws._fields[:-1]), state)  # type: ignore[call-arg, arg-type]
    report = Report(
        str(content["report.method"]),
        float(content["report.seconds"]),
        int(content["report.num_gradients"]),
        read("report.log_joint"),
        float(content["report.log_evidence"]) if "report.log_evidence" in content else None,
        chains,
        tuple(str(one) for one in content["report.complaints"]),
    )
    return Inferred(theta, log_weights, report, draws)
