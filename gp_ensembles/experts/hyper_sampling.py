"""Sampling of hyperparameters around each mode: a Laplace approximation of the evidence, or Gaussian perturbation."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.empirical_bayes import get_vectors, gradient_vectors, log_posterior, set_vectors_
from gp_ensembles.numerics.draws import generator_device


class LaplaceInformation(NamedTuple):
    """Diagnostics of the approximation, per mode."""

    eigenvalues: Tensor  # eigenvalues of the negative Hessian before flooring, shape (M, P)
    num_floored: Tensor  # how many were below the prior precision (negative ones included), shape (M,)
    standard_deviations: Tensor  # of the approximation in the unconstrained space, shape (M, P)


class GaussianPerturbation(NamedTuple):
    """Independent Gaussian noise on every hyperparameter.

    Attributes:
        variance: Its variance in the unconstrained space (logarithms of length scales, variances and noise; centers and
            frequencies as they are).
    """

    variance: float = 1e-3


def negative_hessian(expert: Expert, X: Tensor, y: Tensor) -> Tensor:
    """Negative Hessian of each expert's log posterior in its unconstrained hyperparameters, (M, P, P)."""
    gradient = gradient_vectors(expert, log_posterior(expert, X, y).sum(), create_graph=True)
    rows = [gradient_vectors(expert, gradient[:, p].sum()) for p in range(gradient.shape[-1])]
    hessian = torch.stack(rows, dim=-2).detach()
    return -0.5 * (hessian + hessian.mT)


def sample_hyperparameters(
    expert: Expert,
    X: Tensor,
    y: Tensor,
    num_samples: int,
    prior_precision: float = 4.0,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Expert, LaplaceInformation]:
    r"""Experts with hyperparameters drawn from a Laplace approximation around each expert's own.

    With H the negative Hessian of the log evidence in the unconstrained space, draws are
    :math:`N(\hat\psi, \tilde H^{-1})` (Waxman and Djuric 2024, section 4.1). Away from a proper maximum H is
    indefinite; its eigenvalues are floored at ``prior_precision``, which is the approximation under an extra
    Gaussian prior in those directions. Draws are independent copies: features drawn at random stay those of
    their mode.

    Args:
        expert: Fitted experts, batch shape () or (M,); not changed.
        X: Warm-up inputs, shape (N, D).
        y: Warm-up targets, shape (N,).
        num_samples: Draws S per expert.
        prior_precision: Floor of the eigenvalues of H, per squared unit of the unconstrained space.
        generator: Source of randomness.

    Returns:
        Experts with batch shape (M S,), the draws of the first expert first, and what was found.

    Raises:
        ValueError: If ``num_samples`` or ``prior_precision`` is not positive.

    Example:
        >>> import torch
        >>> from gp_ensembles.experts.gaussian import GaussianExpert
        >>> from gp_ensembles.features import LinearFeatures
        >>> X = torch.linspace(-1, 1, 40, dtype=torch.float64).unsqueeze(-1)
        >>> expert = GaussianExpert(LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64)))
        >>> samples, _ = sample_hyperparameters(expert, X, X.squeeze(-1), 3, generator=torch.Generator())
        >>> samples.batch_shape
        torch.Size([3])
    """
    if num_samples < 1 or not prior_precision > 0:
        raise ValueError(f"num_samples and prior_precision must be positive, got {num_samples} and {prior_precision}")
    eigenvalues, axes = torch.linalg.eigh(negative_hessian(expert, X, y))
    if not bool(torch.isfinite(eigenvalues).all()):
        raise ValueError("the Hessian of the log evidence is not finite; fit the hyperparameters first")
    deviations = eigenvalues.clamp_min(prior_precision).rsqrt()
    mode = get_vectors(expert)
    shape = (mode.shape[0], num_samples, mode.shape[1])
    normals = torch.randn(
        shape, generator=generator, dtype=torch.float64, device=generator_device(generator, mode.device)
    ).to(mode)
    draws = mode.unsqueeze(1) + (normals * deviations.unsqueeze(1)) @ axes.mT

    samples = repeat_expert(expert, num_samples)
    set_vectors_(samples, draws.reshape(-1, mode.shape[1]))
    spread = ((axes * deviations.unsqueeze(-2)).square().sum(-1)).sqrt()
    return samples, LaplaceInformation(eigenvalues, (eigenvalues < prior_precision).sum(-1), spread)


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


def repeat_expert(expert: Expert, num_copies: int) -> Expert:
    """Independent copies of every expert of a batch, () or (M,): batch shape (M S,), the first expert's first."""
    return expert.take(torch.arange(expert.num_experts, device="cpu").repeat_interleave(num_copies))
