"""The attack by streams: every combination is attacked, a sample finds nothing, what is planted is found."""

import json

import pytest
import torch

import gp_ensembles.experts
import gp_ensembles.meta_learners
from attacks import streams
from attacks.instances import ADAPTATIONS, INNOVATIONS, MOVING, RULES, STANDING, Instance, instances
from gp_ensembles.ensembles.predictions import assemble
from gp_ensembles.experts import Expert
from gp_ensembles.filters.states import StepPredictions
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.meta_learners import MarkovSwitching, MetaLearner, sticky_transition
from gp_ensembles.numerics import mixtures

PLAIN = Instance("Gaussian", "static", "fixed share", "none", "float64")


def public(module, base):
    found = (getattr(module, name) for name in module.__all__)
    return {one for one in found if isinstance(one, type) and issubclass(one, base) and one is not base}


def test_every_public_class_is_attacked():
    like = torch.zeros((), dtype=torch.float64)
    experts = {type(make(like, None)) for make in MOVING.values()} | {type(make(like)) for make in STANDING.values()}
    assert experts == public(gp_ensembles.experts, Expert)
    assert {type(make(2)) for make in RULES.values()} == public(gp_ensembles.meta_learners, MetaLearner)
    changes = {type(make(like)) for make in ADAPTATIONS.values()} - {type(None)}
    assert changes == public(gp_ensembles.filters, Transition)
    assert len(instances()) == len(set(instances())) > 1000
    assert {one.innovations for one in instances()} == INNOVATIONS.keys()


def test_a_sample_keeps_every_promise(tmp_path):
    assert streams.main(["--rows", "1500", "--seed", "3", "--out", str(tmp_path / "out.json")]) == 0
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["rows"] == 1500
    assert content["combinations"] == 7
    assert sum(row["rows"] for row in content["experts"].values()) == 1500
    assert any(row["rejected"] for row in content["experts"].values())


@pytest.mark.slow
def test_a_larger_sample_keeps_every_promise():
    assert streams.main(["--rows", "15000", "--seed", "4"]) == 0


@pytest.mark.parametrize("kind", streams.ROWS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rows_are_what_a_stream_takes(kind, dtype):
    X, y = streams.rows_for(PLAIN._replace(dtype=dtype), kind, 9, torch.Generator().manual_seed(0))
    assert X.shape == (9, 2)
    assert y.shape == (9,)
    assert bool(X.isfinite().all())
    assert not bool(y.isinf().any())


def test_a_broken_promise_is_found(monkeypatch):
    online = PLAIN.build()
    X, y = streams.rows_for(PLAIN, "plain", 5, torch.Generator().manual_seed(0))
    assert streams.broken_promise(online, X, y) == (None, False)
    observe = online.observe

    def spoiled(**changes):
        return lambda X, y: observe(X, y)._replace(**changes)

    for changes, what in (
        ({"variance": torch.full((5,), torch.nan)}, "a variance is NaN"),
        ({"variance": torch.full((5,), -1.0)}, "a variance is negative"),
        ({"log_weights": torch.zeros(2, 5)}, "weights do not sum to one"),
    ):
        monkeypatch.setattr(online, "observe", spoiled(**changes))
        assert streams.broken_promise(online, X, y) == (what, False)

    def rejects_late(X, y):
        observe(X, y)
        raise ValueError("too late")

    monkeypatch.setattr(online, "observe", rejects_late)
    problem, is_rejected = streams.broken_promise(online, X, y)
    assert is_rejected
    assert problem.startswith("a rejected call changed ")
    for error, words in ((ValueError(), "without a sentence"), (KeyError("x"), "KeyError")):

        def fails(X, y, error=error):
            raise error

        monkeypatch.setattr(online, "observe", fails)
        assert words in streams.broken_promise(online, X, y)[0]


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
