"""Rows of many series as batches: every row once, each series in its order, as many rows of each."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gp_ensembles.fleet.arrivals import batches


@given(st.lists(st.integers(0, 6), max_size=60), st.sampled_from([(4, 2, 1), (64, 8, 1), (1,)]))
def test_every_row_comes_once_and_in_the_order_of_its_series(series, lengths):
    places = torch.tensor(series, dtype=torch.int64)
    came: dict[int, list[int]] = {}
    for some, numbers in batches(places, lengths):
        assert numbers.shape[1] in lengths
        assert some.tolist() == sorted(set(some.tolist()))
        for place, rows in zip(some.tolist(), numbers.tolist(), strict=True):
            came.setdefault(place, []).extend(rows)
    assert came == {place: [row for row, one in enumerate(series) if one == place] for place in set(series)}


def test_series_with_as_many_rows_are_worked_on_together():
    places = torch.arange(5).repeat(72)
    assert [tuple(rows.shape) for _, rows in batches(places)] == [(5, 64), (5, 8)]
