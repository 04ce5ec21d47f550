"""Figure 7: its error against other code, its rows by their definition, scores of runs."""

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import KNeighborsClassifier

from gp_ensembles.data import Table
from gp_ensembles.papers.gplvm import LatentSettings
from gp_ensembles.papers.sparse import VFE, SparseGP
from studies.harness.experiment import Choices
from studies.harness.sources import Sources
from studies.ie_gplvm import methods
from studies.ie_gplvm import study as gplvm
from studies.ie_gplvm.map_model import collapsed_bound
from studies.ie_gplvm.neighbors import neighbor_error
from studies.ie_gplvm.sets import latent_sets, shuffled_rows
from tests.studies.sets import read_rows

FAST = ["ie_gplvm", "ie_gplvm_one_space", "pca", "incremental_pca", "kernel_pca"]
OPTIONS = Choices(Sources(None), Path("out"), 2, 60, ["digits"], FAST)
EFFORT = methods.Effort(block_size=27)


def figure(out, folder=None, effort=EFFORT, number=7, **change):
    return gplvm.run(OPTIONS._replace(out=out, sources=Sources(folder), **change), effort, figure=number)


def made_up(num_rows=40, num_columns=4, seed=0, name="oil_flow"):
    """A curve in a few columns, a label that says where on it, and a column that varies late."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.rand(num_rows, 1, generator=generator, dtype=torch.float64)
    rate = torch.arange(1, num_columns + 1, dtype=torch.float64)
    Y = (rate * t).sin() + 0.01 * torch.randn(num_rows, num_columns, generator=generator, dtype=torch.float64)
    return Table(Y, (3 * t[:, 0]).floor(), tuple(f"y{j}" for j in range(num_columns)), "label", name)


@pytest.fixture(scope="module")
def rows():
    return shuffled_rows(made_up(60), 0.2, 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Ensembles that are good enough for tests of everything around them."""
    monkeypatch.setattr(methods, "NUM_FREQUENCIES", 8)
    few = partial(LatentSettings, batch_iterations=8, row_iterations=8)
    monkeypatch.setattr(methods, "LatentSettings", few)


@pytest.fixture
def plain(monkeypatch):
    """No picture, where it is not what is tested."""
    monkeypatch.setattr(gplvm, "draw_embeddings", lambda *arguments, **options: None)


@settings(max_examples=40)
@given(st.integers(0, 2**31 - 1), st.integers(2, 70), st.integers(1, 4))
def test_the_error_is_brute_force_s(seed, num_rows, num_classes):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    label = torch.randint(num_classes, (num_rows,), generator=generator)
    wrong = 0
    for i in range(num_rows):
        others = [j for j in range(num_rows) if j != i]
        nearest = min(others, key=lambda j: (math.dist(X[i].tolist(), X[j].tolist()), j))
        wrong += int(label[nearest] != label[i])
    assert neighbor_error(X, label) == pytest.approx(wrong / num_rows)


def test_the_error_is_scikit_learn_s_leave_one_out_on_more_than_a_block():
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(1200, 2, generator=generator, dtype=torch.float64)
    label = (X[:, 0] + 0.5 * torch.randn(1200, generator=generator, dtype=torch.float64) > 0).long()
    # The nearest of all is the row itself, so the second one counts.
    found = KNeighborsClassifier(2).fit(X.numpy(), label.numpy()).kneighbors(X.numpy(), return_distance=False)
    assert neighbor_error(X, label) == pytest.approx(float((label[found[:, 1]] != label).double().mean()))


def test_far_places_do_not_round_the_error_away():
    X = torch.tensor([[0.0], [1e-6], [1.0], [1.0 + 1e-6]], dtype=torch.float64) + 1e6
    assert neighbor_error(X, torch.tensor([0, 0, 1, 1])) == 0.0


def test_columns_that_are_constant_at_the_start_are_left_out():
    table = made_up(100)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    table.X[:, 1] = 3.0
    table.X[:, 3] = 0.0
    table.X[order[50], 3] = 1.0  # varies, but later than the start
    found = shuffled_rows(table, 0.1, 0)
    torch.testing.assert_close(found.Y, table.X[order][:, [0, 2]])
    assert found.num_dropped == 2
    table.X[:, 0] = 1.0
    with pytest.raises(ValueError, match="fewer than two columns vary in the first 10 rows of seed 0"):
        shuffled_rows(table, 0.1, 0)


def test_gamma_is_by_the_median_squared_distance(rows):
    distance = pairwise_distances(rows.Y.numpy())[np.triu_indices(60, 1)]
    # Torch's median of an even number is the lower of the middle two.
    middle = np.sort(distance**2)[(len(distance) - 1) // 2]
    assert methods.median_gamma(rows.Y) == pytest.approx(0.5 / middle)


def test_the_bound_of_places_is_the_sum_of_the_bounds_of_the_columns():
    Y = made_up(60).X
    X, Z, logs = Y[:, :2], Y[::8, :2], torch.tensor([0.5, 1.7, 0.04], dtype=torch.float64).log()
    total = torch.zeros((), dtype=torch.float64)
    for y in Y.T:
        covariance, likelihood = ScaleKernel(RBFKernel()).double(), GaussianLikelihood().double()
        covariance.base_kernel.lengthscale, covariance.outputscale, likelihood.noise = logs.exp().tolist()
        total += SparseGP(X, y, Z, covariance, likelihood, ZeroMean(), approximation=VFE, nugget=1e-6).objective()
    torch.testing.assert_close(collapsed_bound(X, Z, logs, Y), total.detach(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("run", [name for name in methods.RUNS if name != "umap"])
def test_every_run_is_a_function_of_its_seed(rows, run):
    task = methods.LatentTask(rows, 1, methods.Effort(block_size=16, iterations=3))
    first, again = methods.RUNS[run](task), methods.RUNS[run](task)
    readings = {method.reading for method in methods.METHODS.values() if method.run == run}
    assert set(first.embeddings) == readings
    for reading in readings:
        assert first.embeddings[reading].shape == (60, 2)
        assert first.embeddings[reading].dtype == torch.float64
        assert torch.equal(first.embeddings[reading], again.embeddings[reading])
    if run == "ie_gplvm":
        other = methods.RUNS[run](task._replace(seed=2))
        assert not torch.equal(first.embeddings["embedding"], other.embeddings["embedding"])


def test_scores_are_those_of_the_runs(tmp_path, plain):
    text = figure(tmp_path)
    rows = read_rows(tmp_path / "figure_7.csv")
    assert len(rows) == 2 * len(FAST)
    table = latent_sets(OPTIONS)[0]["digits"]
    for row in rows:
        method, seed = methods.METHODS[row["method"]], int(row["seed"])
        start = shuffled_rows(table, 0.1, seed, 60)
        again = methods.RUNS[method.run](methods.LatentTask(start, seed, EFFORT)).embeddings[method.reading]
        assert float(row["error"]) == neighbor_error(again, start.label)
        assert (row["num_start"], int(float(row["columns"]))) == ("6.0", start.Y.shape[1])
        assert row["rows_come"] == ("online" if method.online else "all at once")
    content = json.loads((tmp_path / "figure_7.json").read_text())
    for line in content["rows"]:
        errors = [float(row["error"]) for row in rows if row["method"] == line["method"]]
        assert line["error_median"] == pytest.approx(sum(errors) / 2)
        assert (line["error_lowest"], line["error_highest"]) == (min(errors), max(errors))
        assert f"{50 * sum(errors):.1f}" in next(
            row for row in text.splitlines() if row.split()[:2] == ["digits", line["method"]]
        )
    assert content["block_size"] == 27
