"""What the paper finds on mixtures of its kind: the order of the models, and the help of further experts."""

import pytest
import torch

from gp_ensembles.papers.fusion import BHS, MAP, PBHS, LaplaceApproximation, MoGPE, PoGPE, fit_fusion
from studies.fusion.sets import expert_source, made_up_mixture, make_priors, split_rows


def score(model, split, predictions=None, inference=None):
    inference = LaplaceApproximation(num_restarts=4, num_draws=100) if inference is None else inference
    fitted = fit_fusion(model, inference, generator=torch.Generator().manual_seed(0))
    return -float(fitted.predict(split.test_X, predictions).log_prob(split.test_y).mean())


@pytest.fixture(scope="module")
def rows():
    return made_up_mixture(1.0, 1000, 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of modes that are none: the order does not need them
@pytest.mark.parametrize("number", [0, 1])
def test_the_papers_order_at_three_experts(rows, number):
    split = split_rows(rows, 0, number)
    priors = make_priors(split.X, 30, 0, number)
    experts = expert_source(split, 0, number)(3)
    stacked = (experts.X, experts.y, experts.predictions, priors.weight)
    mixture = score(MoGPE(split.X, split.y, 3, *priors), split)
    product = score(PoGPE(split.X, split.y, 3, *priors), split)
    stacked_product = score(PBHS(*stacked), split, experts.test)
    stacked_mixture = score(BHS(*stacked), split, experts.test)
    assert split.truth < mixture < product < stacked_product < stacked_mixture


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_more_experts_help_a_mixture(rows):
    split = split_rows(rows, 0, 0)
    priors = make_priors(split.X, 30, 0, 0)
    few, many = (
        score(MoGPE(split.X, split.y, count, *priors), split, inference=MAP(num_restarts=4, max_iterations=300))
        for count in (2, 4)
    )
    assert many < few - 0.1
