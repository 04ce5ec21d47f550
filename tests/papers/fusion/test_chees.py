"""Batched-chain Hamiltonian Monte Carlo: closed forms, calibration, exact resume, bad densities."""

import io
import math

import pytest
import torch

from gp_ensembles.papers.fusion.chees import ChainState, HMCSettings, sample_hmc
from gp_ensembles.papers.fusion.diagnostics import mean_ess, rank_rhat
from gp_ensembles.papers.plain import from_plain, to_plain
from tests.papers.fusion.cases import F64, mcse_mean, normal, quiet, seeded

MEAN = torch.tensor([1.0, -2.0, 0.5], dtype=F64)
COVARIANCE = torch.tensor([[4.0, 0.9, 0.0], [0.9, 0.5, 0.05], [0.0, 0.05, 0.01]], dtype=F64)
PRECISION = torch.linalg.inv(COVARIANCE)


def gaussian(theta):
    deviation = theta - MEAN
    return -0.5 * ((deviation @ PRECISION) * deviation).sum(-1)


def starts(chains, size=3):
    return normal(chains, size, seed=1)


def standard(theta):
    return -0.5 * theta.square().sum(-1)


class Failing:
    """A log density whose n-th call fails: by Ctrl-C, if nothing else is said."""

    def __init__(self, log_density, call, error=KeyboardInterrupt):
        self.log_density, self.left, self.error = log_density, call, error

    def __call__(self, theta):
        self.left -= 1
        if self.left == 0:
            raise self.error("mine")
        return self.log_density(theta)


@pytest.mark.parametrize(
    ("chains", "settings"),
    [
        (16, HMCSettings(80, 80)),
        (1, HMCSettings(300, 150)),
        (8, HMCSettings(150, 80, target_acceptance=0.9, first_length=1.5)),
    ],
)
def test_moments_of_a_gaussian(chains, settings):
    draws = sample_hmc(gaussian, starts(chains), settings, generator=seeded(2))
    error = mcse_mean(draws.theta)
    assert ((draws.theta.flatten(0, 1).mean(0) - MEAN).abs() < 4.5 * error).all()
    products = (draws.theta - MEAN).unsqueeze(-1) * (draws.theta - MEAN).unsqueeze(-2)
    assert ((products.flatten(0, 1).mean(0) - COVARIANCE).abs() < 4.5 * mcse_mean(products)).all()
    assert (mean_ess(draws.theta) > 0.05 * chains * settings.num_draws).all()
    assert (rank_rhat(draws.theta) < 1.1).all()
    assert not draws.divergent.any()
    assert (draws.energy_bfmi() > 0.5).all()
    torch.testing.assert_close(draws.log_density, gaussian(draws.theta.flatten(0, 1)).view(chains, -1))
    # The potential is half a chi-square: mean D / 2, variance D / 2.
    energies = -draws.log_density
    assert (energies.mean() - 1.5).abs() < 4.5 * mcse_mean(energies)
    squares = (energies - 1.5).square()
    assert (squares.mean() - 1.5).abs() < 4.5 * mcse_mean(squares)


def test_acceptance_comes_near_its_target_and_the_metric_near_the_scales():
    scales = torch.logspace(-3, 2, 20, dtype=F64)
    settings = HMCSettings(100, 200)
    draws = sample_hmc(lambda theta: standard(theta / scales), starts(16, 20), settings, generator=seeded(3))
    harmonic = draws.acceptance.reciprocal().mean(0).reciprocal().mean()
    assert 0.65 < harmonic < 0.85
    assert ((draws.state.scale / scales).log().abs() < 0.3).all()
    assert 1.0 < draws.state.longest < 10.0


def test_trajectories_grow_for_correlated_densities():
    lags = torch.arange(20, dtype=F64)
    precision = torch.linalg.inv(0.98 ** (lags.unsqueeze(0) - lags.unsqueeze(1)).abs())

    def correlated(theta):
        return -0.5 * ((theta @ precision) * theta).sum(-1)

    draws = sample_hmc(correlated, starts(16, 20), HMCSettings(5, 200), generator=seeded(4))
    assert draws.state.longest > 5.0


@pytest.mark.slow
def test_simulation_based_calibration_of_a_conjugate_model():
    # theta ~ N(0, I), y_i = Phi_i theta + noise; every chain fits its own data set, so one run calibrates many.
    chains, size, rows, draws_each, thin = 512, 2, 4, 19, 6
    generator = seeded(6)
    truth = torch.randn(chains, size, generator=generator, dtype=F64)
    Phi = torch.randn(rows, size, generator=generator, dtype=F64)
    y = truth @ Phi.mT + 0.7 * torch.randn(chains, rows, generator=generator, dtype=F64)

    def log_joint(theta):
        return -0.5 * theta.square().sum(-1) - 0.5 * ((y - theta @ Phi.mT) / 0.7).square().sum(-1)

    found = sample_hmc(log_joint, torch.zeros_like(truth), HMCSettings(draws_each * thin, 100), generator=generator)
    kept = found.theta[:, ::thin]
    ranks = (kept < truth.unsqueeze(1)).sum(1)  # uniform on 0..19
    expected = chains / (draws_each + 1)
    for column in ranks.mT:
        counts = torch.bincount(column, minlength=draws_each + 1).to(F64)
        statistic = ((counts - expected).square() / expected).sum()
        assert statistic < 43.8  # the 99.9 % quantile of chi-square with 19 degrees of freedom


