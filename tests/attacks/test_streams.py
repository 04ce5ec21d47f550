"""The attack by streams: every combination is attacked, a sample finds nothing, what is planted is found."""

import itertools
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gp_ensembles.meta_learners
from attacks import streams
from attacks.instances import ADAPTATIONS, INNOVATIONS, MOVING, RULES, STANDING, Instance, instances
from gp_ensembles.engine.predictions import assemble
from gp_ensembles.experts.base import Expert
from gp_ensembles.filters.states import StepPredictions
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.meta_learners import MarkovSwitching, MetaLearner, sticky_transition
from gp_ensembles.numerics import mixtures

PLAIN = Instance("Gaussian", "static", "fixed share", "none", "float64")
PIECE = streams.Piece("plain", 9, 0, "halves", 0.0)


def public(module, base):
    found = (getattr(module, name) for name in module.__all__)
    return {one for one in found if isinstance(one, type) and issubclass(one, base) and one is not base}


def test_every_public_class_is_attacked():
    like = torch.zeros((), dtype=torch.float64)
    experts = {type(make(like, None)) for make in MOVING.values()} | {type(make(like)) for make in STANDING.values()}
    assert experts == {one for one in Expert.__subclasses__() if one.__module__.startswith("gp_ensembles.experts.")}
    assert {type(make(2)) for make in RULES.values()} == public(gp_ensembles.meta_learners, MetaLearner)
    changes = {type(make(like)) for make in ADAPTATIONS.values()} - {type(None)}
    assert changes == public(gp_ensembles.filters, Transition)
    assert len(instances()) == len(set(instances())) > 1000
    assert {one.innovations for one in instances()} == INNOVATIONS.keys()


def test_a_sample_keeps_every_promise(tmp_path):
    assert streams.main(["--rows", "500", "--seed", "3", "--out", str(tmp_path / "out.json")]) == 0
    (table,) = json.loads((tmp_path / "out.json").read_text())["tables"]
    assert sum(row[1] for row in table["rows"]) >= 500
    assert any(row[2] for row in table["rows"])


SAMPLE = settings(derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))


@settings(SAMPLE, max_examples=25)
@given(st.sampled_from(instances()), streams.STREAMS)
def test_streams_keep_every_promise(instance, pieces):
    streams.send(instance, pieces)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [5000, pytest.param(30_000, marks=pytest.mark.broad)])
def test_a_larger_sample_keeps_every_promise(rows):
    assert streams.main(["--rows", str(rows), "--seed", "4"]) == 0


@pytest.mark.parametrize("expert", ["Gaussian", "forecasts", "two outputs"])
def test_rows_are_what_a_stream_takes(expert):
    for kind, dtype in itertools.product(streams.ROWS, ["float64", "float32"]):
        instance = PLAIN._replace(dtype=dtype, expert=expert)
        X, y, steps = streams.rows_for(instance, PIECE._replace(kind=kind))
        assert X.shape == (9, 3 if expert == "forecasts" else 2)
        assert y.shape[0] == 9
        assert steps.tolist() == [0.5] * 9
        assert bool(X[:, :2].isfinite().all())
        assert not bool(y.isinf().any())
        X, *_ = streams.rows_for(instance, PIECE._replace(kind=kind, spoiled=torch.inf))
        assert int(X[:, :2].isinf().sum()) == 1


def test_a_stream_that_breaks_a_promise_is_shrunk(monkeypatch):
    """Targets beyond 9 are planted to break one: hypothesis finds the least stream that has one."""
    original = streams.broken_promise

    def planted(online, X, y, steps):
        return ("planted", False) if bool((y.abs() > 9).any()) else original(online, X, y, steps)

    monkeypatch.setattr(streams, "broken_promise", planted)
    counts, finding = streams.attack(PLAIN, 30, 0)
    assert (finding.what, finding.rows.split("; ")[-1]) == ("planted", "1 alternating (even, 0)")
    assert finding.rows.count(";") <= 1
    assert finding.instance == ", ".join(PLAIN)
    assert counts.total() > 0


