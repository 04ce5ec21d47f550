"""Evidence of real data sets: no small deviation beside a wrong number, whatever the seed."""

import csv
import gzip
import itertools
import math
import warnings

import pytest
import torch

from gp_ensembles.papers.quadrature import Budget, RegressionProblem, marginalize
from gp_ensembles.papers.quadrature.prior import default_prior

pytestmark = pytest.mark.slow

# file, rows, most components, seeds
SETS = {
    "airline": ("airline_passengers", 129, 5, (1, 2, 3)),
    "airline, two components": ("airline_passengers", 129, 2, (1, 2, 3, 4)),
    "Mauna Loa": ("co2_mauna_loa_monthly", 120, 2, (1, 2)),
    "solar": ("solar_lean2004", 120, 2, (1, 2)),
    "yacht": ("yacht", 60, 1, (1, 2)),
    "yacht, five components": ("yacht", 60, 5, (1,)),
    "servo, five components": ("servo", 80, 5, (1,)),
}


def problem_of(folder, name, num_rows, max_components):
    with gzip.open(folder / "data" / f"{name}.csv.gz", "rt") as file:
        lines = [line for line in csv.reader(file) if line][1:]
    table = torch.tensor([[float(value) for value in line] for line in lines], dtype=torch.float64)
    X, y = table[:, :-1], table[:, -1]
    X, y = X[:num_rows], ((y - y.mean()) / y.std())[:num_rows]
    return RegressionProblem(X, y, default_prior(X, y, max_components))


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(setting, id=name, marks=pytest.mark.broad if "airline" in name else ())
        for name, setting in SETS.items()
    ],
)
def test_trusted_evidences_of_several_seeds_agree(shared, setting):
    """Within four of their deviations and 0.2 nats; the others warn, and are finite all the same."""
    name, num_rows, components, seeds = setting
    problem = problem_of(shared, name, num_rows, components)
    found = []
    for seed in seeds:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found.append(marginalize(problem, Budget(), generator=torch.Generator().manual_seed(seed)))
        assert [str(one.message) for one in warned if one.category is UserWarning] == [found[-1].doubt] * len(warned)
        assert bool(warned) == bool(found[-1].doubt)
    for one in found:
        assert math.isfinite(one.log_evidence)
        assert math.isfinite(one.log_evidence_sd)
        assert float(one.posterior_components.sum()) == pytest.approx(1.0)
    trusted = [one for one in found if not one.doubt]
    assert components > 2 or len(trusted) == len(found)
    for one, other in itertools.combinations(trusted, 2):
        deviation = math.hypot(one.log_evidence_sd, other.log_evidence_sd)
        assert abs(one.log_evidence - other.log_evidence) < 4.0 * deviation + 0.2
