"""What is made again of the paper on incremental ensembles."""

from dataclasses import dataclass, field
from functools import partial

from studies.harness.experiment import Choices, Experiment, Paper, Size
from studies.harness.sources import PaperSet
from studies.ie_gp import study
from studies.ie_gp.methods import METHODS
from studies.ie_gp.theory import THEORY
from studies.ie_gplvm import study as latent
from studies.ie_gplvm.methods import METHODS as LATENT_METHODS
from studies.ie_gplvm.methods import Effort
from studies.ie_gplvm.sets import START_SHARES


@dataclass(frozen=True)
class LatentSettings:
    """Further options of figure 7."""

    block_size: int = field(default=Effort().block_size, metadata={"help": "rows that the ensembles embed at once"})
    iterations: int = field(default=Effort().iterations, metadata={"help": "steps of GPyTorch's model"})


def _figure(number: int, choices: Choices, settings: None) -> str:
    return study.run(
        number,
        choices.sources.folder,
        choices.out,
        draws=choices.trials,
        max_rows=choices.max_rows,
        progress=choices.progress,
    )


def _embeddings(choices: Choices, settings: LatentSettings) -> str:
    dataset = None if choices.sets is None else choices.sets[0]
    effort = Effort(settings.block_size, settings.iterations)
    options = latent.Options(dataset, choices.methods, choices.trials, choices.seed, choices.max_rows, effort)
    return latent.run(choices.sources.folder, choices.out, options, progress=choices.progress)


_STREAMS = tuple(PaperSet(name) for name in study.DATASETS)
_ON_STREAMS = "Inputs in [0, 1], 1 000 warm-up rows for hyperparameters, every row predicted before it is learned."
_REGRET = "Nothing is learned before the first row; hyperparameters are those that the data were drawn with."
_SMALL = Size(1, 3000)


def _stream_figure(number: int, title: str) -> Experiment:
    run = partial(_figure, number)
    sizes = Size(10), _SMALL
    return Experiment(f"figure-{number}", title, _ON_STREAMS, run, *sizes, _STREAMS, tuple(METHODS))


def _regret_figure(number: int, title: str) -> Experiment:
    return Experiment(f"figure-{number}", title, _REGRET, partial(_figure, number), Size(10), Size(1))


PAPER = Paper(
    "ie-gp",
    "Lu, Karanikolas, Giannakis: Incremental Ensemble Gaussian Processes. IEEE TPAMI 2022",
    (
        _stream_figure(2, "normalized mean squared errors on streams"),
        _stream_figure(3, "predictive log densities on streams"),
        _stream_figure(4, "running times on streams"),
        Experiment(
            "figure-7",
            "embeddings in two dimensions",
            "Rows shuffled by the seed; a tenth of them to start from; error of the nearest neighbor's label.",
            _embeddings,
            Size(10),
            Size(1, 300),
            tuple(PaperSet(name) for name in START_SHARES),
            tuple(LATENT_METHODS),
            settings=LatentSettings(),
        ),
        _regret_figure(10, "static regret"),
        _regret_figure(11, "switching regret"),
        *THEORY,
    ),
)
