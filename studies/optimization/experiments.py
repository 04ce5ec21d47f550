"""Ensembles and single Gaussian processes in Bayesian optimization, for the command line."""

from studies.harness.experiment import Experiment, Paper, Size
from studies.optimization import study
from studies.optimization.methods import METHODS

PAPER = Paper(
    "optimization",
    "Lu, Polyzos, Li, Giannakis 2023 (Thompson sampling with ensembles), and expected improvement of ensembles",
    (
        Experiment(
            "regret",
            "regrets of ensembles and of single processes",
            "Sobol designs of 10 points, the same for all methods of a seed; the unit cube, no noise, maximized.",
            study.run,
            Size(20),
            Size(2),
            methods=tuple(METHODS),
            settings=study.RegretSettings(),
            quick_settings=study.RegretSettings(["branin", "drifting"], iterations=8),
        ),
    ),
)
