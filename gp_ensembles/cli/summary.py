"""Summary of a run: a dictionary for a file, and tables to print."""

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import torch

from gp_ensembles.calibration.levels import WINDOW
from gp_ensembles.cli.predictions import MODEL, interval_table, score_table
from gp_ensembles.cli.scored_stream import ScoredStream
from gp_ensembles.engine.external_report import ExternalReport
from gp_ensembles.engine.quarantine import QuarantineReport
from gp_ensembles.engine.regret import Regret
from gp_ensembles.ensembles.build import one_class_message, only_label
from gp_ensembles.streaming.health import Finding, failures, health
from gp_ensembles.streaming.warm_up_rows import warm_up_outlier_lines
from gp_ensembles.tables.encoder import ColumnSummary

Summary = Mapping[str, Any]
_MOST_SKIPPED = 0.05  # largest share of rows that may be skipped because of their times without a warning
_SCORES = ("nmse", "log_score", "log_score_gaussian", "crps", "coverage_90")
_CLASS_SCORES = ("error_rate", "log_loss", "brier", "calibration_error")


def summarize_run(
    stream: ScoredStream, columns: Sequence[ColumnSummary] = (), rows_before: int = 0
) -> dict[str, object]:
    """All results and settings of a run, as plain containers."""
    model, config = stream.model, stream.model.config
    assert model.online is not None
    assert model.warm_y is not None
    table = score_table(stream.scores, stream.target_scale)
    scores = table.pop(MODEL)
    rows, clock, bad = stream.num_read - config.warmup, stream.encoder.clock, stream.anomaly_counts
    return {
        "model": config.ensemble.name,
        "data": stream.name,
        "target": stream.target_name,
        "features": list(model.used_features),
        "classes": stream.encoder.target.classes,
        "columns": [report._asdict() for report in columns],
        "inputs": [report._asdict() for report in stream.newest.columns],
        "time": None if clock is None else clock.report(),
        "time_remarks": [] if clock is None else [f"{clock.name}: {remark}" for remark in clock.remarks()],
        "notes": list(stream.encoder.notes),
        "warmup": config.warmup,
        "only_label_of_warmup": only_label(config.ensemble.target, model.warm_y),
        "outlier_targets_in_warmup": stream.anomaly_counts.targets_left_out,
        "far_targets_in_warmup": model.anomaly_counts.targets_far,
        "point_mass": None if model.point is None else model.point.at,
        "rows": rows,
        "rows_this_run": stream.num_read - max(rows_before, config.warmup),
        "rows_scored": int(stream.scores[MODEL].num_scored),
        "bad_rows": {"policy": config.on_bad_row, "num_rows": bad.bad_rows, "first": bad.first_bad_row},
        "inputs_moved": stream.anomaly_counts.inputs_moved,
        "targets_discounted": stream.anomaly_counts.targets_discounted,
        "num_experts": len(model.names),
        "health": [finding._asdict() for finding in look_after(stream)],
        "failures": [failure._asdict() for failure in failures(stream.newest)],
        "external_models": {report.name: external_entry(report) for report in stream.newest.external_models},
        **scores,
        "intervals": interval_table(stream.coverages),
        "baselines": table,
        "target_scale": stream.target_scale,
        "fit_seconds": stream.clock.fit,
        "stream_seconds": stream.clock.stream,
        "microseconds_per_row": 1e6 * stream.clock.stream / rows if rows else None,
        "device": device_name(config.torch_device),
        "not_recorded": None if stream.newest.online is None else stream.newest.online.why_eager,
        "num_threads": torch.get_num_threads(),
        "dtype": config.dtype,
        "seed": config.seed,
        "block_size": model.online.block_size,
        "config": config.to_plain(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of the packages that results depend on."""
    installed = {name: metadata.version(name) for name in ("gp_ensembles", "gpytorch", "botorch")}
    return {**installed, "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}


def device_name(device: torch.device) -> str:
    """Name of a device, the model of a GPU included."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def format_table(rows: Mapping[str, Mapping[str, object]], columns: Sequence[str] = _SCORES) -> str:
    """Scores by predictor as an aligned table; numbers that are missing show as a dash."""
    cells = {name: [_cell(values.get(column)) for column in columns] for name, values in rows.items()}
    width = max(len(name) for name in rows)
    longest = (max(map(len, column)) for column in zip(columns, *cells.values(), strict=True))
    widths = [max(9, length + 2) for length in longest]
    lines = [" " * width + "".join(f"{column:>{w}}" for column, w in zip(columns, widths, strict=True))]
    for name, row in cells.items():
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)))
    return "\n".join(lines)


