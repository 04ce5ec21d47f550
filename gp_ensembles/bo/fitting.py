"""Hyperparameters of a BoTorch model: the evidence of all rows, maximized for each feature map."""

import torch
from torch import Tensor

from gp_ensembles.bo.conditioning import update_expert
from gp_ensembles.bo.data import Observations
from gp_ensembles.ensembles.ensemble import Ensemble
from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.empirical_bayes import LBFGS, EvidenceFit, fit_empirical_bayes
from gp_ensembles.experts.evidence import batched_log_evidence
from gp_ensembles.filters.states import FilterState
from gp_ensembles.filters.transitions import Transition

_METHOD = LBFGS(max_iterations=100, loss_tolerance=1e-6)


def fit_ensemble(ensemble: Ensemble, rows: Observations, progress: bool = False) -> list[EvidenceFit]:
    """Maximize evidence plus log priors, in place; experts that share a feature map are fitted through the first.

    Args:
        ensemble: The ensemble; all trainable hyperparameters change.
        rows: Inputs (n, D), targets (n, O) and known noise.
        progress: Show a progress bar.

    Returns:
        The record of each fit, one for each feature map.
    """
    first = {id(expert.features): expert for expert in reversed(ensemble.experts)}
    targets = rows.Y.squeeze(-1) if rows.Y.shape[-1] == 1 else rows.Y
    return [
        fit_empirical_bayes(_SequentialEvidence(expert, rows.noise), rows.X, targets, _METHOD, progress=progress)
        for expert in first.values()
    ]


class _SequentialEvidence(Expert):
    """An expert whose evidence is that of rows in their order, with weights that change and known noise of each row.

    Shares features and likelihood with the expert that it wraps.
    """

    def __init__(self, expert: Expert, known_noise: Tensor | None) -> None:
        super().__init__(expert.features, None)
        self.expert = expert
        self.known_noise = known_noise

    def init(self) -> FilterState:
        """State before any data."""
        return self.expert.init()

    def bind(self) -> BoundExpert:
        """Read the hyperparameters once, differentiably."""
        return self.expert.bind()

    def check_targets(self, y: Tensor) -> None:
        """See :meth:`Expert.check_targets`."""
        self.expert.check_targets(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """Exact; in weight or function space for static weights, by the filter for weights that change."""
        if self.expert.transition is None and self.known_noise is None:
            return self.expert.log_evidence(X, y)
        bound = self.expert.bind()
        Phi = bound.features(X)
        if self.expert.transition is None and self.known_noise is not None:
            root = self.known_noise.sqrt()
            one = torch.ones_like(bound.prior_variance)
            scaled = batched_log_evidence(Phi / root, y / root.squeeze(-1), bound.prior_variance, one)
            return scaled - root.log().sum()
        Y = y.unsqueeze(-1) if y.ndim == 1 else y
        noise = None if self.known_noise is None else self.known_noise.squeeze(-1)
        _, steps = update_expert(bound, self.expert.init(), Phi, Y, noise)
        return steps.log_prob.sum(-1)

    def take(self, index: Tensor) -> "_SequentialEvidence":
        """See :meth:`Expert.take`."""
        return _SequentialEvidence(self.expert.take(index), self.known_noise)

    def with_transition(self, transition: Transition | None) -> "_SequentialEvidence":
        """See :meth:`Expert.with_transition`."""
        return _SequentialEvidence(self.expert.with_transition(transition), self.known_noise)
