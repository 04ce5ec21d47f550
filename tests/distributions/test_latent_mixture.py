"""Mixtures of classes and counts: targets that cannot be, shapes, ends, several rows of targets."""

import itertools
import math

import pytest
import torch
from gpytorch.likelihoods import NegativeBinomialLikelihood, PoissonLikelihood, StudentTLikelihood

from gp_ensembles.distributions.latent_mixture import LatentMixture, Response
from gp_ensembles.likelihoods import LogPoissonLikelihood, MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Probit
from gp_ensembles.likelihoods.predictive import GaussHermite

F64 = torch.float64
N = 5
LIKELIHOODS = {
    "logistic": LogisticLikelihood,
    "ordinal": lambda: OrdinalLikelihood(4, Probit()),
    "multiclass": lambda: MulticlassLikelihood(3),
    "poisson": LogPoissonLikelihood,
    "softplus poisson": PoissonLikelihood,
    "negative binomial": NegativeBinomialLikelihood,
}
NUM_CLASSES = {"logistic": 2, "ordinal": 4, "multiclass": 3}


def make(likelihood, dtype=F64, by_row=False):
    """Two objects of two and one experts."""
    g = torch.Generator().manual_seed(0)
    log_weights = torch.randn(3, N, generator=g, dtype=F64).log_softmax(0).to(dtype)
    dim = (3,) if isinstance(likelihood, MulticlassLikelihood) else ()
    mean = torch.randn(3, N, *dim, generator=g, dtype=F64).to(dtype)
    variance = torch.rand(3, N, *dim, generator=g, dtype=F64).to(dtype) + 0.1
    likelihood = likelihood.to(dtype)
    responses = tuple(Response(likelihood, GaussHermite(), size, torch.Size([size])) for size in (2, 1))
    log_weights = log_weights if by_row else log_weights[:, 0].log_softmax(0)
    return LatentMixture(log_weights, mean, variance.diag_embed() if dim else variance, responses)


@pytest.fixture(params=LIKELIHOODS, name="name")
def _name(request):
    return request.param


def mixtures(name):
    """With shared weights, and with weights by row."""
    return [make(LIKELIHOODS[name](), by_row=by_row) for by_row in (False, True)]


def levels(name, most=60):
    return torch.arange(NUM_CLASSES.get(name, most), dtype=F64).unsqueeze(-1).expand(-1, N)


def test_distribution_functions_are_sums_of_probabilities(name):
    for mixture in mixtures(name):
        y = levels(name)
        sums = torch.stack([mixture.log_prob(row).exp() for row in y]).cumsum(0)
        torch.testing.assert_close(mixture.log_prob(y).exp().cumsum(0), sums)
        torch.testing.assert_close((mixture.cdf(y), mixture.cdf(y + 0.5)), (sums, sums), rtol=0, atol=1e-7)
        torch.testing.assert_close(mixture.cdf(y.reshape(-1, 1, N))[:, 0], sums, rtol=0, atol=1e-7)
        p = torch.tensor([0.05, 0.5, 0.9], dtype=F64)
        want = (sums < p.reshape(-1, 1, 1)).sum(1).to(F64)
        assert torch.equal(mixture.quantile(p.unsqueeze(-1)), want)
        assert torch.equal(mixture.quantile(0.5), want[1])
        assert torch.equal(mixture.quantile(p[[0, 1, 2, 1, 0]]), want[[0, 1, 2, 1, 0], range(N)])


def test_ends(name):
    for mixture in mixtures(name):
        y = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.5, 1e300], dtype=F64)
        ends = torch.tensor([torch.nan, 1, 0, 0, 1], dtype=F64)
        torch.testing.assert_close(mixture.cdf(y), ends, equal_nan=True, atol=1e-9, rtol=0)
        assert bool(torch.isnan(mixture.cdf(y * torch.nan)).all())
        assert bool(torch.isnan(mixture.log_prob(y * torch.nan)).all())
        lowest, highest = mixture.quantile(0.0), mixture.quantile(1.0)
        assert lowest.tolist() == [0.0] * N
        assert highest.tolist() == [NUM_CLASSES.get(name, math.inf + 1) - 1] * N


def test_impossible_targets_shapes_and_probabilities_are_refused(name):
    for mixture in mixtures(name):
        y = torch.ones(N, dtype=F64)
        for value in (0.5, -1.0, torch.inf, -torch.inf):
            y[0], y[3] = torch.nan, value
            with pytest.raises(ValueError, match=rf"{value:g}.* in row 3"):
                mixture.log_prob(y)
        if name in NUM_CLASSES:
            with pytest.raises(ValueError, match="in row 0"):
                mixture.log_prob(torch.full((N,), float(NUM_CLASSES[name]), dtype=F64))
        for shape, method in itertools.product([(), (1,), (N + 1,), (N, 1)], (mixture.log_prob, mixture.cdf)):
            with pytest.raises(ValueError, match=r"shape \(\.\.\., 5\), one value per row"):
                method(torch.ones(shape, dtype=F64))
        for p in (1.5, math.nan):
            with pytest.raises(ValueError, match="between 0 and 1"):
                mixture.quantile(p)
        with pytest.raises(ValueError, match="must broadcast"):
            mixture.quantile(torch.full((4,), 0.5))


def test_real_targets_have_no_distribution_function():
    mixture = make(StudentTLikelihood())
    for call in (lambda: mixture.cdf(torch.zeros(N, dtype=F64)), lambda: mixture.quantile(0.5), mixture.counts):
        with pytest.raises(TypeError, match="draw samples"):
            call()
    with pytest.raises(TypeError, match="LogisticLikelihood"):
        make(LogisticLikelihood()).counts()


def test_a_light_expert_whose_rate_runs_away_does_not_carry_the_moments():
    weights = torch.tensor([0.6, 0.37, 0.03], dtype=F64)
    latent = torch.tensor([[1.0], [1.5], [26.0]], dtype=F64)
    response = Response(LogPoissonLikelihood(), GaussHermite(), 3, torch.Size([3]))
    found = LatentMixture(weights.log(), latent, torch.full_like(latent, 0.1), (response,))
    others = found._replace(
        log_weights=(weights[:2] / 0.97).log(),
        latent_mean=latent[:2],
        latent_variance=found.latent_variance[:2],
        responses=(response._replace(num_experts=2, batch_shape=torch.Size([2])),),
    )
    torch.testing.assert_close(found.moments(), others.moments())
    heavy = found._replace(log_weights=torch.tensor([0.5, 0.2, 0.3], dtype=F64).log())
    assert float(heavy.mean) > 1e10  # three tenths are not for us to leave out
