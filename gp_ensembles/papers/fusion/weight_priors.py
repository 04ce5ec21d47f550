"""The prior of weights as functions of the input, where none is given."""

import torch
from torch import Tensor

from gp_ensembles.numerics.draws import normal_draws
from gp_ensembles.papers.fusion.function_priors import FourierPrior


def weight_prior(X: Tensor, num_frequencies: int = 30, *, generator: torch.Generator | None = None) -> FourierPrior:
    r"""Functions that change over :math:`\sqrt D` standard deviations of every input column, of amplitude one.

    Shapes: ``X`` (N, D).
    """
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    spread = X.std(0, unbiased=False)
    # A column that does not change has no say, whatever its length scale.
    scale = torch.where(spread > 0, spread, torch.ones_like(spread)) * X.shape[1] ** 0.5
    return FourierPrior(normal_draws((num_frequencies, X.shape[1]), X, generator), scale)
