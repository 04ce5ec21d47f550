"""Records of further experts in an ensemble: what is left out, what stands beside a preset's own, what is refused."""

from dataclasses import replace

import pytest
import torch

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.external_models import Boosting, ForecastColumns
from gp_ensembles.ensembles.extra_experts import WideFeatures, WindowGP
from gp_ensembles.ensembles.presets import auto, light
from gp_ensembles.ensembles.records import spec_from_plain
from gp_ensembles.ensembles.targets import CountTarget
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.streaming import OnlineModel, StreamConfig

QUICK = FitSettings(LBFGS(max_iterations=3), num_samples=1)


@pytest.mark.parametrize(
    ("record", "columns"),
    [(WindowGP(num_rows=50, lags=True), 60), pytest.param(WideFeatures(num_features=10), 501, marks=pytest.mark.slow)],
)
def test_a_table_of_more_columns_than_an_exact_process_has_rows_does_without_it(record, columns):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(50, columns, generator=generator, dtype=torch.float64)
    y = X[:, 0] + 0.1 * torch.randn(50, generator=generator, dtype=torch.float64)
    settings = {"fit_settings": QUICK, "random_walk_variances": (), "static": True, "lags": None, "extra_experts": ()}
    bare = replace(auto, bases=(LinearBasis(),), **settings)
    with pytest.warns(UserWarning, match=f"{record.name!r} is left out.*fewer than its {columns} columns"):
        model = OnlineModel(StreamConfig(replace(bare, extra_experts=(record,)), warmup=40)).fit(X[:40], y[:40])
    assert model.names == ("linear/static/0",)
    assert bool(model.observe(X[40:], y[40:]).log_prob.isfinite().all())


def test_more_experts_stand_beside_those_of_a_preset_in_a_file():
    plain = {"like": "auto", "add_experts": [{"ForecastColumns": {"columns": ["nwp"]}}]}
    assert spec_from_plain(plain).extra_experts == (*auto.extra_experts, ForecastColumns(("nwp",)))
    assert spec_from_plain({"like": "light", "extra_experts": ["Boosting"]}).extra_experts == (Boosting(),)
    assert spec_from_plain({"like": "light"}) == light
    with pytest.raises(ValueError, match=r"ensemble.add_experts\[0\]"):
        spec_from_plain({"like": "auto", "add_experts": ["LinearBasis"]})


def test_forecasts_of_counts_are_refused():
    with pytest.raises(ValueError, match="CountTarget"):
        replace(auto, target=CountTarget(), extra_experts=(ForecastColumns("nwp"),))
    assert replace(auto, target=CountTarget()).extra_experts == auto.extra_experts  # left out there, as lags are


def test_auto_has_twelve_experts_at_most():
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(400, dtype=torch.float64)
    y = (rows / 4).sin() + 0.1 * torch.randn(400, generator=generator, dtype=torch.float64)
    spec = replace(auto, fit_settings=replace(auto.fit_settings, method=None))
    online = spec.fit(torch.randn(400, 2, generator=generator, dtype=torch.float64), y)
    names = [name.split("/")[0] for name in online.ensemble.expert_names]
    assert "trend and season" in names
    assert len(names) == 12