def summary_table(summary: Summary) -> str:
    """The score table of one run with its baselines."""
    columns = _CLASS_SCORES if "error_rate" in summary else _SCORES
    table = format_table({str(summary["model"]): summary, **summary["baselines"]}, columns)
    label = summary.get("only_label_of_warmup")
    notes = [*(summary.get("notes") or ()), *([one_class_message(label)] if isinstance(label, int) else [])]
    if (point := summary.get("point_mass")) is not None:
        notes.append(f"many targets equal {point:g}: predictions give this value its own probability")
    notes += warm_up_outlier_lines(*(summary.get(f"{kind}_targets_in_warmup") or 0 for kind in ("outlier", "far")))
    lines = [*interval_lines(summary), *external_lines(summary), *event_lines(summary)]
    return "\n".join([table, *lines, *notes, *health_lines(summary)])


def look_after(stream: ScoredStream) -> tuple[Finding, ...]:
    """Health of a stream, with its intervals and its speed."""
    found = health(stream.newest, coverage=stream.coverages.get(0.9), slowdown=stream.clock.slowdown)
    times = stream.encoder.clock
    if times is None or not times.num_skipped:
        return found
    share = times.num_skipped / times.num_rows
    text = f"{100 * share:.3g} % of the rows were skipped because of their times"
    return (*found, Finding("rows skipped", share, _MOST_SKIPPED, share <= _MOST_SKIPPED, text))


def health_lines(summary: Summary) -> list[str]:
    """A line for each warning."""
    checks = summary.get("health") or []
    return [f"warning: {check['meaning']} (limit {check['limit']:.3g})" for check in checks if not check["ok"]]


def external_entry(report: ExternalReport) -> dict[str, object]:
    """The entry of an external model in ``summary.json``."""
    entry: dict[str, object] = report._asdict()
    del entry["name"]
    return {**entry, **report.regret._asdict()}


def external_lines(summary: Summary) -> list[str]:
    """Lines on each external model, from its :func:`external_entry`."""
    lines = []
    for name, entry in (summary.get("external_models") or {}).items():
        fields = {key: value for key, value in entry.items() if key != "bound"}
        report = ExternalReport(**{**fields, "name": name, "regret": Regret(entry["regret"], entry["bound"])})
        lines += str(report).splitlines()
    return lines


def event_lines(summary: Summary) -> list[str]:
    """Lines on failed experts, implausible numbers, clipped inputs, down-weighted targets, and a missing CUDA graph."""
    lines = [str(QuarantineReport(**failure)) for failure in summary.get("failures") or []]
    bad = summary.get("bad_rows")
    if isinstance(bad, dict) and bad["num_rows"]:
        rows = "1 row" if bad["num_rows"] == 1 else f"{bad['num_rows']} rows"
        taken = {"missing": "treated as missing", "limit": "limited"}.get(bad["policy"], "skipped")
        lines.append(f"{rows} had an infinite or implausibly large number, {taken}; the first: {bad['first']}")
    lines += summary.get("time_remarks") or []
    if summary.get("inputs_moved"):
        lines.append(f"{summary['inputs_moved']} inputs far outside the range seen so far were clipped to it")
    if summary.get("targets_discounted"):
        lines.append(f"{summary['targets_discounted']} targets far outside all predictions were down-weighted")
    if (reason := summary.get("not_recorded")) is not None:
        lines.append(f"no CUDA graph was recorded: {reason}")
    return lines


def interval_lines(summary: Summary) -> list[str]:
    """A line for each coverage of adaptive intervals: their coverage, and its guaranteed bound."""
    lines = []
    for share, kept in (summary.get("intervals") or {}).items():
        if kept["coverage"] is None:
            continue
        percent, off = 100 * float(share), min(100 * kept["bound"], 100.0)
        line = f"intervals of {percent:g} %: covered {100 * kept['coverage']:.2f} % (at most {off:.2f} % off for any "
        line += "targets)"
        if kept["mean_width"] is not None:
            line += f", mean width {kept['mean_width']:.4g}"
        if kept["windows"]:
            few, many = percent - (100 - percent) / 2, percent + (100 - percent) / 2
            line += f", {kept['windows_kept']:.0f} of {kept['windows']:.0f} windows"
            line += f"\nof {WINDOW} targets within {few:g} to {many:g} %"
        lines.append(line)
    return lines


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    return f"{value:.4f}" if abs(value) < 1e5 else f"{value:.3e}"
