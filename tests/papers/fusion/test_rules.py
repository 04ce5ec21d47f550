"""Rules with fixed weights against golden numbers, closed forms of their limits, and bad input."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.fusion.experts import ExpertPredictions
from gp_ensembles.papers.fusion.pools import log_linear_pool
from gp_ensembles.papers.fusion.rules import EntropyWeights, EqualWeights, GivenWeights, ProductOfExperts, fuse
from tests.papers.fusion.cases import F64, close, seeded, spoil

RULES = {
    "poe": ProductOfExperts(),
    "gpoe_uniform": ProductOfExperts(EqualWeights()),
    "gpoe_diff_entropy": ProductOfExperts(EntropyWeights()),
    "gpoe_diff_entropy_normalised": ProductOfExperts(EntropyWeights(normalized=True)),
}


def number(value):
    return torch.tensor(value, dtype=F64)


def some_predictions(K=3, N=5, seed=0):
    """Experts with variances that rise from first to last, none above the prior variance of 2."""
    generator = seeded(seed)
    mean = torch.randn(K, N, dtype=F64, generator=generator)
    variance = 1.5 - torch.rand(K, N, dtype=F64, generator=generator).cumsum(0) * 1.4 / K
    return ExpertPredictions(mean, variance, torch.full((K, 1), 0.2, dtype=F64))


PRIOR = number(2.0)


def test_golden(archive):
    numbers = archive("fusion_fixed_weight_rules")
    for name, rule in RULES.items():
        found = rule.combine(numbers["mu"].mT, numbers["var"].mT, numbers["prior_var"])
        close(found.mean, numbers[f"{name}_mean"])
        close(found.variance, numbers[f"{name}_var"])


def test_contract():
    predictions = some_predictions()
    for rule, space in product(RULES.values(), ("f", "y")):
        fused = fuse(predictions, rule, space=space, prior_variance=PRIOR)
        assert fused.mean.shape == fused.variance.shape == (5,)
        assert fused.mean.dtype == F64
        assert bool((fused.variance > 0).all())
        # Rows are by themselves.
        part = ExpertPredictions(predictions.mean[:, 2:3], predictions.variance[:, 2:3], predictions.noise)
        close(fuse(part, rule, space=space, prior_variance=PRIOR).mean, fused.mean[2:3])
        # Units: y in other units gives the same, in other units.
        scaled = ExpertPredictions(3 * predictions.mean, 9 * predictions.variance, 9 * predictions.noise)
        other = fuse(scaled, rule, space=space, prior_variance=9 * PRIOR)
        close(other.mean, 3 * fused.mean)
        close(other.variance, 9 * fused.variance)


@settings(max_examples=20)
@given(name=st.sampled_from(sorted(RULES)), seed=st.integers(0, 10**6), K=st.integers(1, 5))
def test_order_of_experts_does_not_matter(name, seed, K):
    predictions = some_predictions(K, 3, seed)
    order = torch.randperm(K, generator=seeded(seed))
    shuffled = ExpertPredictions(*(part[order] for part in predictions))
    one, other = (fuse(p, RULES[name], space="f", prior_variance=PRIOR) for p in (predictions, shuffled))
    close(one.mean, other.mean)
    close(one.variance, other.variance)


def test_one_expert_stays_as_it_is():
    predictions = some_predictions(1)
    for space, name in product(("f", "y"), set(RULES) - {"gpoe_diff_entropy"}):
        fused = fuse(predictions, RULES[name], space=space, prior_variance=PRIOR)
        close(fused.mean, predictions.mean[0])
        close(fused.variance, predictions.target_variance[0])


def test_products_are_log_linear_pools():
    predictions = some_predictions()
    log_weights = number([-1.0, 0.5, -0.3])
    pool = log_linear_pool(predictions.mean, predictions.target_variance, log_weights)
    fused = fuse(predictions, ProductOfExperts(GivenWeights(log_weights)), space="y")
    close(fused.mean, pool.mean)
    close(fused.variance, pool.variance)
    y = torch.zeros(5, dtype=F64)
    close(fused.log_prob(y), pool.log_prob(y))
    rows = log_weights[:, None] + torch.arange(5, dtype=F64)
    found = ProductOfExperts(GivenWeights(rows)).combine(predictions.mean, predictions.variance, None)
    close(found.variance, log_linear_pool(predictions.mean, predictions.variance, rows).variance)


def test_far_from_the_data_entropy_weights_return_to_the_prior():
    far, mean = torch.full((3, 2), 2.0, dtype=F64), torch.full((3, 2), 0.5, dtype=F64)
    found = ProductOfExperts(EntropyWeights(True)).combine(mean, far * (1 + 1e-9), PRIOR)  # round-off is no error
    close(found.variance, far[0], 1e-8)
    close(found.mean, mean[0], 1e-8)
    with pytest.raises(NumericalError, match="fused precision is 0 at row 0: all weights are zero"):
        ProductOfExperts(EntropyWeights()).combine(mean, far, PRIOR)


def test_spaces():
    predictions = some_predictions()
    f = fuse(predictions, ProductOfExperts(), space="f")
    close(f.variance, 1 / (1 / predictions.variance).sum(0) + 0.2)
    y = fuse(predictions, ProductOfExperts(), space="y")
    close(y.variance, 1 / (1 / (predictions.variance + 0.2)).sum(0))
    by_entropy = ProductOfExperts(EntropyWeights())
    expected = by_entropy.combine(predictions.mean, predictions.target_variance, number(2.2))
    close(fuse(predictions, by_entropy, space="y", prior_variance=PRIOR).variance, expected.variance)
    close(fuse(predictions, ProductOfExperts(), space="f", noise=number(1.0)).variance, f.variance + 0.8)
    noises = predictions._replace(noise=number([[0.1], [0.2], [0.6]]))
    close(fuse(noises, ProductOfExperts(), space="f").variance, f.variance + 0.1)


def test_bad_predictions():
    good = some_predictions()
    for change, message in [
        ({"variance": spoil(good.variance, (1, 2), 0.0)}, "expert 1 has 0 at row 2"),
        ({"variance": spoil(good.variance, (0, 3), -0.1)}, "expert 0 has -0.1 at row 3"),
        ({"variance": good.variance[:2]}, "same shape"),
        ({"mean": spoil(good.mean, (2, 4), torch.nan)}, "expert 2 has nan at row 4"),
        ({"noise": -good.noise}, "noise variances must be finite and not negative"),
        ({"noise": good.noise[:2]}, r"one per expert has shape \(K, 1\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            fuse(good._replace(**change), ProductOfExperts(), space="f")


def test_bad_choices():
    predictions, by_entropy = some_predictions(), ProductOfExperts(EntropyWeights())
    batch = ExpertPredictions(*(part.expand(2, *part.shape) for part in predictions))
    few = ProductOfExperts(GivenWeights(torch.zeros(3, 4, dtype=F64)))
    for given_, rule, choices, message in [
        (predictions, ProductOfExperts(), {"space": "latent"}, '"f", the function, or "y"'),
        (predictions, by_entropy, {}, "need a prior"),
        (predictions, by_entropy, {"prior_variance": number(-1.0)}, "variance must be positive"),
        (predictions, by_entropy, {"prior_variance": number(0.1)}, r"of expert 0 at row \d.* above the prior's"),
        (predictions, few, {}, r"\(K, N\) = \(3, 5\)"),
        (batch, ProductOfExperts(), {}, r"shape \(K, N\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            fuse(given_, rule, **({"space": "f"} | choices))
