"""Several kernels of one structure as one kernel with a batch of experts."""

import copy
from collections.abc import Sequence

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel
from torch import Tensor, nn

from gp_ensembles.numerics.gpytorch_types import Kernel


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
            stacked = torch.stack([_parameter(modules[path], name).detach() for modules in parts])
            setattr(part, name, nn.Parameter(stacked, requires_grad=value.requires_grad))
        part.batch_shape = torch.Size([len(kernels)])
    return result


def _parameter(module: nn.Module, name: str) -> Tensor:
    return module.get_parameter(name)


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
