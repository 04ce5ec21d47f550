"""The filter with unknown noise against single textbook steps, brute-force integration and its Gaussian limit."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from gp_ensembles import filters
from gp_ensembles.experts import StudentTExpert
from gp_ensembles.experts.student_t import InverseGammaNoise
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters.student_t import NoiseDiscount, student_t_state
from gp_ensembles.numerics import student_t
from tests.filters.oracles import in_blocks

M, N, F = 2, 17, 3


def problem(missing=(), seed=0):
    g = torch.Generator().manual_seed(seed)
    Phi = torch.randn(M, N, F, generator=g, dtype=torch.float64)
    y = torch.randn(N, generator=g, dtype=torch.float64)
    y[list(missing)] = torch.nan
    ratio = torch.tensor([0.5, 2.0], dtype=torch.float64)
    prior = student_t_state(ratio, F, torch.tensor([1.5, 4.0]).double(), torch.tensor([0.3, 2.0]).double())
    return Phi, y, prior


def textbook(Phi, y, prior, walk, discount):
    """One row at a time, with numpy, from the equations."""
    out, finals = [], []
    for m in range(M):
        V, mean = prior.moments[m, :, :-1].numpy().copy(), np.zeros(F)
        a0, b0 = float(prior.concentration[m]), float(prior.rate[m])
        a, b = a0, b0
        for t in range(N):
            V = V + walk * np.eye(F)
            a, b = discount * a + (1 - discount) * a0, discount * b + (1 - discount) * b0
            phi = Phi[m, t].numpy()
            u = 1 + phi @ V @ phi
            center = phi @ mean
            t_distribution = stats.t(2 * a, loc=center, scale=math.sqrt(b / a * u))
            log_prob = math.nan if math.isnan(y[t]) else t_distribution.logpdf(float(y[t]))
            out.append([center, t_distribution.var(), log_prob, 2 * a])
            if not math.isnan(y[t]):
                error = float(y[t]) - center
                gain = V @ phi / u
                mean, V = mean + gain * error, V - np.outer(gain, phi @ V)
                a, b = a + 0.5, b + 0.5 * error**2 / u
        finals.append((mean, V, a, b))
    return np.array(out).reshape(M, N, 4), finals


@pytest.mark.parametrize("walk", [0.0, 0.05])
@pytest.mark.parametrize("discount", [1.0, 0.8])
@pytest.mark.parametrize("missing", [(), (0, 5, 6, 16)], ids=str)
def test_any_blocking_is_the_textbook(walk, discount, missing):
    Phi, y, prior = problem(missing)
    want, finals = textbook(Phi, y, prior, walk, discount)
    transition = filters.RandomWalk(walk) if walk else None
    delta = torch.tensor(discount, dtype=torch.float64)
    noise = NoiseDiscount(delta, prior.concentration, prior.rate) if discount < 1 else None

    def learn(state, rows):
        return filters.update_block(state, Phi[:, rows], y[rows], transition, noise)

    for sizes in ((1,) * N, (5, 5, 5, 2), (N,)):
        state, steps = in_blocks(learn, prior, sizes)
        np.testing.assert_allclose(torch.stack(steps, -1).numpy(), want, rtol=1e-9, atol=1e-11)
        for m, (mean, V, a, b) in enumerate(finals):
            np.testing.assert_allclose(state.moments[m].numpy(), np.c_[V, mean], rtol=1e-9, atol=1e-12)
            assert float(state.concentration[m]) == pytest.approx(a)
            assert float(state.rate[m]) == pytest.approx(b)
            np.testing.assert_allclose(state.mean[m].numpy(), mean, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(state.covariance[m].numpy(), b / (a - 1) * V, rtol=1e-9, atol=1e-12)
    ahead = filters.predict(state, Phi[:, :4], transition, noise)
    _, step = filters.update_block(state, Phi[:, :1], y[:1] * torch.nan, transition, noise)
    for got, reference in zip(ahead, step, strict=True):
        torch.testing.assert_close(got[:, :1], reference, equal_nan=True)


def build(batch=()):
    g = torch.Generator().manual_seed(1)
    ratio = 0.5 + torch.rand(batch, generator=g, dtype=torch.float64)
    return StudentTExpert(LinearFeatures(1, ratio))


@torch.no_grad()
def test_evidence_is_exact():
    """Against integration over the noise variance, the sum of one-step densities, and scipy's multivariate t."""
    expert = build()
    g = torch.Generator().manual_seed(2)
    X, y = torch.randn(6, 1, generator=g, dtype=torch.float64), torch.randn(6, generator=g, dtype=torch.float64)
    Phi = expert.features(X).detach().numpy()
    ratio = float(expert.features.prior_variance)
    a, b = float(expert.noise.concentration), float(expert.noise.rate)
    K = np.eye(6) + ratio * Phi @ Phi.T

    def integrand(noise):
        return stats.multivariate_normal(np.zeros(6), noise * K).pdf(y.numpy()) * stats.invgamma(a, scale=b).pdf(noise)

    brute = math.log(integrate.quad(integrand, 0, np.inf, epsabs=0, epsrel=1e-11, limit=400)[0])
    assert float(expert.log_evidence(X, y)) == pytest.approx(brute, abs=1e-9)
    closed = stats.multivariate_t(np.zeros(6), b / a * K, df=2 * a).logpdf(y.numpy())
    assert float(expert.log_evidence(X, y)) == pytest.approx(closed, abs=1e-10)
    _, steps = expert.update(expert.init(), X, y)
    assert float(steps.log_prob.sum()) == pytest.approx(closed, abs=1e-10)


