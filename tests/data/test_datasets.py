"""Sets that travel inside other packages, against the rows of their source."""

import builtins
import math

import pytest
import torch

from gp_ensembles.data import airline_passengers, bananas, trump_approval, water_flow
from gp_ensembles.streaming.columns import Standardizer

SHAPES = {airline_passengers: (132, 4), bananas: (5300, 2), trump_approval: (1001, 6), water_flow: (1190, 4)}


@pytest.fixture(autouse=True)
def needs_extras():
    pytest.importorskip("river")


@pytest.mark.parametrize("loader", SHAPES, ids=lambda loader: loader.__name__)
def test_every_table_is_whole(loader, capsys):
    table = loader()
    assert table.X.shape == SHAPES[loader]
    assert table.y.shape == table.X.shape[:1]
    assert table.X.dtype == table.y.dtype == torch.float64
    assert bool(table.X.isfinite().all() and table.y.isfinite().all())
    assert len(table.feature_names) == len(set(table.feature_names)) == table.X.shape[1]
    assert table.name == loader.__name__
    Standardizer.fit(table.X[:200], table.y[:200])  # nothing is constant or missing
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""


def test_first_and_last_rows_are_those_of_the_source():
    table = bananas()
    assert (table.y.unique().tolist(), table.X[0].tolist()) == ([0.0, 1.0], [1.617466, -0.919233])
    assert (float(table.y[0]), float(table.y[-1])) == (0.0, 1.0)


def test_trump_approval_is_the_source():
    from river.datasets import TrumpApproval

    table, rows = trump_approval(), list(TrumpApproval())
    assert table.X[:, 1:].tolist() == [[x[name] for name in table.feature_names[1:]] for x, _ in rows]
    assert table.y.tolist() == [y for _, y in rows]
    assert table.X[0, 1:].tolist() == [43.843213, 46.19925042857143, 48.318749, 44.104692, 43.636914000000004]
    assert table.X[:, 0].tolist() == list(range(1001))
    assert (float(table.y[0]), float(table.y[-1])) == (43.75505, 41.740203)


def test_airline_inputs_were_known_before():
    table = airline_passengers()
    assert table.X[0, :2].tolist() == [118.0, 112.0]
    assert float(table.y[0]) == 115.0
    assert torch.equal(table.X[1:, 0], table.y[:-1])
    assert torch.equal(table.X[12:, 1], table.y[:-12])
    assert table.X[0, 2:].tolist() == [0.0, 1.0]
    torch.testing.assert_close(table.X[3, 2:], table.X.new_tensor([1.0, 0.0]))


def test_water_lags_are_hours_not_rows():
    from river.datasets import WaterFlow

    table = water_flow()
    source = [(x["Time"], y) for x, y in WaterFlow()]
    by_hour = {round(time.timestamp()) // 3600: y for time, y in source}
    expected = []
    for time, y in source:
        hour = round(time.timestamp()) // 3600
        if hour - 1 in by_hour and hour - 24 in by_hour:
            turn = 2 * math.pi * time.hour / 24
            expected.append([by_hour[hour - 1], by_hour[hour - 24], math.sin(turn), math.cos(turn), y])
    torch.testing.assert_close(torch.cat([table.X, table.y[:, None]], 1), table.X.new_tensor(expected))


def test_an_absent_package_is_named_with_its_extra(monkeypatch):
    original = builtins.__import__

    def without(name, *args, **options):
        if name.split(".")[0] == "river":
            raise ImportError(f"No module named {name}")
        return original(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"gp_ensembles\[river\]"):
        water_flow()
