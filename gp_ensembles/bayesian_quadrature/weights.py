"""Weights of the evaluated kernels in the posterior, from the surrogate."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.geometry import correlations
from gp_ensembles.bayesian_quadrature.nodes import Nodes
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate


class RootWeights(NamedTuple):
    r"""Weights of products of roots, :math:`p(y \mid D) = \sum_{ij} W_{ij} \sqrt{N_i(y) N_j(y)}` (Hamid et al., 2022).

    Args:
        matrix: :math:`W_{ij} = 2 Q_{ij} \sqrt{L_i L_j} / E[I]`, shape (h, h); may be negative off the diagonal.
    """

    matrix: Tensor


def root_weights(surrogate: Surrogate, nodes: Nodes) -> RootWeights:
    r"""The weights of the paper, with :math:`Q = K^{-1} A K^{-1} / 2` and :math:`A = \sum_s \omega_s k(s) k(s)^\top`."""
    solved = surrogate.solve(surrogate.cross(surrogate.geometry.measure(nodes.cube)).mT)  # (h, S)
    quadratic = 0.5 * (solved * nodes.weights) @ solved.mT
    roots = (0.5 * surrogate.evaluations.log_likelihood - 0.5 * surrogate.log_scale).exp()
    mean = surrogate.roots @ quadratic @ surrogate.roots  # as in the numerator, alpha is left out
    return RootWeights(2.0 * quadratic * roots.unsqueeze(-1) * roots / mean)


def positive_weights(surrogate: Surrogate, nodes: Nodes) -> Tensor:
    r"""Log weights of a mixture of the evaluated kernels that is a distribution, shape (h,).

    Every node gives its share of the prior to the evaluated kernels in proportion to their correlations with it; a
    kernel's weight is its likelihood times what it was given:

    .. math:: w_i \propto L_i \sum_s \omega_s \frac{r(s, \theta_i)}{\sum_j r(s, \theta_j)}

    For draws from the prior these are importance weights; where kernels crowd, they share.
    """
    distances = surrogate.geometry.of(surrogate.geometry.measure(nodes.cube), surrogate.placed)
    shares = correlations(distances, surrogate.parameters).clamp_min(torch.finfo(surrogate.roots.dtype).tiny)
    volume = (nodes.weights.unsqueeze(-1) * shares / shares.sum(-1, keepdim=True)).sum(0)
    return (surrogate.evaluations.log_likelihood + volume.log()).log_softmax(-1)
