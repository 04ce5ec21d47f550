"""The distribution of one row as it was said: from draws, and as plain containers for files."""

from typing import Any

import torch
from torch import Tensor

from gp_ensembles.distributions import LatentMixture, Mixture, Recalibrated, StudentTMixture
from gp_ensembles.streaming.predictions import StreamDistribution
from gp_ensembles.streaming.running import certain_classes

_KINDS: dict[str, Any] = {"mixture": Mixture, "student_t": StudentTMixture, "recalibrated": Recalibrated}


def smoothed_draws(draws: Tensor) -> Mixture:
    """A density from draws: a normal kernel at each, with the mean and variance of the draws.

    Shapes: ``draws`` (S,).
    """
    variance, mean = torch.var_mean(draws, correction=0)
    lower, upper = torch.quantile(draws, draws.new_tensor([0.25, 0.75])).unbind()
    deviation = variance.sqrt()
    spread = torch.minimum(deviation, (upper - lower) / 1.349)
    # Draws that are half the same have no interquartile range; draws that are all the same have no density.
    spread = torch.where(spread > 0, spread, deviation).clamp_min(torch.finfo(draws.dtype).tiny ** 0.5)
    bandwidth = 0.9 * spread * draws.shape[0] ** -0.2
    within = (variance - bandwidth.square()).clamp_min(0.0) / variance.clamp_min(torch.finfo(draws.dtype).tiny)
    centers = mean + within.sqrt() * (draws - mean)
    log_weights = torch.zeros_like(draws).log_softmax(0)
    return Mixture(log_weights, centers.unsqueeze(-1), bandwidth.square().expand_as(draws).unsqueeze(-1))


def predictions_to_plain(predicted: StreamDistribution) -> dict[str, Any]:
    """A distribution as plain containers and tensors, which :func:`predictions_from_plain` reads back.

    Raises:
        TypeError: If it is one of counts.
    """
    if isinstance(predicted, LatentMixture):
        return {"kind": "classes", "probabilities": predicted.class_probabilities.clone().cpu()}
    kind = next(name for name, known in _KINDS.items() if isinstance(predicted, known))
    plain: dict[str, Any] = {"kind": kind}
    for name, value in predicted._asdict().items():
        plain[name] = value.clone().cpu() if isinstance(value, Tensor) else predictions_to_plain(value)
    return plain


def predictions_from_plain(plain: dict[str, Any], device: torch.device) -> StreamDistribution:
    """The distribution that :func:`predictions_to_plain` wrote."""
    if plain["kind"] == "classes":
        return certain_classes(plain["probabilities"].to(device))
    fields: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Tensor):
            fields[name] = value.to(device)
        elif name == "base":
            fields[name] = predictions_from_plain(value, device)
    predicted: StreamDistribution = _KINDS[plain["kind"]](**fields)
    return predicted
