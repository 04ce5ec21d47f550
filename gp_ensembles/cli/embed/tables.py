"""The tables of a run as lines of CSV; numbers that are not known are empty cells."""

import csv
import io
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gp_ensembles.cli.embed.options import expert_names
from gp_ensembles.cli.embed.run import EmbedRun
from gp_ensembles.cli.embed.scores import map_back


def embedding_header(run: EmbedRun) -> str:
    """Columns of ``embeddings.csv``."""
    axes = [f"x{axis + 1}" for axis in range(run.model.num_latent)]
    labels = run.prepared.rows.labels
    # The label's own name could be that of another column.
    return as_lines([["row", *axes, *(f"reported_{x}" for x in axes), "expert", "log_prob"] + ["label"] * bool(labels)])


def weights_header() -> str:
    """Columns of ``weights.csv``."""
    return as_lines([["row", *expert_names()]])


def embedding_lines(run: EmbedRun, rows: Sequence[int], one_space: Tensor | None) -> str:
    """Lines of ``embeddings.csv``.

    Args:
        run: The run.
        rows: Rows of the table, counted from zero; those with a value must have been embedded.
        one_space: Places of all rows with a value in one latent space; ``None`` while the space is not chosen.
    """
    found, labels, part = run.found, run.prepared.rows.labels, list(rows)
    known = [place for row in part if (place := run.places[row]) is not None]
    blank = [math.nan] * run.model.num_latent
    one = [blank] * len(known) if one_space is None else one_space[known].tolist()
    # Densities of scaled rows, in units of the data.
    scales = torch.where(torch.isnan(run.prepared.Y[known]), 0.0, run.prepared.scale.log()).sum(-1)
    log_prob = (found.log_prob[known] - scales).tolist()
    lines = zip(one, found.embedding[known].tolist(), found.expert[known].tolist(), log_prob, strict=True)

    def cells(row: int) -> list[object]:
        if run.places[row] is None:
            return [*blank, *blank, "", ""]
        x, reported, expert, density = next(lines)
        return [*x, *reported, expert, density]

    return as_lines([row + 1, *cells(row), *([] if labels is None else [labels.texts[row]])] for row in part)


def weights_lines(run: EmbedRun, rows: Sequence[int]) -> str:
    """Lines of ``weights.csv``: weights in force before each row; arguments as in :func:`embedding_lines`."""
    known = [place for row in rows if (place := run.places[row]) is not None]
    lines = iter(run.found.log_weights[:, known].exp().T.tolist())
    blank = [""] * run.model.num_experts

    def cells(row: int) -> list[str]:
        return blank if run.places[row] is None else [f"{weight:.9g}" for weight in next(lines)]

    return as_lines([row + 1, *cells(row)] for row in rows)


def imputed_csv(run: EmbedRun) -> str | None:
    """What the model, as it is now, expects in the gaps of rows with a value; ``None`` if there are none."""
    gaps = torch.isnan(run.prepared.Y)
    if not bool(gaps.any()):
        return None
    rows, numbers = run.prepared.rows, run.prepared.present.nonzero().flatten()
    with_gaps = gaps.any(-1)
    X = run.one_space()[with_gaps]
    expert = torch.full((len(X),), run.model.best_expert, dtype=torch.int64, device=X.device)
    mean, variance = (part.double() for part in map_back(run, X, expert))
    mean, std = mean * run.prepared.scale + run.prepared.offset, variance.sqrt() * run.prepared.scale
    lines: list[list[object]] = [["row", "column", "mean", "std"]]
    for row, column in gaps[with_gaps].nonzero().tolist():
        number = int(numbers[with_gaps][row]) + 1
        lines.append([number, rows.names[column], float(mean[row, column]), float(std[row, column])])
    return as_lines(lines)


def as_lines(rows: Iterable[Sequence[object]]) -> str:
    r"""Rows as CSV; NaN is an empty cell.

    Example:
        >>> as_lines([[1, math.nan, "a,b"]])
        '1,,"a,b"\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow(["" if isinstance(cell, float) and math.isnan(cell) else cell for cell in row])
    return text.getvalue()
