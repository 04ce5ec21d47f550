"""Numbers that cannot be learned, such as overflow codes: every interface goes on, and says what it did."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.targets import RealTarget
from gp_ensembles.fleet import Fleet
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.health import health
from gp_ensembles.streaming.late import LateTargets

F64, NAN = torch.float64, torch.nan
SPEC = replace(oebe, bases=(LinearBasis(),))
WARM, NUM_ROWS = 80, 400
CODES = (4294967295.0, -99999e9, 1e30, float("inf"), -1e200)


def rows():
    """A linear stream of three inputs."""
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(NUM_ROWS, 3, dtype=F64, generator=generator) * torch.tensor([1.0, 1e-3, 50.0], dtype=F64)
    X[:, 2] += 400
    y = 5 + X[:, 0] + 1e3 * X[:, 1] + 0.05 * torch.randn(NUM_ROWS, dtype=F64, generator=generator)
    return X, y


def config(on_bad_row="missing", **settings):
    return StreamConfig(replace(SPEC, **settings), warmup=WARM, on_bad_row=on_bad_row)


def run(X, y, on_bad_row="missing", size=NUM_ROWS):
    model = OnlineModel(config(on_bad_row), ["a", "b", "c"])
    found = [model.observe(*part).mean for part in zip(X.split(size), y.split(size), strict=True)]
    return model, torch.cat(found)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("size", [NUM_ROWS, 37, 1])
def test_codes_are_missing_cells_or_missing_rows(code, size):
    """The right value is that of the same stream with empty cells in their places."""
    (X, y), places = rows(), [(20, 1), (95, 0), (95, 2), (130, 2), (399, 1)]
    spoiled, gaps, learned = X.clone(), X.clone(), y.clone()
    for place in places:
        spoiled[place], gaps[place] = code, NAN
    targets, empty = y.clone(), y.clone()
    targets[[200, 201]], empty[[200, 201]] = abs(code), NAN
    model, mean = run(spoiled, targets, size=size)
    expected, wanted = run(gaps, empty)
    torch.testing.assert_close(mean, wanted, rtol=1e-9, atol=1e-9)
    counts = model.anomaly_counts
    assert (counts.bad_rows, counts.inputs_imputed) == (6, expected.anomaly_counts.inputs_imputed)
    assert counts.first_bad_row.startswith("'b' is ")
    assert "row 21" in counts.first_bad_row
    (found,) = (finding for finding in health(model) if finding.name == "bad rows")
    assert (found.value, found.ok) == (6 / NUM_ROWS, False)
    learned[[20, 95, 130, 399, 200, 201]] = NAN
    torch.testing.assert_close(run(spoiled, targets, "skip", size)[1], run(gaps, learned)[1], rtol=1e-9, atol=1e-9)
    ahead = model.predict(spoiled[95:96]).mean
    torch.testing.assert_close(ahead, expected.predict(gaps[95:96]).mean, rtol=1e-9, atol=1e-9)


def test_limited_inputs_are_at_the_edge_of_the_range_and_limited_targets_missing():
    X, y = rows()
    model, _ = run(X[:200], y[:200], "limit")
    # The range grew by whole widths of the warm-up at most, so its edge is one width beyond what was seen.
    seen, width = X[:200, 1], X[:WARM, 1].amax() - X[:WARM, 1].amin()
    edge = seen.amax() + width
    far, near = X[200:201].clone(), X[200:201].clone()
    far[0, 1], near[0, 1] = 1e30, edge
    torch.testing.assert_close(model.predict(far).mean, model.predict(near).mean, rtol=1e-9, atol=0)
    model.observe(far, y.new_tensor([1e30]))
    assert model.anomaly_counts.bad_rows == 1
    assert model.anomaly_counts.inputs_moved >= 1
    with pytest.raises(ValueError, match="needs limit_inputs=True"):
        StreamConfig(SPEC, limit_inputs=False, on_bad_row="limit")
    with pytest.raises(ValueError, match="on_bad_row must be 'missing', 'skip', 'limit' or 'refuse', got 'stop'"):
        StreamConfig(SPEC, on_bad_row="stop")


@pytest.mark.parametrize("share", [0.01, 0.04, 0.08])
def test_a_code_in_many_rows_of_a_warm_up_does_not_set_the_scale(share):
    X, y = rows()
    is_bad = torch.rand(NUM_ROWS, dtype=F64, generator=torch.Generator().manual_seed(1)) < share
    spoiled, gaps = X.clone(), X.clone()
    spoiled[is_bad, 1], gaps[is_bad, 1] = 65535e4, NAN
    model, mean = run(spoiled, y)
    torch.testing.assert_close(mean, run(gaps, y)[1], rtol=1e-9, atol=1e-9)
    assert model.anomaly_counts.bad_rows == int(is_bad.sum())
    error = (mean - y[WARM:])[~is_bad[WARM:]].square().mean().sqrt()
    assert error < 0.08  # the noise is 0.05
    limited = (run(spoiled, y, "limit")[1] - y[WARM:])[~is_bad[WARM:]].square().mean().sqrt()
    assert limited < 0.8 * y.std()


@pytest.mark.parametrize("first_row", [0, WARM])
def test_the_first_bad_row_is_named_whatever_is_wrong_with_it(first_row):
    """A number that is far from the others, an infinite one or a target, in each order, in one call or in two."""
    X, y = (part[:120] for part in rows())
    for order in itertools.permutations(range(3)):
        spoiled, targets, places = X.clone(), y.clone(), [first_row + 5 + 8 * k for k in order]
        spoiled[places[0], 1], spoiled[places[1], 2], targets[places[2]] = 1e9, torch.inf, torch.inf
        named = ("'b' is 1e+09", "'c' is inf", "the target of row {} is inf")[order.index(0)].format(first_row + 6)
        for size in (NUM_ROWS, 16):
            counts = run(spoiled, targets, size=size)[0].anomaly_counts
            assert counts.first_bad_row.startswith(named), (order, counts.first_bad_row)
            assert str(first_row + 6) in counts.first_bad_row
        if first_row:  # before there is a scale, an input far from the others is no error
            with pytest.raises(ValueError, match=re.escape(named)):
                run(spoiled, targets, "refuse", WARM)


def test_what_was_counted_is_saved_and_several_outputs_lose_what_is_wrong(tmp_path):
    X, y = rows()
    both = torch.stack([y, -y], dim=-1)
    both[120, 1], both[130] = 1e25, NAN
    wanted = both.clone()
    wanted[120, 1] = NAN
    models = [OnlineModel(config(target=RealTarget(2))) for _ in range(2)]
    means = [model.observe(X, part).mean for model, part in zip(models, (both, wanted), strict=True)]
    torch.testing.assert_close(*means, rtol=1e-9, atol=1e-9)
    models[0].save(tmp_path / "model.pt")
    again = OnlineModel.load(tmp_path / "model.pt")
    assert again.anomaly_counts == models[0].anomaly_counts
    assert again.anomaly_counts.bad_rows == 1


def test_a_late_target_that_cannot_be_learned_counts_as_missing():
    X, y = rows()
    models = [OnlineModel(config()).fit(X[:WARM], y[:WARM]) for _ in range(2)]
    for model, value in zip(models, (1e20, NAN), strict=True):
        late = LateTargets(model)
        late.predict("a", X[WARM])
        scored = late.observe("a", value)
        assert np.isnan(scored.y)
        assert np.isnan(scored.log_prob)
    assert [model.anomaly_counts.bad_rows for model in models] == [1, 0]
    assert torch.equal(*(model.predict(X[WARM + 1 : WARM + 2]).mean for model in models))


@pytest.mark.parametrize("on_bad_row", ["missing", "skip"])
def test_series_of_a_fleet_have_gaps_in_their_places(on_bad_row, tmp_path):
    X, y = rows()
    spoiled, gaps, targets, learned = X.clone(), X.clone(), y.clone(), y.clone()
    for place, code in (((10, 0), 1e200), ((40, 1), 1e12), ((350, 1), -1e9), ((351, 2), float("inf"))):
        spoiled[place], gaps[place] = code, NAN
        learned[place[0]] = NAN if on_bad_row == "skip" else learned[place[0]]
    targets[361], learned[361] = 1e15, NAN
    names = ["a", "b"] * (NUM_ROWS // 2)
    fleet, expected = (Fleet(SPEC, warmup=WARM, on_bad_row=on_bad_row) for _ in range(2))
    found, wanted = fleet.observe(names, spoiled, targets), expected.observe(names, gaps, learned)
    torch.testing.assert_close(found.mean, wanted.mean, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert torch.equal(found.log_prob.isnan(), wanted.log_prob.isnan())
    assert fleet.bad_rows == {"a": 3, "b": 2}
    ahead = [one.predict(["b"], part[351:352]).mean for one, part in ((fleet, spoiled), (expected, gaps))]
    torch.testing.assert_close(*ahead, rtol=1e-9, atol=1e-9)
    fleet.save(tmp_path / "fleet")
    again = Fleet.load(tmp_path / "fleet")
    assert (again.bad_rows, again.config.on_bad_row) == ({"a": 3, "b": 2}, on_bad_row)


def test_an_infinite_input_is_refused_before_and_after_the_fit():
    X, y = rows()
    model, bad = OnlineModel(config("refuse"), ["a", "b", "c"]), X[-1:].clone()
    bad[0, 1] = torch.inf
    for stop in (10, 100):
        model.observe(X[model.num_rows : stop], y[model.num_rows : stop])
        with pytest.raises(ValueError, match="'b' is infinite"):
            model.predict(bad)
