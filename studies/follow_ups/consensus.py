"""An ensemble learned by agents on a graph: sums of sufficient statistics by average consensus."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import cholesky
from studies.harness.experiment import Choices
from studies.harness.trials import Case, run_cases
from studies.ie_gp.theory import rbf_features

ROUNDS = (0, 20, 100, 300)
_LENGTHSCALES = (0.1, 0.3, 1.0)
_NOISE = 0.05


class Statistics(NamedTuple):
    """What a set of rows says of the weights of each expert.

    Rows of several agents have one more axis in front; statistics of all rows are the sums over agents.

    Attributes:
        gram: Φ'Φ, shape (M, F, F).
        cross: Φ'y, shape (M, F).
        square: y'y, a scalar.
        num_rows: How many rows, a scalar.
    """

    gram: Tensor
    cross: Tensor
    square: Tensor
    num_rows: Tensor


class Learned(NamedTuple):
    """What an ensemble knows.

    Attributes:
        mean: Posterior means of the weights, shape (*, M, F).
        covariance: Posterior covariances, shape (*, M, F, F).
        log_evidence: Log evidence of each expert, shape (*, M).
        weights: Posterior probabilities of the experts, equal before, shape (*, M).
    """

    mean: Tensor
    covariance: Tensor
    log_evidence: Tensor
    weights: Tensor


def statistics(Phi: Tensor, y: Tensor) -> Statistics:
    """Those of rows with features (M, N, F) and targets (N,)."""
    return Statistics(Phi.mT @ Phi, (Phi.mT @ y.unsqueeze(-1)).squeeze(-1), y @ y, y.new_tensor(float(len(y))))


def learned(found: Statistics, noise: float, prior_variance: float = 1.0) -> Learned:
    r"""Posterior and evidence from the sums.

    With :math:`\Lambda = I / \sigma_\theta^2 + \Phi^\top \Phi / \sigma^2` and :math:`b = \Phi^\top y / \sigma^2` the
    weights are :math:`N(\Lambda^{-1} b, \Lambda^{-1})` and

    .. math:: \log p(y) = \tfrac12 \big( b^\top \Lambda^{-1} b - y^\top y / \sigma^2 - \log\det(\sigma_\theta^2 \Lambda)
              - N \log(2 \pi \sigma^2) \big)

    Args:
        found: Sums, with any axes in front.
        noise: Observation variance.
        prior_variance: Prior variance of each weight.

    Raises:
        NumericalError: If a precision is not positive definite.

    Example:
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> found = learned(statistics(one, 2 * one[0, 0]), 1.0)
        >>> round(float(found.mean), 12), round(float(found.covariance), 12)
        (1.0, 0.5)
    """
    identity = torch.diag_embed(torch.ones_like(found.cross))
    root = cholesky(identity / prior_variance + found.gram / noise, "the posterior precision")
    b = (found.cross / noise).unsqueeze(-1)
    mean = torch.cholesky_solve(b, root)
    log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + b.shape[-2] * math.log(prior_variance)
    constant = found.square / noise + found.num_rows * math.log(2 * math.pi * noise)
    log_evidence = 0.5 * ((b * mean).sum((-2, -1)) - log_det - constant.unsqueeze(-1))
    weights = log_evidence.softmax(-1)
    return Learned(mean.squeeze(-1), torch.cholesky_solve(identity, root), log_evidence, weights)


def ring(num_agents: int) -> Tensor:
    """Who talks to whom on a ring, shape (A, A).

    Example:
        >>> ring(3).sum(0)
        tensor([2, 2, 2])
    """
    step = torch.eye(num_agents, dtype=torch.bool, device="cpu").roll(1, 0)
    return (step | step.T) & ~torch.eye(num_agents, dtype=torch.bool, device="cpu")


def star(num_agents: int) -> Tensor:
    """One agent talks to all others, shape (A, A)."""
    edges = torch.zeros(num_agents, num_agents, dtype=torch.bool, device="cpu")
    edges[0, 1:] = edges[1:, 0] = True
    return edges


def complete(num_agents: int) -> Tensor:
    """All talk to all, shape (A, A)."""
    return ~torch.eye(num_agents, dtype=torch.bool, device="cpu")


def metropolis(edges: Tensor) -> Tensor:
    r"""Weights of average consensus that each agent knows from its neighbors' degrees (Xiao, Boyd and Lall 2005).

    :math:`w_{ij} = 1 / (1 + \max(d_i, d_j))` on edges, what is left of one on the diagonal: a symmetric matrix whose
    powers go to the average where the graph is connected.

    Args:
        edges: Who talks to whom, symmetric with an empty diagonal, shape (A, A).

    Raises:
        ValueError: If it is not symmetric or an agent talks to itself, or the graph is not connected.

    Example:
        >>> metropolis(ring(3))
        tensor([[0.3333, 0.3333, 0.3333],
                [0.3333, 0.3333, 0.3333],
                [0.3333, 0.3333, 0.3333]], dtype=torch.float64)
    """
    if edges.dtype != torch.bool or not torch.equal(edges, edges.T) or bool(edges.diagonal().any()):
        raise ValueError("edges must be a symmetric matrix of booleans with an empty diagonal")
    reached = edges[0].clone()
    reached[0] = True
    for _ in range(len(edges)):
        reached = reached | edges[reached].any(0)
    if not bool(reached.all()):
        raise ValueError(
            f"agent {int((~reached).nonzero()[0, 0])} is not connected to agent 0: no consensus is possible"
        )
    degree = edges.sum(0).double()
    weights = edges / (1 + torch.maximum(degree, degree.unsqueeze(-1)))
    return weights + torch.diag(1 - weights.sum(0))


def exchanged(own: Statistics, weights: Tensor, num_rounds: int) -> Statistics:
    """What each agent holds for the sums over all agents after some rounds of exchange with its neighbors.

    Args:
        own: Statistics of each agent's rows, agents first.
        weights: Of the consensus, shape (A, A).
        num_rounds: Rounds; in each an agent sends what it holds to its neighbors.
    """
    num_agents = len(weights)

    def shared(values: Tensor) -> Tensor:
        flat = values.reshape(num_agents, -1)
        for _ in range(num_rounds):
            flat = weights.to(flat) @ flat
        return num_agents * flat.reshape(values.shape)

    return Statistics(*(shared(values) for values in own))


def of_agents(Phi: Tensor, y: Tensor, num_agents: int) -> Statistics:
    """Statistics of each agent's rows, which follow one another, agents first."""
    parts = [
        statistics(design, targets)
        for design, targets in zip(Phi.tensor_split(num_agents, -2), y.tensor_split(num_agents), strict=True)
    ]
    return Statistics(*(torch.stack(values) for values in zip(*parts, strict=True)))


