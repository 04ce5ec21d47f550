"""Experiments of the paper on incremental ensembles."""

from dataclasses import dataclass, field
from functools import partial

from studies.harness.experiment import Choices, Experiment, Paper, Size
from studies.harness.sources import PaperSet
from studies.ie_gp import band, classes, streams
from studies.ie_gp.regret import static_figure, switching_figure
from studies.ie_gp.study import PUBLISHED, Quantity, Task, run_figure
from studies.ie_gp.theory import THEORY
from studies.ie_gplvm import study as latent
from studies.ie_gplvm.methods import METHODS as LATENT_METHODS
from studies.ie_gplvm.methods import Effort
from studies.ie_gplvm.sets import START_SHARES


@dataclass(frozen=True)
class LatentSettings:
    """Further options of figures 7 and 8."""

    block_size: int = field(default=Effort().block_size, metadata={"help": "rows that the ensembles embed at once"})
    iterations: int = field(default=Effort().iterations, metadata={"help": "steps of GPyTorch's model"})


_ON_STREAMS = "Inputs in [0, 1], 1 000 warm-up rows for hyperparameters, every row predicted before it is learned."
_ON_CLASSES = (
    "Rows shuffled by the seed, the first 1 000 of them (105 of ionosphere) for hyperparameters, every row predicted "
    "before it is learned."
)
_REGRET = "Nothing is learned before the first row; experts know the noise. "
_BAND = "30 rows, x from N(0, 1), y = sin 2x + sin 3x with noise of variance 0.01, as in the paper."
_WAVES = _REGRET + "sin 2x + sin 3x, x from N(0, 100), noise of variance 0.01, as in the paper."
_TURNS = _REGRET + (
    "Draws of two kernels, as in the paper, on inputs from [0, 5], which is our choice; besides the two waves of "
    "figure 10 by turns, and functions that move on."
)
_SMALL = Size(1, 3000)


def _figure(task: Task, quantity: Quantity, protocol: str) -> Experiment:
    run = partial(run_figure, task, quantity)
    name, methods = f"figure-{quantity.figure}", tuple(task.methods)
    return Experiment(name, quantity.title, protocol, run, Size(10), _SMALL, task.sets, methods, PUBLISHED)


def _latent_figure(number: int, title: str, size: Size) -> Experiment:
    protocol = "Rows shuffled by the seed; a tenth of them to start from; error of the nearest neighbor's label."
    sets = tuple(PaperSet(name) for name in START_SHARES)
    run = partial(_embeddings, number)
    methods, settings = tuple(LATENT_METHODS), LatentSettings()
    return Experiment(f"figure-{number}", title, protocol, run, size, Size(1, 300), sets, methods, settings=settings)


def _embeddings(number: int, choices: Choices, settings: LatentSettings) -> str:
    return latent.run(choices, Effort(settings.block_size, settings.iterations), figure=number)


def _band(choices: Choices, settings: None) -> str:
    return band.run(choices.out, choices.trials)


def _static_regret(choices: Choices, settings: None) -> str:
    return static_figure(choices.out, draws=choices.trials, num_rows=choices.max_rows, progress=choices.progress)


def _switching_regret(choices: Choices, settings: None) -> str:
    return switching_figure(choices.out, draws=choices.trials, num_rows=choices.max_rows, progress=choices.progress)


PAPER = Paper(
    "ie-gp",
    "Lu, Karanikolas, Giannakis: Incremental Ensemble Gaussian Processes. IEEE TPAMI 2022",
    (
        *(_figure(streams.TASK, quantity, _ON_STREAMS) for quantity in streams.FIGURES),
        *(_figure(classes.TASK, quantity, _ON_CLASSES) for quantity in classes.FIGURES),
        _latent_figure(7, "errors and times of embeddings in two dimensions", Size(10)),
        _latent_figure(8, "maps of the latent space", Size(1)),
        Experiment("figure-9", "a band around few rows", _BAND, _band, Size(10), Size(1)),
        Experiment("figure-10", "static regret", _WAVES, _static_regret, Size(10), Size(1)),
        Experiment("figure-11", "switching regret", _TURNS, _switching_regret, Size(10), Size(1)),
        *THEORY,
    ),
)
