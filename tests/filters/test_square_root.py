"""Single precision where the covariance form dies: nearly collinear features and tiny noise."""

import mpmath
import pytest
import torch

from gp_ensembles.filters import RandomWalk, gaussian_state, update_block
from gp_ensembles.filters.square_root import add_diagonal, condition_andrews, condition_array, lower_factor
from gp_ensembles.filters.states import square_root_state
from gp_ensembles.numerics.cholesky import NumericalError
from tests.filters.oracles import in_blocks


def smooth_stream(num_rows, num_features, noise, seed=0):
    """Random Fourier features with long length scales: numerically rank-deficient, and a clean target."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(num_rows, 3, generator=g, dtype=torch.float64)
    frequencies = 0.5 * torch.randn(num_features // 2, 3, generator=g, dtype=torch.float64)
    angles = X @ frequencies.T
    Phi = torch.cat([angles.sin(), angles.cos()], dim=-1) / (num_features / 2) ** 0.5
    weights = torch.randn(num_features, generator=g, dtype=torch.float64)
    y = Phi @ weights + noise**0.5 * torch.randn(num_rows, generator=g, dtype=torch.float64)
    return Phi, y


def filter_blocks(state, Phi, y, noise, walk=None, size=32):
    def learn(state, rows):
        return update_block(state, Phi[rows], y[rows], None if walk is None else RandomWalk(walk), noise)

    state, steps = in_blocks(learn, state, [len(rows) for rows in y.split(size)])
    return state, *steps


@pytest.mark.parametrize("noise", [1e-6, 1e-8])
def test_float32_square_root_survives_where_covariance_dies(noise):
    Phi, y = smooth_stream(3000, 40, noise)
    prior = torch.tensor(50.0, dtype=torch.float64)
    sigma2 = torch.tensor(noise, dtype=torch.float64)
    _, mean, variance, log_prob = filter_blocks(square_root_state(prior, 40), Phi, y, sigma2)
    single = [value.float() for value in (Phi, y, sigma2)]
    _, mean32, variance32, log_prob32 = filter_blocks(square_root_state(prior.float(), 40), *single)
    assert mean32.dtype == torch.float32
    # The data themselves carry round-off of 1e-7 relative to targets of size 1; one deviation is sqrt(noise).
    assert float((mean32 - mean).abs().median()) < 0.05 * noise**0.5
    assert float((variance32 / variance - 1).abs().max()) < 0.1
    assert bool((variance32 > 0).all())
    assert abs(float(log_prob32.mean() - log_prob.mean())) < 0.05

    try:
        _, _, variance32, log_prob32 = filter_blocks(gaussian_state(prior.float(), 40), *single)
        died = bool((variance32 / variance - 1).abs().max() > 1) or not bool(torch.isfinite(log_prob32).all())
    except NumericalError:
        died = True
    assert died


def test_tiny_noise_against_sixty_digits():
    """The array form keeps the digits that the covariance form loses, even in double precision."""
    noise, num_rows, num_features = 1e-18, 12, 5
    Phi, y = smooth_stream(num_rows, 6, 0.0)
    Phi = Phi[:, :num_features]
    one, variance = torch.tensor([1.0, noise], dtype=torch.float64)
    state, steps = update_block(square_root_state(one, num_features), Phi, y, None, variance)
    with mpmath.workdps(60):
        mean, covariance = mpmath.zeros(num_features, 1), mpmath.eye(num_features)
        for t in range(num_rows):
            phi = mpmath.matrix(Phi[t].tolist())
            cross = covariance * phi
            variance = (phi.T * cross)[0] + mpmath.mpf(noise)
            assert float(steps.variance[t]) == pytest.approx(float(variance), rel=1e-3)
            mean += cross * (mpmath.mpf(float(y[t])) - (phi.T * mean)[0]) / variance
            covariance -= cross * cross.T / variance
        final = torch.tensor([float(v) for v in mean], dtype=torch.float64)
    torch.testing.assert_close(state.mean, final, rtol=1e-4, atol=1e-6)


def test_factors_reproduce_their_covariances():
    g = torch.Generator().manual_seed(1)
    wide = torch.randn(2, 4, 9, generator=g, dtype=torch.float64)
    lower = lower_factor(wide)
    torch.testing.assert_close(lower @ lower.mT, wide @ wide.mT)
    assert bool((lower.diagonal(dim1=-2, dim2=-1) > 0).all())
    assert torch.equal(lower, lower.tril())

    factor = torch.randn(2, 4, 4, generator=g, dtype=torch.float64)
    diagonal = torch.tensor([[0.0, 1.0, 2.0, 3.0]], dtype=torch.float64).expand(2, 4)
    grown = add_diagonal(factor, diagonal)
    torch.testing.assert_close(grown @ grown.mT, factor @ factor.mT + torch.diag_embed(diagonal))

    design = torch.randn(2, 3, 4, generator=g, dtype=torch.float64) @ factor
    noise = torch.full((2, 3), 0.3, dtype=torch.float64)
    covariance = design @ design.mT + torch.diag_embed(noise)
    gain = torch.linalg.solve(covariance, design @ factor.mT)
    after = factor @ factor.mT - (design @ factor.mT).mT @ gain
    lower, weights, array = condition_array(factor, design, noise)
    torch.testing.assert_close((lower @ lower.mT, lower @ weights), (covariance, design @ factor.mT))
    torch.testing.assert_close(array @ array.mT, after)
    andrews = condition_andrews(factor, design, torch.linalg.cholesky(covariance), noise)
    torch.testing.assert_close(andrews @ andrews.mT, after)
