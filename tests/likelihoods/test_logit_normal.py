"""The logistic link under a normal latent value, against integrals at thirty digits."""

import mpmath
import pytest
import torch
from torch.testing import assert_close

from gp_ensembles.likelihoods.closed_forms import logit_normal_log_odds

MEANS = (-120.0, -50.0, -8.0, -1.0, -0.3, 0.0)
VARIANCES = (1e-4, 0.5, 1.0, 1.01, 4.0, 25.0, 100.0, 400.0, 1e4)


def log_probability(mean: float, variance: float) -> float:
    """Log of the expected logistic function; the pieces meet where the integrand peaks."""
    with mpmath.workdps(30):
        m, s = mpmath.mpf(mean), mpmath.mpf(variance)
        deviation = mpmath.sqrt(s)
        centers = (m, m + s)
        places = {c + k * deviation for c in centers for k in range(-16, 17)}
        places = sorted(places | {mpmath.mpf(k) for k in (-5, 0, 5)})
        value = mpmath.quad(
            lambda z: mpmath.exp(-((z - m) ** 2) / (2 * s)) / mpmath.sqrt(2 * mpmath.pi * s) / (1 + mpmath.exp(-z)),
            places,
        )
        return float(mpmath.log(value))


@pytest.mark.slow
@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("mean", MEANS)
def test_either_tail_is_right_to_eight_digits(mean, variance):
    m, s = torch.tensor([mean, -mean], dtype=torch.float64), torch.full((2,), variance, dtype=torch.float64)
    log_odds = logit_normal_log_odds(m, s)
    lower = torch.nn.functional.logsigmoid(log_odds[0]).item()
    assert lower == pytest.approx(log_probability(mean, variance), abs=2e-8)
    assert log_odds[1].item() == pytest.approx(-log_odds[0].item(), abs=2e-8)


def test_narrow_and_wide_variances_in_one_call_are_as_alone_with_their_derivatives():
    mean = torch.tensor([0.5, -3.0, 2.0], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.01, 9.0, 1e3], dtype=torch.float64, requires_grad=True)
    together = logit_normal_log_odds(mean, variance)
    alone = torch.stack([logit_normal_log_odds(m, s) for m, s in zip(mean, variance, strict=True)])
    assert_close(together, alone, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(logit_normal_log_odds, (mean, variance))
