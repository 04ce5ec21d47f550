"""Ordered levels: cut points, links, two levels, tails."""

from functools import partial

import mpmath
import pytest
import torch
from gpytorch.constraints import Positive
from gpytorch.likelihoods import BernoulliLikelihood
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from gp_ensembles.likelihoods import OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Logit, OrdinalCategorical, Probit
from gp_ensembles.likelihoods.response import log_normal_cdf, log_prob
from gp_ensembles.numerics.derivatives import differentiate

LATENT = torch.linspace(-40, 40, 41, dtype=torch.float64)
LINKS = {"probit": (Probit(), mpmath.ncdf), "logit": (Logit(), lambda z: 1 / (1 + mpmath.exp(-z)))}


@pytest.mark.parametrize(
    ("link", "model"), [(Probit(), BernoulliLikelihood()), (Logit(), LogisticLikelihood())], ids=["probit", "logit"]
)
def test_two_levels_are_the_binary_model(link, model):
    likelihood = OrdinalLikelihood(2, link).double()
    assert likelihood.cut_points.tolist() == [0.0]
    for label in (0.0, 1.0):
        y = torch.full_like(LATENT, label)
        binary, ordered = (differentiate(partial(log_prob, one), LATENT, y) for one in (model, likelihood))
        assert_close(log_prob(likelihood, LATENT, y).detach(), log_prob(model, LATENT, y), rtol=1e-12, atol=1e-14)
        assert_close(ordered[0].detach(), binary[0], rtol=1e-11, atol=1e-14)
        assert_close(ordered[1].detach(), binary[1], rtol=1e-8, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("link", LINKS)
@given(center=st.floats(-40, 40), width=st.floats(1e-4, 30))
def test_log_differences_equal_mpmath(link, center, width):
    rule, cdf = LINKS[link]
    lower, upper = center - width / 2, center + width / 2
    with mpmath.workdps(700):  # far out both values are near one
        exact = float(mpmath.log(cdf(mpmath.mpf(upper)) - cdf(mpmath.mpf(lower))))
    found = rule.log_difference(*torch.tensor([lower, upper], dtype=torch.float64))
    # The gap itself is rounded: relative to its size the error in it is the rounding of the two ends.
    assert float(found) == pytest.approx(exact, rel=1e-9, abs=1e-8)


@pytest.mark.parametrize("link", LINKS)
def test_log_distribution_functions_equal_mpmath(link):
    rule, cdf = LINKS[link]
    with mpmath.workdps(700):  # far out the value is near one
        exact = [float(mpmath.log(cdf(mpmath.mpf(z)))) for z in LATENT.tolist()]
    assert_close(rule.log_cdf(LATENT), LATENT.new_tensor(exact), rtol=1e-12, atol=1e-300)


def test_the_log_normal_distribution_function_in_float32():
    exact = log_normal_cdf(LATENT)
    assert_close(log_normal_cdf(LATENT.float()), exact.float(), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("link", LINKS)
def test_probabilities_sum_to_one_and_stay_finite_in_logs(link):
    for num_levels in (2, 3, 7):
        likelihood = OrdinalLikelihood(num_levels, LINKS[link][0]).double()
        levels = torch.arange(num_levels, dtype=torch.float64).unsqueeze(-1)
        values = log_prob(likelihood, LATENT.expand(num_levels, -1), levels)
        assert values.shape == (num_levels, LATENT.shape[0])
        assert bool(torch.isfinite(values).all())
        assert_close(values.logsumexp(0).detach(), torch.zeros_like(LATENT), atol=1e-13, rtol=0)


def test_cut_points_and_scale_can_be_set_and_are_trainable():
    likelihood = OrdinalLikelihood(4, Logit(), torch.Size([2]), Positive()).double()
    cut_points = torch.tensor([[-1.0, 0.5, 0.75], [0.0, 2.0, 9.0]], dtype=torch.float64)
    likelihood.cut_points = cut_points
    likelihood.scale = torch.tensor([[0.5], [3.0]], dtype=torch.float64)
    assert_close(likelihood.cut_points.detach(), cut_points)
    assert_close(likelihood.scale.detach().squeeze(-1), cut_points.new_tensor([0.5, 3.0]))
    shapes = {name: tuple(p.shape) for name, p in likelihood.named_parameters()}
    assert shapes == {"raw_cut_points": (2, 3), "raw_scale": (2, 1)}
    log_prob(likelihood, cut_points.new_zeros(2, 5), cut_points.new_tensor([0, 1, 2, 3, 1])).sum().backward()
    assert all(bool((p.grad != 0).all()) for p in likelihood.parameters())
    fresh = OrdinalLikelihood(4, Logit(), torch.Size([2]), Positive()).double()
    fresh.load_state_dict(likelihood.state_dict())
    assert_close(fresh.cut_points, likelihood.cut_points)


def test_a_fixed_scale_is_one_and_no_parameter():
    likelihood = OrdinalLikelihood(3, Probit())
    assert [name for name, _ in likelihood.named_parameters()] == ["raw_cut_points"]
    assert likelihood.scale.tolist() == [1.0]
    with pytest.raises(ValueError, match="fixed at one; build the likelihood with a scale_constraint"):
        likelihood.scale = torch.ones(1)


def test_bad_cut_points_are_refused_and_change_nothing():
    likelihood = OrdinalLikelihood(3, Probit())
    before = likelihood.cut_points.tolist()
    for cut_points, message in [
        ([0.0, 0.0], "increasing, got"),
        ([1.0, 0.0], "increasing, got"),
        ([0.0, torch.inf], "finite and increasing"),
        ([0.0], "3 levels need 2 cut points on the last axis"),
    ]:
        with pytest.raises(ValueError, match=message):
            likelihood.cut_points = torch.tensor(cut_points)
        assert likelihood.cut_points.tolist() == before


def test_one_level_is_refused():
    with pytest.raises(ValueError, match="at least two levels, got 1"):
        OrdinalLikelihood(1, Probit())


def test_mean_and_variance_of_levels():
    probs = torch.tensor([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]], dtype=torch.float64)
    distribution = OrdinalCategorical(probs=probs)
    assert_close(distribution.mean, probs.new_tensor([1.6, 1.0]))
    assert_close(distribution.variance, probs.new_tensor([0.1 * 1.6**2 + 0.2 * 0.6**2 + 0.7 * 0.4**2, 0]))
