"""Series that leave a fleet and come to one, and hyperparameters that fleets share."""

from dataclasses import replace

import pytest
import torch

from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.fleet import Fleet
from gp_ensembles.streaming.calibration import calibration_of
from tests.fleet.test_model import BASIS, LATER, QUICK, SERIES, SPEC, WARMUP, rows_of, table
from tests.refusals import refused

CUT = SERIES * WARMUP


def fitted(rows, spec=SPEC, **settings) -> Fleet:
    names, X, y = rows
    fleet = Fleet(spec, warmup=WARMUP, **settings)
    fleet.fit(names[:CUT], X[:CUT], y[:CUT])
    return fleet


def numbers(predicted):
    base = getattr(predicted.distribution, "base", predicted.distribution)
    return [base.mean, base.variance, predicted.log_prob, predicted.covered, *predicted.interval()]


@pytest.mark.parametrize(("own_variances", "recalibrate"), [(True, True), (False, False)])
def test_a_series_goes_on_by_itself_and_comes_back(own_variances, recalibrate, generator):
    """By itself it says what the fleet says, with gaps as well; brought back it says what it would have said."""
    rows = table(WARMUP + LATER, generator)
    fleet = fitted(rows, own_variances=own_variances, recalibrate=recalibrate)
    names, X, y = (part[CUT:] for part in rows)
    half = len(y) // 2
    fleet.observe(names[:half], X[:half], y[:half])
    mine = rows_of(names[half:], 1)
    model = fleet.export("unit 1")
    X[half + mine.nonzero()[2:4], 1] = torch.nan
    own_X, own_y = X[half:][mine], y[half:][mine]
    standard, scales = model.path.follow(model.state, own_X), model.path.columns.scales
    predicted = model.online.observe(standard.inputs, model.path.targets(own_y), extra=standard.extra)
    mixture = model.path.in_units(predicted.mixture)
    _, _, gain, _ = calibration_of(fleet.config).update(model.calibration, mixture, own_y)
    log_prob = predicted.log_prob - scales.y_scale.log() + gain
    fleet.add(["twin", "again"], fleet.export("unit 1"))
    expected = numbers(fleet.observe(names[half:], X[half:], y[half:]))
    close = {"rtol": 1e-9, "atol": 1e-9, "equal_nan": True}
    for one, whole in zip((mixture.mean, mixture.variance, log_prob), expected, strict=False):
        torch.testing.assert_close(one, whole[mine], **close)
    for name in ("twin", "again"):
        found = numbers(fleet.observe([name] * len(own_y), own_X, own_y))
        for one, whole in zip(found, expected, strict=True):
            torch.testing.assert_close(one, whole[..., mine], **close)


def test_shared_hyperparameters_and_the_rows_of_each_are_a_fit(generator):
    rows = table(WARMUP + LATER, generator)
    whole, shared = fitted(rows), Fleet(SPEC, warmup=WARMUP)
    names, X, y = (part[:CUT] for part in rows)
    shared.fit_shared(names, X, y)
    assert (shared.names, shared.waiting) == ((), {})
    parts = []
    for s in range(SERIES):
        mine = rows_of(names, s)
        parts.append(shared.fresh())
        parts[s].fit([f"unit {s}"] * int(mine.sum()), X[mine], y[mine], shared=shared)
    later = [part[CUT:] for part in rows]
    predicted = whole.observe(*later)
    for s, part in enumerate(parts):
        mine = rows_of(later[0], s)
        found = part.observe([f"unit {s}"] * int(mine.sum()), later[1][mine], later[2][mine])
        for one, all_series in zip(numbers(found), numbers(predicted), strict=True):
            torch.testing.assert_close(one, all_series[..., mine], rtol=1e-9, atol=1e-9, equal_nan=True)
    few = Fleet(SPEC, warmup=WARMUP)
    few.fit(["unit 0"] * 5, X[:5], y[:5], shared=shared)  # nothing must be fitted
    assert few.waiting == {"unit 0": 5}


def test_what_cannot_be_shared_or_added_is_refused(generator):
    rows, spec = table(WARMUP + 5, generator), replace(SPEC, fit_settings=FitSettings(None, num_samples=1))
    fleet = fitted(rows, spec)
    names, X, y = (part[:CUT] for part in rows)
    before = fleet.predict(names[:4], X[:4]).mean
    refused(ValueError, "is not fitted yet", lambda: fleet.fit(names, X, y, shared=Fleet(spec)))
    refused(ValueError, "has another ensemble or seed", lambda: fleet.fit(names, X, y, shared=fitted(rows, QUICK)))
    model = fleet.export("unit 0")
    refused(ValueError, "nothing is fitted yet", lambda: Fleet(spec, warmup=WARMUP).add(["unit 0"], model))
    refused(ValueError, "are in the fleet already", lambda: fleet.add(["new", "unit 1"], model))
    fleet.observe(["waits"], X[:1], y[:1])
    refused(ValueError, "'waits' is in its warm-up", lambda: fleet.add(["waits"], model))
    refused(KeyError, "'waits' has received 1 of the 40", lambda: fleet.export("waits"))
    with pytest.raises(ValueError, match="hyperparameters are not the fleet's"):
        fleet.add(["new"], fitted(rows, replace(spec, bases=(BASIS,), lags=None)).export("unit 0"))
    faster = fitted(rows, spec)
    faster.series.ensemble.experts[0].features.features.kernel.base_kernel.lengthscale = 0.1
    refused(ValueError, "hyperparameters are not the fleet's", lambda: fleet.add(["new"], faster.export("unit 0")))
    with pytest.raises(ValueError, match="model and fleet differ in recalibrate"):
        fleet.add(["new"], fitted(rows, spec, recalibrate=False).export("unit 0"))
    with pytest.raises(ValueError, match="for 2 coverages"):
        fleet.add(["new"], fitted(rows, spec, coverages=(0.9, 0.5)).export("unit 0"))
    narrow = Fleet(spec, warmup=WARMUP)
    narrow.fit(names, X[:, :1], y)
    refused(ValueError, "has 1 input columns, the fleet has 2", lambda: fleet.add(["new"], narrow.export("unit 0")))
    assert "new" not in fleet.names
    assert torch.equal(fleet.predict(names[:4], X[:4]).mean, before)
