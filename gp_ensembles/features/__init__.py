"""Feature maps: finite bases with a normal prior on their weights, for one expert or a batch.

``base`` has ``FeatureMap``, which all are, and the scale convention; ``compose`` makes maps of maps.
"""

from gp_ensembles.features.additive import AdditivePolynomialFeatures, AdditiveSplineFeatures
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.fourier import OptimizedFourierFeatures, RandomFourierFeatures
from gp_ensembles.features.hilbert import HilbertAdditiveFeatures, HilbertTensorFeatures
from gp_ensembles.features.inducing import InducingPointFeatures
from gp_ensembles.features.linear import LinearFeatures
from gp_ensembles.features.radial import RadialBasisFeatures

__all__ = [
    "AdditivePolynomialFeatures",
    "AdditiveSplineFeatures",
    "FeatureMap",
    "HilbertAdditiveFeatures",
    "HilbertTensorFeatures",
    "InducingPointFeatures",
    "LinearFeatures",
    "OptimizedFourierFeatures",
    "RadialBasisFeatures",
    "RandomFourierFeatures",
]
