"""The commands ``stream``, ``resume``, ``compare`` and ``demo``: options, execution, and events that reports count."""

import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from jsonargparse import ArgumentParser, Namespace

from gp_ensembles.cli.compare import compare, comparison_table, load_named_configs, over_seeds, with_seeds
from gp_ensembles.cli.config import add_config, config_from, warmup_in
from gp_ensembles.cli.line_session import WINDOW, LineSession
from gp_ensembles.cli.lines import add_line_options, answer_lines
from gp_ensembles.cli.named_configs import find_config
from gp_ensembles.cli.out_folder import Output, make_writable
from gp_ensembles.cli.predictions import MODEL, score_table
from gp_ensembles.cli.report.history import RunHistory
from gp_ensembles.cli.report.page import report_html
from gp_ensembles.cli.running import drawn_if_possible, progress_bar
from gp_ensembles.cli.scored_stream import ScoredStream, load_checkpoint, take_warm_up
from gp_ensembles.cli.seen_rows import skip_seen_rows
from gp_ensembles.cli.series import check_started, is_of_series, resume_series, stream_series
from gp_ensembles.cli.summary import health_lines, summarize_run, summary_table
from gp_ensembles.cli.tables import TableRequest, split_kinds, split_names
from gp_ensembles.cli.writing import CHECKPOINT, OutputFolder, checkpoint_of, is_unfinished
from gp_ensembles.data.synthetic import TARGET, write_messy_load
from gp_ensembles.engine.external_counts import ExternalCounts
from gp_ensembles.ensembles.presets import auto_for
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget
from gp_ensembles.files.replacing import complete, write_text
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.streaming.columns import settings_for
from gp_ensembles.streaming.config import MIN_WARM_UP
from gp_ensembles.streaming.health import failures
from gp_ensembles.tables import RowStream, TableOptions, explain, open_rows
from gp_ensembles.tables.encoder import TableError
from gp_ensembles.tables.options import KINDS, OnBadTime

REPORT = "report.html"
_ANOMALIES = {
    "inputs_moved": "inputs far outside the range seen so far, clipped to it",
    "targets_discounted": "targets far outside all predictions, down-weighted",
    "targets_left_out": "outliers among the warm-up targets, treated as missing",
    "inputs_imputed": "imputed inputs",
    "bad_rows": "rows with an infinite or implausibly large number",
}
_WORDS = {
    "rff": "Fourier features",
    "hsgp": "Hilbert features",
    "rbf kernel": "Gaussian kernel",
    "rbf": "radial functions",
}
_CONFIG = "a config's name (gp-ensembles configs lists them) or a YAML file"
_DATA = "a CSV file of any dialect or a Parquet file, gzipped or not; - for the standard input; name:SET for a \
bundled data set, such as name:trump_approval; with --data_folder, the name of a data set in that folder's manifest"
_STRICT = "exit with code 3 after any warning, for instance if intervals miss their coverage"
_MISSING = "values treated as missing, besides empty cells and NA: -999,void"
_TIMEZONE = "zone of times without a UTC offset, such as Europe/Paris; by default they are used as given"
_BAD_TIME = "rows whose time is missing, unreadable or earlier than the previous one: skip and count them, or refuse"
_SKIP = "skip rows that the stream has already read; by default a table that starts with them is refused"


def add_options(name: str, command: ArgumentParser) -> None:
    """Add the options of one command to a parser."""
    add = command.add_argument
    if name != "demo":
        _add_table(command)
    if name in ("stream", "compare"):
        _add_columns(command)
    if name == "stream":
        add("--config", action="config", help=_CONFIG)
        add_config(command)
    if name == "resume":
        add("--checkpoint", type=Path, required=True, help="folder of a run, or its checkpoint.pt")
        add("--skip_seen", type=bool | None, default=None, help=_SKIP)
        add("--device", type=str | None, default=None, help="device to run on; the same as before by default")
    if name == "compare":
        add("--configs", type=Path, nargs="+", required=True, help="config names or YAML files")
        add("--warmup", type=int | None, default=None, help="override the configs")
        add("--seed", type=int | None, default=None, help="override the configs")
        add("--seeds", type=int, nargs="+", default=[], help="run each config with each of these seeds")
        add("--device", type=str | None, default=None, help="override the configs")
        add("--dtype", type=Literal["float64", "float32"] | None, default=None, help="override the configs")
    if name in ("stream", "resume"):
        add_line_options(command)
    if name != "compare":
        add("--report", type=bool, default=True, help="write report.html, a self-contained page")
        add("--checkpoint_seconds", type=float, default=30.0, help="seconds between checkpoints")
        add("--strict", type=bool, default=False, help=_STRICT)


