"""Experiments of the papers on knot selection."""

from dataclasses import dataclass, field
from functools import partial

from studies.harness.experiment import Choices, Experiment, Paper, Size
from studies.knots import figures, study
from studies.knots.methods import METHODS
from studies.knots.sets import SETS


@dataclass(frozen=True)
class KnotSettings:
    """Further options of the tables."""

    max_knots: int = field(default=80, metadata={"help": "most knots"})


def _run_table(dataset: str, choices: Choices, settings: KnotSettings) -> str:
    return study.run(dataset, choices, settings.max_knots)


def _run_figure(number: int, choices: Choices, settings: None) -> str:
    return figures.RUNNERS[number](choices)


def _table(dataset: str, title: str, quick_rows: int | None = None) -> Experiment:
    return Experiment(
        name=dataset,
        title=title,
        protocol="Random splits, inputs standardized by the training rows, an isotropic squared exponential kernel.",
        run=partial(_run_table, dataset),
        paper_size=Size(5),
        quick_size=Size(1, quick_rows),
        sets=(SETS[dataset].paper_set,),
        methods=tuple(METHODS),
        published="all fits by the authors' ADADELTA, their 40 candidates a knot and their absolute nugget",
        settings=KnotSettings(),
    )


def _figure(number: int, title: str) -> Experiment:
    return Experiment(
        name=f"figure-{number}",
        title=title,
        protocol="300 made-up rows of one input.",
        run=partial(_run_figure, number),
        paper_size=Size(1),
        quick_size=Size(1),
        published="fits by the authors' ADADELTA",
    )


PAPER = Paper(
    "knots",
    "Garton, Niemi, Carriquiry: Knot Selection in Sparse Gaussian Processes with a Variational Objective. 2020",
    (
        _figure(1, "a fit with five knots, and its bound against the place of a sixth"),
        _figure(2, "knots of OAT-BO and of simultaneous refinement, where they start and end"),
        _table("boston", "figure 3: Boston housing, the models of table 2"),
        _table("airfoil", "figure 4: airfoil noise, the models of table 2", 500),
        _table("ccpp", "figure 5: power plant, the models of table 3", 1000),
    ),
)
