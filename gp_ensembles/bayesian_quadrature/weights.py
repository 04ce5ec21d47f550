"""Weights of the evaluated kernels in the posterior, from the surrogate."""

from typing import NamedTuple

from torch import Tensor

from gp_ensembles.bayesian_quadrature.geometry import Distances, correlations, log_correlations
from gp_ensembles.bayesian_quadrature.nodes import Nodes
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate

_SHARPNESS = 10.0  # of the cells around the evaluated kernels


class RootWeights(NamedTuple):
    r"""Weights of products of roots, :math:`p(y \mid D) = \sum_{ij} W_{ij} \sqrt{N_i(y) N_j(y)}` (Hamid et al., 2022).

    Args:
        matrix: :math:`W_{ij} = 2 Q_{ij} \sqrt{L_i L_j} / E[I]`, shape (h, h); may be negative off the diagonal.
    """

    matrix: Tensor


def root_weights(surrogate: Surrogate, nodes: Nodes, distances: Distances | None = None) -> RootWeights:
    r"""The weights of the paper: :math:`Q = K^{-1} A K^{-1} / 2` with :math:`A = \sum_s \omega_s k(s) k(s)^\top`.

    Args:
        surrogate: The surrogate.
        nodes: Nodes s of the integrals.
        distances: Distances of the nodes from the evaluated kernels, (S, h), if they are known already.
    """
    distances = node_distances(surrogate, nodes) if distances is None else distances
    cross = surrogate.parameters.outputscale * correlations(distances, surrogate.parameters)
    solved = surrogate.solve(cross.mT)  # (h, S)
    quadratic = 0.5 * (solved * nodes.weights) @ solved.mT
    roots = (0.5 * surrogate.evaluations.log_likelihood - 0.5 * surrogate.log_scale).exp()
    mean = surrogate.roots @ quadratic @ surrogate.roots  # of roots with alpha, as the paper has it
    return RootWeights(2.0 * quadratic * roots.unsqueeze(-1) * roots / mean)


def positive_weights(surrogate: Surrogate, nodes: Nodes, distances: Distances | None = None) -> Tensor:
    r"""Log weights of a mixture of the evaluated kernels that is a distribution, shape (h,).

    Every node gives its share of the prior to the evaluated kernels near it, nearly all of it to the nearest; a
    kernel's weight is its likelihood times what it was given:

    .. math:: w_i \propto L_i \sum_s \omega_s \frac{r(s, \theta_i)^{10}}{\sum_j r(s, \theta_j)^{10}}

    with the surrogate's correlations r. For draws of the prior these are importance weights with the error of the
    draws' clumps taken out; where kernels crowd, as along an ascent, they share.

    Args:
        surrogate: The surrogate.
        nodes: Nodes s.
        distances: Distances of the nodes from the evaluated kernels, (S, h), if they are known already.
    """
    distances = node_distances(surrogate, nodes) if distances is None else distances
    shares = (_SHARPNESS * log_correlations(distances, surrogate.parameters)).log_softmax(-1)
    log_volume = (nodes.weights.log().unsqueeze(-1) + shares).logsumexp(0)
    return (surrogate.evaluations.log_likelihood + log_volume).log_softmax(-1)


def node_distances(surrogate: Surrogate, nodes: Nodes) -> Distances:
    """Distances of S nodes from the h evaluated kernels, each (S, h)."""
    return surrogate.geometry.of(surrogate.geometry.measure(nodes.cube), surrogate.placed)