def test_a_broken_promise_is_found(monkeypatch):
    online = PLAIN.build()
    rows = streams.rows_for(PLAIN, PIECE)
    assert streams.broken_promise(online, *rows) == (None, False)
    observe = online.observe

    def spoiled(**changes):
        return lambda *rows, **steps: observe(*rows, **steps)._replace(**changes)

    for changes, what in (
        ({"variance": torch.full((9,), torch.nan)}, "a variance is NaN"),
        ({"variance": torch.full((9,), -1.0)}, "a variance is negative"),
        ({"log_weights": torch.zeros(2, 9)}, "weights do not sum to one"),
    ):
        monkeypatch.setattr(online, "observe", spoiled(**changes))
        assert streams.broken_promise(online, *rows) == (what, False)

    def rejects_late(*rows, **steps):
        observe(*rows, **steps)
        raise ValueError("too late")

    monkeypatch.setattr(online, "observe", rejects_late)
    problem, is_rejected = streams.broken_promise(online, *rows)
    assert is_rejected
    assert problem.startswith("a rejected call changed ")
    for error, words in ((ValueError(), "without a sentence"), (KeyError("x"), "KeyError")):

        def fails(*rows, error=error, **steps):
            raise error

        monkeypatch.setattr(online, "observe", fails)
        assert words in streams.broken_promise(online, *rows)[0]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-9), (torch.float32, 2e-3)])
def test_weights_sum_to_one_whatever_the_size_of_densities(name, dtype, most):
    """Bayesian model averaging of two experts as unlikely as one another, at 1e7 nats, gave each of them weight one."""
    rule, draw = RULES[name](2), torch.Generator().manual_seed(0)
    for power in range(3, 17, 4):
        for num_rows in (1, 8):
            for apart in (0.0, power / 3, power / 2, float(power)):
                noise = torch.randn(2, num_rows, generator=draw, dtype=torch.float64)
                log_prob = (-(10.0**power) * 1.5 + 10.0**apart * noise).to(dtype)
                state = rule.init(2, log_prob)
                for _ in range(3):
                    state, found = rule.update_block(state, log_prob)
                    whole = torch.cat([found.log_weights, rule.log_weights(state).unsqueeze(-1)], 1)
                    assert float((whole.exp().sum(0) - 1).abs().max()) < most


def test_weights_sum_to_one_where_digits_of_densities_are_lost():
    """What the attack has found: two experts as unlikely as one another, at 1e12 nats, had weight one each."""
    rule = MarkovSwitching(sticky_transition(2, 0.95))
    log_prob = torch.tensor([[-1e12, -1e14], [-1e12, -torch.inf], [-1e12, -torch.inf]]).mT
    for block in (log_prob, log_prob[:, :1]):
        for rows in (block, torch.cat([block, block.flip(0)], 1)):
            state, found = rule.update_block(rule.init(2, rows), rows)
            whole = torch.cat([found.log_weights, rule.log_weights(state).unsqueeze(-1)], 1)
            torch.testing.assert_close(whole.exp().sum(0), torch.ones(whole.shape[1]))
    even = torch.tensor([[-1e12], [-1e12]])
    state, _ = rule.update_block(rule.init(2, even), even)
    torch.testing.assert_close(state.log_weights.exp(), torch.full((2,), 0.5))


def test_a_weight_of_zero_makes_no_infinite_distance_count():
    """What the attack has found: zero times infinity, where means are 1e170 apart."""
    log_weights = torch.tensor([[-torch.inf], [0.0]], dtype=torch.float64)
    mean = torch.tensor([[0.0], [-1e170]], dtype=torch.float64)
    steps = StepPredictions(mean, torch.full_like(mean, 4.0), torch.zeros_like(mean))
    found = assemble(steps, log_weights, torch.zeros(1, dtype=torch.float64))
    assert (float(found.mean), float(found.variance)) == (-1e170, 4.0)
    assert [float(part) for part in mixtures.moments(log_weights, mean, steps.variance)] == [-1e170, 4.0]
    even = assemble(steps, torch.full_like(mean, 0.5).log(), torch.zeros(1, dtype=torch.float64))
    assert float(even.variance) == torch.inf
