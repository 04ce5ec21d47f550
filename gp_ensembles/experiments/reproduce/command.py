"""The command ``reproduce``: which paper, which figure or experiment, on what data."""

from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser, Namespace

from gp_ensembles.experiments.reproduce import ie_gp


def add_reproduce(parser: ArgumentParser) -> None:
    """Give a parser the options of the command."""
    parser.add_argument("paper", type=Literal["ie-gp"], help="the paper: ie-gp")
    parser.add_argument("--figure", type=int | None, default=None, help="of ie-gp: 2, 3, 4, 10 or 11")
    parser.add_argument("--data", type=Path | None, default=None, help="a folder with a manifest.json")
    parser.add_argument("--draws", type=int, default=3, help="draws of frequencies; tables show their median")
    parser.add_argument("--max_rows", type=int | None, default=None, help="most rows of a stream, all by default")


def run_reproduce(values: Namespace) -> str:
    """Make a figure again and return its table.

    Raises:
        ValueError: If the figure is unknown.
    """
    if values.figure not in ie_gp.FIGURES:
        raise ValueError(f"--figure of ie-gp must be one of {', '.join(map(str, ie_gp.FIGURES))}, got {values.figure}")
    return ie_gp.run(
        values.figure, values.data, values.out, draws=values.draws, max_rows=values.max_rows, progress=values.progress
    )
