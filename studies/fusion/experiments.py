"""Experiments of the paper on fusion of predictions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from studies.fusion import generating, study
from studies.fusion.methods import METHODS, sampling_of
from studies.fusion.sets import MIXTURE, NOISE, NUM_ROWS
from studies.fusion.tables import Making
from studies.harness.experiment import Choices, Experiment, Paper, Size

_PUBLISHED = (
    "4 chains of 500 draws by NumPyro's no-U-turn sampler, from draws of the prior, all with equal weight; not 16 of "
    "150 by trajectories of learned length from modes, weighted by stacking"
)


@dataclass(frozen=True)
class FusionSettings:
    """Further options."""

    inference: str = field(
        default="", metadata={"help": "hmc, laplace, or nuts (NumPyro's); hmc if not given, nuts as published"}
    )
    chains: int = field(default=0, metadata={"help": "chains; 0 for 16, or 4 as published and of nuts"})
    draws: int = field(default=0, metadata={"help": "draws of each; 0 for 150, or 500 as published and of nuts"})
    num_rows: int = field(default=NUM_ROWS, metadata={"help": "rows, a fifth of them for testing"})
    noise: float = field(
        default=NOISE, metadata={"help": "its deviation; 0 for one drawn for each function and input (equation 18)"}
    )
    redrawn: bool = field(default=False, metadata={"help": "other rows for every split"})


def _run(make: Callable[..., str], choices: Choices, settings: FusionSettings) -> str:
    sampling = sampling_of(settings.inference, settings.chains, settings.draws, choices.as_published)
    return make(choices, sampling, Making(settings.num_rows, settings.noise, settings.redrawn))


def _boxes(name: str, title: str) -> Experiment:
    return Experiment(
        name=f"figure-{name}",
        title=title,
        protocol="Rows of a mixture of three functions, four fifths for training, random splits.",
        run=partial(_run, partial(study.run, name)),
        paper_size=Size(5),
        quick_size=Size(1),
        sets=(MIXTURE,),
        methods=tuple(METHODS),
        published=_PUBLISHED,
        settings=FusionSettings(),
    )


_GENERATING = Experiment(
    name="figure-2",
    title="the generating model, and what all methods predict",
    protocol="Rows of a mixture of three functions, four fifths for training; three experts, 30 frequencies.",
    run=partial(_run, generating.run),
    paper_size=Size(1),
    quick_size=Size(1),
    methods=tuple(METHODS),
    published=_PUBLISHED,
    settings=FusionSettings(),
)
PAPER = Paper(
    "fusion",
    "Ajirak, Waxman, Llorente, Djuric: Fusion of Gaussian Process Predictions with Monte Carlo Sampling. 2024",
    (_GENERATING, _boxes("3a", "more experts"), _boxes("3b", "more frequencies")),
)
