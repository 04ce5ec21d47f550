r"""The filter with unknown noise: normal-inverse-gamma, Student-t predictions, exact in blocks.

The recursion for :math:`\mu` and V is the Gaussian one with unit noise. With u = 1 + φᵀVφ and the error e of the mean,

.. math:: y \sim t_{2a}\big(\phi^\top \mu, (b / a) u\big), \qquad a \leftarrow a + \tfrac12, \qquad
          b \leftarrow b + \tfrac12 e^2 / u

(Gelman et al., Bayesian Data Analysis, section 14.2). In a block, a and b before each target are cumulative sums.
"""

import torch
from torch import Tensor

from gp_ensembles.filters import adaptive
from gp_ensembles.filters.adaptation import Adaptation
from gp_ensembles.filters.states import GaussianState, StudentTPredictions, StudentTState, gaussian_state
from gp_ensembles.numerics import student_t


def student_t_state(prior_variance: Tensor, num_features: int, concentration: Tensor, rate: Tensor) -> StudentTState:
    r"""State before any data.

    Args:
        prior_variance: Prior variance of each weight in units of the noise variance, shape (\*batch).
        num_features: Number of features F.
        concentration: a of the noise variance, above one, shape (\*batch).
        rate: b of the noise variance, shape (\*batch).
    """
    return StudentTState(gaussian_state(prior_variance, num_features).moments, concentration, rate)


def update_block(
    state: StudentTState,
    Phi: Tensor,
    y: Tensor,
    adaptation: Adaptation | None,
    prior: StudentTState,
    discount: Tensor | None = None,
) -> tuple[StudentTState, StudentTPredictions]:
    r"""Predict and learn a block of targets; equal to single steps to round-off.

    Args:
        state: Posterior before the block.
        Phi: Features, shape (\*batch, B, F), in the order of time.
        y: Targets, shape (B,); NaN where missing.
        adaptation: How the weights change before every row, in units of the noise variance.
        prior: State before any data, to which stabilized forgetting goes back.
        discount: How fast the noise variance changes: before every row :math:`a \leftarrow \delta a + (1 - \delta) a_0`
            and b alike, so an effective memory of :math:`1 / (1 - \delta)` rows; shape () or (\*batch). ``None`` for a
            constant noise.

    Returns:
        The posterior after the block, and the predictions made before each target, each (\*batch, B).

    Example:
        >>> import torch
        >>> one = torch.ones((), dtype=torch.float64)
        >>> prior = student_t_state(one, 1, 2 * one, one)
        >>> Phi, y = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        >>> state, steps = update_block(prior, Phi, y, None, prior)
        >>> steps.variance, state.rate
        (tensor([2.0000], dtype=torch.float64), tensor(1.2500, dtype=torch.float64))
    """
    unit = torch.ones_like(state.concentration)
    prior_variance = prior.moments[..., 0, 0]
    linear, steps = adaptive.update_block(GaussianState(state.moments), Phi, y, unit, adaptation, prior_variance)
    assert isinstance(linear, GaussianState)
    seen = ~torch.isnan(y)
    count = torch.where(seen, 0.5, torch.zeros_like(steps.mean))
    excess = torch.where(seen, 0.5 * (y - steps.mean).square() / steps.variance, 0.0)
    concentration, last_concentration = _accumulate(state.concentration, prior.concentration, count, discount)
    rate, last_rate = _accumulate(state.rate, prior.rate, excess, discount)
    predictions = _predictions(steps.mean, steps.variance, concentration, rate)
    scale = rate / concentration * steps.variance
    log_prob = torch.where(seen, student_t.log_prob(y, steps.mean, scale, 2 * concentration), 0.0)
    return StudentTState(linear.moments, last_concentration, last_rate), predictions._replace(log_prob=log_prob)


def predict(
    state: StudentTState,
    Phi: Tensor,
    adaptation: Adaptation | None,
    prior: StudentTState,
    discount: Tensor | None = None,
) -> StudentTPredictions:
    r"""Predict rows (..., \*batch, N, F) one step ahead, each on its own; arguments as in :func:`update_block`."""
    unit = torch.ones_like(state.concentration)
    mean, variance = adaptive.predict(GaussianState(state.moments), Phi, unit, adaptation, prior.moments[..., 0, 0])
    nothing = torch.zeros_like(unit).unsqueeze(-1)
    concentration, _ = _accumulate(state.concentration, prior.concentration, nothing, discount)
    rate, _ = _accumulate(state.rate, prior.rate, nothing, discount)
    return _predictions(mean, variance, concentration, rate)


def _predictions(mean: Tensor, unit_variance: Tensor, concentration: Tensor, rate: Tensor) -> StudentTPredictions:
    variance = rate / (concentration - 1) * unit_variance
    return StudentTPredictions(mean, variance, torch.zeros_like(mean), (2 * concentration).expand_as(mean))


def _accumulate(start: Tensor, prior: Tensor, gains: Tensor, discount: Tensor | None) -> tuple[Tensor, Tensor]:
    r"""A statistic before each of B targets, and after them; ``gains`` (\*batch, B) come with the targets."""
    start, prior = start.unsqueeze(-1), prior.unsqueeze(-1)
    total = gains.cumsum(-1)
    if discount is None:
        return start + (total - gains), (start + total)[..., -1]
    ages = torch.arange(1, gains.shape[-1] + 1, dtype=gains.dtype, device=gains.device)
    fade = discount.unsqueeze(-1) ** ages
    # What came with target s has faded by the t - s discounts between it and target t.
    lag = (ages.unsqueeze(-1) - ages).clamp_min(0.0)
    kept = torch.tril(discount[..., None, None] ** lag, diagonal=-1)
    before = fade * start + (1 - fade) * prior + (kept @ gains.unsqueeze(-1)).squeeze(-1)
    return before, before[..., -1] + gains[..., -1]
