"""Records of bases: the feature maps of an ensemble's experts, built from the warm-up rows and not yet fitted."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import final

import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor, nn

from gp_ensembles.ensembles.spec_checks import check_fields
from gp_ensembles.features.additive import AdditivePolynomialFeatures, AdditiveSplineFeatures
from gp_ensembles.features.base import FeatureMap, log_scale
from gp_ensembles.features.compose import Clamp, Concatenate, SelectColumns
from gp_ensembles.features.fourier import OptimizedFourierFeatures, RandomFourierFeatures
from gp_ensembles.features.hilbert import HilbertAdditiveFeatures
from gp_ensembles.features.linear import LinearFeatures
from gp_ensembles.features.radial import RadialBasisFeatures
from gp_ensembles.numerics.arguments import check_made
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.numerics.kmeans import kmeans
from gp_ensembles.numerics.warn_caller import warn_caller

# Starting length scales as shares of each column's range. Of the papers' 0.1, 1 and 10 the first and the last stay
# where the evidence is flat (all features zero, or all inputs alike); these were best or near it on three tables.
_STARTS = (0.2, 0.7, 2.0)
_ROOM = 3.0  # on both sides of a constant column, in standardized units, for values that come later
_GOLDEN = 0.6180339887498949
_MOST_COLUMNS, _MOST_ADDITIVE = 200, 2000  # columns beyond which additive bases have so many features in all
_MORE_SPLINES = 3  # cubic B-splines than intervals
_LINEAR_START = 0.01  # starting prior variance of a linear part: small, so that it does not explain everything


class Basis(ABC):
    """Record of feature maps to build from warm-up rows, with a batch entry for each start of the hyperparameters.

    Maps of one ensemble need distinct names. By default a map is named after its kind and the settings that differ from
    the defaults ("rff nu=1.5"), so that an ensemble can have several bases of one kind.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def build(self, X: Tensor, *, generator: torch.Generator | None = None) -> list[tuple[str, FeatureMap]]:
        """Feature maps by name, with the dtype and device of X.

        Args:
            X: Warm-up inputs, shape (N, D).
            generator: Source of randomness of frequencies and centers.
        """


@final
@dataclass(frozen=True)
class FourierBasis(Basis):
    """Random Fourier features of an ARD Matern or RBF kernel, several starting length scales.

    Attributes:
        num_features: Features F, twice the number of frequencies.
        nu: Smoothness 0.5, 1.5 or 2.5 of a Matern kernel; infinity for the RBF kernel.
        starts: Starting length scales, as shares of each column's range.
        name: Name of the experts; by default their kind and the settings that differ from the defaults.
    """

    num_features: int = 100
    nu: float = math.inf
    starts: tuple[float, ...] = _STARTS
    name: str | None = None

    def build(self, X: Tensor, *, generator: torch.Generator | None = None) -> list[tuple[str, FeatureMap]]:
        kernel = scaled_kernel(X, self.nu, self.starts)
        features = RandomFourierFeatures.from_kernel(kernel, X.shape[-1], self.num_features, generator=generator)
        return [(_label(self, "rff"), features)]


@final
@dataclass(frozen=True)
class OptimizedFourierBasis(Basis):
    """Sines and cosines whose frequencies are fitted: a sparse spectrum Gaussian process.

    Attributes:
        num_features: Features F, twice the number of frequencies.
        nu: Smoothness 0.5, 1.5 or 2.5 of a Matern kernel; infinity for the RBF kernel.
        starts: Length scales of the kernel that frequencies are drawn for, as shares of each column's range.
        name: Name of the experts; by default their kind and the settings that differ from the defaults.
    """

    num_features: int = 100
    nu: float = math.inf
    starts: tuple[float, ...] = _STARTS
    name: str | None = None

    def build(self, X: Tensor, *, generator: torch.Generator | None = None) -> list[tuple[str, FeatureMap]]:
        kernel = scaled_kernel(X, self.nu, self.starts)
        features = OptimizedFourierFeatures.from_kernel(kernel, X.shape[-1], self.num_features, generator=generator)
        return [(_label(self, "off"), features)]


@final
@dataclass(frozen=True)
class HilbertBasis(Basis):
    """Additive Hilbert-space Gaussian process of an ARD Matern or RBF kernel, several starting length scales.

    Inputs beyond the warm-up range are clamped to it, because the basis is not valid outside its box, which extends two
    starting length scales beyond that range.

    Attributes:
        num_frequencies: Frequencies per column, fewer for more than 200 columns, see :func:`most_per_column`.
        nu: Smoothness 0.5, 1.5 or 2.5 of a Matern kernel; infinity for the RBF kernel.
        starts: Starting length scales, as shares of each column's range.
        name: Name of the experts; by default their kind and the settings that differ from the defaults.
    """

    num_frequencies: int = 10
    nu: float = math.inf
    starts: tuple[float, ...] = _STARTS
    name: str | None = None

    def build(self, X: Tensor, *, generator: torch.Generator | None = None) -> list[tuple[str, FeatureMap]]:
        X = with_spare_columns(X)
        number = most_per_column(self.num_frequencies, X.shape[1], "frequencies of 'hsgp'")
        features = HilbertAdditiveFeatures.from_data(scaled_kernel(X, self.nu, self.starts), X, number)
        return [(_label(self, "hsgp"), Clamp(features, X.amin(0), X.amax(0)))]


