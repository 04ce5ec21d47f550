"""Maps of the unit interval against scipy's normal distribution and against integrals of their own densities."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from gp_ensembles.numerics import normal_scores


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


SHIFT, SCALE = tensor(0.0, 0.4, -0.5, 0.0), tensor(1.0, 0.2, 1.8, 0.6)


def weights(num_rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, num_rows, generator=generator, dtype=torch.float64).log_softmax(0)


def by_scipy(u, weights):
    """The mixture of maps at one probability, straight beyond the limits."""
    m, s = SHIFT.numpy(), SCALE.numpy()
    if u < normal_scores.TAIL:
        return u / normal_scores.TAIL * float(weights @ stats.norm.cdf((-normal_scores.LIMIT - m) / s))
    if u > 1 - normal_scores.TAIL:
        return 1 - (1 - u) / normal_scores.TAIL * float(weights @ stats.norm.sf((normal_scores.LIMIT - m) / s))
    return float(weights @ stats.norm.cdf((stats.norm.ppf(u) - m) / s))


def test_scores_are_held_and_keep_gaps():
    u = tensor(0.0, 1e-300, 0.2, 1.0, torch.nan)
    got = normal_scores.normal_score(u)
    np.testing.assert_allclose(
        got[:4], [-normal_scores.LIMIT, -normal_scores.LIMIT, stats.norm.ppf(0.2), normal_scores.LIMIT], rtol=1e-10
    )
    assert bool(got[4].isnan())


def test_maps_are_those_of_scipy():
    u = tensor(0.0, 1e-12, normal_scores.TAIL / 2, 1e-6, 0.01, 0.3, 0.5, 0.9, 1 - 1e-6, 1 - normal_scores.TAIL / 2, 1.0)
    log_weights = weights(len(u))
    want = [by_scipy(float(v), log_weights[:, k].exp().numpy()) for k, v in enumerate(u)]
    got = normal_scores.transform(u, log_weights, SHIFT, SCALE)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-16)
    assert (float(got[0]), float(got[-1])) == (0.0, 1.0)
    # By Hermite's cubics: the worst is at the scale of 0.2, with all of the weight.
    several = u.unsqueeze(-1).expand(-1, 3)
    alone = tensor(0.0, 1.0, 0.0, 0.0).log().unsqueeze(-1).expand(-1, 3)
    exact = normal_scores.transform(several, alone, SHIFT, SCALE)
    error = normal_scores.tabulated(several, alone, SHIFT, SCALE) - exact
    assert float(error.abs().max()) < 6e-6


def test_densities_are_derivatives_and_integrate_to_one():
    log_weights = weights(1)
    for low, high in ((1e-7, 2e-7), (normal_scores.TAIL, 0.01), (0.01, 0.5), (0.5, 0.999), (1 - 2e-7, 1 - 1e-7)):

        def density(u):
            return float(normal_scores.log_density(tensor(u), log_weights, SHIFT, SCALE).exp())

        mass = integrate.quad(density, low, high, epsabs=1e-14, epsrel=1e-10, limit=200)[0]
        ends = normal_scores.transform(tensor(low, high), log_weights.expand(-1, 2), SHIFT, SCALE)
        assert mass == pytest.approx(float(ends[1] - ends[0]), rel=1e-7)


def test_the_inverse_inverts_to_round_off():
    p = torch.cat([tensor(0.0, 1e-12, 1e-4, 1 - 1e-4, 1 - 1e-9, 1.0), torch.linspace(0.01, 0.99, 60).double()])
    log_weights = weights(len(p), seed=1)
    u = normal_scores.inverse(p, log_weights, SHIFT, SCALE)
    torch.testing.assert_close(normal_scores.transform(u, log_weights, SHIFT, SCALE), p, rtol=1e-10, atol=1e-14)
    assert bool(((u >= 0) & (u <= 1)).all())
    with pytest.raises(ValueError, match="between 0 and 1"):
        normal_scores.inverse(tensor(1.5), log_weights[:, :1], SHIFT, SCALE)
