"""A figure of streams: every method on every set in every trial, scored, as a table and as curves over the rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from gp_ensembles.data import Table
from gp_ensembles.files.checkpoint import fingerprint
from studies.harness.comparison import Estimate, beside_printed, estimate, paired, read_printed
from studies.harness.experiment import Choices, found_sets
from studies.harness.panels import Curve, Panel, panels_table, save_panels
from studies.harness.parts import Record, Results, numbers, running
from studies.harness.plan import check_range, chosen
from studies.harness.protocol import Stream
from studies.harness.report import write_report
from studies.harness.sources import PaperSet
from studies.harness.text import aligned
from studies.ie_gp.methods import MethodRun, MethodSettings, Start, run_method

PRINTED = Path(__file__).with_name("printed.csv")
PUBLISHED = (
    "warm-up rows give hyperparameters and are forgotten (SSGP keeps them as its first batch), experts of weight below "
    "1e-16 are removed for good"
)
_VERSION = 2  # of everything that scores depend on besides the settings of a part
_POINTS = 200  # points of a curve that are kept
_UNSETTLED = 50  # a curve begins after this part of the stream: averages over less are noise
_OURS = "IE-GP"

Scored = tuple[dict[str, float], dict[str, list[float]]]


class Task(NamedTuple):
    """What is run for several figures.

    Attributes:
        name: Of the folder of its parts.
        sets: The paper's sets.
        methods: The methods by name.
        prepare: Makes the stream of a trial from a table and the trial's seed.
        score: Scores and curves of a run, by name.
        settings: What the paper fixes of the methods.
        constants: What else the scores depend on.
    """

    name: str
    sets: tuple[PaperSet, ...]
    methods: Mapping[str, Start]
    prepare: Callable[[Table, int], Stream]
    score: Callable[[MethodRun, Stream], Scored]
    settings: MethodSettings
    constants: Mapping[str, object]


class Quantity(NamedTuple):
    """What a figure shows.

    Attributes:
        figure: The paper's number.
        title: Of the table.
        curve: The curve of the records.
        label: What it is.
        linear_within: How far from zero its axis is linear.
        scores: Columns of the table, the first of which is compared pair by pair.
    """

    figure: int
    title: str
    curve: str
    label: str
    linear_within: float
    scores: tuple[str, ...]


def run_figure(task: Task, quantity: Quantity, choices: Choices, settings: None = None) -> str:
    """Make a figure: a table with means and standard errors over trials, a picture, its curves as CSV, all as JSON.

    What an earlier run in the same folder has finished is read back, as long as it was made with the same settings
    and rows.

    Returns:
        The table of the figure, for the eye.

    Raises:
        ValueError: If a set or method is unknown, a number is out of range, or no stream can be had.
        OSError: If the folders cannot be read or written.
    """
    check_range("trials", choices.trials, 1)
    methods = chosen(choices.methods, task.methods, "method")
    found, notes = found_sets(choices, task.sets)
    own = task.settings._replace(as_published=choices.as_published)
    results = Results(own, ("set", "method", "trial"), choices.trials)
    results.notes.extend(notes)
    with running(
        results, choices.out / task.name, len(found) * len(methods) * choices.trials, choices.progress
    ) as parts:
        for one in found:
            table = one.table._replace(X=one.table.X[: choices.max_rows], y=one.table.y[: choices.max_rows])
            data = fingerprint(table.X, table.y)
            for trial in range(choices.trials):
                seed = choices.seed + trial
                for method in methods:
                    made_with: dict[str, object] = {"version": _VERSION, **own._asdict(), **task.constants}
                    made_with |= {"seed": seed, "rows": len(table.y), "data": data}
                    file = f"{one.name}_{method}_{seed}{'_published' * choices.as_published}"
                    make = partial(_made, task, method, table, seed, own, made_with)
                    label = f"{one.name}, {method}, trial {trial + 1} of {choices.trials}"
                    parts.run((one.name, method, trial), file, made_with, make, label)
    return _written(task, quantity, choices, results, [one.name for one in found], methods)


def _made(
    task: Task, method: str, table: Table, seed: int, own: MethodSettings, made_with: dict[str, object]
) -> Record:
    stream = task.prepare(table, seed)
    return Record(made_with, *task.score(run_method(task.methods[method], stream, own, seed), stream))


def places(num_rows: int) -> torch.Tensor:
    """The rows of a stream at which curves are kept."""
    first = num_rows // _UNSETTLED
    at = torch.linspace(first, num_rows - 1, min(_POINTS, num_rows - first), dtype=torch.float64, device="cpu")
    return at.round().long()


def _written(
    task: Task,
    quantity: Quantity,
    choices: Choices,
    results: Results[MethodSettings],
    names: Sequence[str],
    methods: Sequence[str],
) -> str:
    def ours(name: str, method: str, score: str) -> Estimate | None:
        return estimate(results.values(score, name, method)) if method in methods and name in names else None

    keys = [(name, method) for name in names for method in methods if results.found(name, method)]
    rows: list[list[object]] = [
        [*key, *(str(estimate(results.values(score, *key))).replace("nan", "-") for score in quantity.scores)]
        for key in keys
    ]
    title = f"Lu et al. 2022, figure {quantity.figure}: {quantity.title}"
    title += f", {choices.trials} trial(s) from seed {choices.seed}"
    if choices.as_published:
        title += f"\nas the authors ran it: {PUBLISHED}"
    printed = beside_printed(read_printed(PRINTED, f"figure-{quantity.figure}"), ours)
    parts = [title, aligned(["set", "method", *quantity.scores], rows), *_compared(quantity, results, names, methods)]
    notes = ["means with standard errors over trials; the picture has medians and ranges"]
    text = "\n".join([*parts, *([printed] if printed else []), *notes, *results.notes, *results.failure_lines()])
    panels = []
    for name in names:
        records = {method: list(results.found(name, method).values()) for method in methods}
        curves = (_curve(method, found, quantity) for method, found in records.items() if found)
        panels.append(Panel(name, [curve for curve in curves if curve is not None]))
    content = {
        "figure": quantity.figure,
        "trials": choices.trials,
        "seed": choices.seed,
        "settings": results.plan._asdict(),
        "runs": {
            name: {method: [record.scores for record in results.found(name, method).values()] for method in methods}
            for name in names
        },
        "notes": results.notes,
        "failures": results.failed(),
    }
    table = panels_table(panels, ["set", "method", "row"])
    draw = partial(save_panels, panels, x_label="row", y_label=quantity.label, linear_within=quantity.linear_within)
    return write_report(choices.out / f"figure_{quantity.figure}", text, table, content, {"": draw})


def _compared(
    quantity: Quantity, results: Results[MethodSettings], names: Sequence[str], methods: Sequence[str]
) -> list[str]:
    """The paper's method against each rival on the first score, trial by trial."""
    if _OURS not in methods or results.num_repetitions < 2:
        return []
    score, rows = quantity.scores[0], []
    for name in names:
        for method in methods:
            if method != _OURS:
                found = paired(results.values(score, name, _OURS), results.values(score, name, method))
                if found.num:
                    p_value = "-" if math.isnan(found.t_p_value) else f"{found.t_p_value:.2g}"
                    rows.append([name, method, f"{found.mean:.3g}", f"{found.num_larger} of {found.num}", p_value])
    header = ["set", "rival", f"{score}: {_OURS} less rival", "larger", "p (paired t)"]
    return [aligned(header, rows)] if rows else []


def _curve(method: str, found: list[Record], quantity: Quantity) -> Curve | None:
    """Median and range over the trials; none for a method that has no such curve."""
    is_timed = quantity.curve == "seconds"
    x = numbers(found[0].curves["clock_rows" if is_timed else "rows"])
    values = torch.tensor(
        [numbers(record.curves[quantity.curve]) for record in found], dtype=torch.float64, device="cpu"
    )
    if is_timed:  # the paper's times have the fit in them
        values += values.new_tensor([[record.scores["fit_seconds"]] for record in found])
    if bool(torch.isnan(values).all()):
        return None
    middle = values.quantile(0.5, dim=0)
    return Curve(method, x, middle.tolist(), values.amin(0).tolist(), values.amax(0).tolist())
