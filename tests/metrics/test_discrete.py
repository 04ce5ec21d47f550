"""Scores of classes and counts against scikit-learn, plain loops and closed forms; any blocking alike."""

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss, zero_one_loss

from gp_ensembles.metrics import discrete


def predictions(num_rows=200, num_classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(num_rows, num_classes, generator=g, dtype=torch.float64)
    probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    y = torch.multinomial(probabilities, 1, generator=g).squeeze(-1).double()
    return probabilities, y


def score(probabilities, y):
    log_prob = probabilities.gather(-1, y.nan_to_num(0).long().unsqueeze(-1)).squeeze(-1).log()
    state = discrete.update_class_scores(discrete.init_class_scores(y), y, probabilities, log_prob)
    return discrete.summarize_classes(state)


def test_against_scikit_learn():
    probabilities, y = predictions(num_classes=2)
    got = score(probabilities, y)
    p = probabilities[:, 1].numpy()
    np.testing.assert_allclose(got.log_loss, log_loss(y.numpy(), p))
    np.testing.assert_allclose(got.error_rate, zero_one_loss(y.numpy(), p > 0.5))
    np.testing.assert_allclose(got.brier, 2 * brier_score_loss(y.numpy(), p))
    np.testing.assert_allclose(got.log_score, -got.log_loss)


def test_calibration_error_by_a_loop():
    probabilities, y = predictions()
    confidence, best = probabilities.max(-1)
    total = 0.0
    for low in range(10):
        inside = [(c, b == t) for c, b, t in zip(confidence, best, y, strict=True) if low / 10 <= c < (low + 1) / 10]
        total += abs(sum(float(c) for c, _ in inside) - sum(bool(hit) for _, hit in inside))
    np.testing.assert_allclose(score(probabilities, y).calibration_error, total / 200)
    sure = torch.nn.functional.one_hot(y.long(), 3).double().clamp_min(1e-300)
    assert float(score(sure, y).calibration_error) < 1e-12


def test_ranked_probability_is_the_expected_distance():
    """CRPS = E|Y - y| - E|Y - Y'| / 2."""
    probabilities, y = predictions(num_classes=6)
    numbers = torch.arange(6, dtype=torch.float64)
    distance = (probabilities * (numbers - y.unsqueeze(-1)).abs()).sum(-1)
    spread = probabilities.unsqueeze(-1) * probabilities.unsqueeze(-2) * (numbers.unsqueeze(-1) - numbers).abs()
    want = distance - 0.5 * spread.sum((-2, -1))
    torch.testing.assert_close(discrete.ranked_probability_score(probabilities.cumsum(-1), y), want)
    y[3] = torch.nan
    assert bool(torch.isnan(discrete.ranked_probability_score(probabilities.cumsum(-1), y)[3]))


@given(rate=st.floats(0.01, 200), y=st.integers(0, 400), known=st.booleans())
@example(rate=195.0, y=199, known=False)  # torch's distribution function is off by 1e-10 there
@settings(max_examples=40)
def test_ranked_probability_of_poisson_counts(rate, y, known):
    """By the sum over all counts, and by runs of counts, inside a window and, in closed form, far beyond."""
    rate, y = torch.tensor([rate], dtype=torch.float64), torch.tensor([float(y)], dtype=torch.float64)
    table = torch.special.gammaincc(torch.arange(1.0, 601.0, dtype=torch.float64), rate.unsqueeze(-1))
    want = discrete.ranked_probability_score(table, y)
    visited = []

    def cdf(k, rows):
        visited.append(k.numel())
        if known:
            assert torch.equal(k, k.round())
        return torch.special.gammaincc(k + 1, rate[rows])

    def reach(k, rows):
        return torch.ones_like(k) if known else 2 * k.sqrt()

    upper = (rate + 9 * rate.sqrt() + 30).ceil()
    lower = (rate - 9 * rate.sqrt()).floor().clamp_min(0)
    got = discrete.ranked_probability_of_counts(cdf, reach, y, lower, upper)
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)
    assert sum(visited) <= float(upper - lower) + 16
    far = discrete.ranked_probability_of_counts(cdf, reach, y + 1e9, lower, upper)
    half_spread = rate * (torch.special.i0e(2 * rate) + torch.special.i1e(2 * rate))
    torch.testing.assert_close(far, y + 1e9 - rate - half_spread)
    assert bool(torch.isnan(discrete.ranked_probability_of_counts(cdf, reach, y * torch.nan, lower, upper)).all())


def test_ranked_probability_beyond_what_numbers_resolve():
    """A window whose ends float64 can hardly tell apart is left in a few steps."""
    lower = torch.tensor([1e34], dtype=torch.float64)

    def cdf(k, rows):
        return torch.full_like(k, 0.5)

    def reach(k, rows):
        return torch.full_like(k, 4.0)

    got = discrete.ranked_probability_of_counts(cdf, reach, lower, lower, lower * (1 + 1e-15))
    assert bool(torch.isfinite(got).all())
