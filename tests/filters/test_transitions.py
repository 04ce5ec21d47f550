"""Every transition, in every form of the filter and any blocking, against a loop of dense textbook steps."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.filters import (
    CorrelatedWalk,
    ExponentialForgetting,
    RandomWalk,
    StabilizedForgetting,
    gaussian_state,
    predict,
    update_block,
)
from gp_ensembles.filters.states import square_root_state
from gp_ensembles.filters.update import predict_joint
from tests.filters.oracles import advance, in_blocks

M, N, F = 3, 29, 5
FORMS = {"covariance": gaussian_state, "square root": square_root_state}


def psd(rank, batch=()):
    g = torch.Generator().manual_seed(4)
    root = torch.randn(*batch, F, rank, generator=g, dtype=torch.float64) * 0.1
    return root @ root.mT


FACTORS = torch.tensor([0.9, 0.99, 1.0], dtype=torch.float64)
TRANSITIONS = {
    "walk": RandomWalk(1e-2),
    "walk of each expert": RandomWalk(torch.tensor([[0.0], [0.1], [0.02]], dtype=torch.float64)),
    "walk of each feature": RandomWalk(torch.linspace(0, 0.1, F, dtype=torch.float64)),
    "correlated walk": CorrelatedWalk(psd(F)),
    "singular walks": CorrelatedWalk(psd(2, (M,))),
    "forgetting": ExponentialForgetting(0.95),
    "forgetting of each expert": ExponentialForgetting(FACTORS),
    "fast forgetting": ExponentialForgetting(0.55),
    "stabilized": StabilizedForgetting(0.95),
    "stabilized of each expert": StabilizedForgetting(FACTORS),
    "fast stabilized": StabilizedForgetting(0.5),
}


def problem(missing=(), seed=0):
    g = torch.Generator().manual_seed(seed)
    Phi = torch.randn(M, N, F, generator=g, dtype=torch.float64)
    y = torch.randn(N, generator=g, dtype=torch.float64)
    y[list(missing)] = torch.nan
    noise = 0.1 + torch.rand(M, generator=g, dtype=torch.float64)
    prior = 0.5 + torch.rand(M, generator=g, dtype=torch.float64)
    return Phi, y, noise, prior


def textbook(transition, Phi, y, noise, prior):
    means, variances, densities, finals = [], [], [], []
    for m in range(M):
        mean, covariance = torch.zeros(F, dtype=torch.float64), prior[m] * torch.eye(F, dtype=torch.float64)
        for t in range(N):
            mean, covariance = advance(transition, mean, covariance, prior, m)
            phi = Phi[m, t]
            center, variance = phi @ mean, phi @ covariance @ phi + noise[m]
            means.append(center)
            variances.append(variance)
            if torch.isnan(y[t]):
                densities.append(center * torch.nan)
                continue
            densities.append(torch.distributions.Normal(center, variance.sqrt()).log_prob(y[t]))
            gain = covariance @ phi / variance
            mean = mean + gain * (y[t] - center)
            covariance = covariance - torch.outer(gain, phi @ covariance)
        finals.append((mean, covariance))
    stack = [torch.stack(values).reshape(M, N) for values in (means, variances, densities)]
    return stack, torch.stack([mean for mean, _ in finals]), torch.stack([covariance for _, covariance in finals])


@pytest.mark.parametrize("name", ["static", *TRANSITIONS])
def test_any_blocking_is_the_textbook(name):
    transition = TRANSITIONS.get(name)
    for form, missing in itertools.product(FORMS, [(), (0, 3, 4, 28), range(N)]):
        Phi, y, noise, prior = problem(missing)
        want, mean, covariance = textbook(transition, Phi, y, noise, prior)

        def learn(state, rows, Phi=Phi, y=y, noise=noise, prior=prior):
            return update_block(state, Phi[:, rows], y[rows], transition, noise, prior_variance=prior)

        for sizes in [(29,), (1,) * 29, (7, 1, 21)]:
            state, steps = in_blocks(learn, FORMS[form](prior, F), sizes)
            got, reference = (*steps, state.mean, state.covariance), (*want, mean, covariance)
            torch.testing.assert_close(got, reference, rtol=1e-8, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("name", TRANSITIONS)
def test_prediction_takes_one_step(name):
    for form in FORMS:
        Phi, y, noise, prior = problem()
        transition = TRANSITIONS[name]
        state, _ = update_block(FORMS[form](prior, F), Phi, y, transition, noise, prior_variance=prior)
        mean, variance, _ = predict(state, Phi[:, :4], transition, noise, prior_variance=prior)
        joint_mean, joint = predict_joint(state, Phi[:, :4], transition, noise, prior_variance=prior)
        for m in range(M):
            moved, covariance = advance(transition, state.mean[m], state.covariance[m], prior, m)
            want = Phi[m, :4] @ covariance @ Phi[m, :4].mT + noise[m] * torch.eye(4, dtype=torch.float64)
            torch.testing.assert_close(mean[m], Phi[m, :4] @ moved, rtol=1e-9, atol=1e-10)
            torch.testing.assert_close((variance[m], joint[m]), (want.diagonal(), want), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(joint_mean, mean, rtol=1e-9, atol=1e-10)


def unexcited(transition, num_rows):
    """The covariance after rows that all excite the first weight only."""
    Phi = torch.zeros(1, num_rows, 2, dtype=torch.float64)
    Phi[..., 0] = 1
    one = torch.ones(1, dtype=torch.float64)
    y = torch.zeros(num_rows, dtype=torch.float64)
    state, _ = update_block(gaussian_state(one, 2), Phi, y, transition, one, prior_variance=one)
    return state.covariance[0]


def test_only_stabilized_forgetting_cannot_wind_up():
    assert float(unexcited(ExponentialForgetting(0.9), 500)[1, 1]) > 1e22
    assert float(unexcited(RandomWalk(0.1), 500)[1, 1]) == pytest.approx(51)
    bounded = unexcited(StabilizedForgetting(0.9), 500)
    assert float(bounded[1, 1]) == pytest.approx(1)
    assert float(torch.linalg.eigvalsh(bounded).max()) <= 1 + 1e-9


@given(factor=st.floats(0.5, 1.0), seed=st.integers(0, 1000))
@settings(max_examples=25)
def test_stabilized_covariance_never_exceeds_the_prior(factor, seed):
    Phi, y, noise, prior = problem(seed=seed)
    change = StabilizedForgetting(factor)
    state, _ = update_block(gaussian_state(prior, F), Phi, y, change, noise, prior_variance=prior)
    largest = torch.linalg.eigvalsh(state.covariance)[:, -1]
    assert bool((largest <= prior * (1 + 1e-9)).all())


def test_forgetting_is_weighted_least_squares():
    """Row t of T counts lambda^(T - t), the prior lambda^T."""
    Phi, y, noise, prior = problem()
    state, _ = update_block(gaussian_state(prior, F), Phi, y, ExponentialForgetting(0.9), noise)
    weights = 0.9 ** torch.arange(N - 1, -1, -1, dtype=torch.float64)
    for m in range(M):
        design = Phi[m]
        precision = (design.mT * weights) @ design / noise[m] + 0.9**N / prior[m] * torch.eye(F, dtype=torch.float64)
        mean = torch.linalg.solve(precision, (design.mT * weights) @ y / noise[m])
        torch.testing.assert_close(state.mean[m], mean, rtol=1e-8, atol=1e-10)


def test_transitions_are_taken_with_their_experts():
    index = torch.tensor([2, 0, 2])
    Phi, y, noise, prior = problem()
    for transition in TRANSITIONS.values():
        _, want = update_block(gaussian_state(prior, F), Phi, y, transition, noise, prior_variance=prior)
        taken = transition.take(torch.Size([M]), index)
        start = gaussian_state(prior[index], F)
        _, got = update_block(start, Phi[index], y, taken, noise[index], prior_variance=prior[index])
        torch.testing.assert_close(got.log_prob, want.log_prob[index])


def test_gradients_flow_through_every_transition_and_gaps():
    Phi, y, noise, prior = problem((2,))
    for transition in TRANSITIONS.values():

        def total(n, p, transition=transition):
            _, steps = update_block(gaussian_state(p, F), Phi[:, :6], y[:6], transition, n, prior_variance=p)
            return steps.log_prob.nansum()

        leaves = noise.clone().requires_grad_(), prior.clone().requires_grad_()
        assert torch.autograd.gradcheck(total, leaves)


def test_bad_input():
    for build, words in [
        (lambda: RandomWalk(-1e-3), "not negative"),
        (lambda: RandomWalk(torch.tensor([torch.nan])), "finite"),
        (lambda: ExponentialForgetting(1.01), "0.5, 1"),
        (lambda: StabilizedForgetting(0.1), "remembers about"),
        (lambda: CorrelatedWalk(torch.ones(2, 3)), "shape"),
        (lambda: CorrelatedWalk(torch.tensor([[1.0, 0.5], [0.0, 1.0]])), "symmetric"),
        (lambda: CorrelatedWalk(torch.tensor([[1.0, 2.0], [2.0, 1.0]])), "eigenvalue"),
        (lambda: ExponentialForgetting(FACTORS).check_shape(torch.Size([2]), 4), "do not fit"),
        (lambda: RandomWalk(torch.ones(4)).check_shape(torch.Size([2]), 5), "broadcast"),
        (lambda: CorrelatedWalk(psd(2)).check_shape(torch.Size([2]), 4), "does not fit"),
    ]:
        with pytest.raises(ValueError, match=words):
            build()


def test_the_covariance_of_a_walk_is_a_tensor():
    for covariance, words in [
        (2, r"floating point tensor of shape \(..., F, F\), got 2; for independent steps use RandomWalk"),
        (torch.ones(2, 2, dtype=torch.int64), "got one of torch.int64"),
    ]:
        with pytest.raises(TypeError, match=words):
            CorrelatedWalk(covariance)
    with pytest.raises(ValueError, match=r"got \(\); for independent steps use RandomWalk"):
        CorrelatedWalk(torch.tensor(2.0))
