"""Feature maps: finite bases with a Gaussian prior on their weights."""

from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.box import Box, box_from_data
from gp_ensembles.features.compose import Concatenate, SelectColumns
from gp_ensembles.features.constant import ConstantFeatures
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.features.hilbert_additive import HilbertAdditiveFeatures
from gp_ensembles.features.hilbert_tensor import HilbertTensorFeatures, full_grid
from gp_ensembles.features.inducing import InducingPointFeatures
from gp_ensembles.features.linear import LinearFeatures
from gp_ensembles.features.neural import NeuralFeatures
from gp_ensembles.features.optimized_fourier import OptimizedFourierFeatures
from gp_ensembles.features.polynomial import AdditivePolynomialFeatures
from gp_ensembles.features.radial import RadialBasisFeatures, kmeans_centers
from gp_ensembles.features.rescale import Clamp, Standardize
from gp_ensembles.features.spline import AdditiveSplineFeatures, quantile_breakpoints, uniform_breakpoints
from gp_ensembles.features.stacking import stack_kernels

__all__ = [
    "AdditivePolynomialFeatures",
    "AdditiveSplineFeatures",
    "BoundFeatures",
    "Box",
    "Clamp",
    "Concatenate",
    "ConstantFeatures",
    "FeatureMap",
    "HilbertAdditiveFeatures",
    "HilbertTensorFeatures",
    "InducingPointFeatures",
    "LinearFeatures",
    "NeuralFeatures",
    "OptimizedFourierFeatures",
    "RadialBasisFeatures",
    "RandomFourierFeatures",
    "SelectColumns",
    "Standardize",
    "box_from_data",
    "full_grid",
    "kmeans_centers",
    "quantile_breakpoints",
    "stack_kernels",
    "uniform_breakpoints",
]
