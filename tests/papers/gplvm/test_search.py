"""Searches for the nearest row: what an index finds against what is there, and that it never answers with old rows."""

import copy

import pytest
import torch

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.gplvm import IEGPLVM, LatentSettings
from gp_ensembles.papers.gplvm.neighbors import FaissSearch, keep_rows, nearest_rows, row_store
from gp_ensembles.papers.gplvm.presets import rbf_features

pytest.importorskip("faiss", reason="the extra faiss is not installed")


def clustered(num_rows, seed=0, size=8):
    source = torch.Generator().manual_seed(seed)
    centers = 3 * torch.randn(20, size, generator=source, dtype=torch.float64)
    which = torch.randint(20, (num_rows,), generator=source)
    return centers[which] + 0.5 * torch.randn(num_rows, size, generator=source, dtype=torch.float64)


def filled(num_rows, capacity, search=None):
    """A store of rows and a search with an index of them; one that searches all cells if none is given."""
    search = FaissSearch(num_probes=10_000, least=100) if search is None else search
    rows = clustered(num_rows)
    store = row_store(rows, capacity, rows.shape[1], (1, 1))
    for block in rows.split(500):
        kept = keep_rows(store, block, block.new_zeros(len(block), 1, 1), seed=0)
        search.written(kept.slots)
        search.nearest(store, block[:3])  # so that there is an index to keep up to date
    return store, search


def embedded(search):
    features = rbf_features(2, 10, variances=[0.5, 0.5], generator=torch.Generator().manual_seed(0))
    settings = LatentSettings(capacity=150, batch_iterations=20, row_iterations=10)
    return IEGPLVM(features, 8, settings=settings, search=search)


def indexed():
    return embedded(FaissSearch(num_probes=1000, least=60))


def is_exact(search, store, wanted, count=1):
    return torch.equal(search.nearest(store, wanted, count), nearest_rows(store, wanted, count))


def test_all_cells_searched_is_exact():
    wanted = clustered(200, seed=1)
    for capacity, count in ((5000, 1), (2000, 5)):
        store, search = filled(3000, capacity)
        assert is_exact(search, store, wanted, count)
    search.written(nearest_rows(store, wanted, 9).flatten())  # more than the index has to spare are compared anew
    assert is_exact(search, store, wanted, 5)


def test_one_search_for_two_models_is_a_search_each_and_a_new_start_forgets_the_index():
    search, Y = FaissSearch(num_probes=1000, least=60), clustered(400)
    models = [embedded(search) for _ in range(2)]
    for first in (0, 100):
        for model, rows in zip(models, Y[first : first + 200].split(100), strict=True):
            model.start(rows)
            model.transform(rows[:3])
        assert all(is_exact(model.search, model.store, Y[300:]) for model in models)


def test_rows_that_were_overwritten_are_never_found_and_new_ones_are():
    store, search = filled(9000, 1500)  # a reservoir: most slots have been written several times
    wanted = clustered(200, seed=2)
    assert is_exact(search, store, wanted)
    store.rows.add_(100.0)
    store.size.copy_(store.rows.square().sum(-1))
    search.written(torch.arange(1500))  # all candidates are stale now
    assert is_exact(search, store, wanted)


def test_few_rows_and_rows_with_gaps_are_compared_one_by_one():
    search, wanted = FaissSearch(num_probes=1, least=100), clustered(20, 1)
    store, _ = filled(90, 100, search)
    assert is_exact(search, store, wanted)
    store, _ = filled(2000, 2000, search)
    wanted[3, 2] = torch.nan
    assert is_exact(search, store, wanted)


def test_numbers_out_of_range_are_named():
    for numbers in ((0, 10), (1, 0)):
        with pytest.raises(ValueError, match="num_probes and least"):
            FaissSearch(*numbers)


def test_a_model_embeds_the_same_with_an_exhaustive_index():
    Y = clustered(260)
    models = embedded(None), indexed()
    for model in models:
        model.start(Y[:50])
    exact, found = (model.update(Y[50:250], block_size=20) for model in models)
    torch.testing.assert_close(found.embedding, exact.embedding, rtol=1e-9, atol=1e-9)
    # A rejected call and a loaded state leave no old index behind.
    broken = Y[200:].clone()
    broken[40] = 1e200
    with pytest.raises(NumericalError, match="row 40"):
        models[1].update(broken)
    fresh = indexed()
    fresh.start(Y[60:120])
    fresh.update(Y[120:200])
    fresh.load_state_dict(models[1].state_dict())
    for model in (models[1], copy.deepcopy(models[1]), fresh):
        later = model.transform(Y[250:])
        torch.testing.assert_close(later.embedding, models[0].transform(Y[250:]).embedding, rtol=1e-9, atol=1e-9)
