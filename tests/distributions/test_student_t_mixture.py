"""Mixtures of Student-t distributions against scipy, and ensembles that mix them with normal experts."""

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from gp_ensembles.distributions.student_t_mixture import StudentTMixture
from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts import GaussianExpert, StudentTExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.numerics import student_t

WEIGHTS = np.array([0.2, 0.5, 0.3])
MEAN = np.array([[0.0, -2.0], [1.0, 5.0], [-3.0, 0.5]])
VARIANCE = np.array([[1.0, 0.5], [2.0, 0.1], [0.3, 4.0]])
DF = np.array([[3.0, 8.0], [np.inf, 2.5], [30.0, np.inf]])


def mixture():
    tensors = (torch.tensor(value) for value in (np.log(WEIGHTS), MEAN, VARIANCE, DF))
    return StudentTMixture(*tensors)


def component(m, n):
    if np.isinf(DF[m, n]):
        return stats.norm(MEAN[m, n], np.sqrt(VARIANCE[m, n]))
    scale = np.sqrt(VARIANCE[m, n] * (DF[m, n] - 2) / DF[m, n])
    return stats.t(DF[m, n], MEAN[m, n], scale)


def test_against_scipy():
    mixed = mixture()
    y = np.linspace(-8, 9, 35)
    for n in range(2):
        density = sum(w * component(m, n).pdf(y) for m, w in enumerate(WEIGHTS))
        below = sum(w * component(m, n).cdf(y) for m, w in enumerate(WEIGHTS))
        column = torch.tensor(y).unsqueeze(-1).expand(-1, 2)
        np.testing.assert_allclose(mixed.log_prob(column)[:, n].numpy(), np.log(density), rtol=1e-9)
        np.testing.assert_allclose(mixed.cdf(column)[:, n].numpy(), below, rtol=1e-9)
        mean = sum(w * component(m, n).mean() for m, w in enumerate(WEIGHTS))
        second = sum(w * (component(m, n).var() + component(m, n).mean() ** 2) for m, w in enumerate(WEIGHTS))
        np.testing.assert_allclose(float(mixed.mean[n]), mean)
        np.testing.assert_allclose(float(mixed.variance[n]), second - mean**2)
    levels = torch.tensor([[1e-6], [0.05], [0.5], [0.999]], dtype=torch.float64)
    torch.testing.assert_close(mixed.cdf(mixed.quantile(levels)), levels.expand(4, 2), rtol=1e-9, atol=1e-12)
    assert mixed.quantile(torch.tensor([0.0, 1.0]).double()).tolist() == [-np.inf, np.inf]


def test_normal_and_student_experts_weigh_one_another():
    g = torch.Generator().manual_seed(0)
    X = torch.randn(60, 1, generator=g, dtype=torch.float64)
    y = X.squeeze(-1) + 0.1 * torch.randn(60, generator=g, dtype=torch.float64)
    y[7] = torch.nan
    map_ = LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64))
    experts = [GaussianExpert(map_), StudentTExpert(map_), StudentTExpert(map_, transition=RandomWalk(1e-3))]
    ensemble = Ensemble(experts, BayesianModelAveraging())
    online = OnlineEnsemble(ensemble, block_size=11)
    got = online.observe(X, y)
    with torch.no_grad():
        _, want = ensemble.update(ensemble.init(), X, y)
    torch.testing.assert_close(got[:4], want[:4], rtol=1e-8, atol=1e-9, equal_nan=True)
    seen = ~torch.isnan(y)
    assert isinstance(got.mixture, StudentTMixture)
    torch.testing.assert_close(got.mixture.log_prob(y)[seen], got.log_prob[seen])
    torch.testing.assert_close(got.mixture.variance, got.variance)
    predicted = online.predict(X)

    def density(value):
        return float(predicted.log_prob(torch.full((60,), value, dtype=torch.float64))[0].exp())

    assert abs(integrate.quad(density, -20, 20, limit=400)[0] - 1) < 1e-6
    fresh = OnlineEnsemble(ensemble, block_size=11)
    fresh.load_state_dict(online.state_dict())
    assert torch.equal(fresh.predict(X).variance, predicted.variance)


