"""What is made again of the paper on fusion of predictions."""

from dataclasses import dataclass, field
from functools import partial

from studies.fusion import study
from studies.fusion.methods import METHODS
from studies.fusion.sets import NUM_ROWS
from studies.harness.experiment import Choices, Experiment, Paper, Size


@dataclass(frozen=True)
class FusionSettings:
    """Further options of figure 3."""

    inference: str = field(default="hmc", metadata={"help": "hmc or laplace"})
    num_rows: int = field(default=NUM_ROWS, metadata={"help": "rows made up, a fifth of them for testing"})


def _figure(name: str, choices: Choices, settings: FusionSettings) -> str:
    options = study.Options(choices.trials, choices.methods, settings.inference, choices.seed, settings.num_rows)
    return study.run(name, choices.out, options, progress=choices.progress)


def _experiment(name: str, title: str) -> Experiment:
    protocol = "Rows of a mixture of three functions, four fifths for training, random splits."
    run = partial(_figure, name)
    sizes = Size(5), Size(1)
    methods = tuple(METHODS)
    return Experiment(f"figure-{name}", title, protocol, run, *sizes, (), methods, settings=FusionSettings())


PAPER = Paper(
    "fusion",
    "Ajirak, Waxman, Llorente, Djuric: Fusion of Gaussian Process Predictions with Monte Carlo Sampling. 2024",
    (_experiment("3a", "more experts"), _experiment("3b", "more frequencies")),
)
