"""Targets that might be observed, drawn from a model."""

from botorch.models.model import Model
from botorch.models.utils.assorted import fantasize as fantasize_flag
from botorch.sampling.base import MCSampler
from torch import Tensor


def draw_targets(model: Model, X: Tensor, sampler: MCSampler, noise: Tensor | None) -> tuple[Tensor, Tensor | None]:
    r"""Draws of what would be observed at X.

    Args:
        model: The model.
        X: Inputs, shape (\*t, q, D); q may be zero.
        sampler: Draws, noise included.
        noise: Noise variance of an observation, (..., q or 1, O), in transformed outcomes; the model's own if ``None``.

    Returns:
        Targets, shape (\*s, \*t, q, O) with \*s the sampler's shape, and the noise of each row, (..., q, O).
    """
    num_rows = X.shape[-2]
    each = None if noise is None else noise.expand(*noise.shape[:-2], num_rows, noise.shape[-1])
    if num_rows == 0:
        return X.new_empty(*sampler.sample_shape, *X.shape[:-1], model.num_outputs), each
    with fantasize_flag():
        return sampler(model.posterior(X, observation_noise=True if noise is None else noise)), each
