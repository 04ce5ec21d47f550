"""Trainable hyperparameters of a batch of experts as one matrix, one row per expert."""

import torch
from torch import Tensor, nn

from gp_ensembles.experts.base import Expert


def trainable(expert: Expert) -> dict[str, nn.Parameter]:
    r"""Trainable parameters by name; each has the expert's batch shape first, so experts train on their own.

    Raises:
        ValueError: If there is none, or one is shared by several experts.
    """
    found = {name: value for name, value in expert.named_parameters() if value.requires_grad}
    if not found:
        raise ValueError("the expert has no trainable hyperparameters; set requires_grad on those to fit")
    batch_shape = expert.batch_shape
    for name, value in found.items():
        if value.shape[: len(batch_shape)] != batch_shape:
            raise ValueError(
                f"hyperparameter {name} of shape {tuple(value.shape)} is shared by the {expert.num_experts} experts of "
                f"a batch and cannot be fitted for each on its own; give it the batch shape {tuple(batch_shape)}"
            )
    return found


def get_vectors(expert: Expert) -> Tensor:
    r"""Unconstrained hyperparameters, shape (M, P), a copy."""
    parts = [value.detach().reshape(expert.num_experts, -1) for value in trainable(expert).values()]
    return torch.cat(parts, dim=-1)


def set_vectors_(expert: Expert, vectors: Tensor) -> None:
    """Write unconstrained hyperparameters, shape (M, P), into the expert."""
    with torch.no_grad():
        start = 0
        for value in trainable(expert).values():
            width = value.numel() // expert.num_experts
            value.copy_(vectors[:, start : start + width].reshape(value.shape))
            start += width


def gradient_vectors(expert: Expert, total: Tensor, create_graph: bool = False) -> Tensor:
    """Gradient of a sum over experts with respect to each expert's hyperparameters, shape (M, P)."""
    parameters = list(trainable(expert).values())
    gradients = torch.autograd.grad(
        total, parameters, create_graph=create_graph, retain_graph=True, materialize_grads=True
    )
    return torch.cat([g.reshape(expert.num_experts, -1) for g in gradients], dim=-1)
