"""The multi-output expert in an ensemble, its evidence and its price in operations."""

import pytest
import torch

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts import GaussianExpert, MultiOutputExpert
from gp_ensembles.features import LinearFeatures, RadialBasisFeatures
from gp_ensembles.filters import ExponentialForgetting, RandomWalk
from gp_ensembles.meta_learners import BayesianModelAveraging

OUTPUTS = 3


def table(num_rows=60, gaps=0.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(num_rows, 2, generator=g, dtype=torch.float64)
    mixing = torch.tensor([[1.0, 0.0, 5.0], [-1.0, 2.0, 0.0]], dtype=torch.float64)
    y = torch.sin(X) @ mixing + 0.1 * torch.randn(num_rows, OUTPUTS, generator=g, dtype=torch.float64)
    y[torch.rand(num_rows, OUTPUTS, generator=g) < gaps] = torch.nan
    return X, y


def bumps(batch=2):
    centers = torch.randn(6, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return RadialBasisFeatures(centers, torch.linspace(0.5, 2.0, batch, dtype=torch.float64).reshape(-1, 1))


def build():
    shared = bumps()
    linear = LinearFeatures(2, torch.tensor(1.0).double())
    experts = [
        MultiOutputExpert(shared, OUTPUTS),
        MultiOutputExpert(shared, OUTPUTS, transition=RandomWalk(0.01)),
        MultiOutputExpert(linear, OUTPUTS, None, ExponentialForgetting(0.95)),
    ]
    return Ensemble(experts, BayesianModelAveraging())


@pytest.mark.parametrize("gaps", [0.0, 0.15])
def test_the_shell_is_the_pure_ensemble(gaps):
    X, y = table(gaps=gaps)
    ensemble = build()
    with torch.no_grad():
        state, want = ensemble.update(ensemble.init(), X, y)
    online = OnlineEnsemble(ensemble, block_size=7)
    got = online.observe(X, y)
    torch.testing.assert_close(got[:4], want[:4], rtol=1e-8, atol=1e-9, equal_nan=True)
    assert torch.equal(got.log_prob.isnan(), y.isnan().all(-1))
    for a, b in zip(online.state.experts, state.experts, strict=True):
        torch.testing.assert_close(a.mean, b.mean, rtol=1e-8, atol=1e-9)
    mixture = online.predict(X[:4])
    assert (mixture.mean.shape, got.mixture.log_prob(y).shape) == ((4, OUTPUTS), (60, OUTPUTS))
    fresh = OnlineEnsemble(build(), block_size=7)
    fresh.load_state_dict(online.state_dict())
    again = fresh.observe(X, y).log_prob
    torch.testing.assert_close(again, online.observe(X, y).log_prob, rtol=0, atol=0, equal_nan=True)


def test_weights_use_all_outputs():
    """The joint density of a row is the product over its outputs; the mixture is of the products."""
    X, y = table()
    ensemble = build()
    with torch.no_grad():
        _, predictions = ensemble.update(ensemble.init(), X, y)
    normal = torch.distributions.Normal(predictions.experts.mean, predictions.experts.variance.sqrt())
    joint = normal.log_prob(y).sum(-1)
    torch.testing.assert_close(predictions.experts.log_prob, joint)
    torch.testing.assert_close(predictions.log_prob, (predictions.log_weights + joint).logsumexp(0))


def test_evidence_is_the_sum_over_outputs():
    X, y = table()
    expert = MultiOutputExpert(bumps(), OUTPUTS)
    expert.raw_scale.data = torch.tensor([[0.0, 0.3, 1.0], [0.5, -0.2, 0.0]], dtype=torch.float64)
    total = 0.0
    for output in range(OUTPUTS):
        alone = GaussianExpert(expert.features, expert.likelihood)
        for m in range(2):
            scale = float(expert.output_scale.detach()[m, output])
            total = total + torch.nn.functional.one_hot(torch.tensor(m), 2) * (
                alone.log_evidence(X, y[:, output] / scale) - 60 * torch.tensor(scale).double().log()
            )
    torch.testing.assert_close(expert.log_evidence(X, y), total)
    _, steps = expert.update(expert.init(), X, y)
    torch.testing.assert_close(expert.log_evidence(X, y), steps.log_prob.sum(-1))


def test_an_evidence_that_cannot_be_computed_is_nan():
    X, y = table()
    expert = MultiOutputExpert(LinearFeatures(X.shape[1], torch.ones(2, dtype=torch.float64)), OUTPUTS)
    assert bool(torch.isfinite(expert.log_evidence(X, y)).all())
    assert bool(torch.isnan(expert.log_evidence(1e200 * X, y)).all())


def test_bad_input():
    X, y = table(5)
    expert = MultiOutputExpert(bumps(), OUTPUTS)
    with pytest.raises(ValueError, match="one column per output"):
        expert.update(expert.init(), X, y[:, :2])
    y[3, 1] = torch.inf
    online = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
    before = [value.clone() for value in online.state_dict().values()]
    with pytest.raises(ValueError, match="row 3"):
        online.observe(X, y)
    for columns in (y[:, :2], torch.cat([y, y], dim=-1), y[:, 0]):
        with pytest.raises(ValueError, match=r"y must have shape \(5, 3\)|one column per output"):
            online.observe(X, columns)
    assert all(torch.equal(a, b) for a, b in zip(before, online.state_dict().values(), strict=True))
    with pytest.raises(ValueError, match="num_outputs must be at least 1"):
        MultiOutputExpert(bumps(), 0)
