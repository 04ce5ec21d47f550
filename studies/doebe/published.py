"""Differences of the authors' code from their paper, for ``--as-published``: features, evidence and weights.

The code is that of October 2024 (``DanWaxman/DynamicOnlineBasisExpansions``); nothing of it is copied.
"""

import torch
from torch import Tensor

from gp_ensembles.experts.empirical_bayes import trainable
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.hilbert import HilbertAdditiveFeatures

NUM_STEPS = 500
_LEARNING_RATE = 1e-2


class RampedHilbertFeatures(FeatureMap):
    r"""Hilbert-space features whose sines have K frequencies from 1 to K + 1 evenly, and densities those of 1, ..., K.

    .. math:: \phi_{jk}(x) = \sqrt{S_j(\omega_k)}\,\sin(\omega_{k'} (x_j + L_j)) / \sqrt{L_j}, \qquad
              k' = 1 + (k - 1)\,K / (K - 1)

    Args:
        features: The features with frequencies 1, ..., K.
    """

    def __init__(self, features: HilbertAdditiveFeatures) -> None:
        domain = features.domain
        super().__init__(features.num_inputs, features.num_features, features.batch_shape, domain)
        self.features = features

    @property
    def prior_variance(self) -> Tensor:
        r"""That of the features, shape (\*batch)."""
        return self.features.prior_variance

    def bind(self) -> BoundFeatures:
        """Read the hyperparameters once and return the map as a plain function of tensors."""
        rate, shift, amplitude = self.features.waves()  # (*batch, D, K)
        number = self.features.num_frequencies
        order = torch.arange(1, number + 1, dtype=rate.dtype, device=rate.device)
        ramp = torch.linspace(1, number + 1, number, dtype=rate.dtype, device=rate.device) / order
        rate, shift, amplitude = ((rate * ramp).unsqueeze(-3), (shift * ramp).unsqueeze(-3), amplitude.unsqueeze(-3))
        num_batch = len(self.batch_shape)

        def features(X: Tensor) -> Tensor:
            seen = X[(..., *([None] * num_batch), slice(None), slice(None), None)]
            return (torch.addcmul(shift, seen, rate).sin() * amplitude).flatten(-2)

        return features


def half_determinant_evidence(expert: GaussianExpert, X: Tensor, y: Tensor) -> Tensor:
    r"""The authors' objective, with half of the log determinant of the posterior precision, per expert, shape (M,).

    .. math:: \log p(y) + \tfrac14 \log\det A, \qquad A = I / \sigma_\theta^2 + \Phi^\top \Phi / \sigma_n^2

    Args:
        expert: Experts.
        X: Inputs, shape (N, D).
        y: Targets, shape (N,).
    """
    Phi = expert.features.bind()(X)
    noise = expert.likelihood.noise.reshape(*expert.batch_shape, 1, 1)
    prior = expert.features.prior_variance.reshape(*expert.batch_shape, 1)
    precision = Phi.mT @ Phi / noise + torch.diag_embed(prior.reciprocal().expand(*prior.shape[:-1], Phi.shape[-1]))
    half_logdet = torch.linalg.cholesky(precision).diagonal(dim1=-2, dim2=-1).log().sum(-1)
    value: Tensor = expert.log_evidence(X, y) + 0.5 * half_logdet
    return value.reshape(expert.num_experts)


def fit_half_determinant(expert: GaussianExpert, X: Tensor, y: Tensor, num_steps: int = NUM_STEPS) -> None:
    """Adam on the authors' objective from noise 0.25, in place; on logarithms, where they have softplus.

    Args:
        expert: Experts; their hyperparameters change.
        X: Warm-up inputs, shape (N, D).
        y: Warm-up targets, shape (N,); NaN rows are left out.
        num_steps: Steps.
    """
    seen = ~torch.isnan(y)
    expert.likelihood.noise = 0.25
    optimizer = torch.optim.Adam(trainable(expert).values(), lr=_LEARNING_RATE)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = -half_determinant_evidence(expert, X[seen], y[seen]).sum()
        loss.backward()
        optimizer.step()


def chain_transition(group: Tensor, start: Tensor, sample: Tensor, delta: float) -> Tensor:
    """The authors' Q: experts exchange weight with those of the next group that have the same start and sample.

    Groups are HSGP dynamic, HSGP static, RFF dynamic, and so on, so that weight wanders through all families, and rows
    of those in the middle sum to one and ``delta``.

    Args:
        group: Place of each expert's group, shape (M,).
        start: Number of its starting hyperparameters, shape (M,).
        sample: Number of its sample, shape (M,).
        delta: What is exchanged a step.

    Returns:
        Q, shape (M, M), float64.

    Example:
        >>> zero = torch.zeros(3, dtype=torch.int64)
        >>> chain_transition(torch.arange(3), zero, zero, 0.25).tolist()
        [[0.75, 0.25, 0.0], [0.25, 0.75, 0.25], [0.0, 0.25, 0.75]]
    """
    is_next = (group.unsqueeze(0) - group.unsqueeze(1)).abs() == 1
    is_twin = (start.unsqueeze(0) == start.unsqueeze(1)) & (sample.unsqueeze(0) == sample.unsqueeze(1))
    return (1 - delta) * torch.eye(len(group), dtype=torch.float64, device=group.device) + delta * (
        is_next & is_twin
    ).double()


def weights_after_targets(log_prob: Tensor, transition: Tensor) -> Tensor:
    r"""Log weights that the authors' E-DOEBE predicts with, which have seen the target, shape (M, T).

    .. math:: w_t \propto (Q w_{t-1}) \circ p(y_t)

    Args:
        log_prob: Log densities of the targets, shape (M, T).
        transition: Q, shape (M, M); its columns need not sum to one.
    """
    weights = log_prob.new_full((log_prob.shape[0],), 1 / log_prob.shape[0])
    switch, found = transition.to(log_prob), []
    for column in log_prob.T:
        joint = (switch @ weights).log() + column
        found.append(joint - joint.logsumexp(0))
        weights = found[-1].exp()
    return torch.stack(found, dim=1)
