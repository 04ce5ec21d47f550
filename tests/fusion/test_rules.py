"""Rules with fixed weights against golden numbers, closed forms of their limits, and bad input."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.fusion.experts import ExpertPredictions
from gp_ensembles.fusion.pools import log_linear_pool
from gp_ensembles.fusion.rules import (
    GRBCM,
    Barycenter,
    CommitteeMachine,
    EntropyWeights,
    EqualWeights,
    GivenWeights,
    PriorMoments,
    ProductOfExperts,
    SoftmaxVariance,
    UnitWeights,
    fit_temperature,
    fuse,
)
from gp_ensembles.numerics.cholesky import NumericalError

DTYPE = torch.float64
GOLDEN_RULES = {
    "poe": ProductOfExperts(),
    "gpoe_uniform": ProductOfExperts(EqualWeights()),
    "gpoe_diff_entropy": ProductOfExperts(EntropyWeights()),
    "gpoe_diff_entropy_normalised": ProductOfExperts(EntropyWeights(normalized=True)),
    "gpoe_softmax_variance_T3": ProductOfExperts(SoftmaxVariance(3.0)),
    "bcm": CommitteeMachine(),
    "rbcm": CommitteeMachine(EntropyWeights()),
    "rbcm_normalised": CommitteeMachine(EntropyWeights(normalized=True)),
    "barycentre_w2_uniform": Barycenter(),
    "barycentre_w2_softmax_variance_T3": Barycenter(SoftmaxVariance(3.0)),
}
RULES = GOLDEN_RULES | {"grbcm": GRBCM()}


@pytest.fixture(scope="module")
def numbers(golden):
    with np.load(golden / "fusion_fixed_weight_rules.npz") as archive:
        return {key: torch.tensor(value, dtype=DTYPE) for key, value in archive.items()}


def number(value):
    return torch.tensor(value, dtype=DTYPE)


def close(found, expected, tolerance=1e-10):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def some_predictions(K=3, N=5, seed=0):
    """Experts with variances that rise from first to last, none above the prior variance of 2."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(K, N, dtype=DTYPE, generator=generator)
    variance = 1.5 - torch.rand(K, N, dtype=DTYPE, generator=generator).cumsum(0) * 1.4 / K
    return ExpertPredictions(mean, variance, torch.full((K, 1), 0.2, dtype=DTYPE))


PRIOR = PriorMoments(number(2.0), number(0.5))


@pytest.mark.parametrize("name", GOLDEN_RULES)
def test_golden(numbers, name):
    prior = PriorMoments(numbers["prior_var"], torch.zeros_like(numbers["prior_var"]))
    found = GOLDEN_RULES[name].combine(numbers["mu"].mT, numbers["var"].mT, prior)
    close(found.mean, numbers[f"{name}_mean"])
    close(found.variance, numbers[f"{name}_var"])


def test_golden_communicating_committee(numbers):
    mean = torch.cat([numbers["grbcm_comm_mean"][None], numbers["grbcm_aug_mean"].mT])
    variance = torch.cat([numbers["grbcm_comm_var"][None], numbers["grbcm_aug_var"].mT])
    found = GRBCM().combine(mean, variance, None)
    close(found.mean, numbers["grbcm_mean"])
    close(found.variance, numbers["grbcm_var"])


@pytest.mark.parametrize("name", RULES)
def test_contract(name):
    predictions = some_predictions()
    for space in ("f", "y"):
        fused = fuse(predictions, RULES[name], space=space, prior=PRIOR)
        assert fused.mean.shape == fused.variance.shape == (5,)
        assert fused.mean.dtype == DTYPE
        assert bool((fused.variance > 0).all())
        # Rows are by themselves.
        part = ExpertPredictions(predictions.mean[:, 2:3], predictions.variance[:, 2:3], predictions.noise)
        close(fuse(part, RULES[name], space=space, prior=PRIOR).mean, fused.mean[2:3])
        # Units: y in other units gives the same, in other units.
        scaled = ExpertPredictions(3 * predictions.mean, 9 * predictions.variance, 9 * predictions.noise)
        if not name.endswith("T3"):
            prior = PriorMoments(9 * PRIOR.variance, 3 * PRIOR.mean)
            other = fuse(scaled, RULES[name], space=space, prior=prior)
            close(other.mean, 3 * fused.mean)
            close(other.variance, 9 * fused.variance)


