"""Thompson samples: functions whose law is the posterior's, and the loop that maximizes them."""

import math

import pytest
import torch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.generation.sampling import MaxPosteriorSampling
from botorch.models.transforms import Log, Normalize
from botorch.sampling.normal import IIDNormalSampler
from botorch.sampling.pathwise import get_matheron_path_model
from torch import Size

from gp_ensembles.bo import EnsembleModel, ThompsonLoop, ThompsonSettings, kernel_ensemble
from gp_ensembles.bo.thompson import draw_paths
from tests.bo.contract_cases import generator

UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


def model(num_outputs=1, seed=0, forgetting=(), **options):
    X = torch.rand(12, 2, generator=generator(seed), dtype=torch.float64)
    Y = 3 + (5 * X.sum(-1, keepdim=True) + torch.arange(num_outputs)).sin()
    parts = kernel_ensemble(X, num_outputs, num_features=24, forgetting=forgetting, generator=generator(seed))
    return EnsembleModel(X, Y, ensemble=parts, **options)


@pytest.mark.parametrize(("num_outputs", "forgetting"), [(1, (0.9,)), (2, ())])
def test_paths_have_the_posteriors_law(num_outputs, forgetting):
    ours = model(num_outputs, forgetting=forgetting, input_transform=Normalize(2, bounds=2 * UNIT))
    points = torch.rand(3, 2, generator=generator(7), dtype=torch.float64)
    paths = draw_paths(ours, Size([20_000]), generator=generator(1))
    values = paths(points) if num_outputs == 1 else paths(points.unsqueeze(-3))  # (S, [O,] n)
    posterior = ours.posterior(points)
    values = values.unsqueeze(-1) if num_outputs == 1 else values.mT
    assert values.shape == (20_000, 3, num_outputs)
    uniform = posterior.cdf(values)
    levels = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    shares = (uniform.unsqueeze(-1) <= levels).double().mean(0)
    assert float((shares - levels).abs().max()) < 4.5 * 0.5 / math.sqrt(20_000)
    centered = values - values.mean(0)
    covariance = torch.einsum("sio,sjo->oij", centered, centered) / 20_000
    torch.testing.assert_close(covariance, posterior.covariance, rtol=0.06, atol=1e-3)


def test_a_path_is_one_function():
    """However it is asked: alone, together, with points of its own for each draw."""
    ours = model()
    paths = draw_paths(ours, Size([4]), generator=generator(2))
    X = torch.rand(3, 4, 5, 2, generator=generator(3), dtype=torch.float64)
    together = paths(X)
    assert together.shape == (3, 4, 5)
    for b in range(3):
        for s in range(4):
            torch.testing.assert_close(paths(X[b, s])[s], together[b, s])
    torch.testing.assert_close(paths(X[0, 0]), paths(X[0, 0].expand(4, 5, 2)))
    assert draw_paths(ours, generator=generator(2))(X[0, 0]).shape == (5,)
    grid = draw_paths(ours, Size([2, 3]), generator=generator(2))
    assert grid(X[0, 0]).shape == (2, 3, 5)
    assert grid(X[:, :1, :1].unsqueeze(0)[..., :2].expand(2, 3, 1, 1, 2).squeeze(2)).shape == (2, 3, 1)


def test_paths_know_outcome_transforms():
    ours = model(outcome_transform=Log())
    points = torch.rand(2, 2, generator=generator(7), dtype=torch.float64)
    values = draw_paths(ours, Size([4000]), generator=generator(1))(points)
    assert bool((values > 0).all())
    torch.testing.assert_close(values.mean(0), ours.posterior(points).mean.squeeze(-1), rtol=0.02, atol=0)


def test_botorchs_own_thompson_samplers_take_the_model():
    ours = model()
    torch.manual_seed(0)
    acquisition = PathwiseThompsonSampling(ours)
    X = torch.rand(5, 3, 2, generator=generator(3), dtype=torch.float64, requires_grad=True)
    value = acquisition(X)
    assert value.shape == (5,)
    torch.autograd.gradcheck(acquisition, (X,))
    deterministic = get_matheron_path_model(ours, Size([3]))
    assert deterministic(X[0]).shape == (3, 3, 1)
    candidates = torch.rand(20, 2, generator=generator(4), dtype=torch.float64)
    chosen = MaxPosteriorSampling(ours)(candidates, num_samples=7)
    assert chosen.shape == (7, 2)
    assert all(bool((candidates == row).all(-1).any()) for row in chosen)


