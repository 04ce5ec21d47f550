"""Predictions of targets: against adaptive quadrature, closed forms, and one another."""

import copy
import math

import mpmath
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, LaplaceLikelihood, StudentTLikelihood

from gp_ensembles.likelihoods import LogPoissonLikelihood, MulticlassLikelihood, ProbitApproximation
from gp_ensembles.likelihoods.classification import LogisticLikelihood
from gp_ensembles.likelihoods.closed_forms import NormalLaplace
from gp_ensembles.likelihoods.predictive import GaussHermite, class_probabilities, num_classes
from gp_ensembles.likelihoods.response import conditional, log_prob

NONE = torch.Size([])
MEAN = torch.tensor([0.3, -2.0, 1.0, 3.0], dtype=torch.float64)
VARIANCE = torch.tensor([0.5, 4.0, 0.01, 1.0], dtype=torch.float64)


def fine_log_predictive(likelihood, mean, variance, y):
    """Trapezoids, which are exact to round-off for integrands this smooth and this fine."""
    u = torch.linspace(-20, 20, 50_001, dtype=torch.float64)
    with torch.no_grad():
        joint = log_prob(likelihood, mean + variance.sqrt() * u, y.expand_as(u)) - 0.5 * u.square()
        return joint.logsumexp(0) + math.log(40 / 50_000) - 0.5 * math.log(2 * math.pi)


def test_log_densities_equal_quadrature(scalar_case):
    """A missing target has none."""
    likelihood = scalar_case.build(NONE)
    for value in scalar_case.legal:
        y = torch.full_like(MEAN, value)
        found = GaussHermite().log_prob(likelihood, MEAN, VARIANCE, y).detach()
        expected = torch.stack([fine_log_predictive(likelihood, *row) for row in zip(MEAN, VARIANCE, y, strict=True)])
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    y = torch.tensor([scalar_case.legal[0], math.nan, scalar_case.legal[1], math.nan], dtype=torch.float64)
    found = GaussHermite().log_prob(likelihood, MEAN, VARIANCE, y).detach()
    assert found.isnan().tolist() == [False, True, False, True]
    alone = GaussHermite().log_prob(likelihood, MEAN[[0]], VARIANCE[[0]], y[[0]])
    torch.testing.assert_close(found[[0]], alone.detach())


def test_moments_equal_quadrature(scalar_case):
    """By trapezoids, which are exact to round-off for integrands this smooth and this fine."""
    likelihood = scalar_case.build(NONE)
    mean, variance = (value.detach() for value in GaussHermite().moments(likelihood, MEAN, VARIANCE))
    u = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    weights = (-0.5 * u.square()).softmax(0)
    for row in range(len(MEAN)):
        with torch.no_grad():
            target = conditional(likelihood, MEAN[row] + VARIANCE[row].sqrt() * u)
            first = float(weights @ target.mean)
            second = float(weights @ (target.variance + target.mean.square()))
        assert float(mean[row]) == pytest.approx(first, rel=1e-6, abs=1e-7)
        assert float(variance[row]) == pytest.approx(second - first**2, rel=1e-5, abs=1e-6)


SHARP = {
    "large counts": (LogPoissonLikelihood(), {}, 1e4),
    "little noise": (GaussianLikelihood(), {"noise": 2e-4}, 1.5),
    "little Laplace noise": (LaplaceLikelihood(), {"noise": 1e-4}, 1.5),
}


@pytest.mark.parametrize("name", SHARP)
def test_sharp_likelihoods_are_resolved(name):
    likelihood, settings, value = SHARP[name]
    likelihood = likelihood.double()
    likelihood.initialize(**{key: torch.tensor(number, dtype=torch.float64) for key, number in settings.items()})
    mean = torch.tensor([0.3, -2.0, 8.0, -8.0, 6.0], dtype=torch.float64)
    variance, y = mean.new_tensor([0.5, 9.0, 1.0, 1.0, 100.0]), torch.full_like(mean, value)
    found = GaussHermite().log_prob(likelihood, mean, variance, y).detach()
    with torch.no_grad():
        peak = math.log(value) if name == "large counts" else value
        grid = peak + torch.linspace(-4, 4, 250_001, dtype=torch.float64)
        density = log_prob(likelihood, grid, torch.full_like(grid, value))
        joint = density - 0.5 * (grid - mean.unsqueeze(-1)).square() / variance.unsqueeze(-1)
        exact = joint.logsumexp(-1) + math.log(3.2e-5) - 0.5 * torch.log(2 * math.pi * variance)
    torch.testing.assert_close(found, exact, rtol=1e-8, atol=2e-6)


