"""The ensemble of latent variable models: contracts that hold for every variant, and what a user sees go wrong."""

import copy
import signal
from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.meta_learners import BayesianModelAveraging, MarkovSwitching
from gp_ensembles.meta_learners.switching import sticky_transition
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.gplvm import IEGPLVM, LatentSettings, ie_gplvm
from gp_ensembles.papers.gplvm import model as model_module
from gp_ensembles.papers.gplvm.embed import embed_rows
from gp_ensembles.papers.gplvm.first_rows import filled_from_nearest
from gp_ensembles.papers.gplvm.presets import rbf_features

EXPERTS, LATENT, START = 3, 2, 25


def features(dtype=torch.float64, num_latent=LATENT):
    generator = torch.Generator().manual_seed(0)
    return rbf_features(num_latent, 10, variances=[0.25, 1.0, 4.0], generator=generator, dtype=dtype)


def surface(num_rows, seed=1, dtype=torch.float64):
    """Rows of six entries that are smooth functions of two hidden numbers, with their noise of 0.01."""
    generator = torch.Generator().manual_seed(seed)
    t = 2 * torch.rand(num_rows, 2, generator=generator, dtype=torch.float64) - 1
    u, v = t.unbind(-1)
    rows = torch.stack([u, v, (2 * u).sin(), (2 * v).cos(), u * v, (u + v).exp()], dim=-1)
    return (10 + rows + 0.01 * torch.randn(num_rows, 6, generator=generator, dtype=torch.float64)).to(dtype)


VARIANTS = {
    "static": (None, LatentSettings(batch_iterations=25)),
    "both, small memory": ("sticky", LatentSettings(batch_iterations=25, random_walk_ratio=1e-4, capacity=20)),
}


def build(variant="static"):
    rule, settings = VARIANTS[variant]
    learner = MarkovSwitching(sticky_transition(EXPERTS, stay=0.95).double()) if rule else BayesianModelAveraging()
    return IEGPLVM(features(), 6, learner, settings)


@pytest.fixture(params=VARIANTS, scope="module")
def variant(request):
    return request.param


@pytest.fixture(scope="module")
def template(variant):
    model = build(variant)
    model.start(surface(60)[:START])
    return model


@pytest.fixture
def model(template):
    return copy.deepcopy(template)


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@contextmanager
def refused(model, error, words):
    """A call that fails and leaves the state as it was."""
    before = snapshot(model)
    with pytest.raises(error, match=words):
        yield
    assert same(before, snapshot(model))


@pytest.mark.parametrize(("block_size", "share"), [(1, 0.01), (5, 0.02), (100, 0.02)])
def test_hidden_surfaces_are_found_and_mapped_back(model, block_size, share):
    Y = surface(60)
    seen = model.update(Y[START:], block_size=block_size)
    back = model.inverse_transform(seen.embedding, seen.expert)
    assert float((back.mean - Y[START:]).square().mean(0).sum()) < share * float(Y.var(0).sum())
    torch.testing.assert_close(seen.embedding, seen.by_expert[seen.expert, torch.arange(35)])
    torch.testing.assert_close(seen.log_weights.exp().sum(0), torch.ones(35, dtype=torch.float64))
    assert bool((back.variance > 0).all())
    assert back.variance.shape == Y[START:].shape
    assert int(model.store.num_seen) == 60


def test_calls_may_be_cut_anywhere(model):
    other, Y = copy.deepcopy(model), surface(40)[START:]
    whole = model.update(Y)
    parts = [other.update(rows) for rows in Y.split([1, 6, 8])]
    torch.testing.assert_close(torch.cat([part.embedding for part in parts]), whole.embedding)
    assert torch.equal(torch.cat([part.expert for part in parts]), whole.expert)
    torch.testing.assert_close(torch.cat([part.log_weights for part in parts], dim=1), whole.log_weights)
    torch.testing.assert_close(other.factor, model.factor)


def test_gaps_are_filled_from_the_rest():
    model, Y = build(), surface(120)
    model.start(Y[:50])
    model.update(Y[50:80])
    holes = Y[80:].clone()
    holes[::2, 2] = holes[1::2, 5] = torch.nan
    filled = model.impute(holes)
    missing = torch.isnan(holes)
    assert torch.equal(filled[~missing], Y[80:][~missing])
    assert float((filled - Y[80:])[missing].square().mean()) < 0.03 * float(Y.var(0).mean())
    learned = model.update(holes)
    assert all(bool(part.isfinite().all()) for part in (learned.embedding, model.store.rows, model.mean))


