"""Table 6 and the figures of the MASKERADE paper: nodes, the recovery of a kernel, a fitted series."""

import math

import pytest
import torch

from gp_ensembles.papers.quadrature import RegressionProblem
from gp_ensembles.papers.quadrature.prior import default_prior
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures
from gp_ensembles.papers.quadrature.surrogate import Evaluations, Surrogate
from studies.harness.experiment import Choices
from studies.harness.sources import Sources
from studies.maskerade import nodes, recovery


def choices_of(tmp_path, own=(), **changes):
    return Choices(sources=Sources(None, own), out=tmp_path / "out", **{"trials": 2} | changes)


def test_nodes_integrate_the_surrogate_they_are_given():
    X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
    problem = RegressionProblem(X, X.squeeze(-1).sin(), default_prior(X, X.squeeze(-1).sin(), 2))
    generator = torch.Generator().manual_seed(0)
    cube = problem.prior.draw(8, 1, generator=generator)
    surrogate = Surrogate(Evaluations(cube, problem.evaluate(cube)), problem.kernel_distance)
    drawn = nodes.random_nodes(problem.prior, 5, generator)
    assert drawn.components.tolist() == [1] * 5 + [2] * 5
    assert float(drawn.weights.sum()) == pytest.approx(1.0)
    mean, _ = surrogate.likelihood(drawn.cube)
    expected = float(surrogate.log_scale + (drawn.weights * mean).sum().log())
    assert nodes.log_evidence(surrogate, drawn) == pytest.approx(expected)


def test_table_6_is_kept_and_repeats(tmp_path, monkeypatch):
    path = tmp_path / "mine.csv"
    rows = [f"{t / 20},{t * 7 % 20 / 20},{math.sin(t / 3)}\n" for t in range(20)]
    path.write_text("a,b,y\n" + "".join(rows))
    choices = choices_of(tmp_path, [f"airfoil={path}:y"])
    text = nodes.run(choices, [6, 10], [4, 8])
    assert "airfoil: mine.csv, target y, in its place" in text
    assert text.count("\nmonte-carlo") == 2
    again = nodes.run(choices._replace(out=tmp_path / "again"), [6, 10], [4, 8])
    assert again == text  # seconds do not stand in the text
    monkeypatch.setattr(nodes, "integral", None)
    assert nodes.run(choices, [6, 10], [4, 8]) == text


def test_spectra_are_densities_and_distances_are_between_nothing_and_one():
    truth = recovery.spectrum(recovery.true_mixture())
    step = 4.0 / (len(truth) - 1)
    assert float(torch.trapezoid(truth, dx=step)) == pytest.approx(1.0, abs=1e-3)
    weights, means, scales = torch.tensor([[1.0, 0.0], [0.5, 3.0], [0.05, 0.0]], dtype=torch.float64)
    mixtures = (SpectralMixtures(weights, m * weights[:, None], scales[:, None]) for m in means)  # one is absent
    first, second = (recovery.spectrum(mixture) for mixture in mixtures)
    assert recovery.distance(first, second) == pytest.approx(1.0, abs=1e-6)
