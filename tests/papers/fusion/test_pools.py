"""Pools, products and constant weights: golden numbers, extremes from 60-digit arithmetic, integration, bad input."""

import math

import mpmath
import pytest
import torch
from torch.autograd import gradcheck

from gp_ensembles.papers.fusion.experts import ExpertPredictions
from gp_ensembles.papers.fusion.pools import (
    entropy_weights,
    fuse,
    linear_pool,
    pooled_log_prob,
    pooled_normal,
    stacking_weights,
)
from tests.papers.fusion.cases import F64, close, seeded, spoil, without_noise


def experts_first(numbers):
    return numbers["mu"].mT, (2 * numbers["log_sigma"].mT).exp()


def some_experts(K=3, N=4, seed=0):
    generator = seeded(seed)
    mean, spread, log_weights = torch.randn(3, K, N, dtype=F64, generator=generator)
    return mean, spread.square() + 0.1, log_weights


def log_linear_pool(mean, variance, log_weights):
    """The log-linear pool of targets without noise."""
    return fuse(without_noise(mean, variance), log_weights, space="y")


def test_golden_pools(archive):
    pools = archive("fusion_pools")
    mean, variance = experts_first(pools)
    pool = linear_pool(mean, variance, pools["logits"].mT)
    close(pool.mean, pools["linear_mean"])
    close(pool.variance, pools["linear_var"])
    close(pool.log_prob(pools["y"].mT), pools["linear_logpdf"].mT)
    close(pool.cdf(pools["y"].mT), pools["linear_cdf"].mT)
    for name, weights in (("loglinear_simplex", "logits"), ("loglinear", "log_w_unconstrained")):
        log_weights = pools[weights].mT.log_softmax(0) if weights == "logits" else pools[weights].mT
        pool = log_linear_pool(mean, variance, log_weights)
        close(pool.mean, pools[f"{name}_mean"])
        close(pool.variance, pools[f"{name}_var"])
        close(pool.log_prob(pools["y"].mT), pools[f"{name}_logpdf"].mT)


def test_golden_extremes(archive):
    numbers = archive("fusion_pools_extreme")
    mean, variance = experts_first(numbers)
    linear = linear_pool(mean, variance, numbers["log_w"].mT)
    close(linear.log_prob(numbers["y"]), numbers["linear_logpdf_softmax_weights"], 1e-8)
    pool = pooled_normal(numbers["log_w"].mT, mean, 0.5 * variance.log())
    torch.testing.assert_close(pool[0], numbers["loglinear_mean"], rtol=1e-8, atol=1e-40)
    close(pool[1], numbers["loglinear_log_precision"], 1e-8)
    log_prob = pooled_log_prob(pool, numbers["y"])
    torch.testing.assert_close(log_prob, numbers["loglinear_logpdf"], rtol=1e-8, atol=0)


def test_weights_beyond_the_range_of_numbers():
    mean = torch.tensor([[0.0], [3.0]], dtype=F64)
    variance = torch.tensor([[1e-300], [2e-300]], dtype=F64)
    log_weights = torch.tensor([[900.0], [900.0]], dtype=F64)  # w / v overflows
    center, log_precision = pooled_normal(log_weights, mean, 0.5 * variance.log())
    close(center, torch.ones(1, dtype=F64))
    close(log_precision, torch.tensor([900 - math.log(1e-300 / 1.5)], dtype=F64))


def test_a_pool_of_distant_experts_in_40_digits():
    numbers = [[1e6], [1e6 + 1e-3], [1e6 - 2e-3]], [[1e-2], [3e-2], [2e4]], [-1.0, 0.5, 3.0]
    mean, variance, log_weights = (torch.tensor(part, dtype=F64) for part in numbers)
    pool = log_linear_pool(mean, variance, log_weights)
    with mpmath.workdps(40):
        parts = [
            (mpmath.exp(w) / mpmath.mpf(v), mpmath.mpf(m))
            for w, v, m in torch.stack([log_weights, variance[:, 0], mean[:, 0]], 1).tolist()
        ]
        total = sum(share for share, _ in parts)
        assert float(pool.mean) == pytest.approx(float(sum(share * m for share, m in parts) / total), rel=1e-15)
        assert float(pool.variance) == pytest.approx(float(1 / total), rel=1e-14)


def test_gradients():
    mean, variance, log_weights = (v.requires_grad_() for v in some_experts(3, 2))

    def value(mean, variance, log_weights):
        y = mean.new_tensor([0.3, -0.2])
        pool = log_linear_pool(mean, variance, log_weights)
        return pool.log_prob(y), linear_pool(mean, variance, log_weights).log_prob(y)

    assert gradcheck(value, (mean, variance, log_weights))
    assert {part.dtype for part in value(*(part.float() for part in (mean, variance, log_weights)))} == {torch.float32}


