"""Selection, repetition and order of the experts of a batch: every tensor by its batch axis."""

import copy
from typing import TypeVar

import torch
from gpytorch.likelihoods.noise_models import Noise
from gpytorch.means import ConstantMean
from torch import Tensor, nn

from gp_ensembles.features.base import FeatureMap, PriorVariance
from gp_ensembles.numerics.gpytorch_types import GPyTorchModule, Kernel, Likelihood, Mean

M = TypeVar("M", bound=nn.Module | GPyTorchModule)


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
