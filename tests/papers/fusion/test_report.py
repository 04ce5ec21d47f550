"""Reports: what chains that agree, differ or diverge are said to be, and what no permutation changes."""

import math
import re

import pytest
import torch

from gp_ensembles.papers.fusion.chees import HMCSettings
from gp_ensembles.papers.fusion.diagnostics import mean_ess, psis_loo, rank_rhat
from gp_ensembles.papers.fusion.hmc import HMC, chain_log_likelihood
from gp_ensembles.papers.fusion.inference import ChainDiagnostics, InferenceReport
from gp_ensembles.papers.fusion.models import MoGPE
from tests.papers.fusion.cases import fourier_prior, line, normal, quiet, seeded


def chains(**changes) -> ChainDiagnostics:
    """A report without blame, but for the changes."""
    one = torch.ones(4, dtype=torch.float64)
    whole = {
        "rhat_log_joint": one[0],
        "rhat_log_density": one,
        "ess_log_joint": 100 * one[0],
        "ess_log_density": 100 * one,
        "loo": -one,
        "pareto_k": torch.zeros(4, 10, dtype=torch.float64),
        "weights": one / 4,
        "divergences": torch.zeros(4, dtype=torch.int64),
        "energy_bfmi": one,
    }
    return ChainDiagnostics(**(whole | changes))


def test_complaints():
    assert chains().cautions() == []
    for changes, message in [
        ({"rhat_log_joint": torch.tensor(1.2)}, r"chains differ \(rank R-hat up to 1.20\).*more chains"),
        ({"rhat_log_density": torch.tensor([1.0, 1.5, math.nan])}, "up to 1.50"),
        ({"pareto_k": torch.full((4, 10), 0.9)}, r"100.0% of the leave-one-out densities.*equal_chains"),
        ({"energy_bfmi": torch.tensor([1.0, 0.1, 1.0, 1.0])}, r"chains \[1\] move slowly"),
    ]:
        (found,) = chains(**changes).cautions()
        assert re.search(message, found)


def test_summary():
    best = torch.tensor([-1.0, -3.0])
    report = InferenceReport("HMC", 2.0, 50, best, diagnostics=chains(), cautions=("something is odd",))
    lines = report.summary().splitlines()
    assert lines[0] == "HMC: 2.0 s, 50 gradients of all chains, log joint -1.0 at best"
    assert "4 chains, 4 with weight; rank R-hat up to 1.00" in lines[1]
    assert lines[-1] == "caution: something is odd"
    assert "converge" not in report.summary()
    assert InferenceReport("MAP", 0.0, 0, torch.zeros(0)).summary().endswith("log joint nan at best")


@pytest.fixture(scope="module")
def mixture():
    X = line(40)
    y = torch.where(torch.arange(40) % 2 == 0, X.squeeze(-1), -X.squeeze(-1)) + 0.1 * normal(40)
    prior = fourier_prior(3, 1.0, seed=1)
    model = MoGPE(X, y, 2, prior, prior, prior)
    with quiet():
        return model, HMC(6, HMCSettings(num_draws=60, num_warmup=60)).infer(model, generator=seeded())


def test_chain_report_of_a_mixture(mixture):
    """Every entry from its definition."""
    model, found = mixture
    report, draws = found.report.diagnostics, found.chains
    likelihood = chain_log_likelihood(model, draws.theta)
    torch.testing.assert_close(likelihood.sum(-1) + model.log_prior(draws.theta), draws.log_density)
    loo, pareto_k = psis_loo(likelihood)
    torch.testing.assert_close(report.loo, loo.mean(-1))
    torch.testing.assert_close(report.pareto_k, pareto_k)
    torch.testing.assert_close(report.rhat_log_joint, rank_rhat(draws.log_density))
    torch.testing.assert_close(report.rhat_log_density, rank_rhat(likelihood))
    expected = sum(mean_ess(chain[None]) for chain in likelihood)
    torch.testing.assert_close(report.ess_log_density, expected)
    assert torch.equal(report.divergences, draws.divergent.sum(1))