@pytest.mark.parametrize("df", [2, 4, 6, 8, 20])
def test_even_degrees_of_freedom_have_a_closed_form(df):
    """Against the incomplete beta function, to round-off of the nearer tail and far out."""
    z = torch.linspace(-60, 60, 801, dtype=torch.float64)
    z = torch.cat([z, z.new_tensor([-1e30, -torch.inf, torch.inf])])
    wanted = torch.as_tensor(special.stdtr(df, z.numpy()))
    with mpmath.workdps(60):  # SciPy 1.14 is off by 5e-14 so far out
        square = df / (df + mpmath.mpf(z[801].item()) ** 2)
        wanted[801] = float(mpmath.betainc(df / 2, 0.5, 0, square, regularized=True) / 2)
    number = torch.tensor(float(df), dtype=torch.float64)
    torch.testing.assert_close(student_t.cdf(z, number), wanted, rtol=2e-14, atol=1e-300)
    one = torch.ones_like(z)
    probability, density = student_t.cdf_and_density(z, number)
    torch.testing.assert_close(probability, wanted, rtol=2e-14, atol=1e-300)
    torch.testing.assert_close(density, student_t.log_prob(z, 0 * one, one, number * one).exp(), rtol=2e-13, atol=0)
    both = student_t.cdf(z, torch.where(z > 0, torch.inf, number))
    torch.testing.assert_close(both[:400], wanted[:400], rtol=2e-14, atol=0)


def test_components_of_several_degrees_of_freedom():
    """Those of one number are taken together, others one by one; a number may change from row to row."""
    generator = torch.Generator().manual_seed(5)
    df = torch.tensor([torch.inf, 4.0, 8.0, 5.0, 8.0, 3.0], dtype=torch.float64).unsqueeze(1).repeat(1, 9)
    df[5, 4:] = 12.0
    mean, variance = torch.randn(2, 6, 9, generator=generator, dtype=torch.float64)
    mixture = StudentTMixture(torch.randn(6, 9, generator=generator).double().log_softmax(0), mean, variance.exp(), df)
    y = torch.randn(9, generator=generator, dtype=torch.float64)
    factor = torch.where(torch.isinf(df), 1.0, (df - 2) / df)
    z = (y - mean) / (variance.exp() * factor).sqrt()
    normal = torch.isinf(df)
    heavy = torch.as_tensor(special.stdtr(torch.where(normal, 1.0, df).numpy(), z.numpy()))
    wanted = (mixture.log_weights.exp() * torch.where(normal, torch.special.ndtr(z), heavy)).sum(0)
    torch.testing.assert_close(mixture.cdf(y), wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(mixture.cdf(mixture.quantile(0.03)), torch.full_like(y, 0.03), rtol=1e-12, atol=0)
    few = StudentTMixture(*(part[:5] for part in mixture))
    torch.testing.assert_close(few.quantile(few.cdf(y)), y, rtol=1e-9, atol=1e-9)


def test_the_host_computes_what_has_no_closed_form_and_nothing_else(monkeypatch):
    """Of normal, even and other components, with the numbers of scipy for each."""
    df = torch.tensor([4.0, torch.inf, 2.5, 22.0], dtype=torch.float64).unsqueeze(-1)
    z = torch.linspace(-6, 6, 30, dtype=torch.float64).reshape(5, 1, 6).expand(5, 4, 6)
    stdtr, asked = special.stdtr, []
    expected = torch.where(df.isinf(), torch.special.ndtr(z), torch.from_numpy(stdtr(df.numpy(), z.numpy())))
    monkeypatch.setattr(student_t.special, "stdtr", lambda *given: asked.append(given[1].size) or stdtr(*given))
    for found in (student_t.cdf(z, df), student_t.cdf_and_density(z, df)[0]):
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-16)
    assert asked == [2 * 5 * 6] * 2
