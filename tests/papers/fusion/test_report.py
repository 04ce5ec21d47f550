"""Reports: what chains that agree, differ or diverge are said to be, and what no permutation changes."""

import math
import re

import torch

from gp_ensembles.papers.fusion.inference import ChainDiagnostics, InferenceReport


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
