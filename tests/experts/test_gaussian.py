"""The Gaussian expert: binding, forms of the state, clear errors."""

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood

from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import ExponentialForgetting, RandomWalk, gaussian_state, textbook_filter
from gp_ensembles.filters.states import GaussianState, SquareRootState, square_root_state
from tests.refusals import refused


def linear(batch=(), dtype=torch.float64):
    return LinearFeatures(2, torch.ones(batch, dtype=dtype))


def walk_of(expert):
    transition = expert.transition
    if transition is None:
        return None
    return transition.variance.expand(*expert.batch_shape, transition.variance.shape[-1])


def block(dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    return torch.randn(9, 2, generator=g, dtype=dtype), torch.randn(9, generator=g, dtype=dtype)


@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("walk", [None, 0.1], ids=str)
def test_update_is_the_filter_on_the_features(batch, walk):
    X, y = block()
    expert = GaussianExpert(linear(batch), transition=None if walk is None else RandomWalk(walk))
    state, steps = expert.update(expert.init(), X, y)
    bound = expert.bind()
    start = gaussian_state(expert.features.prior_variance, 3)
    want, reference = textbook_filter(start, expert.features(X), y, bound.noise, walk_of(expert))
    torch.testing.assert_close((steps.log_prob, state.mean), (reference.log_prob, want.mean))
    mean, variance = expert.predict(state, X)
    assert mean.shape == variance.shape == (*batch, 9)


def test_the_form_follows_dtype_and_walk():
    assert isinstance(GaussianExpert(linear()).init(), GaussianState)
    single = linear(dtype=torch.float32)
    assert isinstance(GaussianExpert(single).init(), SquareRootState)
    assert isinstance(GaussianExpert(single, transition=RandomWalk(1e-2)).init(), GaussianState)
    assert isinstance(GaussianExpert(single, transition=RandomWalk(1e-5)).init(), SquareRootState)
    assert isinstance(GaussianExpert(linear(), initial_state=square_root_state).init(), SquareRootState)
    assert isinstance(GaussianExpert(linear(), transition=ExponentialForgetting(0.9)).init(), SquareRootState)
    quiet = GaussianExpert(linear())
    quiet.likelihood.noise = 1e-5
    assert isinstance(quiet.init(), GaussianState)
    quiet.features.prior.raw_value.data.fill_(5.0)
    assert isinstance(quiet.init(), SquareRootState)


def test_bad_input():
    refused(ValueError, "batch shape", lambda: GaussianExpert(linear((3,)), GaussianLikelihood().double()))
    refused(ValueError, "negative", lambda: GaussianExpert(linear(), transition=RandomWalk(-1.0)))
    refused(ValueError, "broadcast", lambda: GaussianExpert(linear((3,)), transition=RandomWalk(torch.ones(2, 5))))
    expert = GaussianExpert(linear())
    X, y = block()
    X[4, 1] = torch.nan
    refused(ValueError, "row 4, column 1", lambda: expert.update(expert.init(), X, y))


def test_infinite_targets_are_refused_where_numbers_can_be_read():
    expert = GaussianExpert(linear())
    with pytest.raises(ValueError, match="y is -inf in row 1"):
        expert.check_targets(torch.tensor([0.0, -torch.inf], dtype=torch.float64))
    expert.check_targets(torch.empty(3, device="meta", dtype=torch.float64))  # shapes only
