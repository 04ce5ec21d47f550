"""Innovation models on rows given one at a time take numpy: the same as a block, through gaps and gross errors."""

import math

import pytest
import torch
from torch import Tensor

from gp_ensembles.innovations import InnovationModel
from gp_ensembles.innovations.bank import InnovationBank

MODELS = (
    (InnovationModel(degrees_of_freedom=8, rate=0.05), InnovationModel(degrees_of_freedom=8, rate=0.05, width=0.1)),
    (InnovationModel(degrees_of_freedom=math.inf), InnovationModel(degrees_of_freedom=5, autoregressive=False)),
    (InnovationModel(degrees_of_freedom=math.inf, autoregressive=False),),
)


def moments(number: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(3, number, generator=generator, dtype=torch.float64)
    variance = 0.1 + torch.rand(3, number, generator=generator, dtype=torch.float64)
    y = 0.3 * torch.randn(number, generator=generator, dtype=torch.float64).cumsum(0)
    y[20:21] = 1e8
    return mean, variance, y


@pytest.mark.parametrize("models", MODELS)
@torch.no_grad()
def test_rows_one_at_a_time_are_the_block(models: tuple[InnovationModel, ...]) -> None:
    bank, (mean, variance, y) = InnovationBank(models), moments()
    missing = torch.zeros(60, dtype=torch.bool)
    missing[30:33] = missing[40] = True
    after, block = bank.update_block(bank.init(3, mean), mean, variance, y, missing=missing)
    state, parts = bank.init(3, mean), []
    for row in range(60):
        one = slice(row, row + 1)
        gap = missing[one] if bool(missing[row]) else None
        before = [part.clone() for part in state]
        following, part = bank.update_block(state, mean[:, one], variance[:, one], y[one], missing=gap)
        assert all(torch.equal(old, new) for old, new in zip(before, state, strict=True))
        state = following
        parts.append(part)
    for name, value in block._asdict().items():
        rows = torch.cat([getattr(part, name) for part in parts], -1)
        torch.testing.assert_close(rows, value, rtol=1e-11, atol=1e-11, equal_nan=True)
    torch.testing.assert_close(state, after, rtol=1e-11, atol=1e-11)


def test_one_row_is_torch_where_derivatives_are_wanted_or_numbers_are_single() -> None:
    bank, (mean, variance, y) = InnovationBank(MODELS[0]), moments(1)
    start = bank.init(3, mean)
    _, of_torch = bank.update_block(start, mean.requires_grad_(), variance, y)
    assert of_torch.log_prob.requires_grad
    with torch.no_grad():
        _, of_numpy = bank.update_block(start, mean, variance, y)
        _, single = bank.update_block(bank.init(3, mean.float()), mean.float(), variance.float(), y.float())
        several = torch.stack([y, y + 1])
        mapped = torch.func.vmap(lambda one: bank.update_block(start, mean, variance, one)[1].log_prob)(several)
    assert single.log_prob.dtype == torch.float32
    torch.testing.assert_close(of_numpy.log_prob, of_torch.log_prob)
    torch.testing.assert_close(single.log_prob.double(), of_numpy.log_prob, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mapped[0], of_numpy.log_prob)
