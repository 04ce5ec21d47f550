"""The no-U-turn sampler against known moments, a plain recursive oracle of its turns, and itself resumed."""

import pytest
import torch

from gp_ensembles.fusion.chees import HMCSettings, sample_hmc
from gp_ensembles.fusion.diagnostics import mcse_mean, rank_rhat
from gp_ensembles.fusion.leapfrog import evaluate, leapfrog
from gp_ensembles.fusion.no_u_turn import NoUTurn, double_until_turn


def correlated(dtype=torch.float64):
    """A normal density with standard deviations from 0.1 to 3 and correlations."""
    generator = torch.Generator().manual_seed(5)
    A = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    factor = torch.diag(torch.tensor([0.1, 0.5, 1.0, 3.0], dtype=torch.float64)) @ torch.linalg.qr(A).Q
    factor[3] += factor[1]
    return factor @ factor.mT, torch.tensor([1.0, -2.0, 0.0, 5.0], dtype=torch.float64)


def draws(settings, num_chains=8, factor=None, seed=0):
    covariance, mean = correlated()
    precision = torch.linalg.inv(covariance)

    def density(theta):
        error = theta - mean
        return -0.5 * ((error @ precision) * error).sum(-1)

    start = torch.zeros(num_chains, 4, dtype=torch.float64)
    return sample_hmc(density, start, settings, factor, generator=torch.Generator().manual_seed(seed)), density


def test_known_moments():
    found, _ = draws(HMCSettings(250, 150, trajectory=NoUTurn()))
    covariance, mean = correlated()
    theta = found.theta
    assert float(rank_rhat(theta).max()) < 1.02
    for value, expected in ((theta, mean), ((theta - mean).square(), covariance.diagonal())):
        z = (value.flatten(0, 1).mean(0) - expected) / mcse_mean(value)
        assert float(z.abs().max()) < 4.0
    assert int(found.divergent.sum()) == 0
    assert 0.5 < float(found.acceptance.mean()) < 0.95


def test_a_factor_of_the_covariance_shortens_trajectories():
    covariance, _ = correlated()
    plain, _ = draws(HMCSettings(60, 60, trajectory=NoUTurn()))
    whitened, _ = draws(HMCSettings(60, 60, trajectory=NoUTurn()), factor=torch.linalg.cholesky(covariance))
    assert int(whitened.num_steps.sum()) < 0.9 * int(plain.num_steps.sum())


def test_a_heavy_tail():
    """Student's t with eight degrees of freedom: variance 8/6."""

    def density(theta):
        return -4.5 * (1.0 + theta.square() / 8.0).log().sum(-1)

    start = torch.zeros(8, 1, dtype=torch.float64)
    found = sample_hmc(density, start, HMCSettings(300, 100, trajectory=NoUTurn()),
                       generator=torch.Generator().manual_seed(1))  # fmt: skip
    square = found.theta.square()
    assert abs(float(square.mean()) - 8 / 6) < 4.0 * float(mcse_mean(square))


def oracle(density, theta, momentum, step, directions):
    """Depth at which one chain ends by the rule of turns: all parts of 2^j leaves checked afresh, by recursion."""

    def turns(path):
        rho = sum(path)
        between = rho - 0.5 * (path[0] + path[-1])
        return float(path[0] @ between) <= 0 or float(path[-1] @ between) <= 0

    def any_turn(path):
        if len(path) < 2:
            return False
        half = len(path) // 2
        return turns(path) or any_turn(path[:half]) or any_turn(path[half:])

    left = right = (evaluate(density, theta), momentum)
    path = [momentum[0]]
    for depth, forward in enumerate(directions):
        new = []
        state = right if forward else left
        for _ in range(2**depth):
            end = leapfrog(density, state[0], state[1], (1.0 if forward else -1.0) * step, 1)
            state = (end.points, end.momentum)
            new.append(end.momentum[0])
        if any_turn(new):
            return 2**depth, depth  # the steps of the last doubling are at most these
        left, right = (left, state) if forward else (state, right)
        path = path + new if forward else new[::-1] + path
        if turns(path):
            return 0, depth + 1
    return 0, len(directions)


@pytest.mark.parametrize("seed", range(6))
def test_trajectories_end_where_a_recursive_oracle_says(seed):
    _, density = draws(HMCSettings(0, 0))
    generator = torch.Generator().manual_seed(seed)
    theta, momentum = (torch.randn(1, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    step = torch.full((4,), 0.05, dtype=torch.float64)
    source = torch.Generator().manual_seed(seed + 50)
    twin = torch.Generator().manual_seed(seed + 50)
    directions = [bool(torch.rand(2**d + 2, generator=twin, dtype=torch.float64)[0] < 0.5) for d in range(8)]
    found = double_until_turn(density, evaluate(density, theta), momentum, step, 8, [source])
    extra, depth = oracle(density, theta, momentum, step, directions)
    least = 2**depth - 1
    assert least <= found.num_steps <= least + extra
    if not extra:
        assert found.num_steps == least


def test_chains_do_not_depend_on_each_other_and_go_on_exactly():
    settings = HMCSettings(20, 0, trajectory=NoUTurn(5))
    both, density = draws(settings, num_chains=3)
    first, _ = draws(HMCSettings(8, 0, trajectory=NoUTurn(5)), num_chains=3)
    rest = sample_hmc(density, first.state, settings)
    torch.testing.assert_close(first.join(rest).theta, both.theta, rtol=0, atol=0)


def test_walls_are_divergences_and_bad_depths_are_refused():
    def walled(theta):
        inside = theta.abs() < 1.0
        return torch.where(inside, -0.5 * torch.where(inside, theta, 0.0).square(), -torch.inf).sum(-1)

    with pytest.warns(UserWarning, match="diverged"):
        found = sample_hmc(walled, torch.zeros(4, 1, dtype=torch.float64), HMCSettings(50, 20, trajectory=NoUTurn(4)),
                           generator=torch.Generator().manual_seed(0))  # fmt: skip
    assert bool((found.theta.abs() < 1.0).all())
    assert int(found.divergent.sum()) > 0
    with pytest.raises(ValueError, match="from 1 to 20"):
        NoUTurn(0)