def test_paths_of_fantasies_are_refused():
    fantasies = model().fantasize(UNIT[:1], IIDNormalSampler(Size([2]), seed=0))
    with pytest.raises(UnsupportedError, match="not from a batch of fantasies"):
        draw_paths(fantasies)


def bump(X):
    return -(X - torch.tensor([0.3, 0.6], dtype=X.dtype)).square().sum(-1, keepdim=True)


def test_the_loop_finds_a_maximum_and_goes_on_where_it_stopped():
    settings = ThompsonSettings(num_features=32, raw_samples=64, num_restarts=1, refit_every=6)
    loop = ThompsonLoop(UNIT, settings, generator=generator(0))
    X, Y = loop.run(bump, num_rounds=4, batch_size=2)
    assert X.shape == (6 + 8, 2)
    assert float(Y.max()) > -3e-3
    again, _ = loop.run(bump, num_rounds=1, batch_size=3)
    assert torch.equal(again[:14], X)
    assert len(again) == 17
    other = ThompsonLoop(UNIT, settings, X, Y, generator=generator(1))
    assert (other.suggest(2).shape, len(other.Y)) == ((2, 2), 14)


def test_the_first_points_are_one_low_discrepancy_sequence():
    """Eight points of a scrambled sequence fall into eight different eighths, drawn together or in parts."""
    line = UNIT[:, :1]
    for parts in ((8,), (3, 5)):
        loop = ThompsonLoop(line, ThompsonSettings(num_initial=8), generator=generator(4))
        for size in parts:
            X = loop.suggest(size)
            loop.observe(X, X)
        assert sorted((8 * loop.X.flatten()).floor().tolist()) == list(range(8))


def test_a_plateau_is_no_end():
    loop = ThompsonLoop(UNIT, ThompsonSettings(num_features=16, raw_samples=32, num_restarts=1), generator=generator(0))
    X, Y = loop.run(lambda X: torch.zeros(len(X), dtype=X.dtype), num_rounds=2)
    assert (X.shape, Y.shape) == ((8, 2), (8, 1))


def test_an_interrupted_loop_loses_nothing_it_saw():
    loop = ThompsonLoop(UNIT, ThompsonSettings(num_features=16, raw_samples=32, num_restarts=1), generator=generator(0))
    calls = []

    def objective(X):
        calls.append(X)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return bump(X)

    with pytest.raises(KeyboardInterrupt):
        loop.run(objective, num_rounds=10)
    assert len(loop.Y) == 6 + 2
    loop.run(bump, num_rounds=2)
    assert len(loop.Y) == 10


@pytest.mark.slow
def test_a_drifting_objective_is_followed():
    """The maximum moves from one side to the other; a loop that forgets ends nearer to it."""

    def gap(forgetting):
        settings = ThompsonSettings(num_features=64, forgetting=forgetting, raw_samples=64, num_restarts=1)
        loop = ThompsonLoop(UNIT[:, :1], settings, generator=generator(3))
        losses = []
        for step in range(40):
            center = 0.2 + 0.6 * step / 40
            X = loop.suggest(1)
            Y = -(X - center).square() * 10
            loop.observe(X, Y)
            losses.append(-float(Y))
        return sum(losses[10:])

    assert gap((0.95, 0.8)) < gap(())


def test_bad_bounds_and_observations_are_refused():
    with pytest.raises(BotorchTensorDimensionError, match=r"bounds must have shape \(2, D\)"):
        ThompsonLoop(UNIT[0])
    with pytest.raises(InputDataError, match="lower bounds must lie below"):
        ThompsonLoop(UNIT.flip(0))
    loop = ThompsonLoop(UNIT)
    for bad in (UNIT[0], UNIT.unsqueeze(0), UNIT[:, :1]):
        with pytest.raises(BotorchTensorDimensionError, match="observations must be"):
            loop.observe(bad, torch.zeros(2, 1, dtype=torch.float64))
    with pytest.raises(BotorchTensorDimensionError, match="observations must be"):
        loop.observe(UNIT, torch.zeros(2, 2, dtype=torch.float64))
    with pytest.raises(InputDataError, match="row 1"):
        loop.observe(UNIT, torch.tensor([[0.0], [torch.nan]], dtype=torch.float64))
    with pytest.raises(ValueError, match="at least one point"):
        loop.suggest(0)
    assert len(loop.Y) == 0
