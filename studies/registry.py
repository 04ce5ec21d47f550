"""All papers, their experiments, and what of each can be run here, as a table."""

from pathlib import Path

from studies.doebe.experiments import PAPER as DOEBE
from studies.follow_ups.experiments import PAPER as FOLLOW_UPS
from studies.fusion.experiments import PAPER as FUSION
from studies.harness.experiment import Experiment, Paper
from studies.harness.sources import PaperSet, Sources
from studies.harness.text import aligned
from studies.ie_gp.experiments import PAPER as IE_GP
from studies.knots.experiments import PAPER as KNOTS
from studies.maskerade.experiments import PAPER as MASKERADE
from studies.optimization.experiments import PAPER as OPTIMIZATION

PAPERS: dict[str, Paper] = {
    paper.name: paper for paper in (IE_GP, DOEBE, KNOTS, FUSION, MASKERADE, FOLLOW_UPS, OPTIMIZATION)
}


def listing(names: list[str], folder: Path | None) -> str:
    """Every experiment of some papers: what it shows, its size, and which of its sets can be had.

    Args:
        names: Names of the papers; all if there is none.
        folder: A folder with a manifest, in which sets are looked for.

    Raises:
        ValueError: If a paper is unknown.
        FileNotFoundError: If the folder has no manifest.

    Example:
        >>> print(listing(["fusion"], None).splitlines()[0][:20])
        fusion: Ajirak, Waxm
    """
    sources = Sources(folder)
    parts = []
    for name in names or PAPERS:
        paper = paper_named(name)
        rows = [_row(one, sources) for one in paper.experiments]
        header = ["experiment", "shows", "trials", "rows", "methods", "sets", "--as-published"]
        parts.append(f"{paper.name}: {paper.citation}\n{aligned(header, rows)}")
    return "\n\n".join(parts)


def paper_named(name: str) -> Paper:
    """A paper by its name.

    Raises:
        ValueError: If it is unknown.
    """
    if name not in PAPERS:
        raise ValueError(f"there is no paper {name}; choose from {', '.join(PAPERS)}")
    return PAPERS[name]


def _row(experiment: Experiment, sources: Sources) -> list[object]:
    size = experiment.paper_size
    rows = "all" if size.max_rows is None else str(size.max_rows)
    sets = [_set(one, sources) for one in experiment.sets]
    published = "yes" if experiment.published else "-"
    methods = str(len(experiment.methods)) if experiment.methods else "-"
    return [experiment.name, experiment.title, str(size.trials), rows, methods, ", ".join(sets) or "made up", published]


def _set(one: PaperSet, sources: Sources) -> str:
    if sources.has(one):
        return one.name
    return f"{one.name} (made up)" if one.made_up else f"({one.name})"