def consensus_errors(
    make_edges: Callable[[int], Tensor], num_agents: int, num_rows: int, num_features: int, generator: torch.Generator
) -> dict[str, float]:
    """Largest errors of any agent after each number of rounds, and the rate at which they fall."""
    X = 4 * torch.rand(num_rows, 1, dtype=torch.float64, device="cpu", generator=generator)
    X = X.sort(0).values  # each agent has seen a part of the inputs
    truth = (2 * X[:, 0]).sin() + (3 * X[:, 0]).sin()
    y = truth + _NOISE**0.5 * torch.randn(num_rows, dtype=X.dtype, device="cpu", generator=generator)
    Phi = rbf_features(X, _LENGTHSCALES, num_features, generator)
    own, weights = of_agents(Phi, y, num_agents), metropolis(make_edges(num_agents))
    central = learned(statistics(Phi, y), _NOISE)
    expected = _predicted(central, Phi)
    scores = {"rate": float(torch.linalg.eigvalsh(weights).abs().sort().values[-2])}
    for rounds in ROUNDS:
        found = learned(exchanged(own, weights, rounds), _NOISE)
        scores[f"mean, {rounds}"] = float((_predicted(found, Phi) - expected).abs().max())
        scores[f"evidence, {rounds}"] = float((found.log_evidence - central.log_evidence).abs().max())
    return scores


def _predicted(found: Learned, Phi: Tensor) -> Tensor:
    return (found.weights.unsqueeze(-1) * (Phi @ found.mean.unsqueeze(-1)).squeeze(-1)).sum(-2)


def run(choices: Choices, settings: None) -> str:
    """Errors of the agents by graph and number of rounds."""
    rows = choices.max_rows or 400
    graphs: dict[str, Callable[[int], Tensor]] = {"ring": ring, "star": star, "complete": complete}
    cases: dict[str, Case] = {
        f"{name} of {agents}": partial(consensus_errors, make, agents, rows, 20)
        for name, make in graphs.items()
        for agents in (8, 16)
    }
    title = "Largest error of any agent's predicted mean, and of a log evidence, after so many rounds of exchange"
    return run_cases(choices, "consensus", title, cases, {"rows": rows, "num_features": 20})