def test_a_saved_state_goes_on_where_it_was_in_a_model_of_its_shape(model, variant):
    Y = surface(50)
    model.update(Y[START:40])
    other = build(variant)
    other.load_state_dict(model.state_dict())
    assert all(map(torch.equal, model.update(Y[40:]), other.update(Y[40:])))
    assert same(snapshot(model), snapshot(other))
    wider = IEGPLVM(rbf_features(LATENT, 12, variances=[0.25, 1.0, 4.0]), 6)
    with refused(model, RuntimeError, "this state_dict belongs to another model"):
        model.load_state_dict(wider.state_dict())


def test_a_row_that_fails_leaves_the_state_as_it_was(model, monkeypatch):
    calls = count(1)

    def failing(*arguments, **options):
        found = embed_rows(*arguments, **options)
        return found._replace(log_prob=found.log_prob * torch.nan) if next(calls) == 4 else found

    monkeypatch.setattr("gp_ensembles.papers.gplvm.embed.embed_rows", failing)
    with refused(model, NumericalError, "row 3 has a log density of nan under expert 0"):
        model.update(surface(40)[START:])


def spoiled(row, column, value):
    Y = surface(30)
    Y[row, column] = value
    return Y


def test_bad_rows_are_refused(model):
    for Y, error, words in [
        (surface(30).float(), TypeError, "torch.float64"),
        (surface(30).tolist(), TypeError, "list"),
        (surface(30)[:, :5], ValueError, r"\(N, 6\)"),
        (spoiled(4, 2, torch.inf), ValueError, "row 4, column 2"),
        (spoiled(7, slice(None), torch.nan), ValueError, "row 7 of Y has no observed entry"),
    ]:
        for method in (model.update, model.transform, model.start):
            with refused(model, error, words):
                method(Y)


def test_a_start_needs_rows_that_differ_and_enough_of_them(model):
    line = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1).expand(-1, 6)
    for Y, words in [
        (spoiled(slice(None), 4, torch.nan), "column 4 has no value in the 30 rows to start from"),
        (surface(2), "2 rows to start from; 2 latent inputs need at least 3"),
        (surface(2)[:0], "0 rows to start from"),
        (line, "vary in 1 directions"),
        (1e200 * (surface(30) - 10), "rescale them"),
        (1e-200 * (surface(30) - 10), "rescale them"),
    ]:
        with refused(model, ValueError, words):
            model.start(Y)


def test_gaps_of_the_first_rows_are_those_of_the_nearest_rows():
    """Compared row by row, in columns of any units."""
    generator = torch.Generator().manual_seed(4)
    Y = torch.randn(12, 4, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 1e3, 1e-2, 1.0]) + 7
    Y[torch.rand(Y.shape, generator=generator) < 0.3] = torch.nan
    z = ((Y - Y.nanmean(0)) / (Y - Y.nanmean(0)).square().nanmean(0).sqrt()).numpy()
    filled = filled_from_nearest(Y)
    assert torch.equal(filled[~Y.isnan()], Y[~Y.isnan()])
    for row, column in Y.isnan().nonzero().tolist():
        distances = [np.nanmean((z[row] - other) ** 2) if not np.isnan(other[column]) else np.inf for other in z]
        assert filled[row, column] == Y[int(np.argmin(distances)), column]
    assert filled_from_nearest(filled) is filled


def circle(number, seed):
    """Rows without noise of a walk on a curve that often stands still."""
    generator = torch.Generator().manual_seed(seed)
    moves = torch.rand(number, generator=generator) > 0.4
    angle = (0.12 * torch.randn(number, generator=generator, dtype=torch.float64) * moves).cumsum(0)[:, None]
    parts = [angle.cos(), angle.sin(), (2 * angle).sin(), (angle + 1).cos(), (2 * angle + 0.5).cos(), (3 * angle).sin()]
    return torch.cat(parts, 1)


