"""The evidence by which a robust expert is fitted to warm-up rows that hold outliers."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.experts import GaussianExpert, RobustExpert, fit_empirical_bayes
from gp_ensembles.experts.evidence import log_evidence
from gp_ensembles.features import LinearFeatures

SHARE = 0.01


def line(num_rows, noise=0.1, seed=3):
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(num_rows, 2, generator=g, dtype=torch.float64)
    return X, X.sum(-1) + noise * torch.randn(num_rows, generator=g, dtype=torch.float64)


def linear_expert(noise, prior=1.0):
    noise, prior = torch.as_tensor(noise).double(), torch.as_tensor(prior).double()
    expert = RobustExpert(LinearFeatures(2, prior.expand(noise.shape).clone()))
    expert.likelihood.noise = noise.unsqueeze(-1)
    return expert


def exact_evidence(expert, X, y):
    """The mixture over all labelings of the targets, each with the evidence of a Gaussian expert."""
    bound = expert.bind()
    Phi = bound.features(X)
    scale = 1.4826 * float((y - y.median()).abs().median())
    terms = []
    for labels in itertools.product([True, False], repeat=y.shape[0]):
        kept = torch.tensor(labels)
        term = float(log_evidence(Phi[kept], y[kept], bound.prior_variance, bound.noise)) if bool(kept.any()) else 0.0
        outliers = stats.cauchy(loc=float(y.median()), scale=scale).logpdf(y[~kept].numpy()).sum()
        number = int(kept.sum())
        terms.append(term + float(outliers) + number * math.log1p(-SHARE) + (y.shape[0] - number) * math.log(SHARE))
    return float(torch.tensor(terms, dtype=torch.float64).logsumexp(0))


LABELED = [(gross, seed) for gross in (0.0, 1.0, 30.0) for seed in range(6)]


@pytest.mark.parametrize(
    ("gross", "seed"), [(30.0, 6), *(pytest.param(*one, marks=pytest.mark.slow) for one in LABELED)]
)
def test_evidence_is_a_tight_lower_bound(gross, seed):
    """Against the sum over all 512 labelings; only labels that are open loosen it."""
    X, y = line(9, seed=seed)
    y[4] += gross
    expert = linear_expert(0.02)
    with torch.no_grad():
        bound, exact = float(expert.log_evidence(X, y)), exact_evidence(expert, X, y)
    assert exact - 0.5 <= bound <= exact + 1e-9


def test_gradient_is_the_change_of_the_evidence():
    X, y = line(80)
    y[::10] += 20.0
    noise = torch.tensor([0.01, 0.03], dtype=torch.float64)
    expert = linear_expert(noise)
    (gradient,) = torch.autograd.grad(expert.log_evidence(X, y).sum(), expert.likelihood.raw_noise)
    step = 1e-3
    values = []
    for sign in (-1, 1):
        moved = linear_expert(noise)
        with torch.no_grad():
            moved.likelihood.raw_noise.add_(sign * step)
            values.append(moved.log_evidence(X, y))
    torch.testing.assert_close(gradient.squeeze(-1), (values[1] - values[0]) / (2 * step), rtol=1e-2, atol=1e-2)


@given(st.floats(1e2, 1e150), st.booleans())
@settings(max_examples=20)
def test_how_gross_an_outlier_is_does_not_matter(size, negative):
    """Evidence at two hyperparameters differs as if the row were not there."""
    X, y = line(40)
    expert = linear_expert([0.01, 0.02])
    with torch.no_grad():
        y[7] = -1e2 if negative else 1e2
        first = expert.log_evidence(X, y)
        y[7] = -size if negative else size
        second = expert.log_evidence(X, y)
    assert bool(torch.isfinite(second).all())
    torch.testing.assert_close(second[1] - second[0], first[1] - first[0], rtol=1e-6, atol=1e-6)


def test_fit_to_contaminated_rows_is_the_fit_to_the_others():
    X, y = line(400)
    hit = torch.arange(400) % 12 == 0
    dirty = torch.where(hit, y + 40 * (X[:, 0].sign() + 0.1), y)
    want, got = linear_expert(0.5), linear_expert(0.5)
    fit_empirical_bayes(want, X[~hit], y[~hit])
    fit_empirical_bayes(got, X, dirty)
    found, clean = got.likelihood.noise.item(), want.likelihood.noise.item()
    assert found == pytest.approx(clean, rel=0.05)
    assert found == pytest.approx(0.01, rel=0.2)


@pytest.mark.slow
def test_a_heavy_tail_that_the_inputs_explain_is_learned():
    """A cut by the median, five deviations away, would leave out one target in six."""
    g = torch.Generator().manual_seed(11)
    X = torch.rand(1200, 1, generator=g, dtype=torch.float64)
    clean = 0.3 * torch.sin(6 * X[:, 0]) - 6 * torch.exp(-((X[:, 0] - 1) / 0.15).square())
    y = clean + 0.1 * torch.randn(1200, generator=g, dtype=torch.float64)
    hit = torch.rand(1200, generator=g) < 0.05
    y[hit] += 50 * torch.randn(int(hit.sum()), generator=g, dtype=torch.float64)
    errors = {}
    for kind in (GaussianExpert, RobustExpert):
        expert = kind(FourierBasis(starts=(0.7,)).build(X[:600], generator=torch.Generator().manual_seed(0))[0][1])
        fit_empirical_bayes(expert, X[:600], y[:600], start_precision=0.5)
        with torch.no_grad():
            _, steps = expert.update(expert.init(), X, y)
        errors[kind] = float((steps.mean - clean).square()[..., 600:].mean())
    assert errors[RobustExpert] < 0.01 * errors[GaussianExpert]


@pytest.mark.parametrize("y", [torch.zeros(12), torch.cat([torch.zeros(11), torch.ones(1)])])
def test_targets_without_spread_have_an_evidence(y):
    X = torch.randn(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert bool(torch.isfinite(linear_expert(0.1).log_evidence(X, y.double())))


def test_only_a_broken_expert_has_none():
    X, y = line(30)
    want = linear_expert([0.1, 0.2]).log_evidence(X, y)
    got = linear_expert([0.1, 0.2], [1.0, 1.0])
    with torch.no_grad():
        got.likelihood.raw_noise[1] = torch.nan
    value = got.log_evidence(X, y)
    assert bool(torch.isnan(value[1]))
    torch.testing.assert_close(value[0], want[0])
