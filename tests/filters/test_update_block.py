"""One contract for every state, observation and transition: blocks, gaps, one step ahead, the textbook's numbers."""

import pytest
import torch

from gp_ensembles import filters
from gp_ensembles.filters import sites
from gp_ensembles.filters.multi_output import MultiOutputNoise, multi_output_state
from gp_ensembles.filters.states import square_root_state
from gp_ensembles.filters.student_t import NoiseDiscount, student_t_state
from tests.filters.oracles import in_blocks, rule_of

M, N, F, K, C = 2, 11, 3, 4, 3  # experts, rows, features, outputs, classes
NOISE = torch.tensor([0.3, 0.9], dtype=torch.float64)
PRIOR = torch.tensor([0.5, 2.0], dtype=torch.float64)
CONCENTRATION, RATE = torch.tensor([3.0, 5.0], dtype=torch.float64), torch.tensor([1.0, 0.5], dtype=torch.float64)
SCALE = torch.tensor([[1.0, 2.0, 0.5, 10.0], [3.0, 1.0, 0.1, 1.0]], dtype=torch.float64)
MISSING = (0, 4, 5, N - 1)


def logistic(z, y):
    return torch.nn.functional.logsigmoid((2 * y - 1) * z)


def normal(z, y):
    return -0.5 * (y - z).square() / NOISE.unsqueeze(-1)


def softmax(z, y):
    return z.log_softmax(-1).gather(-1, y.long().unsqueeze(-1)).squeeze(-1)


TRANSITIONS = {
    "static": None,
    "walk": filters.RandomWalk(0.05),
    "walk of each feature": filters.RandomWalk(torch.linspace(0, 0.1, F, dtype=torch.float64)),
    "correlated walk": filters.CorrelatedWalk(0.02 + torch.diag(torch.full((F,), 0.01, dtype=torch.float64))),
    "forgetting": filters.ExponentialForgetting(torch.tensor([0.9, 0.6], dtype=torch.float64)),
    "stabilized": filters.StabilizedForgetting(torch.tensor([0.5, 0.97], dtype=torch.float64)),
}
# first state, observation
FILTERS = {
    "covariance": (filters.gaussian_state(PRIOR, F), NOISE),
    "square root": (square_root_state(PRIOR, F), NOISE),
    "Student-t": (student_t_state(PRIOR, F, CONCENTRATION, RATE), None),
    "Student-t, changing noise": (
        student_t_state(PRIOR, F, CONCENTRATION, RATE),
        NoiseDiscount(torch.tensor(0.8, dtype=torch.float64), CONCENTRATION, RATE),
    ),
    "several outputs": (multi_output_state(PRIOR, F, K), MultiOutputNoise(NOISE, SCALE)),
    "Laplace": (filters.gaussian_state(PRIOR, F), rule_of(logistic)),
    "Laplace, normal": (filters.gaussian_state(PRIOR, F), rule_of(normal)),
    "moment matching": (filters.gaussian_state(PRIOR, F), rule_of(logistic, sites.MomentMatchingUpdate())),
    "robust": (filters.gaussian_state(PRIOR, F), sites.RobustRule(NOISE, torch.full_like(NOISE, 2.0))),
    "vectors, Laplace": (filters.gaussian_state(PRIOR.unsqueeze(-1).expand(M, C), F), rule_of(softmax, num_latent=C)),
    "vectors, moment matching": (
        filters.gaussian_state(PRIOR.unsqueeze(-1).expand(M, C), F),
        rule_of(softmax, sites.MomentMatchingUpdate(8), C),
    ),
}
every_filter = pytest.mark.parametrize("name", FILTERS)


def problem(name, missing=MISSING):
    g = torch.Generator().manual_seed(3)
    Phi = torch.randn(M, N, F, generator=g, dtype=torch.float64)
    if name == "several outputs":
        y = torch.randn(N, K, generator=g, dtype=torch.float64)
        y[list(missing[1:]), 1] = torch.nan
        y[list(missing[:2])] = torch.nan
        return Phi, y
    y = torch.randint(0, C if "vectors" in name else 2, (N,), generator=g).double()
    y[list(missing)] = torch.nan
    return Phi, y