@settings(max_examples=20)
@given(name=st.sampled_from(sorted(GOLDEN_RULES)), seed=st.integers(0, 10**6), K=st.integers(1, 5))
def test_order_of_experts_does_not_matter(name, seed, K):
    predictions = some_predictions(K, 3, seed)
    order = torch.randperm(K, generator=torch.Generator().manual_seed(seed))
    shuffled = ExpertPredictions(*(part[order] for part in predictions))
    one, other = (fuse(p, RULES[name], space="f", prior=PRIOR) for p in (predictions, shuffled))
    close(one.mean, other.mean)
    close(one.variance, other.variance)


@pytest.mark.parametrize("name", sorted(set(RULES) - {"gpoe_diff_entropy", "rbcm"}))
@pytest.mark.parametrize("space", ["f", "y"])
def test_one_expert_stays_as_it_is(name, space):
    predictions = some_predictions(1)
    fused = fuse(predictions, RULES[name], space=space, prior=PRIOR)
    close(fused.mean, predictions.mean[0])
    close(fused.variance, predictions.target_variance[0])


def test_the_committee_is_bayes_on_independent_data():
    """A constant with normal prior, seen by experts through data of their own: the BCM is the exact posterior."""
    generator = torch.Generator().manual_seed(3)
    y, noise = torch.randn(4, 6, dtype=DTYPE, generator=generator), 0.7
    precision = 1 / PRIOR.variance + 6 / noise
    mean = (PRIOR.mean / PRIOR.variance + y.sum(1) / noise) / precision
    found = CommitteeMachine().combine(mean[:, None], (1 / precision).expand(4, 1), PRIOR)
    total = 1 / PRIOR.variance + 24 / noise
    close(found.variance, 1 / total.reshape(1))
    close(found.mean, ((PRIOR.mean / PRIOR.variance + y.sum() / noise) / total).reshape(1))
    # With the first data as the communication expert's, the GRBCM is exact too where it has one other expert.
    first = 1 / PRIOR.variance + 6 / noise
    both = 1 / PRIOR.variance + 12 / noise
    grown = GRBCM().combine(number([[0.0], [1.0]]), torch.stack([1 / first, 1 / both])[:, None], None)
    close(grown.variance, 1 / both.reshape(1))


def test_products_are_log_linear_pools():
    predictions = some_predictions()
    log_weights = number([-1.0, 0.5, -0.3])
    pool = log_linear_pool(predictions.mean, predictions.target_variance, log_weights)
    fused = fuse(predictions, ProductOfExperts(GivenWeights(log_weights)), space="y")
    close(fused.mean, pool.mean)
    close(fused.variance, pool.variance)
    y = torch.zeros(5, dtype=DTYPE)
    close(fused.log_prob(y), pool.log_prob(y))
    rows = log_weights[:, None] + torch.arange(5, dtype=DTYPE)
    close(
        ProductOfExperts(GivenWeights(rows)).combine(predictions.mean, predictions.variance, None).variance,
        log_linear_pool(predictions.mean, predictions.variance, rows).variance,
    )


def test_far_from_the_data_committees_return_to_the_prior():
    far = torch.full((3, 2), 2.0, dtype=DTYPE)
    mean = torch.full((3, 2), 0.5, dtype=DTYPE)
    for rule in (CommitteeMachine(), CommitteeMachine(EntropyWeights()), ProductOfExperts(EntropyWeights(True))):
        found = rule.combine(mean, far * (1 + 1e-9), PRIOR)  # round-off above the prior is no error
        close(found.variance, far[0], 1e-8)
        close(found.mean, mean[0], 1e-8)
    with pytest.raises(NumericalError, match="fused precision is 0 at row 0: all weights are zero"):
        ProductOfExperts(EntropyWeights()).combine(mean, far, PRIOR)
    with pytest.raises(NumericalError, match="sum of weights is 0 at row 0"):
        Barycenter(EntropyWeights()).combine(mean, far, PRIOR)


def test_barycenter_minimizes_transport():
    predictions = some_predictions()
    found = Barycenter().combine(predictions.mean, predictions.variance, None)

    def cost(mean, stddev):
        return ((predictions.mean - mean).square() + (predictions.variance.sqrt() - stddev).square()).mean(0)

    least = cost(found.mean, found.variance.sqrt())
    for a, b in ((1e-3, 0), (-1e-3, 0), (0, 1e-3), (0, -1e-3)):
        assert bool((cost(found.mean + a, found.variance.sqrt() + b) > least).all())


