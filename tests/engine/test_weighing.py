"""Lags, innovation models, the rule and outliers in an ensemble; their numbers are held by the table of plans."""

import math

import pytest
import torch

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.engine.memory import TargetMemory
from gp_ensembles.experts import GaussianExpert, LaplaceExpert, MultiOutputExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.likelihoods.classification import LogisticLikelihood
from gp_ensembles.meta_learners import BayesianModelAveraging, FixedShare

NUM_INPUTS, LAGS, THRESHOLD = 2, (1, 4), 5.0
MODELS = (InnovationModel(degrees_of_freedom=4, rate=0.1), InnovationModel(rate=0.05, autoregressive=False))


def rows(seed=0, num_rows=60):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(num_rows, NUM_INPUTS, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    y = X @ torch.tensor([0.7, -0.4], dtype=torch.float64) + noise
    y[1:] += 0.5 * y[:-1]
    return X, y


def ensemble(dtype=torch.float64, *, memory=True, innovations=MODELS, threshold=THRESHOLD, rule=None):
    past = TargetMemory(LAGS, rows(1)[1].to(dtype)) if memory else None
    features = LinearFeatures(NUM_INPUTS + (len(LAGS) if memory else 0), torch.ones(2, dtype=dtype))
    experts = [GaussianExpert(features), GaussianExpert(features, transition=RandomWalk(1e-3))]
    with torch.no_grad():
        for expert in experts:
            expert.likelihood.noise = torch.tensor([[0.05], [0.2]], dtype=dtype)
    return Ensemble(
        experts,
        FixedShare(0.02) if rule is None else rule,
        ["a", "b", "c", "d"],
        innovations=innovations,
        memory=past,
        outlier_threshold=threshold,
    )


@pytest.mark.parametrize("size", [30.0, 1e4, 9e5, 1e300])
def test_one_gross_target_hardly_matters_afterwards(size):
    X, y = rows(num_rows=400)
    clean = OnlineEnsemble(ensemble()).observe(X, y)
    y[200] = size
    spoiled = OnlineEnsemble(ensemble()).observe(X, y)

    def error(predictions):
        return float((predictions.mean - y)[201:301].square().mean().sqrt())

    assert error(spoiled) < 1.1 * error(clean)
    assert bool(spoiled.log_prob.isfinite().all())


def test_a_shift_for_good_is_learned_all_the_same():
    X, y = rows(num_rows=600)
    y[300:] += 100
    predictions = OnlineEnsemble(ensemble()).observe(X, y)
    assert float((predictions.mean - y)[450:].abs().mean()) < 3


def test_experts_that_died_stay_out_of_the_mixture():
    X, y = rows(num_rows=300)
    prior = torch.ones(4 * 3, dtype=torch.float64)
    prior[3:6] = 0.0  # the second expert and its innovation models
    rule = BayesianModelAveraging(prior)
    online = OnlineEnsemble(ensemble(rule=rule), block_size=20)
    predictions = online.observe(X, y)
    kept = [k for k in range(12) if not 3 <= k < 6]
    assert bool(predictions.experts.mean[3:6].isnan().all())
    assert bool(predictions.experts.mean[kept].isfinite().all())
    assert bool(predictions.log_prob.isfinite().all())


def test_layers_are_for_one_real_number():
    features = LinearFeatures(NUM_INPUTS, torch.ones((), dtype=torch.float64))
    for expert in (LaplaceExpert(features, LogisticLikelihood()), MultiOutputExpert(features, 2)):
        with pytest.raises(ValueError, match="are for scalar real targets"):
            Ensemble([expert], BayesianModelAveraging(), innovations=MODELS)
        with pytest.raises(ValueError, match="are for scalar real targets"):
            Ensemble([expert], BayesianModelAveraging(), outlier_threshold=5)


@pytest.mark.parametrize("threshold", [0.5, math.inf, math.nan])
def test_an_illegal_threshold_is_refused(threshold):
    with pytest.raises(ValueError, match="at least one standard deviation"):
        ensemble(threshold=threshold)
