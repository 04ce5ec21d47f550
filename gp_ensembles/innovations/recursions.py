r"""Recursions on the errors of experts, a block at a time: a first-order autoregression, and the size of errors.

The autoregression is estimated by least squares with exponential forgetting:

.. math:: h_t = \rho_t \max\Bigl(0, 1 - \frac{1}{n}\, \frac{1 - \rho_t^2}{\rho_t^2}\Bigr)\,
              e_{t-1}, \qquad
          \rho_t = \frac{\sum_{s < t} \gamma^{t - 1 - s}\, e_s e_{s-1} / v_s}
                        {\gamma^{t-1} + \sum_{s < t} \gamma^{t - 1 - s}\, e_{s-1}^2 / v_s}
          \quad \text{clipped to } [-0.2, 1]

with the variances :math:`v_s` that the expert gave its predictions, which make the sums free of units. A coefficient is
shrunk by the variance :math:`(1 - \rho^2) / n` that it has of :math:`n = (1 + \gamma) / (1 - \gamma)` remembered pairs,
and to nothing where it is smaller than that (the positive part of the empirical Bayes estimate, Efron and Morris 1973):
where errors do not predict the next one, a coefficient that is only noise costs half a percent of the squared error.
The recursion of the sums is linear, so a block of it is one product with a triangular matrix. Pairs of neighbors that
were both observed count, and only they make older ones fade; through a gap of n rows the prediction goes on as the
n + 1st power of the coefficient.

The size is followed by the score of a Student-t density: a squared error counts less the larger it is.

.. math:: g_{t+1} = g_t \left( 1 - \lambda + \lambda \frac{(\nu + 1)\, z_t}{\nu g_t + z_t} \right)

with :math:`z_t = (e_t - h_t)^2 / s_t^2` (Harvey 2013, "Dynamic Models for Volatility and Heavy Tails"; the update of a
scale by expectation maximization, a share :math:`\lambda` of the way). One error, however gross, raises :math:`g` at
most by the factor :math:`1 + \lambda \nu`. As :math:`\nu \to \infty` it is the exponentially weighted mean of
:math:`z`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.reductions import readable_flags

MEMORY = 0.99  # a pair that is n pairs old counts this to the power of n
NOISE = (1 - MEMORY) / (1 + MEMORY)  # variance of a coefficient of errors that are not correlated
LOWEST, HIGHEST = -0.2, 1.0
# Squared errors in the experts' variances: a scale of nothing could not grow again, and a gross error not be squared.
SMALLEST, LARGEST = 1e-6, 1e30


class AutoregressionState(NamedTuple):
    """State of the autoregression of M experts' errors.

    Attributes:
        products: Discounted sums of products of neighbors and of squares, shape (2, M).
        last_error: The last error that was observed, shape (M,).
        age: Rows since then, a scalar; 0 right after it.
    """

    products: Tensor
    last_error: Tensor
    age: Tensor


class _Neighbors(NamedTuple):
    """The last observed error before each row of a block, and before the row after it."""

    errors: Tensor  # the last one that was observed, (M, B + 1)
    ages: Tensor  # rows since then, (B + 1,)
    is_pair: Tensor  # whether a row and the one before it were both observed, (B,)


def init_autoregression(num_experts: int, like: Tensor) -> AutoregressionState:
    """State before any error: nothing is predicted of the next one."""
    products = torch.stack([like.new_zeros(num_experts), like.new_ones(num_experts)])
    return AutoregressionState(products, like.new_zeros(num_experts), like.new_zeros(()))


def predict_error(state: AutoregressionState) -> Tensor:
    """Predicted error of the next row, shape (M,)."""
    return _coefficient(state.products) ** (state.age + 1) * state.last_error


def update_autoregression(
    state: AutoregressionState, errors: Tensor, variance: Tensor, missing: Tensor | None
) -> tuple[AutoregressionState, Tensor]:
    """Predict each error, then learn it.

    Shapes: ``errors`` (M, B), ``variance`` (M, B), ``missing`` (B,); returns the state after the block and the
    predictions (M, B).
    """
    known = torch.cat([state.last_error.unsqueeze(1), errors], dim=1)
    before = _whole(state, known) if missing is None else _with_gaps(state, known, missing)
    previous = before.errors[:, :-1]
    weighted = torch.where(before.is_pair, previous / variance, 0.0)
    pairs = torch.stack([errors * weighted, previous * weighted])
    products = _decayed_sums(state.products, pairs, before.is_pair)
    coefficient = _coefficient(products[..., :-1])
    if missing is not None:
        coefficient = coefficient ** (before.ages[:-1] + 1)
    elif errors.shape[1]:  # only the first row can follow a gap
        first = coefficient[:, :1] ** (state.age + 1)
        coefficient = torch.cat([first, coefficient[:, 1:]], dim=1)
    after = AutoregressionState(products[..., -1], before.errors[:, -1], before.ages[-1])
    return after, coefficient * previous


def _whole(state: AutoregressionState, known: Tensor) -> _Neighbors:
    ages = known.new_zeros(known.shape[1])
    ages[0] = state.age
    return _Neighbors(known, ages, ages[:-1] == 0)


def _with_gaps(state: AutoregressionState, known: Tensor, missing: Tensor) -> _Neighbors:
    rows = torch.arange(known.shape[1], device=known.device)
    seen = torch.cat([missing.new_zeros(1), ~missing])
    newest = torch.where(seen, rows, 0).cummax(0).values  # place in ``known`` of the last one up to each row
    ages = torch.where(newest == 0, rows + state.age, rows - newest).to(known.dtype)
    return _Neighbors(known[:, newest], ages, (ages[:-1] == 0) & ~missing)


def _coefficient(products: Tensor) -> Tensor:
    coefficient = (products[0] / products[1]).clamp(LOWEST, HIGHEST)
    square = coefficient.square().clamp_min(NOISE * NOISE)  # far below where the factor is zero
    return coefficient * ((1 + NOISE) - NOISE / square).clamp_min(0.0)


def _decayed_sums(start: Tensor, terms: Tensor, counts: Tensor) -> Tensor:
    """Fading sums before each row and after the last, (2, M, B + 1), of terms (2, M, B)."""
    num_before = torch.cat([counts.new_zeros(1, dtype=terms.dtype), counts.to(terms.dtype).cumsum(0)])
    between = num_before - num_before[1:].unsqueeze(-1)  # (B, B + 1), negative for terms that are not before t
    powers = MEMORY ** torch.arange(len(num_before), dtype=num_before.dtype, device=num_before.device)
    decay = torch.where(between >= 0, powers[between.clamp_min(0.0).long()], 0.0).triu(1)
    return terms @ decay + start.unsqueeze(-1) * powers[num_before.long()]


def update_scale(
    scale: Tensor, squares: Tensor, rate: Tensor, df: Tensor, missing: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Follow the size of errors through a block.

    Shapes: ``scale`` (V, M), ``squares`` (V, M, B), ``rate`` (V, 1), ``df`` (V, 1), ``missing`` (B,); returns the
    scales after the block (V, M), and before each of its rows (V, M, B).
    """
    keep, gain = (1 - rate).expand_as(scale).contiguous(), (rate * (df + 1)).expand_as(scale).contiguous()
    one = torch.ones_like(scale)
    before, known = [], None if missing is None else readable_flags(missing)
    ratios = (df.unsqueeze(-1) / squares.clamp(SMALLEST, LARGEST)).movedim(-1, 0).contiguous()
    # z / (nu g + z) = 1 / (1 + g nu / z): three small operations per row.
    for number, ratio in enumerate(ratios.unbind(0)):
        before.append(scale)
        if known is not None and known[number]:
            continue
        after = scale * torch.addcdiv(keep, gain, torch.addcmul(one, scale, ratio))
        scale = after if missing is None or known is not None else torch.where(missing[number], scale, after)
    if not before:
        return scale, torch.zeros_like(squares)
    return scale, torch.stack(before).movedim(0, -1).contiguous()
