"""Classes in the pipeline: recalibrated with their labels, however the stream is cut, and as said before each label."""

from dataclasses import replace

import pytest
import torch

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget, LevelTarget
from gp_ensembles.streaming import OnlineModel, StreamConfig

TARGETS = {"two": BinaryTarget(), "three": ClassTarget(3), "levels": LevelTarget(3)}
WARM_UP, N = 30, 70


def config(name, **settings):
    spec = replace(oebe, bases=(LinearBasis(),), target=TARGETS[name], fit_settings=FitSettings(None, num_samples=1))
    return StreamConfig(spec, warmup=WARM_UP, **settings)


def stream(name, missing=(40, 41, 55)):
    """Labels that stay what they were, with little to do with the inputs."""
    g = torch.Generator().manual_seed(4)
    X = torch.randn(N, 2, generator=g, dtype=torch.float64)
    y = torch.randint(0, TARGETS[name].num_labels, (N // 5,), generator=g).double().repeat_interleave(5)
    y[list(missing)] = torch.nan
    return X, y


@pytest.mark.parametrize("name", ["two", "three"])
def test_log_densities_are_those_of_the_distribution(name):
    X, y = stream(name)
    predictions = OnlineModel(config(name)).observe(X, y)
    want = predictions.distribution.log_prob(y[WARM_UP:])
    torch.testing.assert_close(predictions.log_prob, want, rtol=1e-9, atol=1e-9, equal_nan=True)
    plain = OnlineModel(config(name, recalibrate=False)).observe(X, y)
    assert float(predictions.log_prob.nansum()) > float(plain.log_prob.nansum()) + 2


@pytest.mark.parametrize("name", ["two", "three"])
def test_no_prediction_sees_its_label(name):
    X, y = stream(name)
    changed = y.clone()
    changed[50] = (y[50] + 1) % TARGETS[name].num_labels
    a, b = (OnlineModel(config(name)).observe(X, labels).distribution.class_probabilities for labels in (y, changed))
    place = 50 - WARM_UP + 1
    assert torch.equal(a[:place], b[:place])
    assert not torch.equal(a[place:], b[place:])
