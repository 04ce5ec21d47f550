"""Marginalization beside the truth: evidence, number of components and predictions of a problem solved by brute force.

The frozen file holds the posterior over spectral mixtures of one to three components given ten rows: by Gauss-Legendre
quadrature for one component, by a quarter of a million randomized Sobol points for more, its own errors far below ours.
"""

import numpy as np
import pytest
import torch

from gp_ensembles.papers.quadrature import Budget, PriorPolicy, RegressionProblem, Search, marginalize
from gp_ensembles.papers.quadrature.policies import AcquisitionOptimizer, InformationPolicy
from gp_ensembles.papers.quadrature.prior import fixed
from tests.papers.quadrature.cases import prior_of, seeded

pytestmark = pytest.mark.slow

SOBOL = Search(PriorPolicy(), initial_share=1.0, num_ascents=0, use_periodogram=False)
NUM_DESIGNS = 12


@pytest.fixture(scope="module")
def truth(archive):
    return archive("maskerade_truth")


@pytest.fixture(scope="module")
def problem(truth):
    location, width = truth["scales_lognormal"]
    scale, noise = truth["means_half_normal_scale"], fixed(float(truth["noise"]))
    prior = prior_of(3, scale=scale, location=location, width=width, noise=noise)
    return RegressionProblem(truth["X"].unsqueeze(-1), truth["y"], prior, mean=0.0)


def run(problem, evaluations, search, seed):
    return marginalize(problem, Budget(evaluations), search, generator=seeded(seed))


def rms(values):
    return float(torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in values]).square().mean().sqrt())


def test_the_evidence_from_sixty_evaluations(problem, truth):
    """Root mean square error of the log evidence over twelve designs: at most 0.1."""
    found = [run(problem, 60, SOBOL, seed) for seed in range(NUM_DESIGNS)]
    errors = [one.log_evidence - float(truth["log_evidence"]) for one in found]
    assert rms(errors) <= 0.1
    assert abs(np.mean(errors)) <= 0.1
    assert rms([error / one.log_evidence_sd for error, one in zip(errors, found, strict=True)]) < 2.0


@pytest.fixture(scope="module")
def found_with_many(problem):
    return [run(problem, 240, SOBOL, seed) for seed in range(NUM_DESIGNS)]


def test_the_number_of_components_from_240_evaluations(found_with_many, truth):
    """Within four stated standard deviations in every design, and within two in the mean square."""
    scores = [
        (one.posterior_components - truth["posterior_n"]) / one.posterior_components_sd for one in found_with_many
    ]
    assert torch.stack(scores).abs().max() < 4.0
    assert rms(scores) < 2.0
    assert rms([one.posterior_components - truth["posterior_n"] for one in found_with_many]) < 0.03


def test_the_evidence_from_240_evaluations(found_with_many, truth):
    errors = [one.log_evidence - float(truth["log_evidence"]) for one in found_with_many]
    assert rms(errors) <= 0.05
    scores = [error / one.log_evidence_sd for error, one in zip(errors, found_with_many, strict=True)]
    assert rms(scores) < 2.0
    assert np.abs(scores).max() < 4.0


def test_predictions_from_240_evaluations(found_with_many, truth):
    """Means within four stated standard errors, point by point; variances within a few parts in a hundred."""
    Xs = truth["Xs"].unsqueeze(-1)
    predicted = [one.quadrature.predict(Xs) for one in found_with_many[::2]]  # half of them: a jackknife takes a second
    scores = torch.stack([(one.mean - truth["mean"]) / one.mean_sd for one in predicted])
    assert scores.abs().max() < 4.0
    assert rms(list(scores)) < 2.0
    deviation = truth["var"].sqrt()  # of the targets, noise included
    assert rms([(one.mean - truth["mean"]) / deviation for one in predicted]) < 0.03
    ratios = torch.stack([one.variance / truth["var"] for one in predicted])
    assert rms(list(ratios - 1.0)) < 0.1


def test_positive_weights_from_240_evaluations(found_with_many, truth):
    """The mixture that the model is made of, which interpolates nothing: less exact, and free of bias that matters."""
    Xs = truth["Xs"].reshape(-1, 1, 1)
    deviation = truth["var"].sqrt()
    posteriors = [one.model().posterior(Xs, observation_noise=True) for one in found_with_many]
    assert rms([(one.mean.flatten() - truth["mean"]) / deviation for one in posteriors]) < 0.06
    assert rms([one.variance.flatten() / truth["var"] - 1.0 for one in posteriors]) < 0.2


def test_the_evidence_under_another_policy(problem, truth):
    """What chooses points by what they tell of the evidence does not bias it."""
    policy = InformationPolicy(AcquisitionOptimizer(raw_samples=16, max_iterations=4, num_sizes=1), num_nodes=32)
    search = Search(policy, initial_share=0.5, batch_size=10)
    found = [run(problem, 60, search, seed) for seed in range(3)]
    errors = [one.log_evidence - float(truth["log_evidence"]) for one in found]
    assert rms(errors) <= 0.15
    assert rms([error / one.log_evidence_sd for error, one in zip(errors, found, strict=True)]) < 2.5
