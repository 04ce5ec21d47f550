r"""The experiments of the DOEBE paper again, each a table of scores over trials, and pictures (Waxman, Djuric 2024).

Features, kernels and warm-up as in the paper. What differs, because the published code is wrong there or the data
is not publicly available: every prediction is made before its target with the weights :math:`w_{t|t-1}`, the
transition's columns sum to one, the score is the log density of the mixture, radial centers are not trained, experts
have learned the warm-up rows, walks are scaled so that those of every basis add 1e-3 to the variance of the function,
starting length scales are 0.2, 0.7 and 2 ranges, and other recordings replace those that are not publicly available.
``--as-published`` does it the authors' way.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.files.checkpoint import fingerprint
from gp_ensembles.metrics import log_score, nmse
from gp_ensembles.metrics.scores import running_nmse
from studies.doebe.design import OURS, PUBLISHED, Design
from studies.doebe.methods import Method, Run, run_as_published, run_method
from studies.doebe.recording import Recording, load_recording, record, save_recording
from studies.doebe.sets import SourceSet, load_stream, source_sets
from studies.harness.comparison import beside_printed, estimate, read_printed
from studies.harness.experiment import Choices
from studies.harness.parts import Record, Results, running
from studies.harness.plan import chosen
from studies.harness.protocol import Stream
from studies.harness.report import write_report
from studies.harness.sources import PaperSet

PRINTED = Path(__file__).with_name("printed.csv")
_VERSION = 2  # of everything that scores depend on besides the data; a new number makes old files worthless
_POINTS = 120  # of a curve
SHARES = (0.1, 0.25, 0.5, 1.0)  # of the stream at which curves are read


class Plan(NamedTuple):
    """What is run.

    Attributes:
        sets: Names of the sets.
        methods: The methods.
        as_published: Whether it is done the authors' way.
    """

    sets: list[str]
    methods: list[Method]
    as_published: bool


Draw = Callable[[Results[Plan], Path], None]


class Table(NamedTuple):
    """An experiment of the paper.

    Attributes:
        name: What the command line calls it.
        title: What it shows.
        sets: The paper's sets.
        methods: Its methods.
        design: Its experts.
        text: Its table, from the results.
        pictures: Its pictures by the end of their name.
        is_classes: Whether targets are classes.
        is_along: Whether log scores along the stream are in the file, too.
    """

    name: str
    title: str
    sets: tuple[PaperSet, ...]
    methods: tuple[Method, ...]
    design: Design
    text: Callable[[Results[Plan]], str]
    pictures: Mapping[str, Draw]
    is_classes: bool = False
    is_along: bool = False


def so_far(curve: Sequence[float]) -> list[float]:
    """What a curve of scores so far says after each of :data:`SHARES` of the stream.

    Example:
        >>> so_far([4.0, 3.0, 2.0, 1.0])
        [4.0, 4.0, 3.0, 1.0]
    """
    return [curve[max(round(share * len(curve)), 1) - 1] for share in SHARES]


def score_kinds(as_published: bool, is_classes: bool = False) -> list[str]:
    """Names of the scores of a method, those of tables first."""
    honest = ["log_score", "error"] if is_classes else ["log_score", "nmse", "log_score_gaussian"]
    return ["log_score_as_published", "nmse_as_published", *honest] if as_published else honest


def run_table(table: Table, choices: Choices, settings: None) -> str:
    """Run an experiment; write its table as CSV, its numbers as JSON and its pictures as PNG.

    Finished parts are kept in ``choices.out``, so that a call that was cut goes on with what is done; experiments that
    share that folder and have the same experts share them, too.

    Args:
        table: The experiment.
        choices: What was chosen of it.
        settings: Nothing.

    Returns:
        The table as text.

    Raises:
        ValueError: If a set or a method is unknown, ``max_rows`` is too small, or nothing could be run.
        OSError: If a set cannot be read, or ``choices.out`` cannot be written.
    """
    names = chosen(choices.methods, [method.name for method in table.methods], "method")
    methods = [method for method in table.methods if method.name in names]
    sources, notes = source_sets(choices, table.sets)
    making = PUBLISHED if choices.as_published else OURS
    design = replace(table.design, making=making)
    results = Results(
        Plan([one.name for one in sources], methods, choices.as_published), ("set", "trial"), choices.trials
    )
    results.notes += notes
    if choices.max_rows is not None and choices.max_rows < 100:
        raise ValueError(f"max_rows={choices.max_rows} leaves too few rows to fit and to score; give at least 100")
    make_folder(choices.out)
    folder = choices.out / "doebe_experts"
    with running(
        results, choices.out / f"doebe_{table.name}", len(sources) * choices.trials, choices.progress
    ) as parts:
        for source in sources:
            for trial in range(choices.trials):
                seed = choices.seed + trial
                settings_of = made_of(_VERSION, source, choices, seed)
                settings_of |= {"design": repr(design), "methods": [repr(method) for method in methods]}
                make = partial(_part, source, seed, table, design, methods, settings_of, folder, choices)
                label = f"{source.name}, trial {trial + 1}"
                file = f"{source.name}-{seed}{'-as-published' if choices.as_published else ''}"
                parts.run((source.name, trial), file, settings_of, make, label)
    return _report(table, choices, results)


def made_of(version: int, source: SourceSet, choices: Choices, seed: int) -> dict[str, object]:
    """What every part depends on, for its settings: the version of its code, the rows of its set, and the seed."""
    data = "" if source.table is None else fingerprint(source.table.X, source.table.y)
    return {"version": version, "rows": choices.max_rows or 0, "seed": seed, "data": data}


def _part(
    source: SourceSet,
    seed: int,
    table: Table,
    design: Design,
    methods: list[Method],
    settings: dict[str, object],
    folder: Path,
    choices: Choices,
) -> Record:
    """Scores and curves of all methods on one set with one seed."""
    stream = load_stream(source, choices.max_rows, seed, design.num_warmup)
    recording = _recorded(stream, source.name, seed, design, folder, choices.progress)
    scores: dict[str, float] = {"fit_seconds": recording.seconds[0], "stream_seconds": recording.seconds[1]}
    curves: dict[str, list[float]] = {}
    for method in methods:
        run = run_method(method, recording, table.is_classes)
        found = _scores(run, recording.y, table.is_classes)
        curves |= _curves(method.name, run, recording.y, table.is_classes)
        if design.making == PUBLISHED:
            theirs = _scores(run_as_published(method, recording), recording.y, False)
            found |= {
                "log_score_as_published": theirs["log_score_gaussian"],
                "nmse_as_published": theirs["nmse"],
            }
        scores |= {f"{method.name}; {kind}": value for kind, value in found.items()}
    return Record(settings, scores, curves)


def _recorded(stream: Stream, name: str, seed: int, design: Design, folder: Path, progress: bool) -> Recording:
    """The experts' predictions, from a file if another experiment has them."""
    make_folder(folder)
    data = fingerprint(stream.warm_X, stream.warm_y, stream.X, stream.y)
    mark = f"version {_VERSION}, seed {seed}, data {data}, {design}"
    path = folder / f"{name}-{seed}-{zlib.crc32(mark.encode()):08x}.npz"
    kept = load_recording(path, mark)
    if kept is None:
        save_recording(record(stream, design, seed, name, progress), path, mark)
        kept = load_recording(path, mark)  # rounded as every later call will find it
        assert kept is not None
    return kept


