"""Outputs that share a covariance against one filter for each of them, with any gaps."""

import itertools

import pytest
import torch

from gp_ensembles import filters
from gp_ensembles.filters.multi_output import MultiOutputNoise, multi_output_state, num_groups
from tests.filters.oracles import in_blocks

M, N, F, K = 2, 19, 4, 5
TRANSITIONS = {
    "static": None,
    "walk": filters.RandomWalk(0.05),
    "correlated": filters.CorrelatedWalk(torch.full((F, F), 0.02, dtype=torch.float64)),
    "forgetting": filters.ExponentialForgetting(torch.tensor([0.9, 1.0], dtype=torch.float64)),
    "stabilized": filters.StabilizedForgetting(0.9),
}
SCALE = torch.tensor([[1.0, 2.0, 0.5, 1.0, 30.0], [1.0, 0.1, 1.0, 3.0, 1.0]], dtype=torch.float64)
GAPS = {"none": 0.0, "some": 0.2, "most": 0.9}


def problem(gaps, seed=0):
    g = torch.Generator().manual_seed(seed)
    Phi = torch.randn(M, N, F, generator=g, dtype=torch.float64)
    y = torch.randn(N, K, generator=g, dtype=torch.float64)
    y[torch.rand(N, K, generator=g) < gaps] = torch.nan
    return Phi, y, torch.tensor([0.3, 1.1]).double(), torch.tensor([0.5, 3.0]).double()


def run(Phi, y, noise, transition, prior, sizes):
    def learn(state, rows):
        observation = MultiOutputNoise(noise, SCALE)
        return filters.update_block(state, Phi[:, rows], y[rows], transition, observation, prior_variance=prior)

    return in_blocks(learn, multi_output_state(prior, F, K), sizes, dim=1)


@pytest.mark.parametrize("transition", TRANSITIONS)
def test_equals_a_filter_for_each_output(transition):
    for gaps, sizes in itertools.product(GAPS, [(19,), (1,) * 19, (7, 12)]):
        Phi, y, noise, prior = problem(GAPS[gaps])
        change = TRANSITIONS[transition]
        state, (mean, variance, log_prob) = run(Phi, y, noise, change, prior, sizes)
        total = torch.zeros(M, N, dtype=torch.float64)
        observation = MultiOutputNoise(noise, SCALE)
        ahead_mean, ahead_variance, _ = filters.predict(state, Phi[:, :3], change, observation, prior_variance=prior)
        for output in range(K):
            own = SCALE[:, output : output + 1]
            scaled = y[:, output] / own
            start = filters.gaussian_state(prior, F)
            alone, steps = filters.update_block(start, Phi, scaled, change, noise, prior_variance=prior)
            torch.testing.assert_close(mean[..., output], steps.mean * own, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(variance[..., output], steps.variance * own**2, rtol=1e-9, atol=1e-10)
            total = total + torch.where(y[:, output].isnan(), 0.0, steps.log_prob - own.log())
            torch.testing.assert_close(state.mean[:, output], alone.mean, rtol=1e-9, atol=1e-10)
            covariance = state.covariance[int(state.group[output])]
            torch.testing.assert_close(covariance, alone.covariance, rtol=1e-9, atol=1e-10)
            reference = filters.predict(alone, Phi[:, :3], change, noise, prior_variance=prior)
            torch.testing.assert_close(ahead_mean[..., output], reference[0] * own, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close(ahead_variance[..., output], reference[1] * own**2, rtol=1e-9, atol=1e-10)
        total = torch.where(y.isnan().all(-1), torch.nan, total)
        torch.testing.assert_close(log_prob, total, rtol=1e-9, atol=1e-10, equal_nan=True)


def test_outputs_part_when_their_gaps_differ_and_not_before():
    Phi, y, noise, prior = problem(0.0)
    state, _ = run(Phi, y, noise, None, prior, (19,))
    assert num_groups(state) == 1
    y[3] = torch.nan
    y[8, [1, 4]] = torch.nan
    state, _ = run(Phi, y, noise, None, prior, (5, 14))
    assert state.group.tolist() == [0, 1, 0, 0, 1]
