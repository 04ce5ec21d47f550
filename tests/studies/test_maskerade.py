"""The MASKERADE paper's tables: splits, units and scores by their definitions."""

import json
import math
from pathlib import Path

import pytest
import torch
from scipy.stats import multivariate_normal, norm

from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.data import Table, load_folder
from gp_ensembles.papers.quadrature import RegressionProblem
from gp_ensembles.papers.quadrature.likelihoods import DenseLikelihood
from gp_ensembles.papers.quadrature.low_rank import KnotLikelihood
from gp_ensembles.papers.quadrature.prior import draw_stratified
from gp_ensembles.papers.quadrature.toeplitz import ToeplitzLikelihood
from studies.harness.experiment import Choices
from studies.harness.sources import Sources
from studies.maskerade import sets
from studies.maskerade import study as maskerade
from studies.maskerade.functional_kernel import Grid, LogSpectra, differences, sliced
from studies.maskerade.methods import METHODS, PUBLISHED
from studies.maskerade.predictions import scored
from studies.maskerade.problems import likelihood_of
from studies.maskerade.tables import LAYOUTS
from tests.studies.sets import write_set


def sample_of(folder: Path, name: str) -> sets.Sample:
    found = Sources(folder).find(getattr(sets, name))
    assert found is not None
    return sets.load_sample(found)


def made_up_split(num_rows: int = 30, num_inputs: int = 1) -> sets.Split:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(num_rows, num_inputs, generator=generator, dtype=torch.float64)
    y = (5 * X.sum(-1)).sin() + 0.1 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    table = Table(X, 7 + 3 * y, tuple(f"x{d}" for d in range(num_inputs)), "y", "made up")
    return sets.split_sample(sets.Sample(table, ()), torch.arange(0, num_rows, 5))


