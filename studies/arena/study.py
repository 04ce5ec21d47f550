"""The arena: our presets and what a user would pick, on all tables of a folder, honestly one step ahead.

Rows come in the order of their file. The first quarter of a table, at most 1 000 rows, is the warm-up: scales come
from it and every method learns it first. Then each row is predicted before it is learned, in standardized units of the
target. A method that says points only gets a band from its own past errors.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.files.checkpoint import fingerprint
from studies.arena.contenders import METHODS, Contender
from studies.arena.optional import is_installed, missing
from studies.arena.ours import ABLATIONS, VARIANTS, of_classes, stream_config
from studies.arena.pictures import draw_arena, panels_of
from studies.arena.running import Arena, Outcome
from studies.arena.scores import CLASS_SCORES, SCORES, summarize
from studies.arena.sets import Entry, Task, entries, load_task
from studies.arena.storage import save_densities, save_rows
from studies.arena.tables import ArenaPlan, arena_table, long_rows
from studies.harness.parts import Parts, Record, Results, kept_record, running
from studies.harness.plan import check_range, chosen
from studies.harness.report import write_report

_VERSION = 1  # of everything that scores depend on besides the data and our presets
_FEWEST_ROWS = 20


class Options(NamedTuple):
    """What may be chosen.

    Attributes:
        sets: Which sets; all by default.
        methods: Which methods are run; all by default. What is kept of others stands in the table as well.
        rows: Most rows of a set that are scored.
        seeds: How many seeds.
        experts: Keep what every expert of our ensembles says, so that rules can be compared without running experts.
    """

    sets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    rows: int = 10_000
    seeds: int = 1
    experts: bool = False


def run(
    data: Path | None,
    out: Path,
    options: Options = Options(),  # noqa: B008 (immutable)
    *,
    progress: bool = False,
) -> str:
    """Run the arena; write its table as Markdown, its scores as CSV and JSON, and its picture as PNG.

    Files are ``arena.txt``, ``.csv``, ``.json`` and ``.png`` in ``out``, and ``arena_log_score.png``, the first panel.
    Finished parts (a set, a method, a seed) are kept in ``out/arena_parts``: a record, beside it the scores of all rows
    (:func:`~studies.arena.storage.load_rows`) and, if asked for, what every expert said
    (:func:`~studies.arena.storage.load_densities`). A call that was cut goes on with what is done.

    Args:
        data: Folder of the sets, with a manifest.
        out: Folder of the results; it is made if need be.
        options: Sets, methods, rows and seeds.
        progress: Show a progress bar.

    Returns:
        The table as text.

    Raises:
        ValueError: If there is no such set or method, a number is out of range, or nothing could be run.
        OSError: If the folder of the sets cannot be read, or ``out`` cannot be written.

    Example:
        >>> run(None, Path("nowhere"))
        Traceback (most recent call last):
        ValueError: the arena needs sets; name their folder with --data
    """
    if data is None:
        raise ValueError("the arena needs sets; name their folder with --data")
    found = {entry.name: entry for entry in entries(data)}
    names = chosen(options.sets, found, "set")
    usual = [name for name in METHODS if name not in ABLATIONS]
    methods = chosen(options.methods or usual, METHODS, "method")
    check_range("rows", options.rows, _FEWEST_ROWS)
    check_range("seeds", options.seeds, 1)
    kinds = {name: found[name].kind for name in names}
    results = Results(ArenaPlan(names, kinds, list(METHODS), options.rows), ("set", "method", "seed"), options.seeds)
    make_folder(out)
    pairs = [(name, method) for name in names for method in METHODS if kinds[name] in METHODS[method].kinds]
    total = sum(method in methods for _, method in pairs) * options.seeds
    with running(results, out / "arena_parts", total, progress) as parts:
        for name in names:
            _run_set(parts, results, found[name], methods, options, out / "arena_parts")
    return _written(results, out)


def _run_set(
    parts: Parts,
    results: Results[ArenaPlan],
    entry: Entry,
    methods: Sequence[str],
    options: Options,
    folder: Path,
) -> None:
    """All methods on a set; of those that are not to be run, what is kept."""
    fitting = [name for name, contender in METHODS.items() if entry.kind in contender.kinds]
    wanted = [name for name in fitting if name in methods]
    try:
        task = load_task(entry, options.rows)
    except ValueError as error:
        parts.skip([(entry.name, "all", -1)], str(error), len(wanted) * options.seeds)
        return
    mark = fingerprint(*(torch.from_numpy(np.ascontiguousarray(part)) for part in task[2:6]))
    for seed in range(options.seeds):
        arena = Arena(task, seed, options.experts)
        for name in fitting:
            contender = METHODS[name]
            key = (entry.name, name, seed)
            used = seed if contender.is_seeded else 0
            stem = folder / f"{entry.name}-{name}-{used}-{options.rows}"
            keeps = contender.family == "ours" and (options.experts or _densities_path(stem).exists())
            settings = {**_settings(contender, name, task, used), "data": mark, "experts": keeps}
            if name not in wanted:
                kept = kept_record(stem.with_name(f"{stem.name}.json"), settings)
                if kept is not None:
                    results.records[key] = kept
            elif contender.package is not None and not is_installed(contender.package):
                parts.skip([key], missing(contender.package), 1)
            else:
                make = partial(_ran, arena, contender, settings, stem)
                parts.run(key, stem.name, settings, make, f"{entry.name}, {name}, seed {seed}")


def _settings(contender: Contender, name: str, task: Task, seed: int) -> dict[str, object]:
    """What a part is made with."""
    config = None
    if contender.family == "ours":
        made = of_classes(task.num_classes) if task.num_classes else VARIANTS[name]
        # As text: JSON has no infinity, and a record is compared with what its file says.
        config = json.dumps(stream_config(made, len(task.warm_y), seed).to_plain())
    return {"version": _VERSION, "set": task.name, "method": name, "seed": seed, "rows": len(task.y), "preset": config}


def _ran(arena: Arena, contender: Contender, settings: dict[str, object], stem: Path) -> Record:
    """Run a part; its other files are written first, so that a record is never alone."""
    outcome = arena.run(contender)
    save_rows(stem.with_name(f"{stem.name}.npz"), outcome.rows)
    if outcome.densities is not None:
        save_densities(_densities_path(stem), outcome.densities)
    return Record(settings, _scores(outcome), {})


def _densities_path(stem: Path) -> Path:
    return stem.with_name(f"{stem.name}-experts.npz")


def _scores(outcome: Outcome) -> dict[str, float]:
    scores = summarize(outcome.rows)
    num_rows = len(outcome.rows.y)
    return {
        **scores,
        "microseconds": 1e6 * outcome.cost.stream / num_rows,
        "warm_up_seconds": outcome.cost.warm_up,
        "rows": float(num_rows),
    }


def _written(results: Results[ArenaPlan], out: Path) -> str:
    text = "\n".join([arena_table(results), "", *results.failure_lines()])
    kinds = [*dict.fromkeys((*SCORES, *CLASS_SCORES)), "microseconds", "warm_up_seconds", "rows"]
    content = {
        "rows": long_rows(results, kinds),
        "failures": results.failed(),
        "methods": {name: METHODS[name].title for name in METHODS},
    }
    table = ([*results.fields, *kinds], results.rows(kinds))
    panels = panels_of(results)
    pictures = {"": partial(draw_arena, panels), "_log_score": partial(draw_arena, panels[:1])}
    return write_report(out / "arena", text, table, content, pictures)
