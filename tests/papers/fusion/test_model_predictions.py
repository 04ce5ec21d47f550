"""Predictive densities of the fusion models: golden Monte Carlo averages, identities."""

import math
from itertools import product

import pytest
import torch

from gp_ensembles.papers.fusion.function_priors import FourierPrior
from gp_ensembles.papers.fusion.models import BHS, PBHS, HetGP, MoGPE, PoGPE
from tests.papers.fusion.cases import inputs, made_up_experts, without_noise


@pytest.fixture
def averages(archive):
    return archive("fusion_mc_predictive")


EXPERTS = made_up_experts(3, 7)


def models(prior_stddev=None):
    """Each with the predictions of its experts, where those are given."""
    X, y = inputs(7, 2), inputs(7, seed=9).squeeze(-1)
    prior = FourierPrior(inputs(3, 2, seed=1) * 3, 0.5, 1.3, prior_stddev=prior_stddev)
    return [
        (MoGPE(X, y, 3, prior, prior, prior), None),
        (PoGPE(X, y, 3, prior, prior, prior), None),
        (BHS(X, y, EXPERTS, prior), EXPERTS),
        (PBHS(X, y, EXPERTS, prior), EXPERTS),
        (HetGP(X, y, prior, prior), None),
    ]


class Table:
    """Functions that are their coefficients, one for each row: to predict from given values of functions."""

    def __init__(self, like):
        self.log_hyperparameters, self.prior_stddev = like.new_zeros(1), None
        self.num_coefficients = len(like)

    def basis(self, X, hyperparameters=None):
        return torch.eye(X.shape[0], dtype=X.dtype)


def predicted(name, averages):
    """The model on golden values of its functions; axes of the files are draws, rows, experts."""
    X, y = averages["x"].unsqueeze(-1), averages["y"]
    prior = Table(X)
    fixed = without_noise(averages["mu"].mT, (2 * averages["log_sigma"].mT).exp())
    logits, centered = averages["w_tilde_samples"].mT[:, :-1], averages["log_w_samples"].mT + math.log(3)
    weights = {"weights": logits if name in ("bhs", "mogpe") else centered}
    if name in ("bhs", "pbhs"):
        model = (BHS if name == "bhs" else PBHS)(X, y, fixed, prior)
        return model, model.pack(weights), fixed
    model = (MoGPE if name == "mogpe" else PoGPE)(X, y, 3, prior, prior, prior)
    own = {"mean": averages["mu_samples"].mT, "log_scale": averages["log_sigma_samples"].mT}
    return model, model.pack(own | weights), None


@pytest.mark.parametrize("name", ["bhs", "pbhs", "mogpe", "pogpe"])
def test_golden_averages_over_draws(name, averages):
    model, theta, predictions = predicted(name, averages)
    if name in ("bhs", "mogpe"):
        assert float(averages["w_tilde_samples"][..., -1].abs().max()) == 0
    mixture = model.predictive(theta, model.X, predictions)
    torch.testing.assert_close(mixture.log_prob(model.y), averages[f"{name}_logpdf"], rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(mixture.mean, averages[f"{name}_mean"], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(mixture.variance, averages[f"{name}_var"], rtol=1e-10, atol=0)


def test_draws_predict_training_targets_as_they_fit_them(generator):
    """The density at the training inputs is the likelihood: of each draw, and the average of few and of many."""
    for (model, predictions), num in product(models() + models(0.3), (5, 150)):
        theta = model.draw_prior(num, generator=generator)
        log_likelihood = model.log_likelihood(theta)
        for draw in range(2):
            mixture = model.predictive(theta[draw : draw + 1], model.X, predictions)
            torch.testing.assert_close(mixture.log_prob(model.y), log_likelihood[draw], rtol=1e-9, atol=1e-9)
        mixture = model.predictive(theta, model.X, predictions)
        expected = log_likelihood.logsumexp(0) - math.log(num)
        torch.testing.assert_close(mixture.log_prob(model.y), expected, rtol=1e-9, atol=1e-9)
        total = mixture.log_weights.exp().sum(0)
        torch.testing.assert_close(total, torch.ones_like(total))


def test_weights_of_draws(generator):
    """A draw of weight two counts twice; one without weight not at all."""
    weights = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64).log()
    for model, predictions in models():
        theta, X_new = model.draw_prior(3, generator=generator), inputs(7, 2, seed=8)
        one = model.predictive(theta, X_new, predictions, draw_log_weights=weights + 5)
        other = model.predictive(theta[[0, 1, 0]], X_new, predictions)
        torch.testing.assert_close(one.log_prob(model.y), other.log_prob(model.y), rtol=1e-12, atol=1e-12)
