"""The same rows through one series and through many: scores agree, and what one refuses the other does."""

import copy
from dataclasses import replace

import pytest
import torch

from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.presets import light
from gp_ensembles.fleet import Fleet
from gp_ensembles.streaming import OnlineModel, StreamConfig

WARMUP, BEFORE, NAN = 120, 160, torch.nan
BASIS = FourierBasis(num_features=20, starts=(0.7,), name="rff")
SPEC = replace(light, bases=(BASIS,), lags=None, extra_experts=())


def rows(generator, num=BEFORE + 40):
    """A target that is smooth in one column, and linear in one that persists; two more are constant at first."""
    draw = {"generator": generator, "dtype": torch.float64}
    X = torch.randn(num, 4, **draw)
    X[:, 1] = 2 * torch.linspace(0, 19, num, dtype=torch.float64).sin()
    X[:, 2] = torch.where(torch.arange(num) < BEFORE - 10, 5.0, 5.0 + X[:, 2])
    X[:, 3] = NAN
    return X, 100 + 20 * X[:, 0].sin() + 9 * X[:, 1] + X[:, 2] + 2 * torch.randn(num, **draw)


CASES = {
    "plain": {},
    "far beyond the range": {0: 60.0},
    "a missing input that persists": {1: NAN},
    "one that does not": {0: NAN},
    "all": {0: NAN, 1: NAN, 2: NAN},
    "a column that moves on": {2: 9.0},
    "one without a value before": {3: 4.0},
}


@pytest.fixture(scope="module")
def both():
    return made()


def made(**settings):
    X, y = rows(torch.Generator().manual_seed(5))
    X[WARMUP + 3 : WARMUP + 6, 1] = NAN
    fleet, model = Fleet(SPEC, warmup=WARMUP, **settings), OnlineModel(StreamConfig(SPEC, warmup=WARMUP, **settings))
    fleet.observe(["a"] * BEFORE, X[:BEFORE], y[:BEFORE])
    model.observe(X[:BEFORE], y[:BEFORE])
    return fleet, model, X[BEFORE:], y[BEFORE:]


@pytest.mark.parametrize("cells", CASES.values(), ids=CASES)
def test_one_series_and_many_say_the_same(cells, both):
    """Of the row itself, of the row before it is learned, and of the rows after it."""
    fleet, model, X, y = copy.deepcopy(both)
    X[0, list(cells)] = torch.tensor(list(cells.values()), dtype=torch.float64)
    ahead, expected = fleet.predict(["a"] * 3, X[:3]), model.predict(X[:3])
    torch.testing.assert_close(ahead.distribution.quantile(0.9), expected.quantile(0.9), rtol=1e-8, atol=1e-8)
    log_prob = torch.cat(
        [fleet.observe(["a"] * len(part), X[part], y[part]).log_prob for part in torch.arange(40).split(7)]
    )
    torch.testing.assert_close(log_prob, model.observe(X, y).log_prob, rtol=1e-8, atol=1e-8)


def test_a_number_that_is_a_mistake_is_refused_and_changes_nothing():
    fleet, model, X, y = made(on_bad_row="refuse")
    fleet.observe(["b"] * WARMUP, *rows(torch.Generator().manual_seed(6), WARMUP))
    far, wrong, huge = X[:4].clone(), y[:4].clone(), X[:4].clone()
    far[2, 1], wrong[1], huge[3, 0] = 1e8, -1e9, 1e200
    before = fleet.predict(["a", "b"], X[:2]).mean
    for given, words in (
        ((["a", "b", "b", "a"], far, y[:4]), "series 'b': 'column 1' is 1e.08 in row 2, more than 1e.06 warm-up st"),
        ((["a", "b", "b", "a"], X[:4], wrong), "series 'b': the target of row 1 is -1e.09, more than 1e.06 warm-up"),
        ((["a", "new", "b", "new"], huge, y[:4]), "series 'new': 'column 0' is 1e.200, too large to be squared.*row 3"),
    ):
        with pytest.raises(ValueError, match=words):
            fleet.observe(*given)
    with pytest.raises(ValueError, match=r"series 'a': 'column 1' is 1e.08 in row 1"):
        fleet.predict(["b", "a"], far[1:3])
    with pytest.raises(ValueError, match=r"'column 1' is 1e.08 in row"):
        model.observe(far, y[:4])
    assert fleet.waiting == {}
    assert torch.equal(fleet.predict(["a", "b"], X[:2]).mean, before)


def test_outliers_of_a_warm_up_do_not_set_its_scale(generator):
    X, y = rows(generator)
    X[20, 0], y[30] = 1e7, -1e7
    fleet, model = Fleet(SPEC, warmup=WARMUP), OnlineModel(StreamConfig(SPEC, warmup=WARMUP))
    with pytest.warns(UserWarning, match=r"1 target\(s\) of the warm-up are outliers and count as missing"):
        log_prob = fleet.observe(["a"] * len(y), X, y).log_prob[WARMUP:]
    with pytest.warns(UserWarning, match=r"1 target\(s\) of the warm-up are outliers and count as missing"):
        expected = model.observe(X, y).log_prob
    torch.testing.assert_close(log_prob, expected, rtol=1e-8, atol=1e-8)
    assert float(log_prob.mean()) > -2.6  # nats, with a deviation of two
