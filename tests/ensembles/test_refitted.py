"""Refitted experts as a record: what is built of warm-up rows, and what it is good for."""

from dataclasses import replace

import pytest
import torch

from gp_ensembles.ensembles.bases import FourierBasis, LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.extra_experts import Refitted
from gp_ensembles.ensembles.presets import default_rule, oebe
from gp_ensembles.experts.empirical_bayes import LBFGS

SMALL = Refitted(num_features=20, every=200, num_rows=200)
SPEC = replace(
    oebe,
    bases=(LinearBasis(), FourierBasis(num_features=20, starts=(0.7,))),
    rule=default_rule(),
    fit_settings=FitSettings(LBFGS(max_iterations=30), num_samples=1),
    extra_experts=(SMALL,),
)


def generator():
    return torch.Generator().manual_seed(0)


def wave(num_rows, scale, dtype=torch.float64):
    """A smooth function of two inputs, at a length scale for each row."""
    X = torch.randn(num_rows, 2, generator=generator(), dtype=torch.float64)
    y = (scale * X[:, 0]).sin() + (0.5 * scale * X[:, 1]).cos()
    noise = 0.1 * torch.randn(num_rows, generator=generator(), dtype=torch.float64)
    return X.to(dtype), (y + noise).to(dtype)


def weights(online):
    return online.ensemble.layers.by_expert(online.log_weights).exp()


@pytest.mark.slow
def test_hyperparameters_of_a_short_warm_up_are_soon_those_of_a_long_one():
    X, y = wave(800, 2.5)
    short, long = (SPEC.fit(X[:n], y[:n], generator=generator()) for n in (30, 400))
    short.observe(X[30:400], y[30:400])
    first, second = (online.observe(X[400:], y[400:]).log_prob.mean() for online in (short, long))
    fixed = replace(SPEC, extra_experts=()).fit(X[:30], y[:30], generator=generator())
    fixed.observe(X[30:400], y[30:400])
    assert float(first) > float(second) - 0.02
    assert float(first) > float(fixed.observe(X[400:], y[400:]).log_prob.mean()) + 0.02


def test_a_newborn_rises_within_some_rows_where_the_old_ones_fail():
    X, y = wave(1200, torch.where(torch.arange(1200) < 500, 1.0, 5.0))
    online = SPEC.fit(X[:200], y[:200], generator=generator())
    online.observe(X[200:500], y[200:500])
    online.observe(X[500:1100], y[500:1100])  # refitted at 600, 800 and 1000
    places = [i for i, name in enumerate(online.ensemble.expert_names) if name.startswith("refitted")]
    assert float(weights(online)[places].sum()) > 0.9
