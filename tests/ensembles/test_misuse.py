"""Misuse of records and rows: one clear sentence that names the argument and how to correct it."""

from dataclasses import replace

import pytest
import torch

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.engine.predictions import invalid_rows
from gp_ensembles.ensembles import FitSettings, presets
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import auto
from gp_ensembles.ensembles.targets import BinaryTarget, RealTarget
from gp_ensembles.experts import GaussianExpert, LaplaceExpert, MultiOutputExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters.states import StepPredictions
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.likelihoods.classification import LogisticLikelihood
from gp_ensembles.meta_learners import FixedShare
from tests.refusals import refused

QUICK = FitSettings(method=None, num_samples=1)


def rows(num_rows=30):
    X = torch.randn(num_rows, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return X, (X[:, 0] > 0).double()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"target": BinaryTarget}, "target must be an object such as .*, got the class BinaryTarget: instantiate it"),
        ({"target": "binary"}, "target must be an object such as .*, got 'binary'"),
        ({"bases": LinearBasis()}, r"bases must be a tuple .* use bases=\(LinearBasis"),
        ({"bases": [LinearBasis(), LinearBasis]}, r"bases\[1\] must be .*, got the class LinearBasis: instantiate it"),
        ({"bases": "linear"}, r"bases must be a tuple of records such as \(LinearBasis\(\),\), got 'linear'"),
        ({"bases": 3}, "bases must be a tuple of records"),
        ({"fit_settings": 3}, "fit_settings must be an object such as"),
    ],
)
def test_specs_of_the_wrong_kind(settings, words):
    for preset in (presets.oebe, auto):
        with pytest.raises(TypeError, match=words):
            replace(preset, **settings)


BAD_ROWS = [
    (lambda X, y: (X[:, 0], y), ValueError, r"X must have shape .*use X.unsqueeze\(-1\)"),
    (lambda X, y: (X[0, 0], y), ValueError, r"X must have shape .*use X.reshape\(1, 1\)"),
    (lambda X, y: (X.tolist(), y), TypeError, "X must be a floating point tensor, got list"),
    (lambda X, y: (X, y.long()), TypeError, r"got torch.int64; use y.to\(X.dtype\)"),
    (lambda X, y: (X, y.bool()), TypeError, r"got torch.bool; use y.to\(X.dtype\)"),
    (lambda X, y: (X, y.tolist()), TypeError, "y must be a tensor, got list; use torch.as_tensor"),
    (lambda X, y: (X, y.unsqueeze(-1)), ValueError, r"use y.squeeze\(-1\)"),
]


@pytest.mark.parametrize(("change", "kind", "words"), BAD_ROWS)
@pytest.mark.parametrize("target", [RealTarget(), BinaryTarget()], ids=["real", "binary"])
def test_rows_of_a_preset(change, kind, words, target):
    for preset in (presets.oebe, auto):
        with pytest.raises(kind, match=words):
            replace(preset, bases=(LinearBasis(),), fit_settings=QUICK, target=target).fit(*change(*rows()))
    refused(kind, words, lambda: replace(presets.ie_gp, fit_settings=QUICK, target=target).fit(*change(*rows())))


OF_A_STREAM = [
    (lambda X, y: (X, y[:-1]), ValueError, "y must have shape"),
    (lambda X, y: (X, y.repeat(2)), ValueError, "y must have shape"),
    (lambda X, y: (X[:1], y[:1, None]), ValueError, r"use y.squeeze\(-1\)"),
    (lambda X, y: (X[:2], y[:2, None]), ValueError, r"use y.squeeze\(-1\)"),  # it would broadcast over two experts
]


@pytest.mark.parametrize(("change", "kind", "words"), [*BAD_ROWS, *OF_A_STREAM])
def test_rows_of_a_stream(change, kind, words):
    features = LinearFeatures(2, torch.ones(2, dtype=torch.float64))
    for expert in (LaplaceExpert(features, LogisticLikelihood()), GaussianExpert(features)):
        online = OnlineEnsemble(Ensemble([expert], FixedShare()))
        before = [value.clone() for value in online.state_dict().values()]
        with pytest.raises(kind, match=words):
            online.observe(*change(*rows()))
        with pytest.raises(kind, match=words):
            online.ensemble.update(online.state, *change(*rows()))
        assert all(torch.equal(a, b) for a, b in zip(before, online.state_dict().values(), strict=True))


def test_one_row_without_its_axis():
    X, y = rows()
    features = LinearFeatures(2, torch.ones(1, dtype=torch.float64))
    online = OnlineEnsemble(Ensemble([GaussianExpert(features)], FixedShare()))
    refused(ValueError, r"use X.unsqueeze\(0\) for one row", lambda: online.predict(X[0]))
    refused(ValueError, "at least one row", lambda: online.predict(X[:0]))
    refused(ValueError, "use MultiOutputExpert", lambda: online.observe(X, torch.stack([y, y], 1)))
    single = OnlineEnsemble(Ensemble([MultiOutputExpert(features, 1)], FixedShare()))
    refused(ValueError, r"use y.unsqueeze\(-1\)", lambda: single.observe(X, y))


@pytest.mark.parametrize("kind", [OnlineEnsemble, EnsembleFleet])
def test_a_spec_in_the_place_of_an_ensemble_is_refused(kind):
    refused(TypeError, r"ensemble must be an object such as Ensemble\(\[expert\], .*, got gpe.auto", lambda: kind(auto))


def test_one_output_that_is_none_is_a_row_that_is_none():
    """Two experts, three rows, two outputs."""
    mean, variance, log_prob = torch.zeros(2, 3, 2), torch.ones(2, 3, 2), torch.zeros(2, 3)
    assert invalid_rows(StepPredictions(mean, variance, log_prob)) is None
    mean[0, 2, 1], variance[1, 0, 0] = torch.nan, -1.0
    wrong = invalid_rows(StepPredictions(mean, variance, log_prob))
    assert wrong.tolist() == [[False, False, True], [True, False, False]]