def test_solar_blocks_are_the_paper_s():
    rows = sets.BLOCKS.choose(391, 3, 5).tolist()
    assert rows == [start + k for start in (16, 92, 166, 242, 316) for k in range(20)]
    others = sets.BLOCKS.choose(300, 0, 0)
    assert len(others) == 5 * (20 * 300 // 391)  # the same shares of a series of another length
    assert others[0] == round(16 * 300 / 391)


def test_folds_of_a_shuffle_share_all_rows():
    for holdout, folds, shuffles in [(sets.TEN_FOLDS, 10, 1), (sets.FIFTEEN_FOLDS, 5, 3)]:
        seen = []
        for shuffle in range(shuffles):
            parts = [holdout.choose(308, shuffle * folds + fold, 4) for fold in range(folds)]
            assert torch.cat(parts).sort().values.tolist() == list(range(308))
            assert {len(part) for part in parts} <= {308 // folds, 308 // folds + 1}
            seen.append(parts[0].tolist())
        assert len({tuple(rows) for rows in seen}) == shuffles
        assert holdout.choose(308, 0, 5).tolist() != seen[0]
        assert holdout.limit == folds * shuffles


def test_rows_are_scaled_by_the_training_rows_alone():
    X = torch.tensor([[0.0, 5.0, 1.0], [2.0, 5.0, 3.0], [4.0, 5.0, 2.0], [8.0, 6.0, 9.0]], dtype=torch.float64)
    y = torch.tensor([1.0, 2.0, 6.0, 100.0], dtype=torch.float64)
    split = sets.split_sample(sets.Sample(Table(X, y, ("a", "b", "c"), "y", "pump"), ("given",)), torch.tensor([3]))
    assert split.X.tolist() == [[0.0, 0.0], [0.5, 1.0], [1.0, 0.5]]
    assert split.test_X.tolist() == [[2.0, 4.0]]
    unit = math.sqrt(((1 - 3) ** 2 + (2 - 3) ** 2 + (6 - 3) ** 2) / 3)  # population
    assert split.unit == pytest.approx(unit)
    assert split.y.tolist() == pytest.approx([-2 / unit, -1 / unit, 3 / unit])
    assert split.test_y.tolist() == pytest.approx([97 / unit])
    assert split.notes == ("given", "pump: b constant in the training rows and left out")


def test_a_logarithm_is_undone_only_where_the_raw_set_is_absent(tmp_path):
    raw = [0.01, 0.2, 5.0, 62.42]
    logs = torch.tensor(raw, dtype=torch.float64).log()
    rows = [[float(t), float(value - logs.mean())] for t, value in enumerate(logs)]
    write_set(tmp_path / "a", "yacht", ["froude", "y"], rows)
    sample = sample_of(tmp_path / "a", "YACHT")
    torch.testing.assert_close(sample.table.y, torch.tensor(raw, dtype=torch.float64))
    assert "logarithm" in sample.notes[0]
    write_set(tmp_path / "a", "yacht_raw", ["froude", "y"], [[0.0, 3.0], [1.0, 4.0]])
    sample = sample_of(tmp_path / "a", "YACHT")
    assert sample.table.y.tolist() == [3.0, 4.0]
    assert not any("undone" in note for note in sample.notes)


def test_differences_stand_at_the_later_month_and_end_with_the_authors_copy():
    X = torch.tensor([[2020.3], [2020.4], [2020.5], [2020.7]], dtype=torch.float64)
    table = sets.differences(Table(X, torch.tensor([1.0, 3.0, 2.0, 50.0], dtype=torch.float64), ("t",), "co2", "co2"))
    assert table.X.squeeze(-1).tolist() == [2020.4, 2020.5]
    assert table.y.tolist() == [2.0, -1.0]


def test_the_sets_of_the_tables_are_what_they_are_said_to_be(shared):
    from_logs = sets.undone_logarithm(load_folder(shared / "data", "yacht").y).sort().values
    raw = sample_of(shared / "data", "YACHT").table.y.sort().values
    torch.testing.assert_close(from_logs, raw, rtol=1e-3, atol=1e-3)
    assert sample_of(shared / "data", "SOLAR").table.feature_names == ("year",)
    assert sample_of(shared / "data", "MPG").table.X.shape == (392, 8)
    co2 = sample_of(shared / "data", "CO2_GLOBAL")
    assert co2.table.X.max() < 2020.6
    assert co2.table.y.abs().max() < 5  # differences, not levels
    for layout in LAYOUTS.values():
        for wanted in layout.sets:
            sample = sets.load_sample(Sources(shared / "data").find(wanted))
            rows = layout.holdout.choose(len(sample.table.y), 0, 0)
            assert len(sets.split_sample(sample, rows).test_y) == len(rows)


def test_scores_are_those_of_the_mixture():
    split = made_up_split()._replace(test_y=torch.tensor([0.3, -1.0], dtype=torch.float64), unit=2.5)
    log_weights = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    mean = torch.tensor([[0.0, -0.5], [1.0, -2.0]], dtype=torch.float64)
    covariance = torch.tensor([[[1.0, 0.4], [0.4, 0.5]], [[0.3, -0.1], [-0.1, 2.0]]], dtype=torch.float64)
    found = scored(MixturePosterior(log_weights, mean.unsqueeze(-1), covariance.unsqueeze(-3)), split)
    weights, y = (0.3, 0.7), [0.3, -1.0]
    joint = sum(w * multivariate_normal(m, c).pdf(y) for w, m, c in zip(weights, mean, covariance, strict=True))
    moments = list(zip(weights, mean, covariance, strict=True))
    each = [math.log(sum(w * norm.pdf(y[k], m[k], c[k, k].sqrt()) for w, m, c in moments)) for k in range(2)]
    rmse = math.sqrt(((0.7 * 1.0 - 0.3) ** 2 + (0.3 * -0.5 + 0.7 * -2.0 + 1.0) ** 2) / 2)
    assert found["log_prob_joint"] == pytest.approx(math.log(joint))
    assert found["log_prob_sum"] == pytest.approx(sum(each))
    assert found["log_prob"] == pytest.approx(sum(each) / 2)
    assert found["log_prob_raw"] == pytest.approx(sum(each) / 2 - math.log(2.5))
    assert found["rmse_standardized"] == pytest.approx(rmse)
    assert found["rmse"] == pytest.approx(2.5 * rmse)
    assert found["mse_standardized"] == pytest.approx(rmse**2)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_learns_within_its_budget(name):
    split = made_up_split()
    answer = METHODS[name].run(split, 8, torch.Generator().manual_seed(3))
    found = scored(answer.posterior, split)
    assert all(math.isfinite(value) for value in found.values())
    assert found["rmse_standardized"] < 1.2
    assert float(answer.posterior.log_weights.exp().sum()) == pytest.approx(1.0)
    assert answer.posterior.component_mean.shape[-2] == len(split.test_y)
    assert math.isfinite(answer.diagnostics["best_log_likelihood"])
    if name not in ("rbf", "matern", "vssgp", "fkl"):  # they converge instead, or go in turns
        assert answer.evaluations == 8


def test_a_functional_kernel_starts_from_a_squared_exponential_one_and_draws_leave_the_prior_alone():
    one, X = torch.ones((), dtype=torch.float64), torch.linspace(0, 1, 12, dtype=torch.float64).unsqueeze(-1)
    grid = Grid(torch.linspace(0, 20, 200, dtype=torch.float64), differences(X, X))
    state = LogSpectra(0.1 * one[None], 0 * one[None], one[None], 2 * one.log(), 40 * one)._replace(
        width=-2 * one[None]
    )
    expected = (-0.5 * (X - X.mT).square() / math.exp(-2) ** 2).exp()
    torch.testing.assert_close(grid.kernel(state.given(grid, 0 * grid.frequencies[None])), expected, rtol=0, atol=2e-3)
    generator = torch.Generator().manual_seed(0)  # targets under noise of variance exp(40) say nothing of spectra
    _, spent, draws = sliced(state, grid, 0 * grid.frequencies[None], X[:, 0], 400, generator)
    assert spent == len(draws) + 1  # the first proposal of each is taken
    assert float(torch.stack(draws).std()) == pytest.approx(1, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PUBLISHED))
def test_the_authors_choices_are_others_and_stay_within_the_budget(name):
    split = made_up_split()
    ours, theirs = (known[name].run(split, 8, torch.Generator().manual_seed(3)) for known in (METHODS, PUBLISHED))
    assert theirs.evaluations == 8
    assert scored(theirs.posterior, split)["rmse_standardized"] < 1.2
    assert scored(theirs.posterior, split) != scored(ours.posterior, split)


def test_the_average_of_prior_draws_is_that_of_their_likelihoods():
    split = made_up_split()
    answer = METHODS["sobol"].run(split, 50, torch.Generator().manual_seed(0))
    problem = RegressionProblem(split.X, split.y)
    values = problem.evaluate(draw_stratified(problem.prior, 50, generator=torch.Generator().manual_seed(0)))
    assert answer.diagnostics["log_evidence"] == pytest.approx(float(values.exp().mean().log()))
    weights = values.softmax(-1).sort(descending=True).values
    kept = int(answer.diagnostics["kernels"])
    assert weights[:kept].sum() >= 1 - 1e-3
    assert weights[: kept - 1].sum() < 1 - 1e-3
    torch.testing.assert_close(answer.posterior.log_weights.exp(), weights[:kept] / weights[:kept].sum())


def test_a_single_kernel_predicts_as_scikit_learn_does():
    process = pytest.importorskip("sklearn.gaussian_process")
    kernels = process.kernels
    split = made_up_split(40)
    answer = METHODS["rbf"].run(split, 100, torch.Generator())
    kernel = kernels.ConstantKernel(1.0, (1e-3, 1e3)) * kernels.RBF(0.3) + kernels.WhiteKernel(0.01, (1e-6, 1.0))
    oracle = process.GaussianProcessRegressor(kernel, n_restarts_optimizer=3, random_state=0)
    oracle.fit(split.X.numpy(), split.y.numpy())
    assert answer.diagnostics["best_log_likelihood"] == pytest.approx(oracle.log_marginal_likelihood_value_, abs=0.05)
    mean = torch.as_tensor(oracle.predict(split.test_X.numpy()))
    torch.testing.assert_close(answer.posterior.mean.squeeze(-1), mean, atol=0.03, rtol=0)


@pytest.mark.slow
def test_a_real_table(tmp_path, shared):
    choices = Choices(Sources(shared / "data"), tmp_path, 1, sets=["yacht"], methods=["maskerade-r", "sm"])
    assert "47.2" in maskerade.run(LAYOUTS["table-2"], choices, 20)
    content = json.loads((tmp_path / "maskerade_table-2.json").read_text())
    assert content["rows"][0]["mean"]["rmse"] < 6  # predicting the mean gives 15


def test_the_likelihood_is_one_that_the_rows_can_bear():
    kinds = {(300, 1): DenseLikelihood, (2001, 1): ToeplitzLikelihood, (2001, 2): KnotLikelihood}
    for (num_rows, num_inputs), kind in kinds.items():
        X = torch.rand(num_rows, num_inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        if num_inputs == 1:
            X = torch.arange(num_rows, dtype=torch.float64).unsqueeze(-1)
        split = made_up_split()._replace(X=X, y=X[:, 0])
        assert isinstance(likelihood_of(split)(X, X[:, 0]), kind)
