"""Sizes that follow from a price: the choice by invented prices, the measuring by what must hold on any machine."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gp_ensembles.ensembles import extra_experts
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.extra_experts import WideFeatures
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.price import largest_size, price_of_row
from gp_ensembles.streaming import OnlineModel, StreamConfig
from tests.refusals import refused

PRICED = replace(oebe, bases=(LinearBasis(),), extra_experts=(WideFeatures(price=30.0),))


def rows(number: int = 60) -> tuple[Tensor, Tensor]:
    X = torch.linspace(-1, 1, number, dtype=torch.float64).unsqueeze(-1)
    return X, (4 * X.squeeze(-1)).sin()


def invented(monkeypatch: pytest.MonkeyPatch, per_feature: float) -> list[tuple[int, int]]:
    """A machine on which features have a known price; what was asked of it."""
    asked = []

    def price_of(num_features: int, num_experts: int, like: Tensor) -> float:
        asked.append((num_features, num_experts))
        return per_feature * num_features * num_experts

    monkeypatch.setattr(extra_experts, "price_of_features", price_of)
    return asked


def test_the_largest_size_within_a_price() -> None:
    tried = []

    def price_of(size: int) -> float:
        tried.append(size)
        return size / 10

    assert largest_size(25.0, (100, 200, 300, 400), price_of, "features") == 200
    assert tried == [100, 200, 300]  # 400 would take long for nothing
    assert largest_size(20.0, (100, 200, 300), price_of, "features") == 200
    assert largest_size(1e9, (100, 200, 300), price_of, "features") == 300


def test_a_price_nothing_can_meet() -> None:
    words = r"price of 9 microseconds per row cannot be met: 100 features, the smallest size, cost 10 "
    refused(ValueError, words, lambda: largest_size(9.0, (100, 200), lambda size: size / 10, "features"))
    X, y = rows()
    with pytest.raises(ValueError, match="cannot be met: 100 features, the smallest size, cost"):
        replace(PRICED, extra_experts=(WideFeatures(price=1e-9),)).fit(X, y)
    model = OnlineModel(StreamConfig(replace(PRICED, extra_experts=(WideFeatures(price=1e-9),)), warmup=60))
    refused(ValueError, "cannot be met", lambda: model.observe(X, y))
    assert model.num_rows == 0


def test_it_is_found_with_the_first_rows_and_no_row_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    invented(monkeypatch, per_feature=1.0)
    X, y = rows(80)
    model = OnlineModel(StreamConfig(PRICED, warmup=60))
    for _ in range(2):
        with pytest.raises(ValueError, match="raise the price, or give the number of features"):
            model.observe(X[:5], y[:5])
        assert model.num_rows == 0
    invented(monkeypatch, per_feature=0.05)  # the machine has become idle
    refused(ValueError, "constant", lambda: model.fit(X, torch.ones_like(y)))
    refused(ValueError, "constant", lambda: model.observe(torch.ones_like(X), y))
    assert model.config.ensemble == PRICED  # what was refused settles nothing
    model.observe(X[:5], y[:5])
    assert model.config.ensemble.extra_experts == (WideFeatures(num_features=250),)
    invented(monkeypatch, per_feature=1e9)  # what happens to it later does not matter
    model.observe(X[5:], y[5:])
    assert model.num_rows == 80


def test_a_price_becomes_a_size_that_a_checkpoint_keeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = invented(monkeypatch, per_feature=0.05)
    X, y = rows(80)
    model = OnlineModel(StreamConfig(PRICED, warmup=60))
    model.observe(X[:30], y[:30])
    assert asked == [(100, 2), (250, 2), (500, 2)]  # with the first rows, and never again
    model.observe(X[30:], y[30:])
    assert asked == [(100, 2), (250, 2), (500, 2)]
    (record,) = model.config.ensemble.extra_experts
    assert record == WideFeatures(num_features=250)

    model.save(tmp_path / "model.pt")
    asked.clear()
    invented(monkeypatch, per_feature=1e9)  # on a machine on which nothing could be had at that price
    loaded = OnlineModel.load(tmp_path / "model.pt")
    assert loaded.config.ensemble.extra_experts == (record,)
    again, before = loaded.observe(X, y), model.observe(X, y)
    assert torch.equal(again.mean, before.mean)


def test_measuring_a_model_leaves_it_alone() -> None:
    X, y = rows(80)
    online = replace(oebe, bases=(LinearBasis(),)).fit(X[:60], y[:60])
    before = {name: value.clone() for name, value in online.state_dict().items()}
    for length in (None, 7, 1):
        assert price_of_row(online, X[60:], y[60:], rows_per_call=length) > 0.0
    assert all(torch.equal(value, before[name]) for name, value in online.state_dict().items())

    given = []

    class Counting:
        def observe(self, X: Tensor, y: Tensor) -> None:
            given.append(len(y))

    price_of_row(Counting(), X[60:], y[60:], rows_per_call=8, repetitions=2)
    assert given == [8, 8, 4] * 2


def test_prices_that_cannot_be_measured() -> None:
    X, y = rows(80)
    online = replace(oebe, bases=(LinearBasis(),)).fit(X, y)
    refused(ValueError, "price_of_row needs at least one row", lambda: price_of_row(online, X[:0], y[:0]))
    refused(ValueError, "rows_per_call=0", lambda: price_of_row(online, X, y, rows_per_call=0))


def test_a_model_in_its_warm_up_has_no_price() -> None:
    X = torch.zeros(5, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="still in its warm-up"):
        price_of_row(OnlineModel(StreamConfig(warmup=20)), X, X[:, 0])