def _scores(run: Run, y: Tensor, is_classes: bool) -> dict[str, float]:
    if is_classes:
        return {
            "log_score": float(log_score(run.log_prob, y)),
            "error": float(((run.mean > 0.5) != (y > 0)).double().mean()),
        }
    return {
        "log_score": float(log_score(run.log_prob, y)),
        "nmse": float(nmse(run.mean, y)),
        "log_score_gaussian": float(log_score(run.gaussian, y)),
    }


def _curves(name: str, run: Run, y: Tensor, is_classes: bool) -> dict[str, list[float]]:
    """Scores so far, at some rows evenly along the stream, the last one among them."""
    rows = (
        torch.linspace(0, len(y) - 1, min(_POINTS + 1, len(y)), dtype=torch.float64, device=y.device).round().long()[1:]
    )
    seen = ~torch.isnan(y)
    log_prob = torch.where(seen, run.log_prob, 0.0).cumsum(0) / seen.cumsum(0).clamp_min(1)
    error = ((run.mean > 0.5) != (y > 0)).double().cumsum(0) / torch.arange(1, len(y) + 1, device=y.device)
    loss = error if is_classes else running_nmse(run.mean, y)
    kinds = {"error" if is_classes else "nmse": loss, "log_score": log_prob}
    curves = {f"{name}; {kind}": curve[rows].tolist() for kind, curve in kinds.items()}
    return curves | {"rows": (rows + 1).double().tolist()}


def _report(table: Table, choices: Choices, results: Results[Plan]) -> str:
    kinds = score_kinds(choices.as_published, table.is_classes)
    size = "all rows" if choices.max_rows is None else f"{choices.max_rows} rows at most"
    manner = "; the authors' choices, with their leaks" if choices.as_published else ""
    lines = [f"DOEBE, {table.name}: {table.title}; {size}, {choices.trials} trial(s){manner}", ""]
    lines += [table.text(results), ""]
    printed = beside_printed(
        read_printed(PRINTED, table.name),
        lambda name, method, kind: (
            estimate(results.values(f"{method}; {_printed_kind(kind, choices)}", name))
            if name in results.plan.sets
            else None
        ),
    )
    lines += [printed, ""] if printed else []
    lines += [*results.notes, *results.failure_lines()]
    shares = [f"log_score after {share:.0%}" for share in SHARES] if table.is_along else []
    header = ["set", "trial", "method", *kinds, *shares]
    rows: list[list[object]] = [
        [name, trial, method.name]
        + [found.scores.get(f"{method.name}; {kind}", float("nan")) for kind in kinds]
        + (so_far(found.curves[f"{method.name}; log_score"]) if shares else [])
        for (name, trial), found in results.records.items()
        for method in results.plan.methods
    ]
    content = {
        "experiment": table.name,
        "title": table.title,
        "as_published": choices.as_published,
        "max_rows": choices.max_rows,
        "trials": choices.trials,
        "rows": [dict(zip(header, row, strict=True)) for row in rows],
        "failures": results.failed(),
        "notes": results.notes,
    }
    pictures = {end: partial(draw, results) for end, draw in table.pictures.items()}
    stem = choices.out / f"doebe_{table.name}{'_as_published' if choices.as_published else ''}"
    return write_report(stem, "\n".join(lines).rstrip(), (header, rows), content, pictures)


def _printed_kind(kind: str, choices: Choices) -> str:
    return f"{kind}_as_published" if choices.as_published and kind in ("log_score", "nmse") else kind