def _add_table(command: ArgumentParser) -> None:
    """Add the options of a table."""
    add = command.add_argument
    add("data", type=str, help=_DATA)
    add("--data_folder", type=Path | None, default=None, help="a folder with a manifest.json")
    add("--delimiter", type=str | None, default=None, help="field separator, tab for tabs; detected by default")
    add("--decimal", type=Literal[".", ","] | None, default=None, help="decimal mark; detected by default")
    add("--encoding", type=str | None, default=None, help="character encoding; detected by default")
    add("--header", type=bool | None, default=None, help="whether the first row holds names; detected by default")
    add("--missing", type=str | None, default=None, help=_MISSING)


def _add_columns(command: ArgumentParser) -> None:
    """Add the options of the columns of a table that is read for the first time."""
    add = command.add_argument
    add("--target", type=str | None, default=None, help="column to predict")
    words = "input columns, comma-separated, names with commas in double quotes; all others by default"
    add("--features", type=str | None, default=None, help=words)
    kinds = ", ".join(KINDS)
    add("--kinds", type=str | None, default=None, help=f"column types, NAME=KIND,...: {kinds}; detected by default")
    add("--time", type=str | None, default=None, help="column that orders the rows; the first date column by default")
    add("--timezone", type=str | None, default=None, help=_TIMEZONE)
    add("--on_bad_time", type=OnBadTime, default="skip", help=_BAD_TIME)
    add("--series", type=str | None, default=None, help="column with the series of each row; each has its own model")
    add("--classes", type=str | None, default=None, help="class labels of the target, comma-separated")
    add("--explain", type=bool, default=False, help="print how each column and the time are read, and run nothing")


def run_command(name: str, values: Namespace) -> int:
    """Run a command; returns its exit code."""
    return {"stream": _stream, "resume": _resume, "compare": _compare, "demo": _demo}[name](values)


def request(values: Namespace) -> TableRequest:
    """The table named on a command line."""
    delimiter = {"tab": "\t", "\\t": "\t", "space": " "}.get(values.delimiter, values.delimiter)
    missing = split_names(values.missing) or ()
    dialect = TableOptions(delimiter, values.decimal, values.encoding, values.header, missing=missing)
    if "target" not in values:
        return TableRequest(values.data, None, values.data_folder, dialect)
    columns = replace(
        dialect,
        features=split_names(values.features),
        kinds=split_kinds(values.kinds),
        time=values.time,
        classes=split_names(values.classes),
        series=values.series,
        timezone=values.timezone,
        on_bad_time=values.on_bad_time,
    )
    return TableRequest(values.data, values.target, values.data_folder, columns)


def _output(values: Namespace) -> Output:
    return Output(values.out, values.progress, values.checkpoint_seconds, values.report)


