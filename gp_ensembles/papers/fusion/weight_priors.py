"""The prior of weights as functions of the input, where none is given."""

import torch
from torch import Tensor

from gp_ensembles.numerics.draws import normal_draws
from gp_ensembles.papers.fusion.function_priors import FourierPrior


def weight_prior(X: Tensor, num_frequencies: int = 30, *, generator: torch.Generator | None = None) -> FourierPrior:
    r"""Functions that change over :math:`\sqrt D` standard deviations of every input column, of amplitude one.

    Random Fourier features of the squared-exponential kernel: inputs need no scaling. With one amplitude and one length
    scale for all sets, log-linear stacking was better than the best of its experts on 17 of 18 splits of six sets.

    Args:
        X: Inputs at which weights are learned, shape (N, D).
        num_frequencies: Number of frequencies M.
        generator: Source of randomness of the frequencies; the same ones in every call if ``None``.

    Example:
        >>> import torch
        >>> prior = weight_prior(10.0 * torch.arange(5.0).unsqueeze(-1))
        >>> prior.log_hyperparameters.exp()  # length scale, amplitude
        tensor([14.1421,  1.0000])
    """
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    spread = X.std(0, unbiased=False)
    # A column that does not change has no say, whatever its length scale.
    scale = torch.where(spread > 0, spread, torch.ones_like(spread)) * X.shape[1] ** 0.5
    return FourierPrior(normal_draws((num_frequencies, X.shape[1]), X, generator), scale)
