"""Batches of experts: kernels of one structure stacked into one, experts of a batch selected, repeated, ordered."""

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel
from gpytorch.likelihoods.noise_models import Noise
from gpytorch.means import ConstantMean
from torch import Tensor, nn

from gp_ensembles.features.base import FeatureMap, PriorVariance
from gp_ensembles.numerics.gpytorch_types import GPyTorchModule, Kernel, Likelihood, Mean

M = TypeVar("M", bound=nn.Module | GPyTorchModule)


def stack_kernels(kernels: Sequence[Kernel]) -> Kernel:
    """Stack kernels that differ in hyperparameters only into one kernel with ``batch_shape`` (S,).

    Raises:
        ValueError: If there is no kernel, a kernel has a batch shape, or the structures differ.
    """
    if not kernels:
        raise ValueError("there is no kernel to stack; give at least one")
    structure = _structure(kernels[0])
    for index, kernel in enumerate(kernels):
        if kernel.batch_shape:
            raise ValueError(
                f"kernel {index} has batch shape {tuple(kernel.batch_shape)}; stack kernels without a batch"
            )
        _check_same(structure, _structure(kernel), index)
        _check_buffers(kernels[0], kernel, index)
    result = copy.deepcopy(kernels[0])
    parts = [dict(kernel.named_modules()) for kernel in kernels]
    for path, part in result.named_modules():
        if not isinstance(part, Kernel):
            continue
        for name, value in list(part.named_parameters(recurse=False)):
            stacked = torch.stack([modules[path].get_parameter(name).detach() for modules in parts])
            setattr(part, name, nn.Parameter(stacked, requires_grad=value.requires_grad))
        part.batch_shape = torch.Size([len(kernels)])
    return result


def _structure(kernel: Kernel) -> dict[str, str]:
    """What must agree, by name: classes, smoothness, parameters, constraints."""
    result = {}
    for path, part in kernel.named_modules():
        label = path or "the kernel itself"
        result[label] = type(part).__name__
        if isinstance(part, MaternKernel):
            result[label] += f" with nu={part.nu}"
        if isinstance(part, Interval):  # softplus and exponential read the same raw number differently
            result[label] += f" with transform {getattr(part._transform, '__name__', part._transform)}"
    for name, value in kernel.named_parameters():
        result[name] = f"{value.dtype} parameter of shape {tuple(value.shape)} on {value.device}"
    for name, value in kernel.named_buffers():
        result[name] = f"buffer of shape {tuple(value.shape)}"
    return result


def _check_same(first: dict[str, str], other: dict[str, str], index: int) -> None:
    for name in [*first, *other]:
        if first.get(name) != other.get(name):
            raise ValueError(
                f"kernel {index} differs in structure from kernel 0 at '{name}': {other.get(name, 'absent')} against "
                f"{first.get(name, 'absent')}; kernels of different structure belong in different feature maps"
            )


def _check_buffers(first: Kernel, other: Kernel, index: int) -> None:
    others = dict(other.named_buffers())
    for name, value in first.named_buffers():
        if value.device.type != "meta" and not torch.equal(value, others[name]):
            raise ValueError(
                f"kernel {index} differs from kernel 0 in '{name}' ({others[name].tolist()} against {value.tolist()}); "
                f"active_dims, constraints and priors must be the same to stack kernels"
            )


def take_experts(module: M, batch_shape: torch.Size, index: Tensor) -> M:
    """An independent copy of a batched module with the experts that ``index`` names, in its order.

    Shapes: ``index`` (S,).

    Raises:
        ValueError: If the batch has more than one axis or an index is out of range.
    """
    if len(batch_shape) > 1:
        raise ValueError(f"experts can be taken from a batch with one axis only, this one has {tuple(batch_shape)}")
    num_experts = batch_shape.numel()
    if index.ndim != 1 or int(index.min()) < 0 or int(index.max()) >= num_experts:
        raise ValueError(f"index must hold integers in [0, {num_experts}), got {index.tolist()}")
    result = copy.deepcopy(module)
    new_shape = torch.Size([len(index)])
    for part in result.modules():
        if not isinstance(part, FeatureMap | PriorVariance | Kernel | Mean | Likelihood | Noise):
            continue
        shared = part.shared_tensors if isinstance(part, FeatureMap) else frozenset()
        for name, value in list(part.named_parameters(recurse=False)):
            if name not in shared:
                taken = nn.Parameter(_take(value.detach(), batch_shape, index, name), value.requires_grad)
                setattr(part, name, taken)
        for name, value in list(part.named_buffers(recurse=False)):
            if name not in shared and name != "active_dims":  # which columns a GPyTorch kernel sees
                setattr(part, name, _take(value, batch_shape, index, name))
        if isinstance(part, FeatureMap | Kernel | ConstantMean):
            part.batch_shape = new_shape
    return result


def _take(value: Tensor, batch_shape: torch.Size, index: Tensor, name: str) -> Tensor:
    if value.shape[: len(batch_shape)] != batch_shape:
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} has no batch axis of {tuple(batch_shape)} experts; declare it in "
            f"shared_tensors if all experts share it"
        )
    if not batch_shape:
        return value.unsqueeze(0).expand(len(index), *value.shape).clone()
    return value.index_select(0, index.to(value.device))
