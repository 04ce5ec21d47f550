"""The hyper-kernel, a kernel between kernels, made of maximum mean discrepancies between their spectral mixtures."""

from typing import NamedTuple, Protocol

import gpytorch
import torch
from torch import Tensor

from gp_ensembles.papers.quadrature.prior import Hyperprior, Marginal
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures

CHUNK = 2**21  # pairs of atoms per chunk


class Dissimilarity(Protocol):
    """A conditionally negative definite function of the Euclidean distance between two atoms."""

    def __call__(self, distance: Tensor) -> Tensor:
        """Values of the shape of the distances."""


class EnergyDistance(NamedTuple):
    """The distance to a power in (0, 2): energy distance for 1 (Hamid et al., 2022, equation 7), else generalized."""

    power: float = 1.0

    def __call__(self, distance: Tensor) -> Tensor:
        """Values of the shape of the distances."""
        return distance if self.power == 1.0 else distance.pow(self.power)


class MaternDistance(NamedTuple):
    """Minus a Matern-5/2 kernel between atoms: with it the discrepancy is the kernel's maximum mean discrepancy."""

    bandwidth: float = 1.0

    def __call__(self, distance: Tensor) -> Tensor:
        """Values of the shape of the distances."""
        r = 5.0**0.5 * distance / self.bandwidth
        value: Tensor = -(1.0 + r + r.square() / 3.0) * (-r).exp()
        return value


class AtomCoordinates(NamedTuple):
    """Coordinates of the components of a mixture: in units of frequency, or standardized by their priors.

    Args:
        means: Prior that standardizes mean frequencies; ``None`` leaves them.
        scales: Prior that standardizes scales (a log-normal prior takes logarithms); ``None`` leaves them.
        reflected: Whether means are signed, so that a component and its mirror image are the same: distances are then
            between mixtures reflected at the origin.
    """

    means: Marginal | None = None
    scales: Marginal | None = None
    reflected: bool = False

    def __call__(self, mixtures: SpectralMixtures) -> Tensor:
        r"""Coordinates, shape (\*batch, Q, 2 D), zero where a component is absent."""
        present = (mixtures.weights != 0).unsqueeze(-1)
        means, scales = mixtures.means, mixtures.scales.where(present, mixtures.scales.new_ones(()))
        if self.means is not None:  # mirror images stay mirror images only if nothing is subtracted
            means = means / self.means.scale if self.reflected else self.means.standardize(means)
        scales = scales if self.scales is None else self.scales.standardize(scales)
        return torch.cat([means, scales], -1).where(present, means.new_zeros(()))


class AtomicMeasure(NamedTuple):
    r"""Mixtures as weighted atoms, with what all distances from them share.

    Args:
        weights: Weights, shape (\*batch, A, Q).
        atoms: Coordinates of the components, shape (\*batch, A, Q, 2 D).
        self_term: Mean dissimilarity of a mixture's components from one another, E(p, p), shape (\*batch, A).
    """

    weights: Tensor
    atoms: Tensor
    self_term: Tensor


