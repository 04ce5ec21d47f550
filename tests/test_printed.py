"""What is printed of results, models, posteriors and specs: ten lines of 120 characters, and the numbers are right."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import RBFKernel

import gp_ensembles as gpe
from benchmarks.backtest import seasonal_naive
from gp_ensembles.distributions import Mixture
from gp_ensembles.ensembles.presets import PRESETS, auto_for
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.metrics import streaming
from gp_ensembles.papers.fusion import MAP, ExpertPredictions, FourierPrior, PoGPE
from gp_ensembles.papers.gplvm import IEGPLVM
from gp_ensembles.papers.quadrature import Budget, RegressionProblem

SMALL = replace(gpe.oebe, bases=(gpe.bases.LinearBasis(), gpe.bases.PolynomialBasis((2,))))
CONFIG = gpe.StreamConfig(SMALL, warmup=40)
RECORDS = [
    *(gpe.bases.FourierBasis(nu=1.5, starts=(0.1, 1.0, 10.0)), gpe.bases.RecurringBasis(gpe.bases.RadialBasis())),
    *(gpe.targets.RealTarget(), gpe.targets.ClassTarget(3), gpe.auto.lags, gpe.auto.rule, gpe.auto.fit_settings),
    *(*gpe.auto.extra_experts, *gpe.deep.extra_experts),
]


def rows(num_rows=90):
    X = torch.linspace(0, 1, num_rows, dtype=torch.float64).unsqueeze(-1)
    return X, (9 * X.squeeze(-1)).sin() + X.squeeze(-1)


def streams():
    X, y = rows()
    model = gpe.OnlineModel(CONFIG)
    waiting = copy.deepcopy(model)
    predictions = model.observe(X, y)
    yield from (waiting, predictions, predictions.intervals, model, model.online, model.online.ensemble, model.scales)
    yield from (model.online.state, model.predict(X[:1]), model.forecast(X[-20:]))
    yield seasonal_naive(y, horizon=12, season=1, origins=range(40, 60))
    yield from ordered_and_several(X, y)


def ordered_and_several(X, y):
    for target, given in (
        (gpe.targets.RealTarget(2), torch.stack([y, -y], dim=-1)),
        (gpe.targets.ClassTarget(3), (y.abs() * 3).floor().remainder(3)),
        (gpe.targets.BinaryTarget(), (y > 1).double()),
        (gpe.targets.CountTarget(), (4 * y.abs()).floor()),
    ):
        model = gpe.OnlineModel(replace(CONFIG, ensemble=replace(SMALL, target=target)))
        yield from (model.observe(X, given), model)


def fleets():
    X, y = rows()
    fleet = gpe.Fleet(SMALL, warmup=40)
    names = ["north", "south"] * 45
    yield from (fleet.observe(names[:10], X[:10], y[:10]), fleet.observe(names[10:], X[10:], y[10:]), fleet)
    yield fleet.series


def botorch():
    X, y = rows(30)
    exact = gpe.ExactEnsembleModel(X, y.unsqueeze(-1))
    several = gpe.ExactEnsembleModel(X, torch.stack([y, -y], dim=-1), outcome_transform=None)
    yield exact.posterior(X)
    for model in (exact, several, gpe.EnsembleModel(X, y.unsqueeze(-1), ensemble=SMALL)):
        yield from (model, model.posterior(X), model.posterior(X.unsqueeze(-2)))


def papers():
    X, y = rows(40)
    found = gpe.select_knots(X, y)
    yield from (found, found.model, found.predict(X))
    problem = RegressionProblem(X, y)
    marginal = gpe.marginalize(problem, Budget(40, draws=0), generator=torch.Generator().manual_seed(0))
    yield from (marginal, marginal.evidence, marginal.kernels, marginal.top_kernels(2), marginal.model().posterior(X))
    prior = FourierPrior(torch.ones_like(X[:2]))
    fitted = gpe.fit_fusion(PoGPE(X, y - y.mean(), 2, prior, prior, prior), MAP())
    yield from (fitted, fitted.predict(X), fitted.expert_weights(X), fitted.posterior)
    yield ExpertPredictions(X.mT.expand(3, -1), 1 + X.mT.expand(3, -1), 0.1 + X.mT)
    features = RandomFourierFeatures.from_kernel(RBFKernel(batch_shape=torch.Size([2])).double(), 1, 20)
    latent = IEGPLVM(features, num_outputs=3)
    yield latent.start(torch.cat([X, y.unsqueeze(-1), X.cos()], dim=-1))
    yield latent


def tables():
    draw = gpe.data.drifting_sensor(600)
    yield from (draw, draw.table)
    mixture = Mixture(torch.zeros(1), *torch.ones(2, 1, 600))
    scores = streaming.init_scores(torch.ones(1))
    yield from (mixture, scores, streaming.summarize(scores))


def specs():
    yield from (*RECORDS, *PRESETS.values(), gpe.StreamConfig(), CONFIG)
    yield auto_for(gpe.targets.RealTarget(), one_step=False)
    yield replace(CONFIG, ensemble=auto_for(gpe.targets.CountTarget()), seed=3, impute="mean")
    defaults = {name: getattr(gpe.deep, name) for name in ("bases", "lags", "extra_experts", "innovations")}
    yield gpe.EnsembleSpec(
        "mine", static=False, random_walk_variances=(0.5,), rule=gpe.auto.rule, outlier_threshold=9.0,
        rank_on_warm_up=True, fit_settings=gpe.auto.fit_settings, target=gpe.targets.OutlierTarget(), **defaults,
    )  # fmt: skip


@pytest.mark.parametrize("make", [streams, fleets, botorch, papers, tables, specs], ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore")
def test_what_is_printed_fits_on_ten_lines(make):
    printed = [repr(one) for one in make()]
    for text in printed:
        assert "tensor([" not in text, text
        assert " object at 0x" not in text, text
        lines = text.splitlines()
        assert 1 <= len(lines) <= 10, text
        assert max(map(len, lines)) <= 120, text
    assert len(printed) > 3


def check_line(line, wanted):
    """A line of a mean, a standard deviation and the ends of an interval."""
    _, mean, stddev, lower, _, upper = line.split()
    assert [float(cell) for cell in (mean, stddev, lower, upper)] == pytest.approx([*map(float, wanted)], rel=1e-3)


def test_predictions_and_posteriors_print_their_own_numbers():
    X, y = rows()
    predictions = gpe.OnlineModel(CONFIG).observe(X, y)
    lines = repr(predictions).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["40", "41", "42", "...", "87", "88", "89"]
    ends = (predictions.distribution.quantile(p)[-1] for p in (0.05, 0.95))
    check_line(lines[-1], (predictions.mean[-1], predictions.stddev[-1], *ends))
    for kernels in ((2.5,), (2.5, 1.5)):
        model = gpe.ExactEnsembleModel(X[:30], y[:30].unsqueeze(-1), kernels=kernels)
        posterior = model.posterior(X[:30].clone().requires_grad_())
        _, *printed = map(float, repr(posterior).splitlines()[2].split())
        assert posterior.variance.requires_grad  # printing leaves it as it was
        mean, variance = (moment.detach()[0].item() for moment in (posterior.mean, posterior.variance))
        assert printed == pytest.approx((mean, variance**0.5), rel=1e-3)


def test_specs_print_as_the_preset_and_what_differs_from_it():
    assert repr(gpe.auto) == "gpe.auto"
    assert repr(pickle.loads(pickle.dumps(gpe.e_doebe))) == "gpe.e_doebe"
    assert repr(replace(gpe.auto, lags=None)) == "replace(gpe.auto, lags=None)"
    assert repr(replace(gpe.light, name="mine")) == "replace(gpe.light, name='mine')"
    assert repr(gpe.StreamConfig(gpe.light, warmup=200)) == "StreamConfig(gpe.light, warmup=200)"
    assert repr(gpe.StreamConfig(seed=3)) == "StreamConfig(gpe.auto, seed=3)"
    prior = gpe.meta_learners.BayesianModelAveraging(torch.tensor([0.5, 0.5]))
    assert "prior_weights=..." in repr(replace(gpe.oebe, rule=prior))
