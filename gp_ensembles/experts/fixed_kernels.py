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
    """Whether nothing of an expert is to be fitted but its noise and the scale of a kernel, without priors."""
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

    Shapes: ``X`` (N, D), ``y`` (N,); returns (M,).

    Raises:
        ValueError: If an expert has more to be fitted.
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
