"""Distances between spectral mixtures: squared maximum mean discrepancies between measures on their atoms."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.marginals import Marginal
from gp_ensembles.bayesian_quadrature.spectral_mixture import SpectralMixtures

_CHUNK = 2**21  # pairs of atoms looked at together


class Dissimilarity(Protocol):
    """A conditionally negative definite function of the distance between two atoms; it makes the discrepancy."""

    def __call__(self, distance: Tensor) -> Tensor:
        """Values of the shape of the distances."""


class Energy(NamedTuple):
    r"""The distance to a power in (0, 2): energy distance for 1 (Hamid et al., 2022, equation 7), else generalized.

    (Székely and Rizzo, 2013.) For one component on each side it is :math:`|a - b|^\beta` itself, so that the
    hyper-kernel is as rough as an exponential kernel for :math:`\beta = 1`, and smoother above.

    Example:
        >>> import torch
        >>> Energy(1.5)(torch.tensor(4.0))
        tensor(8.)
    """

    power: float = 1.0

    def __call__(self, distance: Tensor) -> Tensor:
        """Values of the shape of the distances."""
        return distance if self.power == 1.0 else distance.pow(self.power)


class Gaussian(NamedTuple):
    """Minus a Gaussian kernel between atoms.

    Example:
        >>> import torch
        >>> Gaussian()(torch.tensor(0.0))
        tensor(-1.)
    """

    bandwidth: float = 1.0

    def __call__(self, distance: Tensor) -> Tensor:
        """Values of the shape of the distances."""
        value: Tensor = -(-0.5 * (distance / self.bandwidth).square()).exp()
        return value


class Matern52(NamedTuple):
    """Minus a Matern-5/2 kernel between atoms.

    Example:
        >>> import torch
        >>> Matern52()(torch.tensor(0.0))
        tensor(-1.)
    """

    bandwidth: float = 1.0

    def __call__(self, distance: Tensor) -> Tensor:
        """Values of the shape of the distances."""
        r = 5.0**0.5 * distance / self.bandwidth
        value: Tensor = -(1.0 + r + r.square() / 3.0) * (-r).exp()
        return value


class Atoms(NamedTuple):
    """Where the components of a mixture stand: in units of frequency, or standardized by their priors.

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
        r"""Atoms, shape (\*batch, Q, 2 D), zero where a component is absent.

        Example:
            >>> import torch
            >>> Atoms()(SpectralMixtures.unflatten(torch.tensor([1.0, 2.0, 3.0]), 1))
            tensor([[2., 3.]])
        """
        present = (mixtures.weights != 0).unsqueeze(-1)
        means, scales = mixtures.means, mixtures.scales.where(present, mixtures.scales.new_ones(()))
        if self.means is not None:  # mirror images stay mirror images only if nothing is subtracted
            means = means / self.means.scale if self.reflected else self.means.standardize(means)
        scales = scales if self.scales is None else self.scales.standardize(scales)
        return torch.cat([means, scales], -1).where(present, means.new_zeros(()))


class Measured(NamedTuple):
    r"""Mixtures as a distance sees them.

    Args:
        weights: Weights, shape (\*batch, A, Q).
        atoms: Where components stand, shape (\*batch, A, Q, 2 D).
        own: Mean dissimilarity of a mixture's components from one another, E(p, p), shape (\*batch, A).
    """

    weights: Tensor
    atoms: Tensor
    own: Tensor


class Discrepancy(NamedTuple):
    r"""Half the squared maximum mean discrepancy of two mixtures, as equation 7 of Hamid et al. (2022) has it.

    .. math:: d(p, p') = E(p, p') - E(p, p) / 2 - E(p', p') / 2, \qquad
              E(p, p') = \sum_{ij} w_i w'_j\, e(\|a_i - a'_j\|)

    It does not change when components are put in another order, split in two, or padded with weight zero.

    Args:
        dissimilarity: The function e.
        atoms: Where components stand.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[1.0, 0.0, 2.0, 0.0, 1.0, 0.0], [0.5, 0.5, 2.0, 2.0, 1.0, 1.0]], dtype=torch.float64)
        >>> mixtures = SpectralMixtures.unflatten(rows, 1)  # the second is the first, split
        >>> float(Discrepancy(Energy()).between(mixtures, mixtures)[0, 1])
        0.0
    """

    dissimilarity: Dissimilarity
    atoms: Atoms = Atoms()

    def between(self, first: SpectralMixtures, second: SpectralMixtures) -> Tensor:
        r"""Every one of A mixtures against every one of B, (\*batch, A, ...) and (\*batch, B, ...): (\*batch, A, B)."""
        return self.of(self.measure(first), self.measure(second))

    def measure(self, mixtures: SpectralMixtures) -> "Measured":
        """What distances from mixtures need, computed once."""
        mixtures = mixtures.trim()
        atoms = self.atoms(mixtures)
        own = mixtures.weights.unsqueeze(-2) @ self._table(atoms, atoms) @ mixtures.weights.unsqueeze(-1)
        return Measured(mixtures.weights, atoms, own.squeeze(-1).squeeze(-1))

    def of(self, first: "Measured", second: "Measured") -> Tensor:
        r"""As :meth:`between`, of mixtures that are measured already."""
        value = self._cross(first, second) - 0.5 * (first.own.unsqueeze(-1) + second.own.unsqueeze(-2))
        return value.clamp_min(0.0)  # equal mixtures round to either side of zero

    def _cross(self, first: "Measured", second: "Measured") -> Tensor:
        """E of all pairs, in chunks of the first so that the table of pairs of atoms stays small."""
        *batch, count, size, _ = second.atoms.shape
        flat = second.atoms.flatten(-3, -2)
        length, components = first.weights.shape[-2:]
        rows = length if batch else max(1, _CHUNK // max(components * count * size, 1))
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
        if not self.atoms.reflected:
            return value
        num_inputs = b.shape[-1] // 2  # a mirror image of one side is as good as of both
        mirrored = torch.cat([-b[..., :num_inputs], b[..., num_inputs:]], -1)
        return 0.5 * (value + self.dissimilarity(_distance(a, mirrored)))


def _distance(a: Tensor, b: Tensor) -> Tensor:
    # exact differences: the expansion into products gives 1e-8 for equal atoms; the gradient there is zero
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