def test_a_batch_equals_one_by_one_in_either_precision(scalar_case, take, generator, wrong_default_dtype):
    likelihood = scalar_case.build(torch.Size([3]))
    y = torch.tensor(scalar_case.legal, dtype=torch.float64)
    mean = torch.empty(3, len(y), dtype=torch.float64).normal_(generator=generator)
    variance = mean.square() + 0.1
    has_both = num_classes(likelihood) is not None
    for approximation in (GaussHermite(), ProbitApproximation()) if has_both else (GaussHermite(),):
        together = predictions(approximation, likelihood, mean, variance, y)
        for m in range(3):
            single = take(scalar_case, likelihood, (m,))
            alone = predictions(approximation, single, mean[m], variance[m], y)
            for value, other in zip(together, alone, strict=True):
                assert value.shape == (3, len(y))
                torch.testing.assert_close(value[m], other, rtol=1e-12, atol=1e-13)
    exact, y = scalar_case.build(NONE), torch.full_like(MEAN, scalar_case.legal[0])
    found = predictions(GaussHermite(), copy.deepcopy(exact).float(), MEAN.float(), VARIANCE.float(), y.float())
    assert all(value.dtype == torch.float32 for value in found)
    wanted = predictions(GaussHermite(), exact, MEAN, VARIANCE, y)
    assert all(value.dtype == torch.float64 for value in wanted)
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=1e-4, atol=1e-4)


def predictions(approximation, likelihood, mean, variance, y):
    moments = approximation.moments(likelihood, mean, variance)
    return (approximation.log_prob(likelihood, mean, variance, y), *moments)


def test_class_probabilities_are_the_exponentials_of_log_densities(cases):
    for case in cases.values():
        check_class_probabilities(case.build(NONE))


def check_class_probabilities(likelihood):
    size = num_classes(likelihood)
    vector = type(likelihood) is MulticlassLikelihood or "Softmax" in type(likelihood).__name__
    mean = MEAN.unsqueeze(-1) * MEAN.new_tensor([1.0, 0.5, -1.0, 0.0]) if vector else MEAN
    variance = torch.diag_embed(VARIANCE.unsqueeze(-1) + mean.square()) if vector else VARIANCE
    for approximation in (GaussHermite(), ProbitApproximation()):
        if size is None:
            with pytest.raises(TypeError, match="has no classes; use the mean and variance"):
                approximation.class_probabilities(likelihood, mean, variance)
            continue
        if "Softmax" in type(likelihood).__name__ and type(approximation) is ProbitApproximation:
            with pytest.raises(TypeError, match=r"no probit approximation for SoftmaxLikelihood; use GaussHermite\(\)"):
                approximation.class_probabilities(likelihood, mean, variance)
            continue
        probabilities = approximation.class_probabilities(likelihood, mean, variance)
        assert probabilities.shape == (4, size)
        torch.testing.assert_close(probabilities.sum(-1), torch.ones_like(MEAN), check_dtype=True)
        for label in range(size):
            log_density = approximation.log_prob(likelihood, mean, variance, torch.full_like(MEAN, float(label)))
            torch.testing.assert_close(log_density.exp(), probabilities[:, label])


@pytest.mark.parametrize("y", [0.0, 1.0])
def test_the_probit_link_is_exact(y):
    with mpmath.workdps(40):
        for mean, variance in ((0.7, 2.0), (-30.0, 0.5), (3.0, 400.0)):
            exact = float(mpmath.log(mpmath.ncdf((2 * y - 1) * mean / mpmath.sqrt(1 + variance))))
            tensors = [torch.tensor([value], dtype=torch.float64) for value in (mean, variance, y)]
            for approximation in (GaussHermite(), ProbitApproximation()):
                assert float(approximation.log_prob(BernoulliLikelihood(), *tensors)) == pytest.approx(exact, rel=1e-11)