def test_bad_input():
    for change, message in [
        (lambda m, v, w: (m, spoil(v, (1, 2), 0.0), w), "expert 1 has 0 at row 2"),
        (lambda m, v, w: (m, spoil(v, (0, 3), -1.0), w), "expert 0 has -1 at row 3"),
        (lambda m, v, w: (m, spoil(v, (0, 3), torch.nan), w), "expert 0 has nan at row 3"),
        (lambda m, v, w: (spoil(m, (2, 0), torch.inf), v, w), "means must be finite: expert 2 has inf at row 0"),
        (lambda m, v, w: (m, v[:, :3], w), "same shape"),
        (lambda m, v, w: (m[:0], v[:0], w[:0]), "at least one expert"),
        (lambda m, v, w: (m, v, w[:, :3]), "log weights must have shape"),
        (lambda m, v, w: (m, v, w[:2]), "log weights must have shape"),
        (lambda m, v, w: (m, v, w[:1]), "log weights must have shape"),
        (lambda m, v, w: (m, v, w.mT), "log weights must have shape"),
        (lambda m, v, w: (m, v, spoil(w, (0, 0), torch.nan)), "NaN or plus infinity"),
        (lambda m, v, w: (m, v, spoil(w, (slice(None), 0), -torch.inf)), "no expert left"),
        (lambda m, v, w: (m.expand(2, 3, 4), v.expand(2, 3, 4), w), r"same shape \(K, N\)"),
    ]:
        for pool in (linear_pool, log_linear_pool):
            with pytest.raises(ValueError, match=message):
                pool(*change(*some_experts()))


def number(value):
    return torch.tensor(value, dtype=F64)


def some_predictions(K=3, N=5, seed=0):
    """Experts with variances that rise from first to last, none above the prior variance of 2."""
    generator = seeded(seed)
    mean = torch.randn(K, N, dtype=F64, generator=generator)
    variance = 1.5 - torch.rand(K, N, dtype=F64, generator=generator).cumsum(0) * 1.4 / K
    return ExpertPredictions(mean, variance, torch.full((K, 1), 0.2, dtype=F64))


def test_golden_products(archive):
    numbers = archive("fusion_fixed_weight_rules")
    predictions, prior = without_noise(numbers["mu"].mT, numbers["var"].mT), numbers["prior_var"]
    for name, log_weights in {
        "poe": 0.0,
        "gpoe_uniform": None,
        "gpoe_diff_entropy": entropy_weights(predictions.variance, prior),
    }.items():
        for space in ("f", "y"):
            found = fuse(predictions, log_weights, space=space)
            close(found.mean, numbers[f"{name}_mean"])
            close(found.variance, numbers[f"{name}_var"])


def test_experts_that_have_learned_nothing_have_no_weight():
    far, mean = torch.full((3, 2), 2.0, dtype=F64), torch.full((3, 2), 0.5, dtype=F64)
    assert bool(entropy_weights(far * (1 + 1e-9), number(2.0)).isneginf().all())  # round-off is no error
    with pytest.raises(ValueError, match="a row has no expert left"):
        fuse(without_noise(mean, far), entropy_weights(far, number(2.0)), space="f")
    for prior, message in ((-1.0, "variance must be positive"), (0.1, r"of expert 0 at row \d.* above the prior's")):
        with pytest.raises(ValueError, match=message):
            entropy_weights(some_predictions().variance, number(prior))


def test_functions_get_the_noise_after_their_product_and_targets_before():
    predictions = some_predictions()
    f, y = (fuse(predictions, 0.0, space=space) for space in ("f", "y"))
    close(f.variance, 1 / (1 / predictions.variance).sum(0) + 0.2)
    close(y.variance, 1 / (1 / (predictions.variance + 0.2)).sum(0))
    noises = predictions._replace(noise=number([[0.1], [0.2], [0.6]]))
    close(fuse(noises, 0.0, space="f").variance, f.variance + 0.1)
    alone = some_predictions(1)
    for space in ("f", "y"):
        close(fuse(alone, space=space).variance, alone.target_variance[0])


def test_bad_products():
    good = some_predictions()
    batch = ExpertPredictions(*(part.expand(2, *part.shape) for part in good))
    for predictions, choices, message in [
        (good._replace(variance=spoil(good.variance, (0, 3), -0.1)), {}, "expert 0 has -0.1 at row 3"),
        (good._replace(noise=-good.noise), {}, "noise variances must be finite and not negative"),
        (good._replace(noise=good.noise[:2]), {}, r"one per expert has shape \(K, 1\)"),
        (batch, {}, r"shape \(K, N\)"),
        (good, {"space": "latent"}, '"f", the function, or "y"'),
        (good, {"log_weights": torch.zeros(3, 4, dtype=F64)}, "log weights must have shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            fuse(predictions, **({"space": "f"} | choices))


def test_golden_stacking(archive):
    numbers = archive("fusion_stacking")
    log_prob = numbers["lpd"].mT
    log_weights = stacking_weights(log_prob)
    torch.testing.assert_close(log_weights.exp(), numbers["weights"], rtol=0, atol=1e-6)
    score = (log_weights[:, None] + log_prob).logsumexp(0).mean()
    assert float(score) == pytest.approx(float(numbers["mean_log_score"]), abs=1e-9)


def test_stacking_needs_experts_and_targets():
    for shape in ((3,), (0, 4), (3, 0), (2, 3, 4)):
        with pytest.raises(ValueError, match="at least one expert and one target"):
            stacking_weights(torch.zeros(shape, dtype=F64))
