"""The ensemble of a model, built from its warm-up rows."""

import torch
from torch import Tensor

from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.inputs import InputPath


def build(
    config: StreamConfig, path: InputPath, X: Tensor, y: Tensor, *, is_fitted: bool, progress: bool = False
) -> OnlineEnsemble:
    """The ensemble of a config.

    Shapes: ``X`` (N, D), ``y`` (N,) or (N, O).

    Raises:
        NumericalError: If an expert's evidence cannot be computed where it starts.
    """
    spec, generator = config.ensemble, torch.Generator().manual_seed(config.seed)  # on the CPU: the same everywhere
    inputs = path.with_forecasts(path.follow(path.start(), X, 1).inputs, X)
    targets = path.targets(y).to(config.torch_dtype)
    if is_fitted:
        online = spec.fit(inputs, targets, generator=generator, progress=progress)
    else:
        online = spec.unfitted(inputs, targets, generator=generator)
    if config.block_size is not None:
        online.block_size = config.block_size
    return online
