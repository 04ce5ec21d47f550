"""Marginalization over stationary kernels by Bayesian quadrature (MASKERADE; Hamid et al., 2022)."""

from gp_ensembles.bayesian_quadrature.acquisition import (
    Explained,
    InformationGain,
    IntegralVarianceReduction,
    Uncertainty,
)
from gp_ensembles.bayesian_quadrature.ascent import ascend
from gp_ensembles.bayesian_quadrature.distances import Atoms, Discrepancy, Energy, Gaussian, Matern52
from gp_ensembles.bayesian_quadrature.fitting import fitted_surrogate
from gp_ensembles.bayesian_quadrature.geometry import HyperGeometry, SurrogateParameters
from gp_ensembles.bayesian_quadrature.hyperkernel import MMDHyperKernel
from gp_ensembles.bayesian_quadrature.hyperprior import Hyperparameters, Hyperprior, fixed, inferred
from gp_ensembles.bayesian_quadrature.inference import Budget, marginalize
from gp_ensembles.bayesian_quadrature.integral import Integral, integrate
from gp_ensembles.bayesian_quadrature.kernel import SpectralMixtureKernel
from gp_ensembles.bayesian_quadrature.likelihood import GaussianLikelihoods
from gp_ensembles.bayesian_quadrature.marginals import HalfNormal, LogNormal, Normal
from gp_ensembles.bayesian_quadrature.model import KernelMixtureModel
from gp_ensembles.bayesian_quadrature.nodes import Nodes, draw_nodes
from gp_ensembles.bayesian_quadrature.policies import (
    InformationPolicy,
    Optimizer,
    PriorPolicy,
    RecombinationPolicy,
    UncertaintyPolicy,
)
from gp_ensembles.bayesian_quadrature.predict import RootMixture
from gp_ensembles.bayesian_quadrature.prediction import Prediction
from gp_ensembles.bayesian_quadrature.priors import default_prior, paper_prior
from gp_ensembles.bayesian_quadrature.problem import Problem
from gp_ensembles.bayesian_quadrature.recombination import recombine
from gp_ensembles.bayesian_quadrature.result import Marginalization, TopKernels
from gp_ensembles.bayesian_quadrature.search import Search, Step
from gp_ensembles.bayesian_quadrature.spectral_mixture import (
    AT_ORIGIN,
    IN_EACH_INPUT,
    Reflection,
    SpectralMixtures,
    covariance,
)
from gp_ensembles.bayesian_quadrature.store import Evaluations
from gp_ensembles.bayesian_quadrature.surrogate import WSABI_L, WSABI_M, Surrogate, Warp

__all__ = [
    "AT_ORIGIN",
    "IN_EACH_INPUT",
    "WSABI_L",
    "WSABI_M",
    "Atoms",
    "Budget",
    "Discrepancy",
    "Energy",
    "Evaluations",
    "Explained",
    "Gaussian",
    "GaussianLikelihoods",
    "HalfNormal",
    "HyperGeometry",
    "Hyperparameters",
    "Hyperprior",
    "InformationGain",
    "InformationPolicy",
    "Integral",
    "IntegralVarianceReduction",
    "KernelMixtureModel",
    "LogNormal",
    "MMDHyperKernel",
    "Marginalization",
    "Matern52",
    "Nodes",
    "Normal",
    "Optimizer",
    "Prediction",
    "PriorPolicy",
    "Problem",
    "RecombinationPolicy",
    "Reflection",
    "RootMixture",
    "Search",
    "SpectralMixtureKernel",
    "SpectralMixtures",
    "Step",
    "Surrogate",
    "SurrogateParameters",
    "TopKernels",
    "Uncertainty",
    "UncertaintyPolicy",
    "Warp",
    "ascend",
    "covariance",
    "default_prior",
    "draw_nodes",
    "fitted_surrogate",
    "fixed",
    "inferred",
    "integrate",
    "marginalize",
    "paper_prior",
    "recombine",
]