def _stream(values: Namespace) -> int:
    table = request(values)
    if values.series is not None and (values.format != "table" or values.follow):
        raise ValueError("--series needs a whole table; it does not work with --format or --follow")
    config = _for_classes(config_from(values), values)
    if values.format != "table":
        if (values.out / CHECKPOINT).exists():
            raise ValueError(
                f"{values.out / CHECKPOINT} already exists; continue from it with resume, or choose another --out"
            )
        window = WINDOW if values.window is None else values.window
        return answer_lines(LineSession(config, table.target, table.options, window), table, values)
    if values.series is not None and not values.explain:
        named = None if values.ensemble is None else config
        print(stream_series(table, named, config, values.warmup, _output(values)))
        return 0
    if values.follow:
        raise ValueError("--follow reads a growing file line by line; name its format, --format jsonl or csv")
    if values.explain:
        return _explain(table, values.warmup, config.ensemble.forecast_columns)
    rows = table.open(values.warmup, config.ensemble.forecast_columns)
    if values.warmup is None and rows.num_rows is not None and rows.num_rows <= MIN_WARM_UP:
        raise ValueError(
            f"{rows.name} has {rows.num_rows} rows; fitting needs at least {MIN_WARM_UP}, predictions need more"
        )
    output = _output(values)
    summary = stream(rows, replace(config, warmup=rows.num_warm_up), output)
    if values.warmup is None and rows.num_warm_up < StreamConfig().warmup:
        print(f"the warm-up is a third of the table, {rows.num_warm_up} rows; change it with --warmup")
    return _finished(summary, output, values)


def _finished(summary: dict[str, object], output: Output, values: Namespace) -> int:
    """Print the results of a run; the exit code is 3 after a warning with --strict."""
    print(report(summary, output))
    return 3 if values.strict and health_lines(summary) else 0


def _for_classes(config: StreamConfig, values: Namespace) -> StreamConfig:
    """The config, or the default one for classes if they are named and it is not."""
    classes = split_names(values.classes)
    if classes is None or values.ensemble is not None:
        return config
    target = BinaryTarget() if len(classes) == 2 else ClassTarget(len(classes))
    return replace(config, ensemble=auto_for(target))


def _explain(table: TableRequest, num_warm_up: int | None, forecasts: Sequence[str]) -> int:
    """Print how columns are encoded once the whole table is read; refused columns come last."""
    try:
        rows = table.open(num_warm_up, forecasts)
    except TableError as error:
        if not error.names:
            raise
        kinds = {**table.options.kinds, **dict.fromkeys(error.names, "drop")}
        with suppress(ValueError):  # others may be left, or the target
            _explain(replace(table, options=replace(table.options, kinds=kinds)), num_warm_up, forecasts)
        raise
    try:
        for _ in rows:
            pass
    finally:
        print(explain(rows.encoder, rows.columns))
        print(f"\n{rows.num_given} rows; column types were detected on the first {rows.num_warm_up}")
    return 0


def _resume(values: Namespace) -> int:
    if is_of_series(values.checkpoint):
        output = _output(values)
        print(resume_series(request(values), values.checkpoint, output, values.device, values.skip_seen))
        return 0
    check_started(values.checkpoint)
    # Its tables, and perhaps its checkpoint, were about to be put in their places when it was killed.
    is_completed = values.format == "table" and complete(values.out)
    values.checkpoint = checkpoint_of(values.checkpoint)
    if values.format != "table":
        session = LineSession.load(values.checkpoint)
        if values.window is not None:
            session.set_window(values.window)
        return answer_lines(session, request(values), values)
    stopped = load_checkpoint(values.checkpoint, device=values.device)
    rows = request(values).reopen(stopped.encoder)
    if not rows.has_target:
        raise ValueError(f"{rows.path} has no column named {rows.target_name}, the target of the stream")
    had_rows = not rows.is_at_end
    skip_seen_rows(stopped, rows, values.skip_seen)
    output = _output(values)
    in_place = output.out.resolve() == values.checkpoint.resolve().parent
    if rows.is_at_end and in_place and is_completed and not is_unfinished(output.out):
        print(f"the {stopped.num_read} rows of {rows.name} were already learned; their results are now in {output.out}")
        return 0
    if rows.is_at_end and not (in_place and is_unfinished(output.out)):
        raise ValueError(
            f"{rows.name} has no rows after the {stopped.num_read} that the stream has read; there is nothing to add"
            if had_rows
            else f"{rows.path} has a header but no data rows"
        )
    return _finished(resume(stopped, rows, values.checkpoint, output), output, values)