@pytest.mark.parametrize(
    ("kind", "share"), [("exact", 0.5), ("rounded", 0.75), ("a constant column", 0.5), ("gaps from the first", 0.5)]
)
def test_rows_without_noise_are_filled_better_than_by_means(kind, share):
    rows = circle(320, 0)
    gaps = torch.rand(rows.shape, generator=torch.Generator().manual_seed(9)) < 0.15
    gaps[:60] &= kind == "gaps from the first"
    if kind == "rounded":
        rows = (rows / 0.05).round() * 0.05
    if kind == "a constant column":
        rows[:, 4] = 3.0
    given = torch.where(gaps, torch.nan, rows)
    model = ie_gplvm(num_outputs=6, generator=torch.Generator().manual_seed(0))
    first = model.start(given[:60])
    model.update(given[60:200], block_size=10)
    filled, means = model.impute(given[200:]), given[:200].nanmean(0).expand(120, -1)
    missing = gaps[200:]
    error, plain = (float((part - rows[200:])[missing].square().mean().sqrt()) for part in (filled, means))
    assert error < share * plain
    assert bool(first.log_prob.isfinite().all())
    if kind == "a constant column":
        assert float((filled[:, 4] - 3.0).abs().max()) < 1e-6


def test_a_model_that_has_not_been_started_says_so():
    model, expert = build(), torch.zeros(1, dtype=torch.int64)
    for call, words in [
        (lambda: model.update(surface(3)), "call start"),
        (lambda: model.transform(surface(3)), "call start"),
        (lambda: model.inverse_transform(torch.zeros(1, 2, dtype=torch.float64), expert), "call start"),
        (lambda: model.best_expert, "not been started"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


def test_wrong_arguments_are_named(model):
    with pytest.raises(ValueError, match="block_size"):
        model.update(surface(30), block_size=0)
    X, expert = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
    for places, experts, error, words in [
        (X[:, :1], expert, ValueError, r"X must have shape \(N, 2\)"),
        (X * torch.nan, expert, ValueError, "nan in row 0"),
        (X, expert + EXPERTS, ValueError, "numbers of experts"),
        (X, 0.5 * expert, TypeError, "expert must be a tensor of torch.int64"),
        (X, [0, 1], TypeError, "expert must be a tensor of torch.int64"),
        (X, 3, TypeError, "expert must be a tensor of torch.int64"),
        (X.float(), expert, TypeError, "X must be a tensor of torch.float64"),
    ]:
        with pytest.raises(error, match=words):
            model.inverse_transform(places, experts)


def test_unfit_settings_and_features_are_refused():
    kernel = RBFKernel(batch_shape=torch.Size([2]))
    for map_, num_outputs, settings, words in [
        (features(), 6, {"latent_variance": 0.0}, "latent_variance"),
        (features(), 6, {"random_walk_ratio": -1.0}, "random_walk_ratio"),
        (features(), 6, {"capacity": 0}, "capacity"),
        (features(), 6, {"row_iterations": 0}, "row_iterations"),
        (features(), 1, {}, "2 latent inputs are more than the 1 entries"),
        (RandomFourierFeatures.from_kernel(RBFKernel(), 2, 10), 6, {}, "one batch axis"),
        (RandomFourierFeatures.from_kernel(kernel + kernel, 2, 10), 6, {}, "one summand"),
    ]:
        with pytest.raises(ValueError, match=words):
            IEGPLVM(map_, num_outputs, settings=LatentSettings(**settings))


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("where", ["update_block", "keep_rows"])
def test_an_interrupted_update_leaves_the_state_as_it_was(model, monkeypatch, where):
    place = model.meta_learner if where == "update_block" else model_module
    original, calls = getattr(place, where), []

    def pressed(*given, **named):
        calls.append(1)
        result = original(*given, **named)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(place, where, pressed)
    with refused(model, KeyboardInterrupt, None):
        model.update(surface(40)[START:])
    assert len(calls) == 3


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_while_a_start_is_written_down_waits_for_its_end(monkeypatch, template, variant):
    model, original = build(variant), model_module.keep_rows

    def pressed(*given, **named):
        signal.raise_signal(signal.SIGINT)
        return original(*given, **named)

    monkeypatch.setattr(model_module, "keep_rows", pressed)
    with pytest.raises(KeyboardInterrupt):
        model.start(surface(60)[:START])
    assert same(snapshot(template), snapshot(model))