def run(name, change, Phi, y, sizes):
    state, observation = FILTERS[name]

    def learn(state, rows):
        block = Phi[:, rows], y[rows]
        return filters.update_block(state, *block, TRANSITIONS[change], observation, prior_variance=PRIOR)

    with torch.no_grad():
        return in_blocks(learn, state, sizes, dim=1)


def assert_same(got, want, tolerance=1e-9):
    assert type(got) is type(want)
    for name, a, b in zip(got._fields, got, want, strict=True):
        if name == "factor":  # a square root is one of many
            a, b = a @ a.mT, b @ b.mT
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


@every_filter
def test_blocks_of_any_cut_are_single_rows(name):
    for change in TRANSITIONS:
        Phi, y = problem(name)
        want, steps = run(name, change, Phi, y, (1,) * N)
        # Newton's method stops at steps of 0.1 sqrt(eps) = 1.5e-9; the largest differences are 1.7e-9, else 3e-13.
        tolerance = 1e-8 if "Laplace" in name else 1e-9
        for sizes in ((N,), (4, 7), (1, 9, 1)):
            state, blocks = run(name, change, Phi, y, sizes)
            assert_same(state, want, tolerance)
            assert_same(blocks, steps, tolerance)


@every_filter
def test_a_missing_target_teaches_nothing(name):
    """A missing row is a step of the transition: the state of static weights stays as it was."""
    for change in TRANSITIONS:
        Phi, y = problem(name, ())
        state, observation = FILTERS[name]
        with torch.no_grad():
            state, _ = filters.update_block(state, Phi, y, TRANSITIONS[change], observation, prior_variance=PRIOR)
            gap = torch.full_like(y[:1], torch.nan)
            after, steps = filters.update_block(
                state, Phi[:, :1], gap, TRANSITIONS[change], observation, prior_variance=PRIOR
            )
            other, _ = filters.update_block(
                state, 7 * Phi[:, 1:2], gap, TRANSITIONS[change], observation, prior_variance=PRIOR
            )
            ahead = filters.predict(state, Phi[:, :1], TRANSITIONS[change], observation, prior_variance=PRIOR)
        assert_same(after, other)
        assert_same(ahead, steps)  # to predict is to meet a row whose target is missing
        if change == "static" and name != "Student-t, changing noise":
            assert_same(after, state)
        if "log_prob" in steps._fields:
            assert bool(steps.log_prob.isnan().all())


@every_filter
def test_only_a_way_back_to_the_prior_needs_the_prior(name):
    Phi, y = problem(name)
    state, observation = FILTERS[name]
    with torch.no_grad():
        for change in TRANSITIONS.values():
            if isinstance(change, filters.StabilizedForgetting):
                with pytest.raises(ValueError, match="StabilizedForgetting reverts to the prior"):
                    filters.update_block(state, Phi, y, change, observation)
                with pytest.raises(ValueError, match="needs prior_variance"):
                    filters.predict(state, Phi, change, observation)
                continue
            with_prior = filters.update_block(state, Phi, y, change, observation, prior_variance=PRIOR)
            without = filters.update_block(state, Phi, y, change, observation)
            for got, want in zip(without, with_prior, strict=True):
                assert_same(got, want, 0)


@pytest.mark.parametrize(
    ("name", "observation", "words"),
    [
        ("covariance", None, r"for a GaussianState is the noise variance, a tensor \(\*batch\), or a rule .* NoneType"),
        ("covariance", 0.1, "got float"),
        ("square root", rule_of(logistic), "for a SquareRootState is the noise variance"),
        ("Student-t", NOISE, "for a StudentTState is a NoiseDiscount, or None"),
        ("several outputs", NOISE, "for a MultiOutputState is a MultiOutputNoise"),
    ],
)
def test_an_observation_of_another_state_is_refused(name, observation, words):
    Phi, y = problem(name)
    with pytest.raises(TypeError, match=words):
        filters.update_block(FILTERS[name][0], Phi, y, None, observation)
    with pytest.raises(TypeError, match=words):
        filters.predict(FILTERS[name][0], Phi, None, observation)


def test_what_is_no_state_is_refused():
    Phi, y = problem("covariance")
    with pytest.raises(TypeError, match=r"the state must be one of GaussianState, SquareRootState, .* got Tensor"):
        filters.update_block(Phi, Phi, y, None, NOISE)
