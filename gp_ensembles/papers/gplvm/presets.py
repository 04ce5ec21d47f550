"""The paper's ensemble of latent variable models, over the paper's kernels."""

import math
from collections.abc import Sequence
from operator import index

import torch
from gpytorch.kernels import RBFKernel

from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.meta_learners import MarkovSwitching
from gp_ensembles.meta_learners.switching import sticky_transition
from gp_ensembles.numerics.arguments import describe_argument
from gp_ensembles.papers.gplvm.model import IEGPLVM
from gp_ensembles.papers.gplvm.records import LatentSettings

# Squared length scales 2^k, k = -3 ... 3 (Lu et al. 2022, section 7.3), of a prior of variance one.
RBF_VARIANCES = tuple(2.0**power for power in range(-3, 4))


def rbf_features(
    num_latent: int = 2,
    num_frequencies: int = 50,
    *,
    variances: Sequence[float] = RBF_VARIANCES,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> RandomFourierFeatures:
    r"""Random Fourier features of RBF kernels :math:`\exp(-\|x - x'\|^2 / (2 \ell^2))`, one expert per length scale.

    Args:
        num_latent: Number of latent inputs d.
        num_frequencies: Frequencies of each expert; it has twice as many features.
        variances: Squared length scales :math:`\ell^2` of the experts, in units of the latent inputs squared.
        generator: Source of randomness; torch's global one if ``None``.
        dtype: Of everything that is made from the features.

    Raises:
        ValueError: If there is no variance, a number is not positive, or the dtype is not one of 32 or 64 bits.

    Example:
        >>> rbf_features(2, 50, generator=torch.Generator().manual_seed(0)).batch_shape
        torch.Size([7])
    """
    squares = [float(variance) for variance in variances]
    if not squares or not all(0 < variance < math.inf for variance in squares):
        raise ValueError(f"variances must be positive and finite, and at least one, got {squares}")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    if num_latent < 1 or num_frequencies < 1:
        raise ValueError(f"num_latent and num_frequencies must be at least 1, got {num_latent} and {num_frequencies}")
    kernel = RBFKernel(batch_shape=torch.Size([len(squares)])).to(dtype)
    kernel.lengthscale = kernel.lengthscale.new_tensor(squares).sqrt().reshape(-1, 1, 1)
    return RandomFourierFeatures.from_kernel(kernel, num_latent, 2 * num_frequencies, generator=generator)


def ie_gplvm(
    num_outputs: int,
    num_latent: int = 2,
    num_frequencies: int = 50,
    *,
    stay: float | None = None,
    settings: LatentSettings | None = None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
) -> IEGPLVM:
    """Incremental ensemble of latent variable models over RBF kernels (IE-GPLVM; Lu et al. 2022, section 6).

    The variants of their remark 4: switching (SIE-GPLVM) with ``stay``, such as 0.99; dynamic (DIE-GPLVM), so that what
    rows look like may drift, with ``LatentSettings(random_walk_ratio=1e-4)``; with both, DSIE-GPLVM.

    Args:
        num_outputs: Number of entries D of a row.
        num_latent: Number of latent inputs d.
        num_frequencies: Frequencies of each expert.
        stay: Probability with which the expert that is right stays so from row to row; ``None`` if one is right for
            all rows.
        settings: What all experts share; ``LatentSettings()`` if ``None``.
        generator: Source of randomness; torch's global one if ``None``.
        dtype: Of the model and of its rows.

    Example:
        >>> ie_gplvm(12, generator=torch.Generator().manual_seed(0)).num_experts
        7
        >>> type(ie_gplvm(12, stay=0.99).meta_learner).__name__
        'MarkovSwitching'
    """
    try:
        index(num_outputs)
    except TypeError:
        found = describe_argument(num_outputs)
        raise TypeError(f"num_outputs must be an integer, the number of columns, got {found}") from None
    features = rbf_features(num_latent, num_frequencies, generator=generator, dtype=dtype)
    if stay is None:
        return IEGPLVM(features, num_outputs, settings=settings)
    rule = MarkovSwitching(sticky_transition(features.batch_shape[0], stay).to(features.normals))
    return IEGPLVM(features, num_outputs, rule, settings)
