"""What is made again of the paper on marginalizing over stationary kernels."""

from dataclasses import dataclass, field
from functools import partial

from studies.harness.experiment import Choices, Experiment, Paper, Size
from studies.harness.sources import PaperSet
from studies.maskerade import study
from studies.maskerade.tables import LAYOUTS


@dataclass(frozen=True)
class KernelSettings:
    """Further options of the tables."""

    evaluations: int = field(default=200, metadata={"help": "likelihoods for a method and a split"})


def _table(number: int, choices: Choices, settings: KernelSettings) -> str:
    options = study.Options(settings.evaluations, choices.trials, choices.sets, choices.methods, choices.seed)
    return study.run(number, choices.sources.folder, choices.out, options, progress=choices.progress)


def _experiment(number: int) -> Experiment:
    layout = LAYOUTS[number]
    protocol = "Inputs of several columns in [0, 1], targets standardized, both by the training rows."
    sets = tuple(PaperSet(name) for name in layout.sets)
    size = Size(layout.holdout.parts)
    run = partial(_table, number)
    methods = tuple(layout.methods)
    settings = KernelSettings()
    return Experiment(f"table-{number}", layout.title, protocol, run, size, Size(1), sets, methods, settings=settings)


PAPER = Paper(
    "maskerade",
    "Hamid, Schulze, Osborne, Roberts: Marginalising over Stationary Kernels with Bayesian Quadrature. AISTATS 2022",
    tuple(_experiment(number) for number in LAYOUTS),
)
