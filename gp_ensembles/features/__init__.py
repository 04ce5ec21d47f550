"""Feature maps: finite bases with a Gaussian prior on their weights."""

from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.compose import Concatenate, SelectColumns
from gp_ensembles.features.constant import ConstantFeatures
from gp_ensembles.features.linear import LinearFeatures
from gp_ensembles.features.neural import NeuralFeatures
from gp_ensembles.features.polynomial import AdditivePolynomialFeatures
from gp_ensembles.features.radial import RadialBasisFeatures, kmeans_centres
from gp_ensembles.features.rescale import Clamp, Standardize
from gp_ensembles.features.spline import AdditiveSplineFeatures, quantile_breakpoints, uniform_breakpoints

__all__ = [
    "AdditivePolynomialFeatures",
    "AdditiveSplineFeatures",
    "BoundFeatures",
    "Clamp",
    "Concatenate",
    "ConstantFeatures",
    "FeatureMap",
    "LinearFeatures",
    "NeuralFeatures",
    "RadialBasisFeatures",
    "SelectColumns",
    "Standardize",
    "kmeans_centres",
    "quantile_breakpoints",
    "uniform_breakpoints",
]
