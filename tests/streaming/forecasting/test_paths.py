"""Sample paths against closed forms, against the chain rule, and what they must leave as it was."""

import torch
from scipy import stats
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.memory import TargetMemory
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.experts import GaussianExpert, StudentTExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.features.compose import SelectColumns
from gp_ensembles.filters import RandomWalk
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.meta_learners import BayesianModelAveraging, SoftBayes
from gp_ensembles.meta_learners.base import MetaLearner
from gp_ensembles.streaming.forecasting.paths import sample_paths

ONE = torch.ones((), dtype=torch.float64)
LEAST = 1e-3  # of a Kolmogorov-Smirnov probability: seeds are fixed


def rows(num: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(num, 1, generator=generator, dtype=torch.float64)
    return X, X[:, 0] + 0.5 * torch.randn(num, generator=generator, dtype=torch.float64)


def series(num: int) -> tuple[Tensor, Tensor]:
    """A second-order autoregression."""
    generator = torch.Generator().manual_seed(1)
    noise, values = torch.randn(num, generator=generator, dtype=torch.float64).tolist(), [0.0, 0.0]
    for one in noise:
        values.append(1.1 * values[-1] - 0.4 * values[-2] + one)
    return torch.linspace(-1, 1, num, dtype=torch.float64).unsqueeze(-1), torch.tensor(values[2:]).double()


def on_lags(innovations: tuple[InnovationModel, ...] = (), rule: MetaLearner | None = None) -> OnlineEnsemble:
    """Two linear experts, on past targets and on the input, that saw few rows of a series."""
    X, y = series(60)
    past = SelectColumns(LinearFeatures(2, ONE), [1, 2], 3)
    own = SelectColumns(LinearFeatures(1, ONE), [0], 3)
    experts = [GaussianExpert(past), GaussianExpert(own, transition=RandomWalk(0.05))]
    memory = TargetMemory([1, 2], y)
    rule = BayesianModelAveraging() if rule is None else rule
    online = OnlineEnsemble(Ensemble(experts, rule, innovations=innovations, memory=memory))
    online.observe(X[:5], y[:5])
    return online


def draw(online: OnlineEnsemble, inputs: Tensor, num: int) -> Tensor:
    log_weights = online.predict(inputs[:1]).log_weights
    return sample_paths(online, inputs, log_weights, num, generator=torch.Generator().manual_seed(3))


def follow_the_chain_rule(online: OnlineEnsemble, inputs: Tensor, num: int = 2000) -> Tensor:
    """Assert that targets of sample paths are uniform under the distributions that an ensemble predicts along each.

    A fleet learns the targets of each path one after the other, as the ensemble would, so that probabilities up to them
    are independent and uniform if paths have the joint law. Returns the paths.
    """
    paths, names = draw(online, inputs, num), range(num)
    fleet = EnsembleFleet(online.ensemble, names, start=online.state)
    levels = []
    for row, y in zip(inputs.split(1), paths.unbind(1), strict=True):
        levels.append(fleet.observe(names, row.expand(num, -1), y).mixture.cdf(y))
        assert stats.kstest(levels[-1].numpy(), "uniform").pvalue > LEAST
    scores = torch.special.ndtri(torch.stack(levels))
    products = scores @ scores.mT / num**0.5  # of normal scores: those of two steps have deviation one
    assert float((products - products.diagonal().diag()).abs().max()) < 4
    assert float((products.diagonal() - num**0.5).abs().max()) < 4 * 2**0.5
    return paths


def test_linear_gaussian_experts_have_their_closed_form() -> None:
    X, y = rows(45)
    expert, num, walk = GaussianExpert(LinearFeatures(1, ONE), transition=RandomWalk(0.02)), 20_000, 0.02
    online = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
    online.observe(X[:40], y[:40])
    paths = draw(online, X[40:], num)
    Phi = torch.cat([X[40:], torch.ones(5, 1)], -1).double()
    assert torch.equal(Phi, expert.features(X[40:]).detach())
    state = online.state.experts[0]
    steps = torch.arange(1, 6, dtype=torch.float64)
    drift = walk * torch.minimum(steps[:, None], steps) * (Phi @ Phi.mT)
    covariance = Phi @ state.covariance @ Phi.mT + drift + torch.diag(expert.likelihood.noise.detach().expand(5))
    mean = Phi @ state.mean
    for step in range(5):
        law = stats.norm(float(mean[step]), float(covariance[step, step].sqrt()))
        assert stats.kstest(paths[:, step].numpy(), law.cdf).pvalue > LEAST
    error = torch.cov(paths.mT) - covariance
    # The deviation of a sample covariance of normal numbers: sqrt((c_ii c_jj + c_ij²) / S).
    variance = covariance.diagonal()
    deviation = ((variance[:, None] * variance + covariance.square()) / num).sqrt()
    assert bool((error.abs() < 4.5 * deviation).all())


def test_experts_on_past_targets_follow_the_chain_rule() -> None:
    online, inputs = on_lags(), series(60)[0][5:9]
    assert float(online.log_weights.exp().min()) > 0.05  # both count, and paths tell them apart
    follow_the_chain_rule(online, inputs)


def test_innovation_models_follow_the_chain_rule() -> None:
    model = InnovationModel(degrees_of_freedom=4, rate=0.2)
    online, inputs = on_lags((model,)), series(60)[0][5:9]
    follow_the_chain_rule(online, inputs)


def test_models_are_drawn_anew_where_the_rule_says_that_targets_are_a_mixture_of_them() -> None:
    peak = InnovationModel(degrees_of_freedom=4, rate=0.0, width=0.01, autoregressive=False)
    X, y = rows(30, seed=2)
    expert = GaussianExpert(LinearFeatures(1, ONE))
    online = OnlineEnsemble(Ensemble([expert], SoftBayes(0.01), innovations=(peak,)))
    online.observe(X[:20], y[:20])
    paths = follow_the_chain_rule(online, X[20:24])
    # Kept along the path, the peak would make the sum of four errors far too peaked: a tenth of them would be tiny.
    errors = (paths - paths.mean(0)).sum(1)
    assert float((errors.abs() < 0.05 * errors.std()).double().mean()) < 0.08


def test_experts_without_a_joint_law_say_of_each_row_what_they_say_of_the_next() -> None:
    X, y = rows(20, seed=5)
    pair = StudentTExpert(LinearFeatures(1, torch.tensor([0.1, 3.0], dtype=torch.float64)))
    online = OnlineEnsemble(Ensemble([pair], BayesianModelAveraging()))
    online.observe(X[:6], y[:6])
    paths, wanted = draw(online, X[6:10], 4000), online.predict(X[6:10])
    for step in range(4):
        levels = wanted.cdf(paths[:, step : step + 1].expand(-1, 4))[:, step]
        assert stats.kstest(levels.numpy(), "uniform").pvalue > LEAST
