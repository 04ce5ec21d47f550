"""Hyperparameters moved at random: more experts around each mode where there are too many for a Hessian."""

from typing import NamedTuple

import torch

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.hyper_laplace import repeat_expert
from gp_ensembles.experts.parameters import get_vectors, set_vectors_
from gp_ensembles.numerics.draws import generator_device


class GaussianPerturbation(NamedTuple):
    """Independent Gaussian noise on every hyperparameter.

    Attributes:
        variance: Its variance in the unconstrained space (logarithms of length scales, variances and noise; centers and
            frequencies as they are).
    """

    variance: float = 1e-3


def perturb_hyperparameters(
    expert: Expert, num_samples: int, variance: float = 1e-3, *, generator: torch.Generator | None = None
) -> Expert:
    r"""Experts with hyperparameters :math:`\hat\psi + N(0, v I)` around each expert's own.

    What Waxman and Djuric (2024, section 4.1 and appendix H) do for centers and frequencies that are trained: their
    Hessian is large, and this needs none. Draws are independent copies; features drawn at random stay those of their
    mode.

    Args:
        expert: Fitted experts, batch shape () or (M,); not changed.
        num_samples: Draws S per expert.
        variance: Variance v, in squared units of the unconstrained space.
        generator: Source of randomness.

    Returns:
        Experts with batch shape (M S,), the draws of the first expert first.

    Raises:
        ValueError: If ``num_samples`` or ``variance`` is not positive.

    Example:
        >>> import torch
        >>> from gp_ensembles.experts.gaussian import GaussianExpert
        >>> from gp_ensembles.features import LinearFeatures
        >>> expert = GaussianExpert(LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64)))
        >>> near = perturb_hyperparameters(expert, 3, 1e-6, generator=torch.Generator().manual_seed(0))
        >>> near.batch_shape, bool((near.features.prior_variance - 1).abs().max() < 0.01)
        (torch.Size([3]), True)
    """
    if num_samples < 1 or not variance > 0:
        raise ValueError(f"num_samples and variance must be positive, got {num_samples} and {variance}")
    samples = repeat_expert(expert, num_samples)
    modes = get_vectors(samples)
    where = generator_device(generator, modes.device)
    normals = torch.randn(modes.shape, generator=generator, dtype=torch.float64, device=where).to(modes)
    set_vectors_(samples, modes + variance**0.5 * normals)
    return samples