def _compare(values: Namespace) -> int:
    if values.series is not None:
        raise ValueError("compare takes a table of one series; use stream for --series")
    table = request(values)
    if table.data == "-" and table.folder is None:
        raise ValueError("compare reads the table once for each config; give a file, not the standard input")
    warmup = values.warmup
    if warmup is None and all(warmup_in(find_config(path)) is None for path in values.configs):
        warmup = table.open().num_warm_up
    if values.seeds and values.seed is not None:
        raise ValueError("--seed and --seeds are mutually exclusive; give one of them")
    given = {"warmup": warmup, "seed": values.seed, "device": values.device, "dtype": values.dtype}
    configs = load_named_configs(values.configs, given)
    named = list(configs)
    configs = with_seeds(configs, values.seeds)
    warmup = next(iter(configs.values())).warmup
    if values.explain:
        forecasts = dict.fromkeys(name for config in configs.values() for name in config.ensemble.forecast_columns)
        return _explain(table, warmup, list(forecasts))

    def opened(config: StreamConfig) -> RowStream:
        return table.open(warmup, config.ensemble.forecast_columns)

    results = compare(opened, configs, values.out, progress=values.progress)
    rows = max(int(str(summary.get("rows", 0))) for summary in results.values())
    name = next((summary["data"] for summary in results.values() if "data" in summary), values.data)
    print(f"{name}: {rows} rows predicted, each before its target was revealed")
    print(comparison_table(results))
    for config in named if len(values.seeds) > 1 else ():
        print(over_seeds(config, results, values.seeds))
    print(values.out / "compare.csv")
    return 2 if any("error" in summary for summary in results.values()) else 0


def _demo(values: Namespace) -> int:
    output = _output(values)
    return _finished(demo(output), output, values)


def stream(rows: RowStream, config: StreamConfig, output: Output) -> dict[str, object]:
    """Fit a model to the first rows of a table, predict and learn the rest, and write all results."""
    warm = take_warm_up(config, rows)  # a refused table leaves no folder behind
    config = settings_for(config, rows.feature_names)
    folder = OutputFolder(output.out)
    started = ScoredStream.start(config, rows, warm, progress=output.progress and sys.stderr.isatty())
    return run(started, rows, folder, output)


def resume(stopped: ScoredStream, rows: RowStream, checkpoint: Path, output: Output) -> dict[str, object]:
    """Continue from a checkpoint."""
    folder = OutputFolder(output.out)
    in_place = output.out.resolve() == checkpoint.resolve().parent
    return run(stopped, rows, folder, output, repeat_pending=in_place and folder.go_on(stopped))


def demo(output: Output) -> dict[str, object]:
    """Write a messy hourly load into the folder of the results, and predict it."""
    make_writable(output.out)
    path = output.out / "load.csv"
    write_messy_load(path)
    rows = open_rows(path, TARGET)
    summary = stream(rows, replace(StreamConfig(), warmup=rows.num_warm_up), output)
    print(f"gp-ensembles stream {path} --target {TARGET}\n\n{explain(rows.encoder, rows.columns)}\n")
    return summary


def run(
    scored: ScoredStream, rows: RowStream, folder: OutputFolder, output: Output, *, repeat_pending: bool = False
) -> dict[str, object]:
    """Feed rows to a stream and write its predictions; what was learned survives any failure."""
    rows_before = scored.num_read
    if scored.history is None or not repeat_pending:
        scored.history = new_history(scored)
    try:
        if not repeat_pending:
            folder.start(scored)
        try:
            _feed(scored, rows, folder, output, repeat_pending)
        except ValueError as error:
            if scored.num_read == rows_before:
                raise
            raise ValueError(
                f"{error}; the rows before it are learned and saved in {folder.path}: fix or remove the row, and "
                f"continue with resume --skip-seen"
            ) from error
        finally:
            if scored.is_whole and scored.num_read > rows_before:
                folder.checkpoint(scored)
        summary = summarize_run(scored, rows.columns, rows_before)
        history = scored.history
        folder.finish(summary, REPORT, lambda place: _draw(history, summary, output, place))
    finally:
        folder.close()
    return summary