@pytest.mark.parametrize("part", [0.1, 0.4, 0.9])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(part):
    settings = HMCSettings(40, 60)
    counted = Failing(gaussian, -1)
    whole = sample_hmc(counted, starts(5), settings, generator=seeded(10))
    call = int(part * -counted.left)
    with pytest.warns(UserWarning, match=r"interrupted after .* pass the state"):
        first = sample_hmc(Failing(gaussian, call), starts(5), settings, generator=seeded(10))
    assert first.theta.shape[1] < 40
    assert first.state.iteration < 100
    file = io.BytesIO()
    torch.save(to_plain(first.state), file)
    file.seek(0)
    state = from_plain(ChainState, torch.load(file, weights_only=True))
    joined = first.join(sample_hmc(gaussian, state, settings))
    for one, other in zip(whole[:7], joined[:7], strict=True):
        assert (one == other).all()
    torch.testing.assert_close(to_plain(joined.state), to_plain(whole.state), rtol=0, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_density_that_is_not_finite_somewhere_is_avoided(bad):
    # A half-normal by its support: numbers beyond are neither accepted nor asked about twice.
    def half_normal(theta):
        return torch.where(theta[:, 0] > 0.0, -0.5 * theta[:, 0].square(), bad)

    start, settings = starts(8, 1).abs() + 0.1, HMCSettings(100, 30, max_steps=32)
    with quiet():
        draws = sample_hmc(half_normal, start, settings, generator=seeded(17))
    assert (draws.theta > 0.0).all()
    assert draws.log_density.isfinite().all()
    assert draws.divergent.any()
    assert (draws.theta.flatten(0, 1).mean() - math.sqrt(2.0 / math.pi)).abs() < 5.0 * mcse_mean(draws.theta[..., 0])


def test_a_density_is_never_asked_about_what_is_not_finite():
    def strict(theta):
        assert theta.isfinite().all()
        return torch.where(theta.abs().amax(-1) < 1.0, (1.0 - theta.square()).log().sum(-1), torch.nan)

    with quiet():
        draws = sample_hmc(strict, 0.1 * starts(4), HMCSettings(50, 50), generator=seeded(18))
    assert draws.accepted.any(1).all()


def test_one_stuck_chain_is_named_and_the_others_go_on():
    start = starts(8)
    needle = torch.arange(8) == 1

    def with_needle(theta):
        away = needle & (theta != start).any(-1)
        return torch.where(away, torch.nan, -0.5 * theta.square().sum(-1))

    with pytest.warns(UserWarning, match=r"chains \[1\] did not move|in 1 of 8 chains, diverged") as caught:
        draws = sample_hmc(with_needle, start, HMCSettings(30, 0), generator=seeded(19))
    assert len(caught) == 2
    assert (draws.theta[1] == start[1]).all()
    assert draws.accepted[~needle].any(1).all()


@pytest.mark.parametrize("num_warmup", [0, 20])
def test_all_chains_divergent_gives_a_usable_result_and_a_warning(num_warmup):
    start = starts(4)

    def nowhere_else(theta):
        return torch.where((theta == start).all(-1), 0.0 * theta.sum(-1), torch.nan)

    with pytest.warns(UserWarning, match="did not move|diverged") as caught:
        draws = sample_hmc(nowhere_else, start, HMCSettings(10, num_warmup), generator=seeded(20))
    predicted = " ".join(str(one.message) for one in caught)
    assert "chains [0, 1, 2, 3] did not move" in predicted
    # A warm-up shrinks the step until positions do not change in their last digit.
    assert num_warmup or "100% of the transitions, in 4 of 4 chains, diverged" in predicted
    assert num_warmup or draws.divergent.all()
    assert (draws.theta == start.unsqueeze(1)).all()
    assert draws.energy_bfmi().shape == (4,)


def test_a_bad_start_is_refused():
    zeros, edge = torch.zeros(4, 3, dtype=F64), torch.tensor([[1.0], [0.0], [1.0]], dtype=F64)
    for log_density, start, message in [
        (gaussian, zeros[0], "shape"),
        (gaussian, zeros.long(), "floating"),
        (gaussian, zeros[:0], "shape"),
        (lambda theta: theta.sum(), zeros, "one number for each"),
        (lambda theta: theta.detach().sum(-1), zeros, "no gradient"),
        (lambda theta: theta.log().sum(-1), edge, r"chains \[1\] start"),
        (lambda theta: theta.sqrt().sum(-1), edge, r"chains \[1\] start"),
        (gaussian, torch.nan * zeros, r"chains \[0, 1, 2, 3\] start"),
    ]:
        with pytest.raises(ValueError, match=message):
            sample_hmc(log_density, start, HMCSettings(5, 5))
    with pytest.raises(ValueError, match=r"the factor of the metric must be finite, of shape \(3, 3\)"):
        sample_hmc(gaussian, zeros, HMCSettings(1, 1), zeros.new_ones(2, 2))


def test_bad_settings_are_refused():
    for bad in [
        {"num_draws": -1},
        {"max_steps": 0},
        {"target_acceptance": 1.0},
        {"first_length": 0.0},
        {"first_length": math.nan},
    ]:
        with pytest.raises(ValueError):
            HMCSettings(**bad)


def test_a_chain_that_cannot_move_does_not_freeze_the_others():
    """Seven chains at a normal density, one on an island so small that no step leaves it."""

    def log_density(theta):
        return torch.logaddexp(standard(theta), standard((theta - 50.0) / 1e-8))

    start = normal(8, 2)
    start[0] = 50.0
    with quiet():
        draws = sample_hmc(log_density, start, HMCSettings(100, 200), generator=seeded(1))
    assert draws.state.step > 0.05
    assert float(draws.theta[1:].mean((0, 1)).abs().max()) < 0.3
