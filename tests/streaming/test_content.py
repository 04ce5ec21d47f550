"""What a model says of itself is a copy: neither it nor a model made from it changes it."""

import copy

import pytest
import torch

from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.streaming import OnlineModel, StreamConfig

WARMUP = 60


def equal(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first.isnan(), second.isnan()) and torch.equal(first.nan_to_num(7.0), second.nan_to_num(7.0))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return first == second


@pytest.mark.parametrize(("preset", "size"), [("light", 1), ("auto", 16)])
def test_models_of_one_content_are_models_of_their_own(preset, size):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(100, 2, generator=generator, dtype=torch.float64)
    y = X[:, 0] + 0.3 * torch.randn(100, generator=generator, dtype=torch.float64)
    X[70, 1] = torch.nan
    model = OnlineModel(StreamConfig(PRESETS[preset], warmup=WARMUP)).fit(X[:WARMUP], y[:WARMUP])
    model.observe(X[WARMUP:68], y[WARMUP:68])
    content = model.content()
    before = copy.deepcopy(content)
    predicted = []
    for one in (model, OnlineModel.from_content(content), OnlineModel.from_content(content)):
        parts = [one.observe(X[k : k + size], y[k : k + size]).mean for k in range(68, 100, size)]
        predicted.append(torch.cat(parts))
        assert equal(content, before)
    assert torch.equal(predicted[0], predicted[1])
    assert torch.equal(predicted[0], predicted[2])
