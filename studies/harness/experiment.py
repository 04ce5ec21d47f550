"""Experiments of papers, and the choices that all of them offer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from studies.harness.plan import chosen
from studies.harness.sources import FoundSet, PaperSet, Sources


class Size(NamedTuple):
    """How much is run.

    Attributes:
        trials: Repetitions: draws, seeds, splits or folds.
        max_rows: Most rows of a set; all by default.
    """

    trials: int
    max_rows: int | None = None


class Choices(NamedTuple):
    """What may be chosen of every experiment.

    Attributes:
        sources: Where tables come from.
        out: Folder of the results.
        trials: Repetitions.
        max_rows: Most rows of a set; all if ``None``.
        sets: Which of the experiment's sets; all that can be had if ``None``.
        methods: Which of its methods; all if ``None``.
        seed: Seed of the first repetition; the next ones count on from it.
        as_published: The authors' choices in place of ours.
        progress: Show a progress bar.
    """

    sources: Sources
    out: Path
    trials: int
    max_rows: int | None = None
    sets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    seed: int = 0
    as_published: bool = False
    progress: bool = False


@dataclass(frozen=True)
class Experiment:
    """A table, a figure or a claim of a paper that is made again.

    Attributes:
        name: What the command line calls it, such as ``figure-2`` or ``table-3``.
        title: What it shows.
        protocol: How it is measured, in a sentence or two.
        run: Makes it from the choices and the settings, writes its files and returns its table as text.
        paper_size: The paper's repetitions and rows.
        quick_size: Those of ``--quick``.
        sets: The paper's sets.
        methods: Names of its methods and rivals.
        published: What ``--as-published`` changes; empty where there is nothing to change.
        settings: Further options with what they are by default: an instance of a frozen dataclass, each field with a
            ``help`` in its metadata.
        quick_settings: What they are by default with ``--quick``; the same if ``None``.
    """

    name: str
    title: str
    protocol: str
    run: Callable[[Choices, Any], str]
    paper_size: Size
    quick_size: Size
    sets: tuple[PaperSet, ...] = ()
    methods: tuple[str, ...] = ()
    published: str = ""
    settings: Any = None
    quick_settings: Any = None


class Paper(NamedTuple):
    """A paper and what is made again of it.

    Attributes:
        name: What the command line calls it.
        citation: Who wrote it, and what on.
        experiments: Its experiments.
    """

    name: str
    citation: str
    experiments: tuple[Experiment, ...]

    def experiment(self, name: str) -> Experiment:
        """One of its experiments by name.

        Raises:
            ValueError: If there is none of that name.
        """
        found = next((one for one in self.experiments if one.name == name), None)
        if found is None:
            names = ", ".join(one.name for one in self.experiments)
            raise ValueError(f"{self.name} has no experiment {name}; choose from {names}")
        return found


def found_sets(choices: Choices, sets: Sequence[PaperSet]) -> tuple[list[FoundSet], list[str]]:
    """The sets of an experiment that were chosen and can be had, with sentences on replacements and missing sets.

    Args:
        choices: Which sets, and where they come from.
        sets: Those of the experiment.

    Raises:
        ValueError: If a set is unknown, none can be had, or a file is malformed.
        FileNotFoundError: If a file does not exist.

    Example:
        >>> choices = Choices(Sources(None), Path("out"), 1)
        >>> found_sets(choices, [PaperSet("sarcos")])
        Traceback (most recent call last):
        ValueError: sarcos is left out: it is read from sarcos and no folder is given with --data; or give --data-set...
    """
    names = chosen(choices.sets, [one.name for one in sets], "set")
    check_own(choices.sources, sets)
    wanted = [one for one in sets if one.name in names]
    there = [one for one in wanted if choices.sources.has(one)]
    notes = choices.sources.missing(wanted)
    if not there:
        raise ValueError(notes[0])
    found = [one for one in (choices.sources.find(wanted) for wanted in there) if one is not None]
    return found, [*(one.note for one in found if one.note), *notes]


def check_own(sources: Sources, sets: Sequence[PaperSet]) -> None:
    """Raise unless the user's own tables replace sets of the experiment.

    Raises:
        ValueError: If one replaces a set of another experiment.
    """
    names = [one.name for one in sets]
    for name in sources.own_names:
        if name not in names:
            known = f"its sets are {', '.join(names)}" if names else "it draws its own data"
            raise ValueError(f"--data-set {name}: the experiment has no such set; {known}")
