"""The inputs of many series at once beside those of each by itself, to the bit."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.fleet.notes import follow_rows
from gp_ensembles.streaming.columns import Columns
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.inputs import InputPath, InputState

SERIES, WARMUP, LATER, INPUTS = 6, 40, 130, 4
CONFIG = StreamConfig(oebe, warmup=WARMUP)


def stream(number: int) -> tuple[Tensor, Tensor]:
    """Rows of one series: gaps, a column that wakes up or has no value before, jumps far beyond range, a clock."""
    generator = torch.Generator().manual_seed(number)
    num = WARMUP + LATER
    X = 10.0**number * torch.randn(num, INPUTS, generator=generator, dtype=torch.float64)
    X[:, 1] = X[:, 0].cumsum(0) + number  # persists
    X[: WARMUP + 5 * number, 2] = 3.0 if number % 2 else torch.nan
    X[: (num if number == 1 else 0), 3] = 7.0  # never moves in one series, always in the others
    X[::7, 3 if number == 2 else 0] *= 1e4 if number == 2 else 1.0
    X[torch.rand(num, INPUTS, generator=generator) < 0.1] = torch.nan
    X[WARMUP + 20 : WARMUP + 30, 1] = torch.nan
    return X, X.nan_to_num(0.0)[:, 0] + torch.randn(num, generator=generator, dtype=torch.float64)


def started(numbers: Sequence[int], X: Tensor) -> tuple[Tensor, Tensor]:
    """Columns and states of series after their warm-ups, packed, with made effects."""
    columns = torch.stack(
        [Columns.of_series(*(part[:WARMUP] for part in stream(number))).packed() for number in numbers]
    )
    path = InputPath(CONFIG, Columns.unpacked(columns))
    effect = torch.linspace(0.1, 0.4, INPUTS, dtype=torch.float64).expand(len(numbers), -1)
    return columns, path.warm_up(X[:, :WARMUP]).state._replace(effect=effect).packed()


@pytest.mark.parametrize("size", [1, 13, SERIES * LATER])
def test_many_series_in_any_order_are_each_by_itself_to_the_bit(size):
    X = torch.stack([stream(number)[0] for number in range(SERIES)])
    columns, states = started(range(SERIES), X)
    generator = torch.Generator().manual_seed(9)
    order = torch.arange(SERIES).repeat_interleave(LATER)[torch.randperm(SERIES * LATER, generator=generator)]
    place = torch.stack([(order[: t + 1] == s).sum() - 1 for t, s in enumerate(order)])
    rows, parts, states = X[order, WARMUP + place], [], states.clone()
    for some, series in zip(rows.split(size), order.split(size), strict=True):
        here = series.unique()
        codes = (here == series.unsqueeze(-1)).int().argmax(-1)
        own = states[here]
        part = follow_rows(CONFIG, columns[here], own, some, codes)
        states[here] = own
        parts.append((part.scaled, part.inputs, torch.zeros(len(some)).double() if part.extra is None else part.extra))
    scaled, inputs, extra = (torch.cat(part) for part in zip(*parts, strict=True))
    assert bool((extra > 0).any())
    assert bool((inputs != scaled).any())
    for number in range(SERIES):
        own, state = (part[0] for part in started([number], X[number : number + 1]))
        path, state, mine = (
            InputPath(CONFIG, Columns.unpacked(own)),
            InputState.unpacked(state, INPUTS),
            order == number,
        )
        found = []
        for row in X[number, WARMUP:].split(1):
            one = path.follow(state, row)
            ahead = path.each(state, row)
            for field in ("scaled", "inputs"):
                assert torch.equal(getattr(ahead, field), getattr(one, field))
            state = one.state
            found.append((one.scaled, one.inputs, one.extra if one.extra is not None else extra.new_zeros(1)))
        for expected, whole in zip(zip(*found, strict=True), (scaled, inputs, extra), strict=True):
            assert torch.equal(torch.cat(expected), whole[mine])
        assert torch.equal(state.packed().nan_to_num(7.0), states[number].nan_to_num(7.0))
        assert int(state.num_rows) == WARMUP + LATER


def test_columns_and_states_are_read_back_as_they_were_packed():
    X, y = stream(3)
    for config in (CONFIG, StreamConfig(oebe, limit_inputs=False)):
        columns = Columns.of(config, X[:WARMUP], y[:WARMUP], [f"column {j}" for j in range(INPUTS)])
        state = InputPath(config, columns).warm_up(X[:WARMUP]).state
        again = InputState.unpacked(state.packed(), INPUTS)
        for one, other in zip(
            (state.num_rows, *state.gaps, *state.inactive_columns),
            (again.num_rows, *again.gaps, *again.inactive_columns),
            strict=True,
        ):
            assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
        assert all(map(torch.equal, (state.effect, *state.within), (again.effect, *again.within)))
        numbers = Columns.unpacked(columns.packed())
        assert all(map(torch.equal, numbers.scales, columns.scales))
        assert torch.equal(numbers.inactive, columns.inactive)
        assert torch.equal(numbers.imputation.used, columns.imputation.used)
