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

    Returns shape (M S,).

    Raises:
        ValueError: If ``num_samples`` or ``variance`` is not positive.
    """
    if num_samples < 1 or not variance > 0:
        raise ValueError(f"num_samples and variance must be positive, got {num_samples} and {variance}")
    samples = repeat_expert(expert, num_samples)
    modes = get_vectors(samples)
    where = generator_device(generator, modes.device)
    normals = torch.randn(modes.shape, generator=generator, dtype=torch.float64, device=where).to(modes)
    set_vectors_(samples, modes + variance**0.5 * normals)
    return samples
