"""The default ensemble of a BoTorch model: a dictionary of kernels with BoTorch's own priors."""

import copy
import math
from collections.abc import Sequence

import torch
from botorch.models.utils.assorted import check_min_max_scaling
from botorch.models.utils.gpytorch_modules import MIN_INFERRED_NOISE_LEVEL
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features.compose import Concatenate
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.features.linear import ConstantFeatures
from gp_ensembles.filters.transitions import StabilizedForgetting
from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from gp_ensembles.meta_learners.switching import MarkovSwitching, sticky_transition
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.spectral.frequencies import OrthogonalDraws

SMOOTHNESSES = (math.inf, 2.5, 1.5)
_MIN_LENGTHSCALE = 2.5e-2
_MIN_OUTPUTSCALE = 1e-4
_STAY = 0.99  # probability that the Markov chain over experts stays


def kernel_ensemble(
    X: Tensor,
    *,
    num_features: int = 256,
    smoothnesses: Sequence[float] = SMOOTHNESSES,
    forgetting: Sequence[float] = (),
    generator: torch.Generator | None = None,
) -> Ensemble:
    r"""Random-feature experts with ARD Matern and RBF kernels, hyperparameters not yet fitted.

    Length scales have the dimension-scaled priors, and the noise the prior, of BoTorch's ``SingleTaskGP`` (Hvarfner et
    al. 2024); output scales have a log-normal prior around one. A constant of unit prior variance is added to each
    kernel: observations gather near an optimum, far from their mean elsewhere. Without ``forgetting`` the experts are
    static and weighed by Bayesian model averaging: their weights are their evidence.

    Args:
        X: Any inputs of the dtype and device wanted, about the unit cube, shape (n, D).
        num_features: Features of each expert, twice the number of frequencies. With many more observations than half of
            them the posterior variance is too small between the observations.
        smoothnesses: One expert for each: 0.5, 1.5 or 2.5 of a Matern kernel, infinity for the RBF kernel.
        forgetting: For objectives that change: each number :math:`\lambda` adds a copy of every expert whose function
            values keep a correlation of :math:`\sqrt\lambda` from one observation to the next and fall back to the
            prior; weights then follow a Markov chain.
        generator: Source of the frequencies; torch's global one if ``None``.

    Raises:
        ValueError: If there is no kernel, or a number is out of its range.

    Example:
        >>> import torch
        >>> ensemble = kernel_ensemble(
        ...     torch.rand(5, 2, dtype=torch.float64), smoothnesses=[2.5], forgetting=[0.98]
        ... )
        >>> ensemble.names
        ('matern 2.5', 'matern 2.5 forgetting 0.98')
    """
    if not smoothnesses:
        raise ValueError("name at least one smoothness: 0.5, 1.5, 2.5 or infinity")
    experts: list[Expert] = []
    names = []
    for factor in (None, *forgetting):
        for nu in smoothnesses:
            kernel = ScaleKernel(_kernel(nu, X.shape[-1]), LogNormalPrior(0.0, 1.0), _greater_than(_MIN_OUTPUTSCALE))
            kernel.outputscale = 1.0
            fourier = RandomFourierFeatures.from_kernel(
                kernel.to(X), X.shape[-1], num_features, draws=OrthogonalDraws(), generator=generator
            )
            constant = ConstantFeatures(X.shape[-1], X.new_ones(())).requires_grad_(False)
            features = Concatenate([fourier, constant])
            transition = None if factor is None else StabilizedForgetting(factor)
            likelihood = _gaussian_likelihood().to(X)
            experts.append(GaussianExpert(features, likelihood, transition))
            label = kernel_name(nu)
            names.append(label if factor is None else f"{label} forgetting {factor:g}")
    rule = MarkovSwitching(sticky_transition(len(experts), _STAY).to(X)) if forgetting else BayesianModelAveraging()
    return Ensemble(experts, rule, names)


def kernel_name(nu: float) -> str:
    """Of a kernel's smoothness."""
    return "rbf" if math.isinf(nu) else f"matern {nu:g}"


@torch.no_grad()
def allow_length_scales_(expert: Expert, scales: Tensor) -> None:
    """Lower the default bound of an expert's length scales, in place, where some are shorter that data ask for."""
    for kernel in expert.modules():
        if isinstance(kernel, RBFKernel | MaternKernel):
            bound, least = kernel.raw_lengthscale_constraint.lower_bound, 0.5 * float(scales.min())
            if math.isclose(bound, _MIN_LENGTHSCALE, rel_tol=1e-6) and least < _MIN_LENGTHSCALE:
                value = kernel.lengthscale
                bound.fill_(least)
                kernel.lengthscale = value


def make_ensemble(
    ensemble: Ensemble | OnlineEnsemble | EnsembleSpec | None, X: Tensor, Y: Tensor, generator: torch.Generator | None
) -> Ensemble:
    """The ensemble of a model, from its ``ensemble`` argument and its transformed data."""
    if ensemble is None:
        check_min_max_scaling(X)  # warns: the priors of length scales are for the unit cube
        return kernel_ensemble(X, generator=generator)
    if isinstance(ensemble, OnlineEnsemble):
        ensemble = ensemble.ensemble
    if isinstance(ensemble, Ensemble):
        own = copy.deepcopy(ensemble)  # fitting one model must not change another
        return Ensemble(own.experts, own.meta_learner, own.expert_names)
    if not isinstance(ensemble, EnsembleSpec):
        raise TypeError(
            f"ensemble must be an Ensemble, an OnlineEnsemble or an EnsembleSpec, got {type(ensemble).__name__}"
        )
    return make_ensemble(ensemble.fit(X, Y.squeeze(-1), generator=generator), X, Y, generator)


def _gaussian_likelihood() -> GaussianLikelihood:
    """BoTorch's likelihood for standardized targets, with its prior, on a log scale (its own has bounds instead)."""
    prior = LogNormalPrior(-4.0, 1.0)
    likelihood = GaussianLikelihood(prior, noise_constraint=_greater_than(MIN_INFERRED_NOISE_LEVEL))
    likelihood.noise = prior.mode
    return likelihood


def _kernel(nu: float, num_inputs: int) -> Kernel:
    prior = LogNormalPrior(math.sqrt(2) + 0.5 * math.log(num_inputs), math.sqrt(3))
    bound = _greater_than(_MIN_LENGTHSCALE)
    options = {"ard_num_dims": num_inputs, "lengthscale_prior": prior, "lengthscale_constraint": bound}
    kernel: Kernel = RBFKernel(**options) if math.isinf(nu) else MaternKernel(nu, **options)
    kernel.lengthscale = prior.mode
    return kernel


def _greater_than(bound: float) -> GreaterThan:
    return GreaterThan(bound, transform=torch.exp, inv_transform=torch.log)