def _feed(scored: ScoredStream, rows: RowStream, folder: OutputFolder, output: Output, repeat_pending: bool) -> None:
    """Predict and learn all rows, and append the predictions to the tables."""
    history, saved = scored.history, time.monotonic()
    assert history is not None
    first_row = history.first_row or 0  # rows before it are in the tables of another folder
    again = scored.progress.pending.num_rows if repeat_pending else 0
    total = None if rows.num_rows is None else rows.num_rows - rows.num_given
    with progress_bar("stream", total, output.progress) as bar:
        for chunk in scored.chunks(rows, repeat_pending=repeat_pending):
            folder.append(chunk.tail(max(0, first_row - chunk.first_row)), scored.encoder.clock)
            history.add(chunk, count_events(scored))
            if time.monotonic() - saved >= output.checkpoint_seconds:
                folder.checkpoint(scored)
                saved = time.monotonic()
            scores = score_table({MODEL: scored.scores[MODEL]}, scored.target_scale)[MODEL]
            bar.update(chunk.y.shape[0] - again)
            again = 0
            running = ("log_score", "nmse", "error_rate", "coverage_90")
            names = [name for name in running if name in scores]
            shown: dict[str, object] = {
                name: "-" if (score := scores[name]) is None else f"{score:.4f}" for name in names
            }
            bar.set_postfix(shown, refresh=False)


def _draw(history: RunHistory, summary: dict[str, object], output: Output, place: Path) -> None:
    """Write the report; a failure there costs no numbers."""
    if history.num_rows and output.report:
        drawn_if_possible(REPORT, lambda: write_text(place / REPORT, report_html(summary, history)))


def report(summary: dict[str, object], output: Output) -> str:
    """Text printed after a run: the score table and the paths of its files."""
    page = output.out / REPORT
    lines = [
        f"{summary['model']} with {summary['num_experts']} expert{'s' * (summary['num_experts'] != 1)} on "
        f"{summary['data']}: {summary['rows']} rows predicted, each before its target was revealed",
        summary_table(summary),
        *([str(page)] if output.report and page.exists() else []),
        str(output.out / CHECKPOINT),
    ]
    return "\n".join(lines)


def new_history(scored: ScoredStream) -> RunHistory:
    """An empty history for the next rows of a stream."""
    name, families = scored.model.config.ensemble.name, [family_of(name) for name in scored.model.names]
    history = RunHistory(name, scored.target_name, families, scored.baselines.names, count_events(scored))
    history.first_row = scored.num_read + 1
    return history


@torch.no_grad()
def count_events(scored: ScoredStream) -> dict[str, int]:
    """Event counts of a stream: those of ``AnomalyCounts``, failures, external models."""
    counts = {text: int(getattr(scored.anomaly_counts, name)) for name, text in _ANOMALIES.items()}
    counts["experts quarantined after a failure"] = sum(failure.times for failure in failures(scored.newest))
    activated = [column.activated_at > 0 for column in scored.newest.columns]
    counts["inputs constant during warm-up that have varied since"] = sum(activated)
    online = scored.newest.online
    assert online is not None
    if online.state.external_models is not None:
        absent = ExternalCounts(*online.state.external_models).num_absent.tolist()
        for place, number in zip(online.ensemble.layers.external_models, absent, strict=True):
            counts[f"rows without a prediction of {online.ensemble.expert_names[place]}"] = int(number)
    return counts


def family_of(name: str) -> str:
    """Family of an expert: its name in ``weights.csv`` without numbers and likelihoods of counts, in words."""
    base, _, variance = re.sub(r"(/static)?(/\d+( [a-z -]+)?)?$", "", name).partition("/dynamic ")
    base = re.sub("^(rff|hsgp|rbf kernel|rbf)\\b", lambda found: _WORDS[found[0]], base)
    if not variance:
        return base
    return f"{base}, {'slow' if float(variance) < 3e-4 else 'medium' if float(variance) < 3e-3 else 'fast'} random walk"
