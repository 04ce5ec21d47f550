"""The kernels that an ensemble of latent variable models usually starts from."""

from collections.abc import Sequence

import torch
from gpytorch.kernels import RBFKernel

from gp_ensembles.features import RandomFourierFeatures

# Squared length scales 2^k, k = -3 ... 3 (Lu et al. 2022, section 7), in units of the latent prior's variance of one.
RBF_VARIANCES = tuple(2.0**power for power in range(-3, 4))


def rbf_features(
    num_latent: int = 2,
    num_frequencies: int = 50,
    *,
    variances: Sequence[float] = RBF_VARIANCES,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> RandomFourierFeatures:
    r"""Random Fourier features of RBF kernels :math:`\exp(-\|x - x'\|^2 / (2 \ell^2))`, one expert a length scale.

    Args:
        num_latent: Number of latent inputs d.
        num_frequencies: Frequencies of each expert; it has twice as many features.
        variances: Squared length scales :math:`\ell^2` of the experts, in units of the latent inputs squared.
        generator: Source of randomness; torch's global one if ``None``.
        dtype: Of everything that is made from the features.

    Raises:
        ValueError: If there is no variance, or a number is not positive.

    Example:
        >>> rbf_features(2, 50, generator=torch.Generator().manual_seed(0)).batch_shape
        torch.Size([7])
    """
    if not variances or min(variances) <= 0:
        raise ValueError(f"variances must be positive and at least one, got {tuple(variances)}")
    if num_latent < 1 or num_frequencies < 1:
        raise ValueError(f"num_latent and num_frequencies must be at least 1, got {num_latent} and {num_frequencies}")
    kernel = RBFKernel(batch_shape=torch.Size([len(variances)])).to(dtype)
    squares = kernel.lengthscale.new_tensor(variances)
    kernel.lengthscale = squares.sqrt().reshape(-1, 1, 1)
    return RandomFourierFeatures.from_kernel(kernel, num_latent, 2 * num_frequencies, generator=generator)
