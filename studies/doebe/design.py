"""Construction of an experiment's experts: families of features, and the differences in the authors' code."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gp_ensembles.ensembles.bases import (
    FourierBasis,
    LinearBasis,
    OptimizedFourierBasis,
    PolynomialBasis,
    RadialBasis,
    scaled_kernel,
)
from gp_ensembles.ensembles.build import FitSettings, NamedExpert, fitted_experts
from gp_ensembles.ensembles.targets import RealTarget, Target
from gp_ensembles.experts.empirical_bayes import (
    GaussianPerturbation,
    get_vectors,
    perturb_hyperparameters,
    sample_hyperparameters,
    set_vectors_,
)
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.compose import Clamp
from gp_ensembles.features.hilbert import Box, HilbertAdditiveFeatures
from gp_ensembles.features.radial import RadialBasisFeatures
from gp_ensembles.numerics.kmeans import kmeans
from studies.doebe.published import RampedHilbertFeatures, fit_half_determinant
from studies.harness.protocol import Stream

TITLES = {
    "hsgp": "HSGP",
    "rff": "RFF",
    "rbf": "RBF",
    "poly": "Poly",
    "linear": "Linear",
    "off": "OFF",
}
FAMILIES = ("hsgp", "rff", "rbf", "poly", "linear")
THREE = ("hsgp", "rff", "rbf")
_WHOLE_BOX = 1.5  # half-width of the authors' box, in largest absolute inputs
_CODE_VARIANCE = 1e-6  # of the authors' Gaussian noise on hyperparameters; the paper says 1e-3


@dataclass(frozen=True)
class Making:
    """What may be done one way or the other as experts are made.

    Attributes:
        starts: Starting length scales, as shares of each column's range.
        in_units: Whether they are in units of the inputs instead.
        whole_evidence: Whether the evidence has its whole log determinant.
        whole_frequencies: Whether Hilbert-space frequencies are whole numbers.
        warm_box: Whether their box is that of the warm-up rows, with inputs clamped to these; else that of all rows.
        fixed_centers: Whether radial centers stay at the k-means, beside a linear part; else they are trained, without.
        conditioned: Whether experts have learned the warm-up rows.
        scaled_walk: Whether the walk adds 1e-3 to the function's variance; else to that of every weight.
        separate_poly: Whether OE-Poly is static and DOE-Poly dynamic; else both hold both.
    """

    starts: tuple[float, ...] = (0.2, 0.7, 2.0)
    in_units: bool = False
    whole_evidence: bool = True
    whole_frequencies: bool = True
    warm_box: bool = True
    fixed_centers: bool = True
    conditioned: bool = True
    scaled_walk: bool = True
    separate_poly: bool = True


OURS = Making()
PUBLISHED = Making((0.1, 1.0, 10.0), *([False] * 8))


@dataclass(frozen=True)
class Design:
    """The experts of an experiment.

    Attributes:
        families: Families of features.
        num_features: Features of every family that has a choice, about.
        num_fourier: Those of random Fourier features, where they are others.
        num_samples: Experts per optimum.
        num_warmup: Rows of the warm-up.
        perturbed: Families whose further experts are drawn by noise on the hyperparameters, not by Laplace's method.
        target: Kind of the targets.
        making: What may be done one way or the other.
    """

    families: tuple[str, ...] = FAMILIES
    num_features: int = 100
    num_fourier: int | None = None
    num_samples: int = 5
    num_warmup: int = 1000
    perturbed: tuple[str, ...] = ()
    target: Target = RealTarget()  # noqa: RUF009 (a frozen record)
    making: Making = OURS


def family_experts(family: str, stream: Stream, design: Design, generator: torch.Generator | None) -> list[NamedExpert]:
    """Fitted experts of a family, sampled ones included: experts of the first start first, the optimum before samples.

    Raises:
        NumericalError: If the evidence of one cannot be computed.
    """
    X, y, making = stream.warm_X, stream.warm_y, design.making
    maps = _family_maps(family, stream, design, generator)
    is_perturbed = family in design.perturbed or (family == "rbf" and not making.fixed_centers)
    variance = 1e-3 if making.whole_evidence else _CODE_VARIANCE
    perturbation = GaussianPerturbation(variance) if is_perturbed else None
    if making.whole_evidence:
        fit = FitSettings(num_samples=design.num_samples, perturbation=perturbation)
        return fitted_experts(maps, X, y, fit, generator, False, design.target)
    found: list[NamedExpert] = []
    for name, features in maps:
        expert = GaussianExpert(features)
        fit_half_determinant(expert, X, y)
        found.append((name, _sampled(expert, X, y, design.num_samples, perturbation, generator)))
    return found


def _sampled(
    expert: GaussianExpert,
    X: Tensor,
    y: Tensor,
    num_samples: int,
    perturbation: GaussianPerturbation | None,
    generator: torch.Generator | None,
) -> GaussianExpert:
    if num_samples == 1:
        return expert
    if perturbation is None:
        samples, _ = sample_hyperparameters(expert, X, y, num_samples, generator=generator)
    else:
        samples = perturb_hyperparameters(expert, num_samples, perturbation.variance, generator=generator)
    vectors = get_vectors(samples)
    vectors[::num_samples] = get_vectors(expert)
    set_vectors_(samples, vectors)
    assert isinstance(samples, GaussianExpert)
    return samples


def _family_maps(
    family: str, stream: Stream, design: Design, generator: torch.Generator | None
) -> list[tuple[str, FeatureMap]]:
    X, making = stream.warm_X, design.making
    num_fourier = design.num_fourier or design.num_features
    if family == "hsgp":
        return [(family, _hilbert(stream, design))]
    if family == "rbf" and not making.fixed_centers:
        spread = X.amax(0) - X.amin(0)
        scales = X.new_tensor(making.starts).unsqueeze(-1) * spread
        num_centers = min(design.num_features, torch.unique(X, dim=0).shape[0] // 2)
        return [(family, RadialBasisFeatures(nn.Parameter(kmeans(X, num_centers, generator=generator)), scales))]
    bases = {
        "rff": FourierBasis(num_fourier, starts=making.starts),
        "off": OptimizedFourierBasis(num_fourier, starts=making.starts),
        "rbf": RadialBasis(design.num_features, making.starts),
        "poly": PolynomialBasis(),
        "linear": LinearBasis(),
    }
    return bases[family].build(X, generator=generator)


def _hilbert(stream: Stream, design: Design) -> FeatureMap:
    X, making = stream.warm_X, design.making
    number = max(1, design.num_features // X.shape[1])
    kernel = scaled_kernel(X, math.inf, making.starts)
    if making.in_units:
        kernel.base_kernel.lengthscale = X.new_tensor(making.starts).reshape(-1, 1, 1)
    if making.warm_box:
        features = HilbertAdditiveFeatures.from_data(kernel, X, number)
    else:
        largest = torch.cat([X, stream.X]).abs().amax(0).expand(len(making.starts), -1)
        features = HilbertAdditiveFeatures(kernel, Box(torch.zeros_like(largest), _WHOLE_BOX * largest), number)
    made = features if making.whole_frequencies or number == 1 else RampedHilbertFeatures(features)
    return Clamp(made, X.amin(0), X.amax(0)) if making.warm_box else made
