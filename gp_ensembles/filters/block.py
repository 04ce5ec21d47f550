r"""The exact block filter: the numbers of B single steps from a handful of matrix products.

With the design :math:`\Phi` (B, F) of the block, the state :math:`(\mu, \Sigma)` before it and the random walk
:math:`Q`, the targets of the block and the weights after it are jointly Gaussian:

.. math::
    C &= \Phi \Sigma + \mathrm{diag}(t)\, \Phi Q                              && \mathrm{cov}(y, \theta_B) \\
    K &= \Phi \Sigma \Phi^\top + \min(s, t) \circ \Phi Q \Phi^\top + \sigma^2 I = L L^\top && \mathrm{cov}(y) \\
    W &= L^{-1} C, \qquad e = L^{-1} (y - \Phi \mu)

Row t of :math:`L^{-1}` uses targets up to t only, so its diagonal gives the one-step-ahead predictions: variance
:math:`L_{tt}^2`, mean :math:`y_t - L_{tt} e_t`. Afterwards :math:`\mu \leftarrow \mu + W^\top e` and
:math:`\Sigma \leftarrow \Sigma + B Q - W^\top W`.

The state keeps [Σ | μ] in one tensor, so :math:`\Phi [\Sigma | \mu]` and :math:`L^{-1} [C | \Phi \mu - y] = [W | -e]`
are one product and one triangular solve, and the update of both moments is
:math:`[\Sigma | \mu] - W^\top [W | -e]`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.states import GaussianState, StepPredictions
from gp_ensembles.filters.walks import total_walk, walk_rows, walk_variance
from gp_ensembles.numerics.cholesky import cholesky


class BlockGain(NamedTuple):
    r"""What a block teaches, before it is applied to the state.

    Attributes:
        left: W, shape (\*batch, B, F).
        right: [W | -e], shape (\*batch, B, F + 1). The moments of the weights lose ``left.mT @ right``.
        drift: What the walk adds to the covariance in all: its diagonal (\*batch, 1) or (\*batch, F), or the matrix
            (\*batch, F, F); ``None`` for static weights.
    """

    left: Tensor
    right: Tensor
    drift: Tensor | None


def condition_block(
    state: GaussianState,
    Phi: Tensor,
    y: Tensor,
    noise: Tensor,
    random_walk_variance: Tensor | None = None,
    steps: Tensor | None = None,
) -> tuple[BlockGain, StepPredictions]:
    """Predict a block one step ahead and work out what it teaches; arguments as in :func:`update_block`."""
    cross, mean, covariance, drift = joint_moments(state, Phi, noise, random_walk_variance, steps)
    missing = torch.isnan(y)
    if _any(missing):
        return _condition_with_gaps(covariance, cross, mean, y, noise, drift)
    factor = cholesky(_add_noise(covariance, noise), _WHAT)
    residual = (mean - y).unsqueeze(-1)
    whitened = torch.linalg.solve_triangular(factor, torch.cat([cross, residual], dim=-1), upper=False)
    scale = factor.diagonal(dim1=-2, dim2=-1)
    predictions = StepPredictions(y + scale * whitened[..., -1], scale.square(), _log_prob(whitened[..., -1], scale))
    return BlockGain(whitened[..., :-1], whitened, drift), predictions


def joint_moments(
    state: GaussianState, Phi: Tensor, noise: Tensor, walk: Tensor | None, steps: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    r"""Moments of the latent values :math:`z_t = \phi_t^\top \theta_t` of a block and of the weights after it.

    Arguments as in :func:`update_block`.

    Returns:
        cov(z, θ_B), shape (\*batch, B, F); the mean of z, (\*batch, B); cov(z), (\*batch, B, B); and the drift as
        in :class:`BlockGain`.
    """
    num_features = Phi.shape[-1]
    joint = Phi @ state.moments  # [Φ Σ | Φ μ]
    cross, covariance, drift = joint_covariance(joint[..., :num_features], Phi, noise, walk, steps)
    return cross, joint[..., num_features], covariance, drift


def joint_covariance(
    cross: Tensor, Phi: Tensor, noise: Tensor, walk: Tensor | None, steps: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    r"""cov(z, θ_B), cov(z) and the drift, as in :func:`joint_moments`, from Φ Σ (\*batch, B, F)."""
    drift = None
    if walk is not None:
        steps = count_steps(Phi) if steps is None else steps
        cross = cross + steps.unsqueeze(-1) * walk_rows(Phi, walk, noise)
        drift = total_walk(walk, steps[..., -1], noise)
    # Row s of C carries the walk up to s, and min(s, t) = s on and above the diagonal of C Φᵀ.
    upper = cross @ Phi.mT
    return cross, torch.triu(upper) + torch.triu(upper, diagonal=1).mT, drift


def count_steps(Phi: Tensor) -> Tensor:
    """One step of the walk before every row: 1, 2, ..., B."""
    return torch.arange(1, Phi.shape[-2] + 1, dtype=Phi.dtype, device=Phi.device)


def _condition_with_gaps(
    covariance: Tensor, cross: Tensor, mean: Tensor, y: Tensor, noise: Tensor, drift: Tensor | None
) -> tuple[BlockGain, StepPredictions]:
    """The same where some targets are missing: they teach nothing but are predicted all the same."""
    seen = (~torch.isnan(y)).to(mean.dtype).expand_as(mean)
    residual = torch.where(seen > 0, mean - y, 0.0)
    masked = covariance * seen.unsqueeze(-1) * seen.unsqueeze(-2)
    factor = cholesky(_add_noise(masked, noise), _WHAT)
    right = torch.cat([cross, residual.unsqueeze(-1)], dim=-1) * seen.unsqueeze(-1)
    whitened = torch.linalg.solve_triangular(factor, right, upper=False)
    # Column t above the diagonal: how the un-zeroed row t depends on the observed targets before it.
    past = torch.linalg.solve_triangular(factor, covariance * seen.unsqueeze(-1), upper=False)
    past = torch.triu(past, diagonal=1)
    variance = covariance.diagonal(dim1=-2, dim2=-1) + noise.unsqueeze(-1) - past.square().sum(-2)
    variance = torch.where(seen > 0, factor.diagonal(dim1=-2, dim2=-1).square(), variance)
    scale = variance.sqrt()
    predicted = mean - (past * whitened[..., -1:]).sum(-2)
    log_prob = torch.where(seen > 0, _log_prob(whitened[..., -1], scale), 0.0)
    return BlockGain(whitened[..., :-1], whitened, drift), StepPredictions(predicted, variance, log_prob)


def apply_gain(state: GaussianState, gain: BlockGain) -> GaussianState:
    """The posterior after the block, as a new state."""
    moments = state.moments - gain.left.mT @ gain.right
    if gain.drift is not None:
        full = gain.drift.ndim == moments.ndim
        spread = gain.drift if full else torch.diag_embed(gain.drift.expand_as(moments[..., 0]))
        moments = moments + torch.nn.functional.pad(spread, (0, 1))
    return GaussianState(moments)


def update_block(
    state: GaussianState,
    Phi: Tensor,
    y: Tensor,
    noise: Tensor,
    random_walk_variance: Tensor | None = None,
    steps: Tensor | None = None,
) -> tuple[GaussianState, StepPredictions]:
    r"""Predict and learn a block of targets; equal to single steps to round-off.

    Args:
        state: Posterior before the block.
        Phi: Features, shape (\*batch, B, F), in the order of time.
        y: Targets, shape (B,) or (\*batch, B); NaN where a target was not observed.
        noise: Observation noise variance, shape (\*batch).
        random_walk_variance: Q per step: its diagonal, shape (\*batch, 1) or (\*batch, F), or the matrix
            (\*batch, F, F); ``None`` for static.
        steps: How many steps of the walk lie between the state and each row, increasing, (B,) or (\*batch, B); by
            default 1, 2, ..., B.

    Returns:
        The posterior after the block, and the predictions made before each target.

    Raises:
        NumericalError: If the predictive covariance of the block is not positive definite.

    Example:
        >>> import torch
        >>> from gp_ensembles.filters.states import gaussian_state
        >>> Phi = torch.ones(2, 1, dtype=torch.float64)
        >>> y, one = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.ones((), dtype=torch.float64)
        >>> state, steps = update_block(gaussian_state(one, 1), Phi, y, one)
        >>> state.mean, steps.variance
        (tensor([1.], dtype=torch.float64), tensor([2.0000, 1.5000], dtype=torch.float64))
    """
    gain, predictions = condition_block(state, Phi, y, noise, random_walk_variance, steps)
    return apply_gain(state, gain), predictions


def predict(
    state: GaussianState, Phi: Tensor, noise: Tensor, random_walk_variance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Predict targets one step ahead, each on its own, learning nothing.

    Args:
        state: Posterior of the weights.
        Phi: Features, shape (..., \*batch, N, F).
        noise: Observation noise variance, shape (\*batch).
        random_walk_variance: As in :func:`update_block`; one step of it precedes the prediction.

    Returns:
        Mean and variance (noise included), each (..., \*batch, N).

    Example:
        >>> import torch
        >>> from gp_ensembles.filters.states import gaussian_state
        >>> one = torch.ones((), dtype=torch.float64)
        >>> predict(gaussian_state(one, 1), torch.full((1, 1), 2.0, dtype=torch.float64), one)
        (tensor([0.], dtype=torch.float64), tensor([5.], dtype=torch.float64))
    """
    joint = Phi @ state.moments
    variance = (joint[..., :-1] * Phi).sum(-1) + noise.unsqueeze(-1)
    if random_walk_variance is not None:
        variance = variance + walk_variance(Phi, random_walk_variance, noise)
    return joint[..., -1], variance


_WHAT = "the predictive covariance of the block"


def _add_noise(covariance: Tensor, noise: Tensor) -> Tensor:
    return covariance + torch.diag_embed(noise.unsqueeze(-1).expand(covariance.shape[:-1]))


def _log_prob(whitened: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * whitened.square() - scale.log() - 0.5 * math.log(2 * math.pi)


def _any(mask: Tensor) -> bool:
    try:
        return bool(mask.any())
    except RuntimeError:  # values cannot be read inside vmap or on the meta device: the general path is right
        return True
