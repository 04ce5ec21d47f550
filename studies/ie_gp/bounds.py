r"""The rival of lemma 1 of Lu et al. (2022), a function fitted to the whole stream, and the bound of the regret."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.meta_learners import sticky_transition
from gp_ensembles.metrics.regret_bounds import path_prior_bound
from gp_ensembles.numerics import normal


class BatchEstimate(NamedTuple):
    r"""Functions fitted to all rows at once, the rivals of the incremental ensemble.

    Attributes:
        weights: Maximum a posteriori weights, shape (\*batch, F).
        log_prob: Log density of each target under the fixed function, shape (\*batch, T), NaN where it is missing.
        cost: What an expert that starts from the same prior and learns row by row loses to the function in all,
            shape (\*batch), in nats, exactly: :math:`\|\theta\|^2 / (2 \sigma_\theta^2) + \tfrac12 \log\det(I +
            \sigma_\theta^2 \Phi^\top \Phi / \sigma^2)`.
    """

    weights: Tensor
    log_prob: Tensor
    cost: Tensor


def batch_estimate(Phi: Tensor, y: Tensor, noise: Tensor, prior_variance: Tensor) -> BatchEstimate:
    r"""The fixed function of each expert that explains the whole stream best, and what learning it costs.

    Shapes: ``Phi`` (\*batch, T, F), ``y`` (T,), ``noise`` (\*batch), ``prior_variance`` (\*batch).

    Raises:
        ValueError: If y does not have T entries.
    """
    if Phi.ndim < 2 or y.shape != Phi.shape[-2:-1]:
        raise ValueError(f"Phi must be (..., T, F) and y (T,), got {tuple(Phi.shape)} and {tuple(y.shape)}")
    seen = ~torch.isnan(y)
    ratio = (prior_variance / noise)[..., None, None]
    targets, design = torch.where(seen, y, 0.0), torch.where(seen.unsqueeze(-1), Phi, 0.0)
    # Orthogonal, not by the normal equations: the prior's rows below make R regular whatever the design, and
    # conditioning is not squared. R^T R = I + (prior / noise) Phi^T Phi.
    scaled = design * ratio.sqrt()
    identity = torch.diag(Phi.new_ones(Phi.shape[-1])).expand(*scaled.shape[:-2], -1, -1)
    Q, R = torch.linalg.qr(torch.cat([scaled, identity], -2))
    rotated = Q[..., : y.shape[0], :].mT @ targets.unsqueeze(-1)
    weights = (ratio.sqrt() * torch.linalg.solve_triangular(R, rotated, upper=True)).squeeze(-1)
    error = targets - (design @ weights.unsqueeze(-1)).squeeze(-1)
    variance = noise.unsqueeze(-1)
    log_prob = normal.log_prob(error, torch.zeros_like(error), variance)
    half_log_determinant = R.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    cost = 0.5 * weights.square().sum(-1) / prior_variance + half_log_determinant
    return BatchEstimate(weights, torch.where(seen, log_prob, torch.nan), cost)


def switching_bound(num_experts: int, num_steps: int, num_switches: int, stay: float) -> float:
    """Most that sticky switching loses to experts in turn with S switches: minus the log probability of such a path.

    It is infinite where the chain cannot take the path: for ``stay=0`` if a step does not switch, for 1 if one does.

    Raises:
        ValueError: If a number is out of range.
    """
    if not 0 <= num_switches < num_steps:
        raise ValueError(f"a sequence of {num_steps} steps cannot switch {num_switches} times")
    path = torch.arange(num_steps, dtype=torch.int64, device="cpu").clamp_max(num_switches) % 2
    return path_prior_bound(sticky_transition(num_experts, stay), path)


def static_bound(
    theta_norm2: Tensor,
    prior_variance: Tensor,
    noise: Tensor,
    num_features: int,
    num_steps: int,
    feature_norm2: Tensor,
    num_experts: int,
) -> Tensor:
    r"""Most that a static Gaussian ensemble can lose to a fixed function of one of its experts, in nats.

    .. math:: \sum_t -\log p_t - \sum_t -\log N(y_t; \phi_t^\top \theta, \sigma^2) \le \log M +
              \frac{\|\theta\|^2}{2 \sigma_\theta^2} + \frac F2 \log\Bigl(1 + \frac{T \sigma_\theta^2}{F \sigma^2}
              \overline{\|\phi\|^2}\Bigr)

    Raises:
        ValueError: If a number of features, steps or experts is not positive.
    """
    if num_features < 1 or num_steps < 1 or num_experts < 1:
        raise ValueError(f"features, steps and experts must be one or more: {num_features}, {num_steps}, {num_experts}")
    growth = num_steps * feature_norm2 * prior_variance / (num_features * noise)
    return math.log(num_experts) + 0.5 * theta_norm2 / prior_variance + 0.5 * num_features * torch.log1p(growth)
