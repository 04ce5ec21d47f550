"""Distributions of counts against dense quadrature and enumerated probabilities; what they cost."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from gp_ensembles.distributions.counts import LogRateCounts, TabulatedCounts
from gp_ensembles.metrics.discrete import ranked_probability_of_counts

F64 = torch.float64
RATES = [0.1, 0.7, 3.0, 12.0, 50.0]
STDDEVS = [0.0, 0.03, 0.2, 0.48, 0.52, 1.0, 2.0]


def one(value):
    return torch.tensor([[value]], dtype=F64)


def single(rate, stddev):
    return LogRateCounts(torch.zeros(1, dtype=F64), one(math.log(rate)), one(stddev**2))


def dense(rate, stddev, counts):
    """Distribution function at counts (K,) by 4001 equidistant latent values."""
    z = torch.linspace(-9, 9, 4_001, dtype=F64)
    shares = torch.exp(-0.5 * z.square())
    step = torch.special.gammaincc(counts.unsqueeze(-1) + 1, (math.log(rate) + stddev * z).exp())
    return step @ (shares / shares.sum())


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0, 1e4, 1e8])
@pytest.mark.parametrize("stddev", [0.0, 0.2, 0.6, 1.5])
def test_negative_binomial_and_inflated_counts(size, stddev):
    z = torch.linspace(-9, 9, 8_001, dtype=F64)
    shares = torch.exp(-0.5 * z.square())
    shares = (shares / shares.sum()).numpy()
    for rate in (0.3, 12.0, 4000.0):
        k = torch.tensor([0.0, rate // 3, rate // 1, 1 + 3 * rate // 1], dtype=F64)
        rates = rate * (stddev * z).exp()
        plain = special.betainc(size, k.unsqueeze(-1).numpy() + 1, (size / (size + rates)).numpy()) @ shares
        latent = one(math.log(rate)), one(stddev**2), one(math.log(size))
        for inflation in (0.0, 0.4):
            counts = LogRateCounts(torch.zeros(1, dtype=F64), *latent, torch.logit(one(inflation)))
            want = torch.as_tensor(inflation + (1 - inflation) * plain)
            got = counts.cdf(k.unsqueeze(-1), torch.tensor([0])).squeeze(-1)
            torch.testing.assert_close(got, want, rtol=0, atol=1e-6 if stddev > 1 else 1e-7)
            assert float(counts.cdf(counts.upper, torch.tensor([0]))) > 1 - 1e-9
            assert float(counts.quantile(one(0.0))) == 0
            level = float(want[1]) * (1 - 1e-4)
            assert float(counts.quantile(one(level))) <= float(k[1])


def score(counts, y, calls=None):
    def cdf(k, rows):
        if calls is not None:
            calls.append(k.numel())
        return counts.cdf(k, rows)

    return ranked_probability_of_counts(cdf, counts.reach, y, counts.lower, counts.upper)


@pytest.mark.slow
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("stddev", STDDEVS)
def test_distribution_functions_quantiles_and_scores(rate, stddev):
    counts = single(rate, stddev)
    k = torch.cat([torch.arange(200.0, dtype=F64), torch.tensor([1e3, 1e4], dtype=F64)])
    want = dense(rate, stddev, k)
    got = counts.cdf(k.unsqueeze(-1), torch.tensor([0])).squeeze(-1)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-8)
    for level in (0.0, 0.05, 0.5, 0.9):
        if level > float(got[199]):
            continue
        assert float(counts.quantile(one(level))) == float((got < level).sum())
    if stddev <= 0.52:
        table = dense(rate, stddev, torch.arange(min(float(counts.upper) + 1, 2000.0), dtype=F64))
        for y in (0.0, float(round(rate)), float(round(3 * rate + 2)), 3000.0):
            step = (torch.arange(len(table)) >= y).to(F64)
            far = max(0.0, y - len(table))
            want = (table - step).square().sum() + far
            torch.testing.assert_close(score(counts, one(y)[0]), want.reshape(1), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("stddev", [0.1, 0.6])
def test_long_sums_of_few_nodes(stddev):
    counts = single(400.0, stddev)
    k = torch.arange(float(counts.upper), dtype=F64)[:30_000]
    table = counts.cdf(k.unsqueeze(-1), torch.tensor([0])).squeeze(-1)
    for y in (0.0, 333.0, 20_000.0):
        calls: list[int] = []
        got = score(counts, one(y)[0], calls)
        want = (table - (k >= y).to(F64)).square().sum() + max(0.0, y - len(k))
        torch.testing.assert_close(got, want.reshape(1), rtol=1e-6, atol=1e-6)
        assert sum(calls) < 500


@given(
    mean=st.lists(st.floats(-4, 6), min_size=3, max_size=3),
    stddev=st.lists(st.floats(0, 0.8), min_size=3, max_size=3),
    weights=st.lists(st.floats(-40, 0), min_size=3, max_size=3),
    y=st.integers(0, 600),
)
@settings(max_examples=12)
def test_experts_that_disagree(mean, stddev, weights, y):
    latent = torch.tensor(mean, dtype=F64).unsqueeze(-1), torch.tensor(stddev, dtype=F64).square().unsqueeze(-1)
    log_weights = torch.tensor(weights, dtype=F64).log_softmax(0)
    counts = LogRateCounts(log_weights, *latent)
    k = torch.arange(3000.0, dtype=F64)
    parts = [single(math.exp(m), s).cdf(k.unsqueeze(-1), torch.tensor([0])) for m, s in zip(mean, stddev, strict=True)]
    table = (log_weights.exp() * torch.cat(parts, dim=-1)).sum(-1)
    if float(counts.upper) > 3000 and float(table[-1]) < 1 - 1e-9:
        return
    torch.testing.assert_close(counts.cdf(k.unsqueeze(-1), torch.tensor([0])).squeeze(-1), table, rtol=0, atol=1e-12)
    want = (table - (k >= y).to(F64)).square().sum().reshape(1)
    torch.testing.assert_close(score(counts, torch.tensor([float(y)], dtype=F64)), want, rtol=1e-6, atol=1e-6)
    for level in (0.1, 0.77):
        assert float(counts.quantile(one(level))) == float((table < level).sum())


def many(num_rows=40):
    g = torch.Generator().manual_seed(2)
    mean = torch.randn(3, num_rows, dtype=F64, generator=g)
    return LogRateCounts(torch.zeros(3, dtype=F64).log_softmax(0), mean, 0.01 + 0 * mean)


def test_ends_of_quantiles():
    counts = many()
    levels = torch.tensor([0.0, 1.0], dtype=F64).unsqueeze(-1).expand(2, 40)
    lowest, highest = counts.quantile(levels)
    assert bool((lowest == 0).all())
    assert bool(torch.isposinf(highest).all())
    huge = single(1.0, 15.0)
    assert math.log(float(huge.quantile(one(0.99)))) == pytest.approx(15 * stats.norm.ppf(0.99), rel=1e-6)
    assert bool(torch.isfinite(score(huge, one(3.0)[0])).all())
    none = LogRateCounts(torch.zeros(1, dtype=F64), torch.zeros(1, 0, dtype=F64), torch.zeros(1, 0, dtype=F64))
    assert none.quantile(torch.zeros(2, 0, dtype=F64)).shape == (2, 0)


def tabulated(rates, evaluated=None):
    rates = torch.tensor(rates, dtype=F64)

    def log_prob(k, rows):
        if evaluated is not None:
            evaluated.append(k.numel())
        return torch.xlogy(k, rates[rows]) - rates[rows] - torch.lgamma(k + 1)

    return TabulatedCounts(log_prob, rates, rates.sqrt())


def test_a_table_without_end_is_refused():
    evaluated: list[int] = []
    with pytest.raises(ValueError, match="row 1 spread over more than 1000000 values; draw samples"):
        tabulated([1.0, 1e9], evaluated)
    assert sum(evaluated) < 2_000_000
