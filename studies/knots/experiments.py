"""What is made again of the papers on knot selection."""

from dataclasses import dataclass, field
from functools import partial

from studies.harness.experiment import Choices, Experiment, Paper, Size
from studies.harness.sources import PaperSet
from studies.knots import study
from studies.knots.methods import METHODS
from studies.knots.sets import SETS


@dataclass(frozen=True)
class KnotSettings:
    """Further options of the tables."""

    max_knots: int = field(default=80, metadata={"help": "most knots"})


def _table(dataset: str, choices: Choices, settings: KnotSettings) -> str:
    options = study.Options(choices.trials, settings.max_knots, choices.methods, choices.seed)
    return study.run(dataset, choices.sources.folder, choices.out, options, progress=choices.progress)


def _figure(number: int, choices: Choices, settings: None) -> str:
    options = study.Options(seed=choices.seed)
    return study.run(None, None, choices.out, options, figure=number, progress=choices.progress)


def _table_experiment(name: str, title: str, dataset: str) -> Experiment:
    protocol = "Random splits, inputs standardized by the training rows, an isotropic squared exponential kernel."
    sets = (PaperSet(dataset, SETS[dataset].names),)
    run = partial(_table, dataset)
    return Experiment(name, title, protocol, run, Size(5), Size(1), sets, tuple(METHODS), settings=KnotSettings())


def _figure_experiment(number: int, title: str) -> Experiment:
    return Experiment(
        f"figure-{number}", title, "Made-up rows of one input.", partial(_figure, number), Size(1), Size(1)
    )


PAPER = Paper(
    "knots",
    "Garton, Niemi, Carriquiry: Knot Selection in Sparse Gaussian Processes with a Variational Objective. 2020",
    (
        _figure_experiment(1, "the objective against the place of a new knot"),
        _figure_experiment(2, "refinement of a knot"),
        _table_experiment("boston", "Boston housing: figure 3, table 2", "boston"),
        _table_experiment("airfoil", "airfoil noise: figure 4", "airfoil"),
        _table_experiment("ccpp", "power plant: figure 5, table 3", "ccpp"),
    ),
)
