"""Innovation models against plain recursions, one row and one expert at a time."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gp_ensembles.innovations import InnovationModel, recursions
from gp_ensembles.innovations.bank import InnovationBank
from gp_ensembles.numerics.backends import rows_of
from tests.filters.oracles import in_blocks

MODELS = (
    InnovationModel(degrees_of_freedom=4, rate=0.1),
    InnovationModel(degrees_of_freedom=4, rate=0.02, width=0.1),
    InnovationModel(degrees_of_freedom=7, rate=0.0, autoregressive=False),
    InnovationModel(rate=0.05),
    InnovationModel(rate=0.3, autoregressive=False),
)


def oracle(models, mean, variance, y, share=None):
    """Means, variances and log densities (K, N) of one expert by the textbook: floats, row after row."""
    num_rows = len(y)
    scales = [1.0] * len(models)
    product, square, last, age = 0.0, 1.0, 0.0, 0
    found = [[] for _ in range(3)]
    for t in range(num_rows):
        rho = min(max(product / square, -0.2), 1.0)
        noise = (1 - rho**2) / 199  # variance of a coefficient from a memory of 0.99
        rho *= max(0.0, 1 - noise / rho**2) if rho else 0.0
        drift = rho ** (age + 1) * last
        row = [[], [], []]
        for k, model in enumerate(models):
            location = mean[t] + (drift if model.autoregressive else 0.0)
            squared_scale = variance[t] * scales[k] * model.width
            df = model.degrees_of_freedom
            law = stats.norm(location, math.sqrt(squared_scale))
            if not math.isinf(df):
                law = stats.t(df, location, math.sqrt(squared_scale))
            row[0].append(location)
            row[1].append(law.var())
            row[2].append(float("nan") if math.isnan(y[t]) else law.logpdf(y[t]))
        for part, values in zip(found, row, strict=True):
            part.append(values)
        if math.isnan(y[t]):
            age += 1
            continue
        error = y[t] - mean[t]
        for k, model in enumerate(models):
            z = (error - (drift if model.autoregressive else 0.0)) ** 2 / variance[t]
            nu = min(model.degrees_of_freedom, 20.0)
            z = max(z, 1e-6)
            scales[k] *= 1 - model.rate + model.rate * (nu + 1) * z / (nu * scales[k] + z)
        counted = error * (1.0 if share is None else share[t])
        if age == 0:
            product = 0.99 * product + counted * last / variance[t]
            square = 0.99 * square + last**2 / variance[t]
        last, age = counted, 0
    return [torch.tensor(part, dtype=torch.float64).T for part in found]


def stream(seed, num_experts=3, num_rows=40, gaps=()):
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(num_experts, num_rows, generator=generator, dtype=torch.float64)
    variance = 0.1 + torch.rand(num_experts, num_rows, generator=generator, dtype=torch.float64)
    y = torch.randn(num_rows, generator=generator, dtype=torch.float64).cumsum(0)
    y[list(gaps)] = torch.nan
    return mean, variance, y


def run(bank, mean, variance, y, sizes, share=None):
    def learn(state, rows):
        missing, known = y[rows].isnan(), {} if share is None else {"share": share[rows]}
        known |= {"missing": missing} if bool(missing.any()) else {}
        return bank.update_block(state, mean[:, rows], variance[:, rows], y[rows], **known)

    return in_blocks(learn, bank.init(mean.shape[0], mean), sizes)


@pytest.mark.parametrize("gaps", [(), (0, 1, 7, 20, 21, 22, 39)], ids=["whole", "many"])
def test_equals_the_plain_recursion(gaps):
    mean, variance, y = stream(0, num_experts=2, gaps=gaps)
    _, (means, variances, log_prob, df) = run(InnovationBank(MODELS), mean, variance, y, [40])
    for m in range(mean.shape[0]):
        expected = oracle(MODELS, mean[m].tolist(), variance[m].tolist(), y.tolist())
        for got, wanted in zip((means[m], variances[m], log_prob[m]), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11, equal_nan=True)
    assert df[0, :, 0].tolist() == [model.degrees_of_freedom for model in MODELS]


def test_an_outlier_counts_less_in_the_autoregression():
    mean, variance, y = stream(1)
    share = torch.ones_like(y)
    share[11] = 0.01
    _, (means, _, log_prob, _) = run(InnovationBank(MODELS), mean, variance, y, [40], share)
    expected = oracle(MODELS, mean[0].tolist(), variance[0].tolist(), y.tolist(), share.tolist())
    torch.testing.assert_close((means[0], log_prob[0]), (expected[0], expected[2]), rtol=1e-11, atol=1e-11)


def test_one_target_is_the_same_on_arrays_on_tensors_in_vmap_and_in_a_block():
    """A block takes the sums of the autoregression all at once."""
    bank = InnovationBank(MODELS)
    mean, variance, y = stream(0, num_rows=61)
    y[30] = 1e8
    start, _ = run(bank, mean[:, :59], variance[:, :59], y[:59], [59])
    last, pair = slice(59, 60), slice(59, 61)
    _, block = bank.update_block(start, mean[:, pair], variance[:, pair], y[pair])
    kept = [part.clone() for part in start]
    of_arrays, on_arrays = bank.update_block(start, mean[:, last], variance[:, last], y[last])
    assert all(torch.equal(part, old) for part, old in zip(start, kept, strict=True))
    wanted = mean[:, last].clone().requires_grad_()
    of_tensors, on_tensors = bank.update_block(start, wanted, variance[:, last], y[last])
    assert on_tensors.log_prob.requires_grad
    targets = torch.stack([y[last], y[last] + 1])
    mapped, _ = torch.func.vmap(lambda one: bank.update_block(start, mean[:, last], variance[:, last], one))(targets)
    torch.testing.assert_close([*of_arrays, *on_arrays], [*of_tensors, *on_tensors], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close([part[0] for part in mapped], list(of_arrays), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close([part[..., :1] for part in block], list(on_arrays), rtol=1e-11, atol=1e-11)


def test_a_dead_expert_keeps_its_scale_and_gives_nothing_a_chance():
    bank = InnovationBank(MODELS)
    mean, variance, y = stream(4)
    start, _ = run(bank, mean, variance, y, [40])
    dead = torch.tensor([False, True, False])
    broken = mean.masked_fill(dead[:, None], torch.nan)
    after, predictions = bank.update_block(start, broken, variance, y, dead=dead)
    whole, all_of_them = bank.update_block(start, mean, variance, y)
    assert torch.equal(after.scale[:, 1], start.scale[:, 1])
    assert bool(predictions.mean[1].isnan().all())
    assert bool(torch.isneginf(predictions.log_prob[1]).all())
    for m in (0, 2):
        torch.testing.assert_close(predictions.log_prob[m], all_of_them.log_prob[m])
        torch.testing.assert_close(after.scale[:, m], whole.scale[:, m])
    assert all(bool(part.isfinite().all()) for part in after)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_target_whose_square_overflows_leaves_finite_numbers_behind(dtype):
    bank = InnovationBank(MODELS)
    mean, variance, y = (part.to(dtype) for part in stream(6))
    y[10] = 1e30 if dtype == torch.float32 else 1e300
    share = torch.ones_like(y)
    share[10] = 0.0
    state, (means, variances, log_prob, _) = run(bank, mean, variance, y, [40], share)
    assert all(bool(part.isfinite().all()) for part in [*state, means, variances])
    assert bool(log_prob[:, :3].isfinite().all())  # heavy tails give it some chance
    assert bool((state.scale < 1e3).all())


def test_errors_of_three_times_the_size_are_found_out():
    generator = torch.Generator().manual_seed(7)
    mean = torch.zeros(1, 2000, dtype=torch.float64)
    y = 3 * torch.randn(2000, generator=generator, dtype=torch.float64)
    _, (_, variances, log_prob, _) = run(InnovationBank([InnovationModel(rate=0.02)]), mean, mean + 1, y, [2000])
    assert abs(float(variances[0, 0, 200:].mean()) / 9 - 1) < 0.1
    best = torch.distributions.Normal(0.0, 3.0).log_prob(y)
    assert float((best - log_prob[0, 0])[200:].mean()) < 0.02


def test_an_autoregression_of_errors_is_found_out():
    generator = torch.Generator().manual_seed(8)
    noise = torch.randn(3000, generator=generator, dtype=torch.float64)
    y = noise.clone()
    for t in range(1, 3000):
        y[t] = 0.8 * y[t - 1] + noise[t]
    mean = torch.zeros(1, 3000, dtype=torch.float64)
    _, (means, *_) = run(InnovationBank([InnovationModel()]), mean, mean + 1, y, [3000])
    assert float((y - means[0, 0])[200:].square().mean()) < 1.05


def test_new_experts_start_afresh_behind_the_old_ones():
    bank = InnovationBank(MODELS)
    mean, variance, y = stream(9)
    state, _ = run(bank, mean, variance, y, [40])
    grown = bank.grow(state, 2)
    for old, new, fresh in zip(state[:3], grown[:3], bank.init(2, mean)[:3], strict=True):
        assert torch.equal(new, torch.cat([old, fresh], dim=-1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"degrees_of_freedom": 2}, "degrees_of_freedom must be above 2"),
        ({"rate": 1.0}, "rate must be at least 0 and below 1"),
        ({"width": 0.0}, "width must be positive"),
    ],
)
def test_illegal_models_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        InnovationModel(**settings)


def test_equal_models_and_none_are_refused():
    with pytest.raises(ValueError, match="at least one and distinct"):
        InnovationBank([])
    with pytest.raises(ValueError, match="at least one and distinct"):
        InnovationBank([InnovationModel(), InnovationModel()])


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e20), (torch.float64, 1e200)])
def test_errors_that_overflow_do_not_reach_models_that_do_not_follow_them(dtype, size):
    """The sums of the autoregression are no numbers then, and nothing times them is none."""
    bank = InnovationBank([InnovationModel(rate=0.1, autoregressive=False)])
    mean, y = torch.zeros(1, 6, dtype=dtype), torch.ones(6, dtype=dtype)
    y[3:5] = size
    state, predicted = bank.update_block(bank.init(1, mean), mean, mean + 1, y)
    assert predicted.mean.eq(0).all()
    assert bank.predict(state, mean, mean + 1).mean.eq(0).all()


def test_loops_over_experts_are_the_recursions():
    """What numba compiles, here as Python where it is absent."""
    (mean, variance, y), bank, formulas = stream(5), InnovationBank(MODELS), rows_of(recursions)
    start = bank.init(len(mean), mean)
    scale, (product, square), last, age = (part.numpy() for part in start)
    state, found = (scale, product, square, last, age.reshape(1)), []
    for target, *moments in zip(y.tolist(), mean.T.numpy(), variance.T.numpy(), strict=True):
        drift, means, variances = formulas.predict_row(bank.row_constants, state, *moments)
        densities, *after = formulas.learn_row(bank.row_constants, state, *moments, drift, target)
        state = (*after, age.reshape(1))
        found.append([means, variances, densities])
    got = torch.from_numpy(np.array(found)).permute(1, 2, 3, 0)  # (3, M, 1 + K, N)
    own = -0.5 * ((y - mean).square() / variance + variance.log() + math.log(2 * math.pi))
    torch.testing.assert_close(got[:, :, 0], torch.stack([mean, variance, own]))
    for m in range(len(mean)):
        expected = torch.stack(oracle(MODELS, mean[m].tolist(), variance[m].tolist(), y.tolist()))
        torch.testing.assert_close(got[:, m, 1:], expected)
