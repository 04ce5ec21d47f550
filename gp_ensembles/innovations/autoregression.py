r"""A first-order autoregression of errors by least squares with exponential forgetting, a block at a time.

.. math:: h_t = \rho_t \max\Bigl(0, 1 - \frac{1}{n}\, \frac{1 - \rho_t^2}{\rho_t^2}\Bigr)\,
              e_{t-1}, \qquad
          \rho_t = \frac{\sum_{s < t} \gamma^{t - 1 - s}\, e_s e_{s-1} / v_s}
                        {\gamma^{t-1} + \sum_{s < t} \gamma^{t - 1 - s}\, e_{s-1}^2 / v_s}
          \quad \text{clipped to } [-0.2, 1]

with the variances :math:`v_s` that the expert gave its predictions, which make the sums free of units. A coefficient is
shrunk by the variance :math:`(1 - \rho^2) / n` that it has of :math:`n = (1 + \gamma) / (1 - \gamma)` remembered pairs,
and to nothing where it is smaller than that (the positive part of the empirical Bayes estimate, Efron and Morris 1973):
where errors tell nothing of the next one, a coefficient that is only noise costs half a percent of the squared error.
The recursion of the sums is linear, so a block of it is one product with a triangular matrix. Pairs of neighbors that
were both observed count, and only they make older ones fade; through a gap of n rows the prediction goes on as the
n + 1st power of the coefficient.
"""

from typing import NamedTuple

import torch
from torch import Tensor

MEMORY = 0.99  # a pair that is n pairs old counts this to the power of n
NOISE = (1 - MEMORY) / (1 + MEMORY)  # variance of a coefficient of errors that are not correlated
LOWEST, HIGHEST = -0.2, 1.0


class AutoregressionState(NamedTuple):
    """What the autoregression of M experts' errors remembers.

    Attributes:
        products: Discounted sums of products of neighbors and of squares, shape (2, M).
        last_error: The last error that was observed, shape (M,).
        age: Rows since then, a scalar; 0 right after it.
    """

    products: Tensor
    last_error: Tensor
    age: Tensor


class _Neighbors(NamedTuple):
    """What comes before each row of a block, and before the row after it."""

    errors: Tensor  # the last one that was observed, (M, B + 1)
    ages: Tensor  # rows since then, (B + 1,)
    is_pair: Tensor  # whether a row and the one before it were both observed, (B,)


def init(num_experts: int, like: Tensor) -> AutoregressionState:
    """State before any error: nothing is predicted of the next one."""
    products = torch.stack([like.new_zeros(num_experts), like.new_ones(num_experts)])
    return AutoregressionState(products, like.new_zeros(num_experts), like.new_zeros(()))


def predict(state: AutoregressionState) -> Tensor:
    """Predicted error of the next row, shape (M,)."""
    return _coefficient(state.products) ** (state.age + 1) * state.last_error


def update_block(
    state: AutoregressionState, errors: Tensor, variance: Tensor, missing: Tensor | None
) -> tuple[AutoregressionState, Tensor]:
    """Predict each error, then learn it.

    Shapes: ``errors`` (M, B), ``variance`` (M, B), ``missing`` (B,); returns (M, B).
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
