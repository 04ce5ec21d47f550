"""What is made again of the paper on dynamic ensembles of basis expansions."""

from functools import partial

from studies.doebe import study
from studies.doebe.sets import FOLDER_SETS
from studies.harness.experiment import Choices, Experiment, Paper, Size
from studies.harness.sources import PaperSet

_PROTOCOL = "Scales and hyperparameters from the first 1 000 rows, every later row predicted before it is learned."
_SETS = tuple(PaperSet(name) for name in FOLDER_SETS)


def _run(name: str, choices: Choices, settings: None) -> str:
    return study.run(
        name,
        choices.sources.folder,
        choices.out,
        seeds=choices.trials,
        max_rows=choices.max_rows,
        progress=choices.progress,
    )


def _experiment(name: str, title: str, sets: tuple[PaperSet, ...] = _SETS) -> Experiment:
    kind = "experiment" if name.isdigit() else "appendix"
    run = partial(_run, name)
    return Experiment(f"{kind}-{name.lower()}", title, _PROTOCOL, run, Size(10), Size(1, 2000), sets)


PAPER = Paper(
    "doebe",
    "Waxman, Djuric: Dynamic Online Ensembles of Basis Expansions. TMLR 2024",
    (
        _experiment("1", "families, static (OE) and dynamic (DOE)"),
        _experiment("2", "collapse of weights"),
        _experiment("3", "ensembles of all families"),
        _experiment("C", "Laplace samples against one estimate"),
        _experiment("D", "probability of a switch in E-DOEBE"),
    ),
)
