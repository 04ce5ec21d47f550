"""Experiments of the paper on marginalizing over stationary kernels."""

from dataclasses import dataclass, field
from functools import partial

from studies.harness.experiment import Choices, Experiment, Paper, Size
from studies.maskerade import carbon, nodes, recovery, study
from studies.maskerade.methods import AS_PUBLISHED
from studies.maskerade.sets import AIRFOIL, CO2
from studies.maskerade.tables import LAYOUTS, Layout


@dataclass(frozen=True)
class KernelSettings:
    """Further options of the tables."""

    evaluations: int | None = field(
        default=None,
        metadata={"help": "likelihoods for a method and a split; the paper's 1000, and 200 where it counts seconds"},
    )


@dataclass(frozen=True)
class NodesSettings:
    """Further options of table 6."""

    observations: list[int] = field(
        default_factory=lambda: [100, 500, 1000], metadata={"help": "numbers of evaluated kernels"}
    )
    nodes: list[int] = field(
        default_factory=lambda: [100, 1000, 10_000],
        metadata={"help": "numbers of nodes for each number of components"},
    )


@dataclass(frozen=True)
class FigureSettings:
    """Further options of the figures."""

    evaluations: int = field(default=1000, metadata={"help": "likelihoods for a method"})


def _table(layout: Layout, choices: Choices, settings: KernelSettings) -> str:
    return study.run(layout, choices, settings.evaluations)


def _nodes(choices: Choices, settings: NodesSettings) -> str:
    return nodes.run(choices, settings.observations, settings.nodes)


def _recovery(choices: Choices, settings: FigureSettings) -> str:
    return recovery.run(choices, settings.evaluations)


def _carbon(choices: Choices, settings: FigureSettings) -> str:
    return carbon.run(choices, settings.evaluations)


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
    (
        *(_experiment(layout) for layout in LAYOUTS.values()),
        Experiment(
            name="table-6",
            title="airfoil: evidence against the number of nodes, for several numbers of evaluated kernels",
            protocol="The first four fifths of the rows; new nodes are drawn in every trial.",
            run=_nodes,
            paper_size=Size(5),
            quick_size=Size(3, 200),
            sets=(AIRFOIL,),
            methods=tuple(nodes.RULES),
            published=AS_PUBLISHED,
            settings=NodesSettings(),
            quick_settings=NodesSettings([20, 50], [50, 200]),
        ),
        Experiment(
            name="figure-3",
            title="is a spectrum of five components recovered, by up to 3 and up to 8 components and by one mixture",
            protocol="150 rows of one input, the middle third held out; a trial is a draw.",
            run=_recovery,
            paper_size=Size(1),
            quick_size=Size(1),
            sets=(recovery.RECOVERY,),
            methods=tuple(recovery.METHODS),
            published=AS_PUBLISHED,
            settings=FigureSettings(1500),
            quick_settings=FigureSettings(60),
        ),
        Experiment(
            name="figure-4",
            title="Mauna Loa, fitted and extrapolated",
            protocol="A tenth of the rows held out, targets standardized by the others.",
            run=_carbon,
            paper_size=Size(1),
            quick_size=Size(1, 300),
            sets=(CO2,),
            methods=carbon.SHOWN,
            published=AS_PUBLISHED,
            settings=FigureSettings(),
            quick_settings=FigureSettings(60),
        ),
    ),
)
