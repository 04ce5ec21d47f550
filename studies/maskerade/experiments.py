"""What is made again of the paper on marginalizing over stationary kernels."""

from dataclasses import dataclass, field
from functools import partial

from studies.harness.experiment import Choices, Experiment, Paper, Size
from studies.maskerade import study
from studies.maskerade.methods import AS_PUBLISHED
from studies.maskerade.tables import LAYOUTS, Layout


@dataclass(frozen=True)
class KernelSettings:
    """Further options of the tables."""

    evaluations: int | None = field(
        default=None,
        metadata={"help": "likelihoods for a method and a split; the paper's 1000, and 200 where it counts seconds"},
    )


def _table(layout: Layout, choices: Choices, settings: KernelSettings) -> str:
    return study.run(layout, choices, settings.evaluations)


def _experiment(layout: Layout) -> Experiment:
    return Experiment(
        name=layout.name,
        title=layout.title,
        protocol="Inputs of several columns in [0, 1], targets standardized, both by the training rows.",
        run=partial(_table, layout),
        paper_size=Size(layout.holdout.parts),
        quick_size=Size(1, 300),
        sets=layout.sets,
        methods=layout.methods,
        published=AS_PUBLISHED,
        settings=KernelSettings(),
        quick_settings=KernelSettings(50),
    )


PAPER = Paper(
    "maskerade",
    "Hamid, Schulze, Osborne, Roberts: Marginalising over Stationary Kernels with Bayesian Quadrature. AISTATS 2022",
    tuple(_experiment(layout) for layout in LAYOUTS.values()),
)
