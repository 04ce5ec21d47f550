"""Quasi-Monte Carlo for mixtures: BoTorch finds the sampler here."""

import torch
from botorch.sampling.base import MCSampler
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from torch.quasirandom import SobolEngine

from gp_ensembles.bo.posterior import MixturePosterior


@GetSampler.register(MixturePosterior)  # type: ignore[untyped-decorator]
def mixture_sampler(posterior: MixturePosterior, sample_shape: torch.Size, *, seed: int | None = None) -> MCSampler:
    """Sobol normals up to the most dimensions that torch has, independent ones beyond.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 2, 1)
        >>> posterior = MixturePosterior(torch.zeros(1), one, torch.diag_embed(one.mT))
        >>> mixture_sampler(posterior, torch.Size([16]), seed=0)(posterior).shape
        torch.Size([16, 2, 1])
    """
    few = posterior.base_sample_shape[-1] <= SobolEngine.MAXDIM
    return (SobolQMCNormalSampler if few else IIDNormalSampler)(sample_shape, seed=seed)