def test_the_probit_approximation_is_the_papers_formula():
    p = ProbitApproximation().class_probabilities(LogisticLikelihood(), MEAN, VARIANCE)[:, 1]
    torch.testing.assert_close(p, (MEAN / (1 + math.pi * VARIANCE / 8).sqrt()).sigmoid())
    covariance = torch.diag_embed(torch.stack([VARIANCE, 2 * VARIANCE, 3 * VARIANCE], dim=-1)) + 0.1
    mean = torch.stack([MEAN, -MEAN, 0 * MEAN], dim=-1)
    p = ProbitApproximation().class_probabilities(MulticlassLikelihood(3), mean, covariance)
    expected = (mean / (1 + math.pi * covariance.diagonal(dim1=-2, dim2=-1) / 8).sqrt()).softmax(-1)
    torch.testing.assert_close(p, expected)
    # It is near the truth: within two hundredths
    close = GaussHermite().class_probabilities(LogisticLikelihood(), MEAN, VARIANCE)[:, 1]
    torch.testing.assert_close(
        ProbitApproximation().class_probabilities(LogisticLikelihood(), MEAN, VARIANCE)[:, 1], close, rtol=0, atol=0.02
    )


def random_covariance(size, generator, rank=None):
    factor = torch.empty(4, size, rank or size, dtype=torch.float64).normal_(generator=generator)
    return factor @ factor.mT


def test_two_unordered_classes_predict_as_the_logistic_model(generator):
    mean = torch.empty(4, 2, dtype=torch.float64).normal_(generator=generator)
    covariance = random_covariance(2, generator)
    difference = mean[:, 1] - mean[:, 0]
    spread = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    y = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    plain = GaussHermite(num_refinements=0)
    several = GaussHermite().log_prob(MulticlassLikelihood(2), mean, covariance, y)
    torch.testing.assert_close(several, plain.log_prob(LogisticLikelihood(), difference, spread, y))
    several = GaussHermite().class_probabilities(MulticlassLikelihood(2), mean, covariance)
    torch.testing.assert_close(several, plain.class_probabilities(LogisticLikelihood(), difference, spread))


def test_three_classes_equal_quadrature_in_the_plane(generator):
    mean = torch.empty(4, 3, dtype=torch.float64).normal_(generator=generator)
    covariance = random_covariance(3, generator) / 3
    found = GaussHermite().class_probabilities(MulticlassLikelihood(3), mean, covariance)
    u = torch.linspace(-9, 9, 361, dtype=torch.float64)
    grid = torch.cartesian_prod(u, u)
    weights = torch.exp(-0.5 * grid.square().sum(-1))
    differences = mean[:, 1:] - mean[:, :1]
    contrast = torch.tensor([[-1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]], dtype=torch.float64)
    factor = torch.linalg.cholesky(contrast @ covariance @ contrast.mT)
    logits = differences.unsqueeze(1) + grid @ factor.mT
    full = torch.cat([torch.zeros_like(logits[..., :1]), logits], dim=-1).softmax(-1)
    expected = (weights.unsqueeze(-1) * full).sum(1) / weights.sum()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_many_classes_are_near_a_large_sample(generator):
    size = 8
    mean = torch.empty(4, size, dtype=torch.float64).normal_(generator=generator)
    covariance = random_covariance(size, generator) / size
    found = GaussHermite().class_probabilities(MulticlassLikelihood(size), mean, covariance)
    normal = torch.empty(60_000, 1, size, 1, dtype=torch.float64).normal_(generator=generator)
    sample = (mean + (torch.linalg.cholesky(covariance) @ normal).squeeze(-1)).softmax(-1).mean(0)
    torch.testing.assert_close(found, sample, rtol=0, atol=5e-3)


def test_singular_and_equal_covariances_are_legal(generator):
    """Perfectly known latent values predict as the likelihood itself; a prior has equal eigenvalues and a gradient."""
    likelihood = MulticlassLikelihood(3)
    mean = torch.empty(4, 3, dtype=torch.float64).normal_(generator=generator)
    none = mean.new_zeros(4, 3, 3)
    torch.testing.assert_close(GaussHermite().class_probabilities(likelihood, mean, none), mean.softmax(-1))
    rank_one = random_covariance(3, generator, rank=1)
    assert bool(torch.isfinite(GaussHermite().class_probabilities(likelihood, mean, rank_one)).all())
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    prior = torch.diag_embed(scale * torch.ones_like(mean))
    log_density = GaussHermite().log_prob(likelihood, mean, prior, mean.argmax(-1).double())
    (gradient,) = torch.autograd.grad(log_density.sum(), scale)
    assert bool(torch.isfinite(gradient))


