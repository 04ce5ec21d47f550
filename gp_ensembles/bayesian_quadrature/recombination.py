"""Large batches by recombination: few nodes that integrate what many nodes integrate."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from gp_ensembles.bayesian_quadrature.nodes import draw_nodes
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate


class Recombined(NamedTuple):
    """At most q of the candidates, with positive weights of sum one.

    Args:
        cube: Rows of the prior's cube, shape (q, C).
        weights: Their weights, shape (q,).
    """

    cube: Tensor
    weights: Tensor


def recombine(
    surrogate: Surrogate, count: int, candidates: int = 100, *, generator: torch.Generator | None = None
) -> Recombined:
    r"""Candidates that integrate the leading eigenfunctions of the surrogate's covariance as all of them do.

    Candidates are draws of the prior weighted by the likelihood's linearized standard deviation, whose covariance C has
    q - 1 leading eigenvectors; a vertex of :math:`\{w \ge 0 : \sum w = 1, \Phi^\top w = \Phi^\top \mu\}` has at most q
    positive weights (Hayakawa, Oberhauser and Lyons, 2022; Adachi et al., 2022, use it for batches of quadrature).
    Fewer points than asked for are filled up with the most uncertain candidates left.

    Args:
        surrogate: The surrogate.
        count: Size q of the batch.
        candidates: Draws for each number of components.
        generator: Source of randomness.

    Returns:
        The batch.

    Raises:
        ValueError: If there are fewer candidates than points wanted.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, X.squeeze(-1).sin())
        >>> generator = torch.Generator().manual_seed(0)
        >>> cube = problem.prior.draw(8, 1, generator=generator)
        >>> surrogate = fitted_surrogate(Evaluations(cube, problem.evaluate(cube)), problem.geometry)
        >>> batch = recombine(surrogate, 5, candidates=20, generator=generator)
        >>> batch.cube.shape[0], bool((batch.weights >= 0).all())
        (5, True)
    """
    nodes = draw_nodes(surrogate.geometry.prior, candidates, generator=generator)
    if nodes.cube.shape[0] < count:
        raise ValueError(f"{nodes.cube.shape[0]} candidates are too few for a batch of {count}; raise candidates")
    with torch.no_grad():
        latent = surrogate.latent(nodes.cube)
    spread = latent.mean.abs() * latent.covariance.diagonal().clamp_min(0.0).sqrt()
    measure = nodes.weights * (spread + torch.finfo(spread.dtype).tiny)
    measure = measure / measure.sum()
    weights = torch.as_tensor(_vertex(latent.covariance, measure, count)).to(measure)
    chosen = weights.argsort(descending=True, stable=True)[: min(count, int((weights > 0).sum()))]
    left = measure.index_fill(0, chosen, -1.0).argsort(descending=True, stable=True)[: count - chosen.numel()]
    rows = torch.cat([chosen, left])
    return Recombined(nodes.cube[rows], weights[rows])


def _vertex(covariance: Tensor, measure: Tensor, count: int) -> np.ndarray:
    """Non-negative weights, at most ``count`` of them positive, with the integrals of the measure."""
    _, vectors = torch.linalg.eigh(covariance)
    functions = vectors[:, -(count - 1) :].mT if count > 1 else vectors[:, :0].mT
    scale = functions.abs().amax(-1, keepdim=True).clamp_min(1e-300)
    equations = torch.cat([torch.ones_like(measure).unsqueeze(0), functions / scale]).cpu().double().numpy()
    target = equations @ measure.cpu().double().numpy()
    # the objective picks among vertices: rather where the measure is large
    cost = -np.log(np.maximum(measure.cpu().double().numpy(), 1e-300))
    result = linprog(cost, A_eq=equations, b_eq=target, bounds=(0.0, None), method="highs-ds")
    weights: np.ndarray = np.asarray(result.x if result.success else measure.cpu().double().numpy())
    return weights
