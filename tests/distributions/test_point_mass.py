"""Distributions with a point mass against a normal distribution of scipy and integrals over a fine grid."""

import numpy as np
import pytest
import torch
from scipy import stats

from gp_ensembles.distributions import Mixture, WithPointMass
from gp_ensembles.metrics.scores import crps_mixture

SHARES, MEANS, POINTS = (0.05, 0.6, 0.95), (7.0, 0.2, -1.0), (0.0, 0.0, 3.0)


def row(values):
    return torch.tensor([values], dtype=torch.float64)


def made() -> WithPointMass:
    return WithPointMass(Mixture(row([0.0])[0], row(MEANS), row([4.0] * 3)), row(POINTS), row(SHARES).log())


def test_cdf_density_and_moments_are_those_of_the_two_parts():
    found = made()
    for j, (share, mean, point) in enumerate(zip(SHARES, MEANS, POINTS, strict=True)):
        normal, y = stats.norm(mean, 2), np.array([-3.0, point - 1e-9, point, 2.5, 8.0])
        every = torch.tensor(y).unsqueeze(-1).expand(-1, 3)
        assert found.cdf(every)[:, j].numpy() == pytest.approx(share * (y >= point) + (1 - share) * normal.cdf(y))
        logs = np.where(y == point, np.log(share), np.log1p(-share) + normal.logpdf(y))
        assert found.log_prob(every)[:, j].numpy() == pytest.approx(logs)
        first = share * point + (1 - share) * mean
        second = share * point**2 + (1 - share) * (4 + mean**2)
        assert float(found.mean[j]) == pytest.approx(first)
        assert float(found.variance[j]) == pytest.approx(second - first**2)


def test_scores_are_integrals_over_the_distribution_function():
    found, y = made(), torch.tensor([0.0, 5.0, 2.0], dtype=torch.float64)
    grid = torch.linspace(-30, 40, 700_001, dtype=torch.float64)
    base, at = found.base, found.at[0]
    got = found.crps(y, crps_mixture(*base, y), crps_mixture(*base, at))
    for j in range(3):
        squares = (found.cdf(grid.unsqueeze(-1).expand(-1, 3))[:, j] - (grid >= y[j]).double()).square()
        assert float(got[j]) == pytest.approx(float(torch.trapezoid(squares, grid)), abs=1e-4)


def test_draws_are_at_the_point_as_often_as_they_should():
    draws = made().sample(20_000, generator=torch.Generator().manual_seed(0))
    assert (draws == row(POINTS)).double().mean(0).numpy() == pytest.approx(np.array(SHARES), abs=0.01)
    others = draws[:, 0][draws[:, 0] != 0]
    assert stats.kstest(others.numpy(), stats.norm(7, 2).cdf).pvalue > 0.001


def test_a_row_without_a_point_has_the_base():
    found = made()._replace(at=row([torch.nan, 0.0, 0.0]), log_share=row([-torch.inf, -1.0, -1.0]))
    y = torch.zeros(3, dtype=torch.float64)
    for name, given in (("log_prob", (y,)), ("cdf", (y,)), ("quantile", (0.9,)), ("moments", ())):
        got, want = (getattr(one, name)(*given) for one in (found, found.base))
        got, want = (one[0] if name == "moments" else one for one in (got, want))
        assert float(got[0]) == pytest.approx(float(want[0]))

    scores = crps_mixture(*found.base, y)
    assert float(found.crps(y, scores, scores)[0]) == pytest.approx(float(scores[0]))
