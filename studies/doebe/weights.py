"""Experiment 2: one static and one dynamic expert, and what three weight rules make of the dynamic one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.metrics import log_score, nmse
from studies.doebe.design import OURS, PUBLISHED, Design, Making
from studies.doebe.methods import DELTA, PAPER_THRESHOLD, Averaging, Exchange, Method, Run, run_as_published, run_method
from studies.doebe.recording import Recording, record
from studies.doebe.sets import COLLAPSE_SETS, SourceSet, load_stream, source_sets
from studies.doebe.study import PRINTED, made_of
from studies.harness.comparison import beside_printed, estimate, read_printed
from studies.harness.experiment import Choices
from studies.harness.parts import Record, Results, running
from studies.harness.protocol import Stream
from studies.harness.report import write_report
from studies.harness.text import aligned

PRUNED = Method(f"BMA, pruned at {PAPER_THRESHOLD:g}", Averaging(PAPER_THRESHOLD), True, True, ("hsgp",), 1)
KEPT = Method("BMA, not pruned", Averaging(), True, True, ("hsgp",), 1)
EXCHANGED = Method(f"E-DOEBE, delta {DELTA:g}", Exchange(DELTA), True, True, ("hsgp",), 1)
RULES = (PRUNED, KEPT, EXCHANGED)
# A start of 0.7 ranges is ours; the authors' is one standardized unit. The paper's walk is that of every weight.
TWINS = replace(OURS, starts=(0.7,), scaled_walk=False)
PUBLISHED_TWINS = replace(PUBLISHED, starts=(1.0,), in_units=True)
_VERSION = 2  # of everything that weights depend on besides the data; a new number makes old files worthless
_COLUMNS = ("min_log10", "at_row", "max_after", "last", "log_score", "log_score_gaussian", "nmse")
_POINTS = 2000  # of a curve


def shared_bases(stream: Stream, making: Making, title: str = "", progress: bool = False) -> Recording:
    """What a static additive Hilbert-space expert and its walking twin say of a stream.

    Args:
        stream: The stream.
        making: How they are made.
        title: What the progress bar says.
        progress: Show a progress bar.
    """
    return record(stream, Design(("hsgp",), num_samples=1, making=making), 0, title, progress)


def weigh(recording: Recording, as_published: bool = False) -> dict[str, Run]:
    """What each of the three rules makes of them, by name.

    Args:
        recording: What they say.
        as_published: Whether E-DOEBE predicts with weights that have seen the target.
    """
    found = {rule.name: run_method(rule, recording) for rule in RULES}
    if as_published:
        found[EXCHANGED.name] = run_as_published(EXCHANGED, recording)
    return found


def summary(run: Run, y: Tensor) -> dict[str, float]:
    """The dynamic expert's lowest weight as a power of ten, its row, the largest after it, the last one; and scores."""
    log_weight = run.log_weights[1]
    lowest = int(log_weight.argmin())
    return {
        "min_log10": float(log_weight[lowest]) / math.log(10),
        "at_row": float(lowest + 1),
        "max_after": float(log_weight[lowest:].max().exp()),
        "last": float(log_weight[-1].exp()),
        "log_score": float(log_score(run.log_prob, y)),
        "log_score_gaussian": float(log_score(run.gaussian, y)),
        "nmse": float(nmse(run.mean, y)),
    }


