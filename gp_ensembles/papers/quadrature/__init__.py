"""Marginalization over stationary kernels by Bayesian quadrature (MASKERADE; Hamid et al., 2022).

``marginalize(RegressionProblem(X, y), Budget(200))`` gives a :class:`Marginalization`: the evidence, the posterior over
the number of spectral mixture components, predictions, and the heaviest kernels.

================  ======================================================================================================
marginalization   ``marginalize``: the loop within a ``Budget``
result            ``Marginalization``, its result; ``Quadrature``, the paper's numbers by their own name
problem           ``RegressionProblem``: data, prior and a ``likelihood`` of the next three modules; ``Evaluations`` and
                  ``WeightedKernels``
likelihoods       log marginal likelihoods of many kernels at once, and their conditioned processes;
                  ``DenseLikelihood``, exact for any inputs
toeplitz          ``ToeplitzLikelihood``: exact and fast for series on an equally spaced grid, with gaps or without
low_rank          ``SparseLikelihood``, a lower bound by fixed knots, and ``FourierLikelihood``, random features
search            ``Search``: the order in which kernels are evaluated; the state of a search and its checkpoints
policies          selection of the next kernels: ``InformationPolicy`` (MASKERADE-I), ``UncertaintyPolicy`` (-U),
                  ``PriorPolicy`` (-R); ``AcquisitionOptimizer``
acquisition       acquisition functions of the policies, as BoTorch's
ascent            gradient ascents of the posterior density, and their starts at peaks of the periodogram
prior             ``Hyperprior``: the prior over kernels as a map from the unit cube; its marginals ``HalfNormal``,
                  ``Normal`` and ``LogNormal``; a ``fixed`` or ``inferred`` output scale and noise
default_priors    ``default_prior`` and ``paper_prior``, made from the data
spectral_mixture  ``SpectralMixtures`` and their covariance; ``SpectralMixtureKernel`` for GPyTorch; reflection of
                  components ``AT_ORIGIN`` or, for products of cosines, ``IN_EACH_INPUT``
hyperkernel       the kernel between kernels: ``MaximumMeanDiscrepancy`` of mixtures with an ``EnergyDistance`` or
                  ``MaternDistance`` between ``AtomCoordinates``; ``KernelDistance``, of a problem's kernels
surrogate         the Gaussian process on the square root of the likelihood (WSABI-L), and its fit
evidence          ``Evidence`` for each number of components by importance sampling; why it is doubted, if it is
importance        integrals by adaptive importance sampling; ``ImportanceDraws`` and their ``ImportanceEstimate``
modes             modes of a posterior, Laplace's approximations at them, and the mixture these make
student_mixture   proposals: mixtures of Student-t distributions, and their refit to weighted draws
relabeling        permutations and reflections of components, counted in the weights
quadrature        nodes, estimates of the evidence, posterior weights of kernels, the jackknife
prediction        predictions of targets by the mixture, with standard errors
kernel_mixture    ``KernelMixtureModel``: the mixture as a BoTorch model; the paper's mixtures of products of roots
================  ======================================================================================================

The surrogate computes the paper's hyper-kernel on distances computed once. :class:`MMDHyperKernel` is the same as a
GPyTorch kernel, for your own Gaussian processes over spectral mixtures.
"""

from gp_ensembles.papers.quadrature.default_priors import paper_prior
from gp_ensembles.papers.quadrature.kernel_mixture import KernelMixtureModel
from gp_ensembles.papers.quadrature.marginalization import Budget, marginalize
from gp_ensembles.papers.quadrature.policies import InformationPolicy, PriorPolicy, UncertaintyPolicy
from gp_ensembles.papers.quadrature.prior import Hyperprior
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
