"""How far apart two kernels are, for the surrogate: mixtures by their discrepancy, what else is inferred by squares."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.distances import Atoms, Discrepancy, Dissimilarity, Energy, Measured
from gp_ensembles.bayesian_quadrature.hyperprior import Hyperprior


class Distances(NamedTuple):
    """Distances of A kernels from B kernels.

    Args:
        mixtures: Discrepancies of their mixtures, shape (A, B).
        extras: Half squared distances of the standardized output scale and noise, shape (A, B); zero if both are fixed.
    """

    mixtures: Tensor
    extras: Tensor


class Placed(NamedTuple):
    r"""Kernels as a distance sees them.

    Args:
        mixtures: Their mixtures.
        extras: Their standardized output scale and noise, shape (\*batch, A, E).
    """

    mixtures: Measured
    extras: Tensor


class SurrogateParameters(NamedTuple):
    r"""Hyper-parameters of the surrogate, numbers or tensors of shape ().

    .. math:: \kappa = \lambda^2 \exp(-d / \ell - |e - e'|^2 / (2 \ell_e^2))

    Args:
        outputscale: Variance :math:`\lambda^2`.
        lengthscale: Scale :math:`\ell` of the discrepancy.
        extras_lengthscale: Scale :math:`\ell_e` of the standardized output scale and noise.
        noise: Noise variance of the observed roots; a small share of the output scale keeps near-duplicates apart.
    """

    outputscale: Tensor
    lengthscale: Tensor
    extras_lengthscale: Tensor
    noise: Tensor


SMOOTH_ENERGY = Energy(1.5)


class HyperGeometry:
    """Distances between kernels given as rows of the prior's cube.

    Args:
        prior: The prior, whose cube it is.
        dissimilarity: Of two atoms; measured on frequencies standardized by the prior ("whitened"), unless ``atoms``
            says otherwise.
        atoms: Where components stand; standardized by the prior if ``None``, and reflected at the origin if the prior's
            means are signed.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature.marginals import HalfNormal, LogNormal
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = Hyperprior(HalfNormal(one), LogNormal(0.0 * one, 0.35 * one), max_components=2)
        >>> cube = prior.draw(4, components=2, generator=torch.Generator().manual_seed(0))
        >>> HyperGeometry(prior).between(cube, cube[:2]).mixtures.shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        prior: Hyperprior,
        dissimilarity: Dissimilarity = SMOOTH_ENERGY,
        atoms: Atoms | None = None,
    ) -> None:
        self.prior = prior
        self.discrepancy = Discrepancy(
            dissimilarity, Atoms(prior.means, prior.scales, prior.has_signed_means) if atoms is None else atoms
        )

    def measure(self, cube: Tensor) -> "Placed":
        r"""What distances from rows (\*batch, A, C) need, computed once, differentiably."""
        return Placed(self.discrepancy.measure(self.prior.mixtures(cube)), self.prior.extras(cube))

    def between(self, first: Tensor, second: Tensor) -> Distances:
        r"""Distances of rows (\*batch, A, C) from rows (\*batch, B, C), each (\*batch, A, B), differentiable."""
        return self.of(self.measure(first), self.measure(second))

    def of(self, first: "Placed", second: "Placed") -> Distances:
        """As :meth:`between`, of kernels that are measured already."""
        mixtures = self.discrepancy.of(first.mixtures, second.mixtures)
        if not self.prior.num_extras:
            return Distances(mixtures, torch.zeros_like(mixtures))
        squares = (first.extras.unsqueeze(-2) - second.extras.unsqueeze(-3)).square().sum(-1)
        return Distances(mixtures, 0.5 * squares)


def correlations(distances: Distances, parameters: SurrogateParameters) -> Tensor:
    """The surrogate's kernel without its output scale, of the shape of the distances.

    Example:
        >>> import torch
        >>> one = torch.ones((), dtype=torch.float64)
        >>> correlations(Distances(2.0 * one, 0.0 * one), SurrogateParameters(one, 2.0 * one, one, 0.0 * one))
        tensor(0.3679, dtype=torch.float64)
    """
    return log_correlations(distances, parameters).exp()


def log_correlations(distances: Distances, parameters: SurrogateParameters) -> Tensor:
    """Logarithm of :func:`correlations`."""
    return -distances.mixtures / parameters.lengthscale - distances.extras / parameters.extras_lengthscale**2