class MaximumMeanDiscrepancy(NamedTuple):
    r"""Half the squared maximum mean discrepancy of two mixtures, as equation 7 of Hamid et al. (2022) has it.

    .. math:: d(p, p') = E(p, p') - E(p, p) / 2 - E(p', p') / 2, \qquad
              E(p, p') = \sum_{ij} w_i w'_j\, e(\|a_i - a'_j\|)

    Args:
        dissimilarity: The function e.
        coordinates: Coordinates of the components.
    """

    dissimilarity: Dissimilarity
    coordinates: AtomCoordinates = AtomCoordinates()

    def between(self, first: SpectralMixtures, second: SpectralMixtures) -> Tensor:
        r"""Every one of A mixtures against every one of B, (\*batch, A, ...) and (\*batch, B, ...): (\*batch, A, B)."""
        return self.between_prepared(self.prepare(first), self.prepare(second))

    def prepare(self, mixtures: SpectralMixtures) -> AtomicMeasure:
        """The mixtures' atoms and self-terms, computed once for many distances."""
        mixtures = mixtures.trim()
        atoms = self.coordinates(mixtures)
        self_term = mixtures.weights.unsqueeze(-2) @ self._table(atoms, atoms) @ mixtures.weights.unsqueeze(-1)
        return AtomicMeasure(mixtures.weights, atoms, self_term.squeeze(-1).squeeze(-1))

    def between_prepared(self, first: AtomicMeasure, second: AtomicMeasure) -> Tensor:
        r"""As :meth:`between`, of mixtures that are prepared already."""
        value = self._cross(first, second) - 0.5 * (first.self_term.unsqueeze(-1) + second.self_term.unsqueeze(-2))
        return value.clamp_min(0.0)  # equal mixtures round to either side of zero

    def _cross(self, first: AtomicMeasure, second: AtomicMeasure) -> Tensor:
        """E of all pairs, in chunks of the first so that the table of pairs of atoms stays small."""
        *batch, count, size, _ = second.atoms.shape
        flat = second.atoms.flatten(-3, -2)
        length, components = first.weights.shape[-2:]
        rows = length if batch else max(1, CHUNK // max(components * count * size, 1))
        parts = []
        for start in range(0, length, rows):
            weights = first.weights.narrow(-2, start, min(rows, length - start))
            atoms = first.atoms.narrow(-3, start, min(rows, length - start))
            table = self._table(atoms.flatten(-3, -2), flat).unflatten(-1, (count, size))
            table = table.unflatten(-3, atoms.shape[-3:-1])
            parts.append(torch.einsum("...aq,...aqbr,...br->...ab", weights, table, second.weights))
        return torch.cat(parts, -2)

    def _table(self, a: Tensor, b: Tensor) -> Tensor:
        """Dissimilarities of atoms (..., A, 2 D) and (..., B, 2 D)."""
        value = self.dissimilarity(_distance(a, b))
        if not self.coordinates.reflected:
            return value
        num_inputs = b.shape[-1] // 2  # reflecting one side is the same as reflecting both
        mirrored = torch.cat([-b[..., :num_inputs], b[..., num_inputs:]], -1)
        return 0.5 * (value + self.dissimilarity(_distance(a, mirrored)))


def _distance(a: Tensor, b: Tensor) -> Tensor:
    # exact differences: the expansion into products gives 1e-8 for equal atoms; the gradient there is zero
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


class Distances(NamedTuple):
    """Distances of A kernels from B kernels.

    Args:
        mixtures: Discrepancies of their mixtures, shape (A, B).
        scalars: Half squared distances of standardized output scales and noises, shape (A, B); zero if both are fixed.
    """

    mixtures: Tensor
    scalars: Tensor


class PreparedKernels(NamedTuple):
    r"""Kernels with what all distances from them share.

    Args:
        mixtures: Their mixtures as weighted atoms.
        scalars: Their standardized output scale and noise, shape (\*batch, A, E).
    """

    mixtures: AtomicMeasure
    scalars: Tensor


class SurrogateParameters(NamedTuple):
    r"""Hyper-parameters of the surrogate, numbers or tensors of shape ().

    .. math:: \kappa = \lambda^2 \exp(-d / \ell - |e - e'|^2 / (2 \ell_e^2))

    Args:
        outputscale: Variance :math:`\lambda^2`.
        lengthscale: Scale :math:`\ell` of the discrepancy.
        scalars_lengthscale: Scale :math:`\ell_e` of the standardized output scale and noise, e.
        noise: Noise variance of the observed roots; a small share of the output scale keeps near-duplicates apart.
    """

    outputscale: Tensor
    lengthscale: Tensor
    scalars_lengthscale: Tensor
    noise: Tensor


_SMOOTH_ENERGY = EnergyDistance(1.5)


class KernelDistance:
    """Distances between kernels given as rows of the prior's cube."""

    def __init__(
        self,
        prior: Hyperprior,
        dissimilarity: Dissimilarity = _SMOOTH_ENERGY,
        coordinates: AtomCoordinates | None = None,
    ) -> None:
        self.prior = prior
        self.discrepancy: MaximumMeanDiscrepancy = MaximumMeanDiscrepancy(
            dissimilarity,
            AtomCoordinates(prior.means, prior.scales, prior.has_signed_means) if coordinates is None else coordinates,
        )

    def prepare(self, cube: Tensor) -> PreparedKernels:
        r"""Kernels given as rows (\*batch, A, C) of the cube, prepared once for many distances, differentiably."""
        return PreparedKernels(self.discrepancy.prepare(self.prior.mixtures(cube)), self.prior.scalars(cube))

    def between(self, first: PreparedKernels, second: PreparedKernels) -> Distances:
        r"""Distances of A kernels from B kernels, each (\*batch, A, B), differentiable."""
        mixtures = self.discrepancy.between_prepared(first.mixtures, second.mixtures)
        if not self.prior.num_scalars:
            return Distances(mixtures, torch.zeros_like(mixtures))
        squares = (first.scalars.unsqueeze(-2) - second.scalars.unsqueeze(-3)).square().sum(-1)
        return Distances(mixtures, 0.5 * squares)


def correlations(distances: Distances, parameters: SurrogateParameters) -> Tensor:
    """The hyper-kernel without its output scale, of the shape of the distances."""
    return log_correlations(distances, parameters).exp()


def log_correlations(distances: Distances, parameters: SurrogateParameters) -> Tensor:
    """Logarithm of :func:`correlations`."""
    return -distances.mixtures / parameters.lengthscale - distances.scalars / parameters.scalars_lengthscale**2


class MMDHyperKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    r"""Kernel between spectral mixtures, from the discrepancy of their densities.

    .. math:: \kappa(\theta, \theta') = \exp(-d(\theta, \theta') / \ell), \qquad
              d = \mathrm{MMD}^2 / 2
    """

    has_lengthscale = True

    def __init__(self, num_inputs: int, discrepancy: MaximumMeanDiscrepancy, *, root: bool = False) -> None:
        super().__init__()
        self.num_inputs = num_inputs
        self.discrepancy = discrepancy
        self.root = root

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False) -> Tensor:
        r"""Covariances of rows (\*batch, A, P) and (\*batch, B, P): (\*batch, A, B), or (\*batch, A) if ``diag``.

        Raises:
            ValueError: If columns are to be treated as a batch, which makes no sense for mixtures.
        """
        if last_dim_is_batch:
            raise ValueError("MMDHyperKernel has no last_dim_is_batch: one column of a row (w, m, s) is not a mixture")
        first = SpectralMixtures.unflatten(x1, self.num_inputs)
        second = SpectralMixtures.unflatten(x2, self.num_inputs)
        if diag:
            first, second = (
                SpectralMixtures(m.weights.unsqueeze(-2), m.means.unsqueeze(-3), m.scales.unsqueeze(-3))
                for m in (first, second)
            )
            distance = self.discrepancy.between(first, second)[..., 0, 0]
            return self._kernel(distance, self.lengthscale.squeeze(-1))
        return self._kernel(self.discrepancy.between(first, second), self.lengthscale)

    def _kernel(self, distance: Tensor, lengthscale: Tensor) -> Tensor:
        if self.root:
            apart = distance > 0  # the root has no slope at zero
            distance = distance.where(apart, 1.0).sqrt().where(apart, 0.0)
        return (-distance / lengthscale).exp()