def draw_weights(rows: Sequence[float], weights: Mapping[str, Sequence[float]], name: str, path: Path) -> None:
    """The dynamic expert's weight over time, a panel for each rule; as in the paper's Figure 3, rows on a log axis.

    Lines are means over rows within a tenth of each; the weights themselves are faint behind them.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import SERIES, label, new_figure

    figure, axes = new_figure(1, len(weights), 3.6 * len(weights), 2.8)
    places = np.array(rows)
    for axis, (rule, curve), color in zip(axes, weights.items(), SERIES, strict=False):
        weight = np.exp(curve)
        sums = np.concatenate([[0.0], weight.cumsum()])
        low, high = np.searchsorted(places, 0.9 * places), np.searchsorted(places, 1.1 * places, "right")
        axis.plot(places, weight, color=color, linewidth=0.3, alpha=0.3)
        axis.plot(places, (sums[high] - sums[low]) / (high - low), color=color, linewidth=1.6)
        label(axis, rule, f"rows of {name} after the warm-up", "weight of the dynamic expert")
        axis.set_xscale("log")
        axis.set_ylim(-0.03, 1.03)
    save_figure(figure, path)


def run_weights(choices: Choices, settings: None) -> str:
    """Run experiment 2 and write its files; finished streams are read back.

    Recorded streams do not depend on the seed and are run once.

    Args:
        choices: What was chosen of it.
        settings: Nothing.

    Returns:
        The table as text.

    Raises:
        ValueError: If a set is unknown, ``max_rows`` is too small, or nothing could be run.
        OSError: If a set cannot be read, or ``choices.out`` cannot be written.
    """
    sources, notes = source_sets(choices, COLLAPSE_SETS)
    if choices.max_rows is not None and choices.max_rows < 100:
        raise ValueError(f"max_rows={choices.max_rows} leaves too few rows to fit and to score; give at least 100")
    make_folder(choices.out)
    names = [source.name for source in sources]
    results: Results[list[str]] = Results(names, ("set", "trial"), choices.trials)
    results.notes += notes
    parts_of = [(source, trial) for source in sources for trial in range(choices.trials if source.differs else 1)]
    end = "_as_published" if choices.as_published else ""
    with running(results, choices.out / f"doebe_weights{end}", len(parts_of), choices.progress) as parts:
        for source, trial in parts_of:
            settings_of = made_of(_VERSION, source, choices, choices.seed + trial)
            settings_of["as_published"] = choices.as_published
            make = partial(_ran, source, choices, trial, settings_of)
            parts.run((source.name, trial), f"{source.name}-{choices.seed + trial}", settings_of, make, source.name)
    return _report(choices, results, end)


def _ran(source: SourceSet, choices: Choices, trial: int, settings: dict[str, object]) -> Record:
    stream = load_stream(source, choices.max_rows, choices.seed + trial)
    making = PUBLISHED_TWINS if choices.as_published else TWINS
    recording = shared_bases(stream, making, source.name, choices.progress)
    found = weigh(recording, choices.as_published)
    scores = {f"{rule}; {key}": value for rule, run in found.items() for key, value in summary(run, stream.y).items()}
    num_rows = len(stream.y)
    rows = (
        torch.logspace(0, math.log10(num_rows), min(_POINTS, num_rows), dtype=torch.float64, device="cpu")
        .round()
        .long()
        .unique()
        .clamp_max(num_rows)
    )
    curves = {rule: run.log_weights[1][rows - 1].tolist() for rule, run in found.items()}
    return Record(settings, scores, {**curves, "rows": rows.double().tolist()})


def _report(choices: Choices, results: Results[list[str]], end: str) -> str:
    rows: list[list[object]] = []
    for (name, trial), kept in results.records.items():
        for rule in RULES:
            values: list[object] = [kept.scores[f"{rule.name}; {key}"] for key in _COLUMNS]
            values[_COLUMNS.index("at_row")] = round(kept.scores[f"{rule.name}; at_row"])
            rows.append([name, trial, rule.name, *values])
    header = ["set", "trial", "rule", *_COLUMNS]
    manner = "; the authors' choices, with their leaks" if choices.as_published else ""
    title = f"DOEBE, experiment-2: weight of the dynamic one of two additive Hilbert-space experts{manner}"
    names = {"DOEBE": PRUNED.name, "DOEBE, not pruned": KEPT.name, "E-DOEBE": EXCHANGED.name}
    printed = beside_printed(
        read_printed(PRINTED, "experiment-2"),
        lambda name, method, kind: estimate(results.known(f"{names[method]}; {kind}", name)),
    )
    lines = [title, "", aligned(header, rows), "", *([printed, ""] if printed else [])]
    lines += [*results.notes, *results.failure_lines()]
    content = {"as_published": choices.as_published, "rows": [dict(zip(header, row, strict=True)) for row in rows]}
    pictures = {}
    for (name, trial), kept in results.records.items():
        curves = {rule.name: kept.curves[rule.name] for rule in RULES}
        pictures[f"_{name}-{trial}"] = partial(draw_weights, kept.curves["rows"], curves, str(name))
    return write_report(
        choices.out / f"doebe_experiment-2{end}", "\n".join(lines).rstrip(), (header, rows), content, pictures
    )
