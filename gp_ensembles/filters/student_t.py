r"""The filter with unknown noise: normal-inverse-gamma, Student-t predictions, exact in blocks.

The recursion for :math:`\mu` and V is the Gaussian one with unit noise. With u = 1 + φᵀVφ and the error e of the mean,

.. math:: y \sim t_{2a}\big(\phi^\top \mu, (b / a) u\big), \qquad a \leftarrow a + \tfrac12, \qquad
          b \leftarrow b + \tfrac12 e^2 / u

(Gelman et al., Bayesian Data Analysis, section 14.2). In a block, a and b before each target are cumulative sums.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.block import predict_linear, update_linear
from gp_ensembles.filters.rows import Rows, as_rows, with_extra_noise
from gp_ensembles.filters.states import GaussianState, StudentTPredictions, StudentTState, gaussian_state
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.numerics import student_t


class NoiseDiscount(NamedTuple):
    r"""Discounting of an unknown noise variance: its posterior fades back to the prior.

    Before every row :math:`a \leftarrow \delta a + (1 - \delta) a_0` and b alike, so the memory is effectively
    :math:`1 / (1 - \delta)` rows.

    Attributes:
        factor: :math:`\delta` in (0, 1], shape () or (\*batch).
        concentration: :math:`a_0`, shape (\*batch).
        rate: :math:`b_0`, shape (\*batch).

    Example:
        >>> import torch
        >>> NoiseDiscount(torch.tensor(0.98), torch.tensor(3.0), torch.tensor(1.0)).factor
        tensor(0.9800)
    """

    factor: Tensor
    concentration: Tensor
    rate: Tensor


def student_t_state(prior_variance: Tensor, num_features: int, concentration: Tensor, rate: Tensor) -> StudentTState:
    r"""State before any data.

    Args:
        prior_variance: Prior variance of each weight in units of the noise variance, shape (\*batch).
        num_features: Number of features F.
        concentration: a of the noise variance, above one, shape (\*batch).
        rate: b of the noise variance, shape (\*batch).

    Example:
        >>> import torch
        >>> one = torch.tensor(1.0)
        >>> student_t_state(one, 1, 3 * one, one).covariance
        tensor([[0.5000]])
    """
    return StudentTState(gaussian_state(prior_variance, num_features).moments, concentration, rate)


def update_student_t(
    state: StudentTState,
    Phi: Tensor,
    rows: Tensor | Rows,
    discount: NoiseDiscount | None,
    transition: Transition | None,
    prior_variance: Tensor,
) -> tuple[StudentTState, StudentTPredictions]:
    r"""Predict and learn a block of targets; equal to single steps to round-off.

    Further noise widens predictions only: how it compares with the noise of the expert is not known.

    Shapes: ``Phi`` (\*batch, B, F), ``rows`` or their targets (B,), ``prior_variance`` (\*batch); returns (\*batch, B).
    """
    unit, rows = torch.ones_like(state.concentration), as_rows(rows)
    own = rows._replace(extra=None)
    linear, steps = update_linear(GaussianState(state.moments), Phi, own, unit, transition, prior_variance)
    assert isinstance(linear, GaussianState)
    y, share = rows.y, rows.share
    seen = ~torch.isnan(y)
    count = torch.where(seen, 0.5, torch.zeros_like(steps.mean))
    filled = torch.where(seen, y, steps.mean)
    excess = 0.5 * (filled - steps.mean).square() / steps.variance
    if share is not None:
        excess = torch.where(share < 1, excess * share * steps.variance / (1 + share * (steps.variance - 1)), excess)
    (concentration, last_concentration), (rate, last_rate) = _accumulate_both(state, count, excess, discount)
    predictions = _predictions(steps.mean, steps.variance, concentration, rate)
    scale = rate / concentration * steps.variance
    log_prob = torch.where(seen, student_t.log_prob(filled, steps.mean, scale, 2 * concentration), torch.nan)
    predictions = with_extra_noise(predictions._replace(log_prob=log_prob), rows)
    return StudentTState(linear.moments, last_concentration, last_rate), predictions


def predict_student_t(
    state: StudentTState,
    Phi: Tensor,
    discount: NoiseDiscount | None,
    transition: Transition | None,
    prior_variance: Tensor,
    steps: Tensor | None = None,
) -> StudentTPredictions:
    r"""Predict rows (..., \*batch, N, F) that all come next, each on its own; arguments as in the update."""
    unit = torch.ones_like(state.concentration)
    mean, variance = predict_linear(GaussianState(state.moments), Phi, unit, transition, prior_variance, steps)
    nothing = torch.zeros_like(unit).unsqueeze(-1)
    (concentration, _), (rate, _) = _accumulate_both(state, nothing, nothing, discount)
    return _predictions(mean, variance, concentration, rate)


def _predictions(mean: Tensor, unit_variance: Tensor, concentration: Tensor, rate: Tensor) -> StudentTPredictions:
    variance = rate / (concentration - 1) * unit_variance
    return StudentTPredictions(mean, variance, torch.full_like(mean, torch.nan), (2 * concentration).expand_as(mean))


_Path = tuple[Tensor, Tensor]  # before each of B targets, and after them


def _accumulate_both(
    state: StudentTState, count: Tensor, excess: Tensor, discount: NoiseDiscount | None
) -> tuple[_Path, _Path]:
    """Concentration and rate before each target, and after all."""
    if discount is None:
        return _accumulate(state.concentration, count), _accumulate(state.rate, excess)
    factor, concentration, rate = discount
    return (_fade(state.concentration, concentration, count, factor), _fade(state.rate, rate, excess, factor))


def _accumulate(start: Tensor, gains: Tensor) -> _Path:
    r"""A sum before each of B targets, and after them; ``gains`` (\*batch, B) come with the targets."""
    total = start.unsqueeze(-1) + gains.cumsum(-1)
    # Not the sum less the gain: that of an outlier would leave no digits.
    return torch.cat([start.unsqueeze(-1).expand_as(total[..., :1]), total[..., :-1]], dim=-1), total[..., -1]


def _fade(start: Tensor, prior: Tensor, gains: Tensor, discount: Tensor) -> _Path:
    """The same where the sum fades back to its prior."""
    start, prior = start.unsqueeze(-1), prior.unsqueeze(-1)
    ages = torch.arange(1, gains.shape[-1] + 1, dtype=gains.dtype, device=gains.device)
    fade = discount.unsqueeze(-1) ** ages
    # What came with target s has faded by the t - s discounts between it and target t.
    lag = (ages.unsqueeze(-1) - ages).clamp_min(0.0)
    kept = torch.tril(discount[..., None, None] ** lag, diagonal=-1)
    before = fade * start + (1 - fade) * prior + (kept @ gains.unsqueeze(-1)).squeeze(-1)
    return before, before[..., -1] + gains[..., -1]
