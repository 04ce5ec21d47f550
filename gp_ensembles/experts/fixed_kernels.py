"""Empirical Bayes of experts whose kernel is fixed: noise and prior variance alone, by a search in one dimension."""

import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.empirical_bayes import log_priors
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.experts.parameters import trainable
from gp_ensembles.experts.profiled_evidence import best_variances, profile
from gp_ensembles.features.fourier import RandomFourierFeatures

_OWN = frozenset({"features.kernel.raw_outputscale", "likelihood.noise_covar.raw_noise"})


def has_fixed_kernels(expert: Expert) -> bool:
    """Whether nothing of an expert is to be fitted but its noise and the scale of a kernel, without priors.

    Example:
        >>> from gp_ensembles.ensembles.bases import FourierBasis, KernelDictionary
        >>> X = torch.rand(20, 2, generator=torch.Generator().manual_seed(0))
        >>> maps = [map for basis in (KernelDictionary(10), FourierBasis(10)) for _, map in basis.build(X)]
        >>> [has_fixed_kernels(GaussianExpert(features)) for features in maps]
        [True, False]
    """
    return (
        isinstance(expert, GaussianExpert)
        and isinstance(expert.features, RandomFourierFeatures)
        and isinstance(expert.features.kernel, ScaleKernel)
        and set(trainable(expert)) == _OWN
        and isinstance(log_priors(expert), float)
    )


@torch.no_grad()
def fit_fixed_kernels(expert: GaussianExpert, X: Tensor, y: Tensor) -> Tensor:
    """Give every expert of a batch the noise and prior variance with the highest evidence, in place.

    It needs no start: :func:`~gp_ensembles.experts.profiled_evidence.best_variances` looks at all of them. A climb from
    one start ends where the evidence is flat, on inputs of a range that the length scales do not fit hundreds of nats
    below.

    Args:
        expert: Experts with :func:`has_fixed_kernels`.
        X: Warm-up inputs, shape (N, D).
        y: Warm-up targets, shape (N,); NaN rows are left out.

    Returns:
        The log evidence reached, shape (M,).

    Raises:
        ValueError: If an expert has more to be fitted.

    Example:
        >>> from gp_ensembles.ensembles.bases import KernelDictionary
        >>> X = torch.linspace(0, 0.1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> ((_, features),) = KernelDictionary(20).build(X, generator=torch.Generator().manual_seed(0))
        >>> expert = GaussianExpert(features)
        >>> evidence = fit_fixed_kernels(expert, X, (40 * X.squeeze(-1)).sin())
        >>> bool((expert.features.prior_variance > 1e6).any())  # smooth kernels of narrow inputs need large weights
        True
    """
    if not has_fixed_kernels(expert):
        raise ValueError("an expert has more to be fitted than noise and scale; use fit_empirical_bayes")
    kernel, noise_model = expert.features.kernel, expert.likelihood.noise_covar
    assert isinstance(kernel, ScaleKernel)
    least = float(noise_model.raw_noise_constraint.lower_bound)
    above = least + max(least, 1e-6) ** 2  # the bound itself is infinitely far away on the scale of logarithms
    best = best_variances(profile(expert.features(X), y), above)
    kernel.outputscale = best.prior.to(X)
    expert.likelihood.noise = best.noise.to(X).unsqueeze(-1)
    return best.log_evidence
