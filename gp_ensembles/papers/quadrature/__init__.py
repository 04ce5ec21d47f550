"""Marginalization over stationary kernels by Bayesian quadrature (MASKERADE; Hamid et al., 2022).

``marginalize(RegressionProblem(X, y), Budget(200))`` returns a :class:`Marginalization`: evidence, the posterior over
the number of spectral mixture components, predictions, and the heaviest kernels.

================  ======================================================================================================
marginalization   ``marginalize``: the loop within a ``Budget``, and its checkpoints
result            ``Marginalization``, its result; ``Quadrature``, the paper's estimates
problem           ``RegressionProblem``: data, prior and a ``likelihood`` of the next three modules; ``Deadline``
likelihoods       log marginal likelihoods of many kernels at once, and their conditioned processes;
                  ``DenseLikelihood``, exact for any inputs
toeplitz          ``ToeplitzLikelihood``: exact and fast for series on an equally spaced grid, gaps allowed
low_rank          ``SparseLikelihood``, a lower bound with fixed knots
prior             ``Hyperprior``: the prior over kernels as a map from the unit cube; ``default_prior`` and
                  ``paper_prior``, derived from the data; a ``fixed`` or ``inferred`` output scale and noise
spectral_mixture  ``SpectralMixtures`` and their covariance; ``SpectralMixtureKernel`` for GPyTorch
search            ``Search``: the order in which kernels are evaluated; ascents, periodogram peaks, harmonics
policies          selection of the next kernels: ``InformationPolicy`` (MASKERADE-I), ``UncertaintyPolicy`` (-U),
                  ``PriorPolicy`` (-R), and their acquisition functions for BoTorch
surrogate         the Gaussian process on the square root of the likelihood (WSABI-L), and its fit; the hyper-kernel on
                  kernels, a function of ``KernelDistance``
quadrature        nodes, estimates of the evidence, posterior weights of kernels, the jackknife
evidence          the evidence of 1, 2, ... components by importance sampling, and reasons to doubt it, if any
importance        integrals by adaptive importance sampling; permutations and reflections of components in the weights
proposals         mixtures of Student-t distributions, at modes and refitted to weighted draws
kernel_mixture    ``KernelMixtureModel``: the mixture of kernels as a BoTorch model; the paper's mixtures of products of
                  roots, with standard errors
================  ======================================================================================================
"""

from gp_ensembles.papers.quadrature.kernel_mixture import KernelMixtureModel
from gp_ensembles.papers.quadrature.marginalization import Budget, marginalize
from gp_ensembles.papers.quadrature.policies import InformationPolicy, PriorPolicy, UncertaintyPolicy
from gp_ensembles.papers.quadrature.prior import Hyperprior, paper_prior
from gp_ensembles.papers.quadrature.problem import RegressionProblem
from gp_ensembles.papers.quadrature.search import Search

__all__ = [
    "Budget",
    "Hyperprior",
    "InformationPolicy",
    "KernelMixtureModel",
    "PriorPolicy",
    "RegressionProblem",
    "Search",
    "UncertaintyPolicy",
    "marginalize",
    "paper_prior",
]