def test_unordered_classes_have_the_moments_of_their_indicators(vector_case, generator):
    likelihood = vector_case.build(NONE)
    mean = torch.empty(4, 4, dtype=torch.float64).normal_(generator=generator)
    p, variance = GaussHermite().moments(likelihood, mean, random_covariance(4, generator))
    assert p.shape == (4, 4)
    torch.testing.assert_close(variance, p * (1 - p))


@pytest.mark.parametrize("name", ["log_poisson", "logistic", "student_t"])
def test_gradients_are_those_of_the_expectation(name):
    kinds = {"log_poisson": LogPoissonLikelihood, "logistic": LogisticLikelihood, "student_t": StudentTLikelihood}
    likelihood = kinds[name]().double()
    y = torch.tensor([1.0, 0.0], dtype=torch.float64) * (400.0 if name == "log_poisson" else 1.0)
    mean = MEAN[:2].clone().requires_grad_()
    variance = VARIANCE[:2].clone().requires_grad_()

    def total(m, s):
        return GaussHermite().log_prob(likelihood, m, s, y)

    assert torch.autograd.gradcheck(total, (mean, variance), atol=1e-5, rtol=1e-4)


def test_single_precision_has_moments_of_counts_where_the_outermost_nodes_overflow():
    """Against the moments of a Poisson count whose rate is log-normal; nodes without weight made the variance NaN."""
    mean, variance = torch.tensor([0.0, 2.0]), torch.tensor([4.0, 5.0])
    found_mean, found = GaussHermite().moments(LogPoissonLikelihood(), mean, variance)
    rate = (mean + variance / 2).exp()
    torch.testing.assert_close(found_mean, rate, rtol=1e-3, atol=0)
    torch.testing.assert_close(found, rate + rate**2 * variance.expm1(), rtol=0.05, atol=0)


def test_the_normal_laplace_density():
    loc, variance, scale = (torch.tensor([value], dtype=torch.float64) for value in (0.3, 0.7, 0.2))
    distribution = NormalLaplace(loc, variance, scale)
    grid = torch.linspace(-30, 30, 600_001, dtype=torch.float64)
    density = distribution.log_prob(grid).exp() * 1e-4
    assert float(density.sum()) == pytest.approx(1, abs=1e-10)
    assert float((density * grid).sum()) == pytest.approx(0.3, abs=1e-10)
    assert float((density * (grid - 0.3) ** 2).sum()) == pytest.approx(float(distribution.variance), abs=1e-9)
    for value in (-300.0, 300.0):  # the tail of the Laplace part
        tail = -abs(value - 0.3) / 0.2 + 0.7 / (2 * 0.2**2) - math.log(2 * 0.2)
        found = distribution.log_prob(torch.tensor([value], dtype=torch.float64))
        assert float(found) == pytest.approx(tail, rel=1e-12)
    point = torch.tensor([0.3, 5.0, -5.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(distribution.log_prob, (point,))


def test_what_cannot_be_predicted_is_refused():
    with pytest.raises(TypeError, match=r"no probit approximation for LogPoissonLikelihood; use GaussHermite\(\)"):
        ProbitApproximation().log_prob(LogPoissonLikelihood(), MEAN, VARIANCE, MEAN.abs().floor())
    with pytest.raises(TypeError, match="LogPoissonLikelihood has no classes"):
        class_probabilities(LogPoissonLikelihood(), MEAN)
    for number in (0, 257):
        with pytest.raises(ValueError, match=f"between 1 and 256, got {number}"):
            GaussHermite(number)
    with pytest.raises(ValueError, match="refinements must not be negative"):
        GaussHermite(num_refinements=-1)


def test_expected_log_probabilities_of_counts_are_integrals():
    means, deviations, counts = MEAN[:3], VARIANCE[:3].sqrt(), MEAN.new_tensor([0.0, 3.0, 40.0])
    found = LogPoissonLikelihood().expected_log_prob(counts, MultivariateNormal(means, deviations.square().diag()))
    u = torch.linspace(-12, 12, 20_001, dtype=torch.float64).unsqueeze(-1)
    log_density = torch.distributions.Poisson((means + deviations * u).exp()).log_prob(counts)
    wanted = ((-0.5 * u.square()).softmax(0) * log_density).sum(0)
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=0)
