"""Rows of predicted counts and classes: against enumerated probabilities, and whatever one target is."""

import torch
from gpytorch.likelihoods import NegativeBinomialLikelihood
from scipy import stats

from gp_ensembles.cli.predictions import rows_of_mixture, rows_of_rates
from gp_ensembles.distributions import counts as count_mixture
from gp_ensembles.distributions.latent_mixture import LatentMixture, Response
from gp_ensembles.likelihoods import LogPoissonLikelihood
from gp_ensembles.likelihoods.predictive import GaussHermite
from gp_ensembles.metrics.discrete import ranked_probability_score

F64 = torch.float64


def mixture(likelihood, num_rows=30):
    g = torch.Generator().manual_seed(4)
    mean = 1 + torch.randn(4, num_rows, generator=g, dtype=F64)
    log_weights = torch.randn(4, num_rows, generator=g, dtype=F64).log_softmax(0)
    response = Response(likelihood.double(), GaussHermite(), 4, torch.Size([4]))
    return LatentMixture(log_weights, mean, 0.02 + 0 * mean, (response,))


def check_rows(predicted, y):
    rows = rows_of_mixture(predicted, y)
    k = torch.arange(200.0, dtype=F64).unsqueeze(-1).expand(-1, y.shape[0])
    table = predicted.log_prob(k).exp().cumsum(0).T
    torch.testing.assert_close(rows.crps, ranked_probability_score(table, y), rtol=1e-6, atol=1e-6, equal_nan=True)
    for got, level in ((rows.lower, 0.05), (rows.upper, 0.95)):
        assert torch.equal(got, (table < level).sum(-1).to(F64))
    torch.testing.assert_close(rows.log_prob, predicted.log_prob(y), equal_nan=True)
    return rows


def test_rows_of_counts():
    y = torch.arange(30, dtype=F64)
    y[5] = torch.nan
    for likelihood in (LogPoissonLikelihood(), NegativeBinomialLikelihood()):
        rows = check_rows(mixture(likelihood), y)
        assert rows.probabilities.shape == (30, 0)
        assert bool(torch.isnan(rows.crps[5]))


def test_one_gross_count_changes_its_own_row_only(monkeypatch):
    """And the work not at all: distribution functions are asked for as many counts as before."""
    visited: list[int] = []
    plain = count_mixture.LogRateCounts.cdf
    monkeypatch.setattr(
        count_mixture.LogRateCounts, "cdf", lambda self, k, rows: visited.append(k.numel()) or plain(self, k, rows)
    )
    predicted, y = mixture(LogPoissonLikelihood()), torch.full((30,), 3.0, dtype=F64)
    usual = rows_of_mixture(predicted, y)
    before = sum(visited)
    y[11] = 5e8
    gross = rows_of_mixture(predicted, y)
    assert sum(visited) - before <= before + 64
    others = torch.arange(30) != 11
    for a, b in zip(usual, gross, strict=True):
        torch.testing.assert_close(a[others], b[others], equal_nan=True)
    assert 5e8 - 200 < float(gross.crps[11]) < 5e8


def test_rows_of_rates_in_closed_form():
    rate = torch.tensor([0.0, 0.5, 7.0, 300.0, 5.0, 2.0], dtype=F64)
    y = torch.tensor([0.0, 2.0, 7.0, 250.0, torch.nan, 1e7], dtype=F64)
    rows = rows_of_rates(rate, y)
    poisson = stats.poisson(rate.clamp_min(1e-6).numpy())
    torch.testing.assert_close(rows.log_prob[:4], torch.from_numpy(poisson.logpmf(y.numpy()))[:4])
    assert torch.equal(rows.lower, torch.from_numpy(poisson.ppf(0.05)))
    assert torch.equal(rows.upper, torch.from_numpy(poisson.ppf(0.95)))
    k = torch.arange(1000.0, dtype=F64)
    table = torch.special.gammaincc(k + 1, rate.clamp_min(1e-6).unsqueeze(-1))
    torch.testing.assert_close(rows.crps[:5], ranked_probability_score(table, y)[:5], equal_nan=True)
    assert 1e7 - 10 < float(rows.crps[5]) < 1e7
