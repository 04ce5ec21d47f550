"""Reports on external models: rows after the warm-up only, the bound on the regret, and why a model was absent."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from gp_ensembles.engine import OnlineEnsemble
from gp_ensembles.engine.external_report import external_reports
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.external_models import ExternalModel, ForecastColumns
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.experts.adapters import FunctionAdapter, ModelAdapter
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.meta_learners import FixedShare
from gp_ensembles.metrics.regret_bounds import fixed_share_bound
from gp_ensembles.streaming import OnlineModel, StreamConfig

WARM, SHARE = 60, 0.05


def rows(num_rows=160):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    y = (2 * X[:, 0]).sin() + 0.3 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    y[[30, 100]] = torch.nan
    return X, y


def spec(*external_models, **settings):
    models = (InnovationModel(rate=0.05),)
    return replace(
        oebe,
        bases=(LinearBasis(),),
        rule=FixedShare(SHARE),
        extra_experts=external_models,
        innovations=models,
        **settings,
    )


def recent(X, past):
    return past.targets[-20:].mean().expand(len(X)), X.new_ones(len(X))


@pytest.mark.parametrize("kept", [True, False])
def test_the_bound_after_a_warm_up_that_counts_is_what_it_left(kept):
    X, y = rows()
    online = spec(ExternalModel(FunctionAdapter(recent), every=30), rank_on_warm_up=kept).fit(X[:WARM], y[:WARM])
    assert external_reports(online)[0].num_targets == 0  # those of the warm-up are not counted
    after = online.observe(X[WARM:], y[WARM:])
    report = external_reports(online)[0]
    place = 2 * (len(online.ensemble.expert_names) - 1)
    whole = OnlineEnsemble(online.ensemble).observe(X, y)  # from the rule's first weights on
    ahead = whole.experts.log_prob[place] - whole.log_prob
    num_experts = online.ensemble.num_experts
    if kept:
        torch.testing.assert_close(whole.log_prob[WARM:], after.log_prob, equal_nan=True)
        bound = fixed_share_bound(num_experts, 160, 0, SHARE) - float(ahead[:WARM].nansum())
    else:
        bound = fixed_share_bound(num_experts, 160 - WARM, 0, SHARE)
    own = (after.experts.log_prob[place] - after.log_prob).nansum()
    assert report.regret.regret == pytest.approx(float(own))
    assert report.regret.bound == pytest.approx(bound)
    assert report.regret.regret < report.regret.bound
    assert report.num_targets == 160 - WARM - 1
    assert (report.num_answered, report.num_absent) == (160 - WARM, 0)


def test_scores_of_a_model_are_in_the_units_of_the_target():
    X, y = rows()
    scores = []
    for unit in (1.0, 1000.0):
        config = StreamConfig(spec(ExternalModel(FunctionAdapter(recent), every=30)), warmup=WARM, recalibrate=False)
        model = OnlineModel(config)
        predictions = model.observe(X, unit * y)
        (report,) = model.external_models
        assert report.ensemble_log_score == pytest.approx(float(predictions.log_prob.nanmean()))
        scores.append(report.log_score)
        assert sum(model.weights.values()) == pytest.approx(1.0)
        assert model.weights["external/0"] == pytest.approx(report.weight)
    assert scores[1] == pytest.approx(scores[0] - math.log(1000.0))


class Failing(ModelAdapter):
    """Does what it is reported to where the first input is positive."""

    def __init__(self, answer, train=None):
        self.answer, self.train = answer, train

    def fit(self, rows):
        if self.train is not None:
            raise ValueError(self.train)

        def forecast(X):
            good = X[:, 1], torch.ones(len(X), dtype=torch.float64)
            return self.answer(*good) if bool((X[:, 0] > 0).any()) else good

        return forecast


def fail(mean, deviation):
    raise ValueError("no such\n  station")


@pytest.mark.parametrize(
    ("adapter", "reason", "fix"),
    [
        (Failing(lambda m, s: (m * torch.nan, s)), "it returned no prediction (NaN)", "fill the gaps"),
        (Failing(lambda m, s: (m * math.inf, s)), "its mean was infinite or beyond 1e30 (mean ", "with mean 0"),
        (Failing(lambda m, s: (m, -s)), "not positive and finite (deviation -1)", "standard deviations or None"),
        (
            Failing(lambda m, s: (torch.cat([m, m]), s)),
            "had the wrong shape (shapes (2,) and (1,) for inputs (1, 2))",
            "return means (N,) and deviations (N,)",
        ),
        (Failing(fail), "it failed to predict (ValueError: no such station)", "model.fit(rows)(X) on"),
        (Failing(None, "no license"), "it failed to train (ValueError: no license)", "model.fit(rows) on its own"),
    ],
)
def test_reasons_say_how_they_are_fixed_and_survive_a_file(adapter, reason, fix):
    X, y = rows()
    settings = spec(ExternalModel(adapter, every=30))
    fitted = settings.fit(X[:WARM], y[:WARM])
    online = fitted.condition_on(X[WARM:], y[WARM:])
    (report,) = external_reports(online)
    assert reason in report.reason
    assert fix in report.fix
    assert f"because {report.reason}: {report.fix}" in str(report)
    loaded = copy.deepcopy(fitted)
    loaded.load_state_dict(online.state_dict())
    assert external_reports(loaded) == (report,)


def test_one_that_never_answered_has_no_weight_and_says_why():
    X, y = rows()
    table = torch.cat([X, torch.full_like(y, torch.nan).unsqueeze(-1)], dim=-1)
    model = OnlineModel(StreamConfig(spec(ForecastColumns("nwp")), warmup=WARM), ["a", "b", "nwp"])
    model.observe(table, y)
    (report,) = model.external_models
    assert (report.num_answered, report.num_absent, report.weight) == (0, 160 - WARM, 0.0)
    assert model.weights["forecast/0"] == 0.0
    assert sum(model.weights.values()) == pytest.approx(1.0)
    assert str(report).startswith("forecast/0: predicted 0 of 100 rows; last absent because it returned no prediction")
