"""Length scales of each series: the dense normal evidence over a grid, and neighbors that do not matter."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.targets import UnknownNoiseTarget
from gp_ensembles.fleet import Fleet
from gp_ensembles.fleet.fitting import fit_factors, fit_variances
from gp_ensembles.streaming.columns import Columns

WARMUP, NUM = 120, 4
INPUTS = (0, 0, 1, 1)  # those that series depend on
FIT = FitSettings(num_samples=1)
SPEC = replace(oebe, bases=(FourierBasis(num_features=60, starts=(0.7,)),), fit_settings=FIT)
NAMES = [f"unit {s}" for s in range(NUM)]
ALL = torch.ones(NUM, dtype=torch.bool)


def series(num_rows, generator):
    """X (N, S, 2) and y (N, S): slow and quick sines of one input, two series each, with a little noise."""
    rates = torch.tensor([0.4, 4.0] * (NUM // 2), dtype=torch.float64)
    X = torch.randn(num_rows, NUM, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(num_rows, NUM, generator=generator, dtype=torch.float64)
    return X, torch.sin(rates * X[:, range(NUM), INPUTS]) + 0.1 * noise


def standardized(X, y):
    """The same as X (S, N, 2) and y (S, N)."""
    return X.transpose(0, 1), ((y - y.mean(0)) / y.std(0, correction=0)).T


def of_rows(X, y, some=slice(None)):
    """Names, inputs and targets of the rows of some series."""
    names = NAMES[some]
    return [name for _ in range(len(y)) for name in names], X[:, some].reshape(-1, 2), y[:, some].flatten()


def fitted(X, y, some=slice(None), shared=None, **options):
    fleet = Fleet(SPEC, warmup=WARMUP, **options)
    fleet.fit(*of_rows(X[:WARMUP], y[:WARMUP], some), shared=shared)
    return fleet


def ensemble_for(X, y, generator):
    return replace(SPEC, fit_settings=replace(SPEC.fit_settings, method=None)).fit(X, y, generator=generator).ensemble


@pytest.mark.filterwarnings("ignore:.*it missed a function")  # a shared length scale does
def test_quick_series_have_short_length_scales_and_are_better_for_it(generator):
    X, y = series(WARMUP + 200, generator)
    own, shared = (fitted(X, y, own_length_scales=chosen) for chosen in (True, False))
    factors = Columns.unpacked(own.series.note("columns", NAMES)).scales.X_scale / X[:WARMUP].std(0, correction=0)
    active, idle = (factors[range(NUM), [abs(column - other) for column in INPUTS]] for other in (0, 1))
    ratio = active[::2] / active[1::2]
    assert ((ratio > 3) & (ratio < 30)).all()  # ten, as far as 120 rows tell
    assert (idle > 1.5 * active)[1::2].all()
    predicted = [one.observe(*of_rows(X[WARMUP:], y[WARMUP:])).log_prob.mean() for one in (own, shared)]
    assert predicted[0] - predicted[1] > 0.1


def test_no_factor_of_a_grid_has_more_evidence(generator):
    X, y = standardized(*series(WARMUP, generator))
    X = X[range(NUM), :, INPUTS].unsqueeze(-1)
    y[3, 100:] = torch.nan
    ensemble = ensemble_for(X[0], y[0], generator)
    expert = ensemble.experts[0]
    found = fit_factors(ensemble, X, y, FIT, ALL)

    def posterior(factors):  # (S, 1)
        inputs = X / factors.unsqueeze(1)
        own = fit_variances(expert, inputs, y, FIT)
        Phi = expert.bind().features(inputs).detach().reshape(NUM, WARMUP, -1).numpy()
        values = []
        for s, (prior, noise) in enumerate(zip(own.prior.flatten(), own.noise.flatten(), strict=True)):
            seen = ~np.isnan(y[s].numpy())
            design, target = Phi[s][seen], y[s].numpy()[seen]
            cov = float(prior) * design @ design.T + float(noise) * np.eye(len(target))
            values.append(stats.multivariate_normal(cov=cov).logpdf(target))
        return torch.tensor(values) - 0.5 * FIT.start_precision * factors.log().square().sum(-1)

    best = torch.stack([posterior(torch.full_like(found, point)) for point in np.geomspace(0.1, 10, 41)]).amax(0)
    assert (posterior(found) > best - 0.5).all()


def test_each_series_is_what_it_would_be_alone(generator):
    X, y = series(WARMUP + 40, generator)
    together = fitted(X, y, own_length_scales=True)
    predicted = together.observe(*of_rows(X[WARMUP:], y[WARMUP:]))
    for s in range(NUM):
        own = slice(s, s + 1)
        alone = fitted(X, y, own, shared=together, own_length_scales=True)
        expected = alone.observe(*of_rows(X[WARMUP:], y[WARMUP:], own))
        torch.testing.assert_close(predicted.mean[s::NUM], expected.mean, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(predicted.log_prob[s::NUM], expected.log_prob, rtol=1e-7, atol=1e-7)


def test_a_series_that_stands_still_keeps_those_of_all(generator):
    X, y = standardized(*series(WARMUP, generator))
    moving = torch.tensor([True, True, False, True])
    found = fit_factors(ensemble_for(X[0], y[0], generator), X, y, FIT, moving)
    assert torch.equal(found[2], torch.ones(2, dtype=torch.float64))
    assert (found[moving] != 1).all()


def test_series_without_noise_have_them_in_single_precision_too(generator):
    X, _ = series(WARMUP + 40, generator)
    y = torch.sin(torch.tensor([0.4, 4.0, 0.4, 4.0]) * X[:, range(NUM), INPUTS])
    fleet = fitted(X, y, own_length_scales=True, dtype=torch.float32)
    assert not fleet.failures
    predicted = fleet.observe(*of_rows(X[WARMUP:], y[WARMUP:]))
    assert float((predicted.mean - y[WARMUP:].flatten()).abs().nanmean()) < 0.2


def test_an_ensemble_without_length_scales_to_fit_is_refused_and_nothing_begins(generator):
    X, y = series(WARMUP, generator)
    fleet = Fleet(
        replace(SPEC, target=UnknownNoiseTarget()), warmup=WARMUP, own_variances=False, own_length_scales=True
    )
    with pytest.raises(TypeError, match=r"no expert has Gaussian noise and a basis .* omit own_length_scales"):
        fleet.fit(*of_rows(X, y))
    assert (fleet.names, fleet.waiting) == ((), {})
