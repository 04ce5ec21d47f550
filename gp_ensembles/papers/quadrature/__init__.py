"""Marginalization over stationary kernels by Bayesian quadrature (MASKERADE; Hamid et al., 2022).

``marginalize(RegressionProblem(X, y), Budget(200))`` gives a :class:`Marginalization`: the evidence, the posterior over
the number of spectral mixture components, predictions, and the heaviest kernels.

================  ======================================================================================================
marginalization   ``marginalize``: the loop within a ``Budget``, and its checkpoints
result            ``Marginalization``, its result; ``Quadrature``, the paper's numbers by their own name
problem           ``RegressionProblem``: data, prior and a ``likelihood`` of the next three modules; ``Deadline``
likelihoods       log marginal likelihoods of many kernels at once, and their conditioned processes;
                  ``DenseLikelihood``, exact for any inputs
toeplitz          ``ToeplitzLikelihood``: exact and fast for series on an equally spaced grid, with gaps or without
low_rank          ``SparseLikelihood``, a lower bound by fixed knots
prior             ``Hyperprior``: the prior over kernels as a map from the unit cube; ``default_prior`` and
                  ``paper_prior``, made from the data; a ``fixed`` or ``inferred`` output scale and noise
spectral_mixture  ``SpectralMixtures`` and their covariance; ``SpectralMixtureKernel`` for GPyTorch
search            ``Search``: the order in which kernels are evaluated; ascents, peaks of the periodogram, multiples
policies          selection of the next kernels: ``InformationPolicy`` (MASKERADE-I), ``UncertaintyPolicy`` (-U),
                  ``PriorPolicy`` (-R), and their acquisition functions, as BoTorch's
surrogate         the Gaussian process on the square root of the likelihood (WSABI-L), and its fit; the kernel between
                  kernels, of their ``KernelDistance``
quadrature        nodes, estimates of the evidence, posterior weights of kernels, the jackknife
evidence          the evidence of one component, two, ... by importance sampling; why it is doubted, if it is
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