def test_spaces():
    predictions = some_predictions()
    f = fuse(predictions, ProductOfExperts(), space="f")
    close(f.variance, 1 / (1 / predictions.variance).sum(0) + 0.2)
    y = fuse(predictions, ProductOfExperts(), space="y")
    close(y.variance, 1 / (1 / (predictions.variance + 0.2)).sum(0))
    close(
        fuse(predictions, CommitteeMachine(), space="y", prior=PRIOR).variance,
        CommitteeMachine().combine(
            predictions.mean, predictions.target_variance, PriorMoments(number(2.2), PRIOR.mean)
        )[1],
    )
    close(fuse(predictions, ProductOfExperts(), space="f", noise=number(1.0)).variance, f.variance + 0.8)
    noises = predictions._replace(noise=number([[0.1], [0.2], [0.6]]))
    close(fuse(noises, ProductOfExperts(), space="f").variance, f.variance + 0.1)


def spoil(values, at, value):
    values = values.clone()
    values[at] = value
    return values


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variance": lambda p: spoil(p.variance, (1, 2), 0.0)}, "expert 1 has 0 at row 2"),
        ({"variance": lambda p: spoil(p.variance, (0, 3), -0.1)}, "expert 0 has -0.1 at row 3"),
        ({"variance": lambda p: p.variance[:2]}, "same shape"),
        ({"mean": lambda p: spoil(p.mean, (2, 4), torch.nan)}, "expert 2 has nan at row 4"),
        ({"noise": lambda p: -p.noise}, "noise variances must be finite and not negative"),
        ({"noise": lambda p: p.noise[:2]}, r"one per expert has shape \(K, 1\)"),
    ],
)
def test_bad_predictions(change, message):
    good = some_predictions()
    bad = good._replace(**{name: make(good) for name, make in change.items()})
    with pytest.raises(ValueError, match=message):
        fuse(bad, ProductOfExperts(), space="f")


def test_bad_choices():
    predictions = some_predictions()
    with pytest.raises(ValueError, match='"f", the function, or "y"'):
        fuse(predictions, ProductOfExperts(), space="latent")
    for rule in (CommitteeMachine(), ProductOfExperts(EntropyWeights())):
        with pytest.raises(ValueError, match="need a prior"):
            fuse(predictions, rule, space="f")
    with pytest.raises(ValueError, match="variance must be positive"):
        fuse(predictions, CommitteeMachine(), space="f", prior=PriorMoments(number(-1.0), number(0.0)))
    with pytest.raises(ValueError, match=r"variance of expert 0 at row \d.* above the prior's"):
        fuse(predictions, CommitteeMachine(EntropyWeights()), space="f", prior=PriorMoments(number(0.1), number(0.0)))
    with pytest.raises(ValueError, match=r"row 0.* above the communication expert's"):
        GRBCM().combine(torch.zeros(3, 1), torch.tensor([[1.0], [0.5], [2.0]]), None)
    with pytest.raises(ValueError, match=r"\(K, N\) = \(3, 5\)"):
        fuse(predictions, ProductOfExperts(GivenWeights(torch.zeros(3, 4, dtype=DTYPE))), space="f")
    with pytest.raises(ValueError, match="not negative"):
        SoftmaxVariance(-1.0)
    with pytest.raises(ValueError, match=r"shape \(K, N\)"):
        fuse(ExpertPredictions(*(p.expand(2, *p.shape) for p in predictions)), ProductOfExperts(), space="f")
    # Committees with variances that contradict the prior.
    with pytest.raises(NumericalError, match="fused precision is -"):
        CommitteeMachine(UnitWeights()).combine(
            torch.zeros(3, 1), torch.full((3, 1), 9.0), PriorMoments(*torch.ones(2))
        )


def test_temperature_is_the_best():
    generator = torch.Generator().manual_seed(5)
    predictions = some_predictions(3, 200)
    y = predictions.mean[2] + 0.6 * torch.randn(200, dtype=DTYPE, generator=generator)
    y[7] = torch.nan
    for space in ("f", "y"):
        found = fit_temperature(predictions, y, space=space).temperature

        def score(temperature, space=space):
            rule = ProductOfExperts(SoftmaxVariance(temperature))
            return float(fuse(predictions, rule, space=space).log_prob(y).nanmean())

        assert all(score(found) >= score(other) for other in (0.0, *np.logspace(-4, 4, 60).tolist()))
        assert score(found) >= max(score(0.999 * found), score(1.001 * found)) - 1e-12
    barycenter = fit_temperature(predictions, y, Barycenter, space="f")
    assert barycenter.temperature >= 0


def test_temperature_where_it_does_not_matter():
    predictions = some_predictions(1)
    assert fit_temperature(predictions, torch.zeros(5, dtype=DTYPE), space="f").temperature == 0
    for y in (torch.zeros(4, dtype=DTYPE), torch.full((5,), torch.nan, dtype=DTYPE)):
        with pytest.raises(ValueError, match=r"targets must have shape \(5,\)"):
            fit_temperature(predictions, y, space="f")