def test_a_batch_is_its_members():
    expert = build((3,))
    g = torch.Generator().manual_seed(2)
    X, y = torch.randn(9, 1, generator=g, dtype=torch.float64), torch.randn(9, generator=g, dtype=torch.float64)
    _, both = expert.update(expert.init(), X, y)
    for m in range(3):
        alone = expert.take(torch.tensor([m]))
        _, steps = alone.update(alone.init(), X, y)
        for one, many in zip(steps, both, strict=True):
            torch.testing.assert_close(one[0], many[m])
        torch.testing.assert_close(alone.log_evidence(X, y)[0], expert.log_evidence(X, y)[m])


def test_distribution_functions():
    df = torch.tensor([1.0, 3.5, 40.0, torch.inf], dtype=torch.float64)
    z = torch.linspace(-30, 30, 41, dtype=torch.float64).unsqueeze(-1)
    reference = stats.t(df.numpy())
    np.testing.assert_allclose(student_t.cdf(z, df).numpy(), reference.cdf(z.numpy()), rtol=1e-9, atol=1e-300)
    found = student_t.log_prob(z, torch.zeros_like(df), torch.ones_like(df), df)
    np.testing.assert_allclose(found.numpy(), reference.logpdf(z.numpy()), rtol=1e-9)
    p = torch.tensor([[1e-9], [0.3], [0.5], [0.9], [1 - 1e-9]], dtype=torch.float64)
    np.testing.assert_allclose(student_t.icdf(p, df).numpy(), reference.ppf(p.numpy()), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda f: StudentTExpert(f, noise_discount=0.0), "0, 1"),
        (lambda f: StudentTExpert(f, build((3,)).noise), "batch shape"),
        (lambda f: type(build().noise)(f.prior_variance, 1.0, 1.0), "exceed 1"),
        (lambda f: StudentTExpert(f, transition=filters.RandomWalk(torch.ones(7))), "broadcast"),
    ],
)
def test_bad_input(build, words):
    with pytest.raises(ValueError, match=words):
        build(LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64)))


def test_whatever_the_raw_parameter_predictions_have_a_variance() -> None:
    """A concentration above one: twice as many degrees of freedom."""
    noise = InverseGammaNoise(torch.ones(2, dtype=torch.float64))
    noise.raw_concentration.data.fill_(-30.0)
    assert (noise.concentration >= 1).all()
    assert (noise.concentration < 1.001).all()