@final
@dataclass(frozen=True)
class RadialBasis(Basis):
    """Gaussian bumps at k-means centers with ARD length scales, and a linear part; several starts.

    Without it predictions far from all centers would be the mean with the variance of the noise.

    Attributes:
        num_centers: Most centers; no more than half of the distinct warm-up rows are used.
        starts: Starting length scales, as shares of each column's range.
        train_centers: Whether each expert's centers are fitted with its other hyperparameters (Waxman and Djuric 2024).
            So many overfit a warm-up of a thousand rows and are too many for a Laplace approximation: use
            ``FitSettings(perturbation=GaussianPerturbation())``.
        name: Name of the experts; by default their kind and the settings that differ from the defaults.
    """

    num_centers: int = 200
    starts: tuple[float, ...] = _STARTS
    train_centers: bool = False
    name: str | None = None

    def build(self, X: Tensor, *, generator: torch.Generator | None = None) -> list[tuple[str, FeatureMap]]:
        scales = _starting_lengthscales(X, self.starts)
        num_centers = min(self.num_centers, max(1, torch.unique(X, dim=0).shape[0] // 2))
        centers = kmeans(X, num_centers, generator=generator)
        bumps = RadialBasisFeatures(nn.Parameter(centers) if self.train_centers else centers, scales)
        linear = LinearFeatures.from_data(X, prior_variance=X.new_full((len(self.starts),), _LINEAR_START))
        return [(_label(self, "rbf"), Concatenate([bumps, linear]))]


@final
@dataclass(frozen=True)
class PolynomialBasis(Basis):
    """Additive polynomials, one expert per order, features scaled to unit mean square on the warm-up rows.

    Inputs are clamped to the warm-up range and a quarter of its width on both sides: fourth powers of outliers would
    spoil the fit.

    Attributes:
        orders: Largest powers; fewer of them for more than 200 columns, see :func:`most_per_column`.
        name: Name of the experts, before their order; "poly" by default.
    """

    orders: tuple[int, ...] = (2, 3, 4)
    name: str | None = None

    def build(self, X: Tensor, *, generator: torch.Generator | None = None) -> list[tuple[str, FeatureMap]]:
        X = with_spare_columns(X)
        margin = 0.25 * (X.amax(0) - X.amin(0))
        lower, upper = X.amin(0) - margin, X.amax(0) + margin
        most = max(min(self.orders), most_per_column(max(self.orders), X.shape[1], "powers of 'poly'"))
        return [
            (f"{self.name or 'poly'}{order}", Clamp(AdditivePolynomialFeatures.from_data(X, order), lower, upper))
            for order in self.orders
            if order <= most
        ]


@final
@dataclass(frozen=True)
class LinearBasis(Basis):
    """The inputs and a constant.

    Attributes:
        name: Name of the experts, "linear" by default.
    """

    name: str | None = None

    def build(self, X: Tensor, *, generator: torch.Generator | None = None) -> list[tuple[str, FeatureMap]]:
        return [(_label(self, "linear"), LinearFeatures.from_data(X))]


@final
@dataclass(frozen=True)
class RecurringBasis(Basis):
    """A basis of recurring columns only: those that rise at some of the warm-up rows and fall at others.

    Local features of a column that only rises, such as time, do not extrapolate: they may predict the next row well,
    but several rows ahead return to the mean. Hours of the day, days of the week and past targets recur. Without a
    recurring column nothing is built.

    Attributes:
        basis: The basis.

    Raises:
        TypeError: If it is not a basis.

    Example:
        >>> import torch
        >>> rows = torch.arange(48, dtype=torch.float64)
        >>> X = torch.stack([rows, rows % 24], dim=-1)
        >>> [(_, features)] = RecurringBasis(FourierBasis()).build(X)
        >>> features.columns, RecurringBasis(FourierBasis()).build(X[:, :1])
        (tensor([1]), [])
    """

    basis: Basis

    def __post_init__(self) -> None:
        check_made("basis", self.basis, Basis, "FourierBasis()")

    def build(self, X: Tensor, *, generator: torch.Generator | None = None) -> list[tuple[str, FeatureMap]]:
        columns = recurring_columns(X)
        if len(columns) == X.shape[1]:
            return self.basis.build(X, generator=generator)
        maps = self.basis.build(X[:, columns], generator=generator) if columns else []
        return [(name, SelectColumns(features, columns, X.shape[1])) for name, features in maps]


@final
@dataclass(frozen=True)
class SplineBasis(Basis):
    """Additive cubic B-splines over the warm-up range, to which inputs are clamped.

    Attributes:
        num_intervals: Intervals between break points per column, fewer for more than 200 columns, see
            :func:`most_per_column`.
        name: Name of the experts; by default their kind and the settings that differ from the defaults.
    """

    num_intervals: int = 8
    name: str | None = None

    def build(self, X: Tensor, *, generator: torch.Generator | None = None) -> list[tuple[str, FeatureMap]]:
        number = most_per_column(self.num_intervals + _MORE_SPLINES, X.shape[1], "B-splines of 'spline'")
        features = AdditiveSplineFeatures.from_data(with_spare_columns(X), max(1, number - _MORE_SPLINES))
        return [(_label(self, "spline"), Clamp.to_domain(features))]


@final
@dataclass(frozen=True)
class KernelDictionary(Basis):
    """Random features of the eleven fixed RBF kernels of Lu et al. (2022), one expert for each.

    Squared length scales are 10^-4, 10^-3, ..., 10^6, in units of the (standardized) inputs; only the prior variance
    is trainable.

    Attributes:
        num_features: Features of each expert, twice the number of frequencies.
        name: Name of the experts.
    """

    num_features: int = 100
    name: str = "rbf kernel"

    def build(self, X: Tensor, *, generator: torch.Generator | None = None) -> list[tuple[str, FeatureMap]]:
        squared = 10.0 ** torch.arange(-4, 7, dtype=X.dtype, device=X.device)
        kernel = RBFKernel(batch_shape=squared.shape).to(X)
        kernel.lengthscale = squared.sqrt().reshape(-1, 1, 1)
        kernel.raw_lengthscale.requires_grad_(False)
        scaled = ScaleKernel(kernel, batch_shape=squared.shape, outputscale_constraint=log_scale()).to(X)
        features = RandomFourierFeatures.from_kernel(scaled, X.shape[-1], self.num_features, generator=generator)
        return [(self.name, features)]


def recurring_columns(X: Tensor) -> list[int]:
    """Columns of rows (N, D) that rise at some of them and fall at others."""
    change = X.diff(dim=0)
    return ((change > 0).any(0) & (change < 0).any(0)).nonzero().flatten().tolist()


def _label(
    basis: FourierBasis | OptimizedFourierBasis | HilbertBasis | RadialBasis | LinearBasis | SplineBasis, kind: str
) -> str:
    """The name of a basis, or its kind and the settings that differ from the defaults."""
    if basis.name is not None:
        return basis.name
    settings = [(field, getattr(basis, field.name)) for field in fields(basis)]
    return " ".join([kind, *(f"{field.name}={_plain(value)}" for field, value in settings if value != field.default)])


def _plain(value: float | tuple[float, ...]) -> str:
    return ":".join(f"{part:g}" for part in (value if isinstance(value, tuple) else (value,)))


def most_per_column(number: int, num_columns: int, what: str) -> int:
    """Features per column of an additive basis; with more than 200 columns at least one, and at most 2 000 in all."""
    most = max(1, _MOST_ADDITIVE // num_columns) if num_columns > _MOST_COLUMNS else number
    if number > most:
        warn_caller(
            f"each of {num_columns} columns has {most} {what} instead of {number}: {number * num_columns} features "
            f"would be too many; leave out columns for more"
        )
    return min(number, most)


def with_spare_columns(X: Tensor) -> Tensor:
    """Rows (N, D) in which constant columns are spread around their value, so that a basis covers later ones."""
    still = X.amax(0) == X.amin(0)
    if not bool(still.any()):
        return X
    rows = torch.arange(X.shape[0], dtype=torch.float64, device=X.device)
    spread = ((rows * _GOLDEN) % 1.0).to(X)  # even and unordered
    spread = (spread - spread.amin()) / (spread.amax() - spread.amin())
    return torch.where(still, X + _ROOM * (2 * spread - 1).unsqueeze(-1), X)


def _starting_lengthscales(X: Tensor, starts: Sequence[float]) -> Tensor:
    """Starting length scales, shares of each column's range, shape (S, D)."""
    spread = X.amax(0) - X.amin(0)
    spread = torch.where(spread > 0, spread, 2 * _ROOM)
    return X.new_tensor(starts).unsqueeze(-1) * spread


def scaled_kernel(X: Tensor, nu: float, starts: Sequence[float]) -> Kernel:
    """A scaled ARD kernel with a batch entry per starting length scale and outputscale one."""
    batch_shape, num_inputs = torch.Size([len(starts)]), X.shape[-1]
    if math.isinf(nu):
        kernel: Kernel = RBFKernel(ard_num_dims=num_inputs, batch_shape=batch_shape, lengthscale_constraint=log_scale())
    else:
        kernel = MaternKernel(
            nu=nu, ard_num_dims=num_inputs, batch_shape=batch_shape, lengthscale_constraint=log_scale()
        )
    scaled: Kernel = ScaleKernel(kernel, batch_shape=batch_shape, outputscale_constraint=log_scale()).to(X)
    kernel.lengthscale = _starting_lengthscales(X, starts).unsqueeze(-2)
    scaled.outputscale = X.new_ones(batch_shape)
    return scaled
