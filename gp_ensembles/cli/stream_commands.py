"""The commands ``stream``, ``resume``, ``compare`` and ``demo``: their options, and what runs them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser, Namespace

from gp_ensembles.cli.bad_rows import Policy
from gp_ensembles.cli.checkpoint import load_checkpoint
from gp_ensembles.cli.commands import Output, demo, report, resume, stream
from gp_ensembles.cli.compare import compare, comparison_table, load_named_configs, over_seeds, with_seeds
from gp_ensembles.cli.config import add_config, config_from, warmup_in
from gp_ensembles.cli.lines.command import add_line_options, answer_lines
from gp_ensembles.cli.lines.run import LineOutput
from gp_ensembles.cli.lines.session import WINDOW, LineSession
from gp_ensembles.cli.named_configs import find_config
from gp_ensembles.cli.seen_rows import pass_over_seen
from gp_ensembles.cli.series.command import check_started, is_of_series, resume_series, stream_series
from gp_ensembles.cli.summary import health_lines
from gp_ensembles.cli.tables import TableRequest, split_kinds, split_names
from gp_ensembles.cli.writing import CHECKPOINT, is_unfinished
from gp_ensembles.ensembles.presets import auto_for
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget
from gp_ensembles.files.transaction import complete
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.streaming.config import MIN_WARM_UP
from gp_ensembles.tables import RowStream, TableOptions, explain
from gp_ensembles.tables.encoder import ColumnsError
from gp_ensembles.tables.options import KINDS

_CONFIG = "a config's name (gp-ensembles configs lists them) or a YAML file"
_DATA = "a table: a CSV file of any dialect or a Parquet file, packed by gzip or not, or - for the standard input; or \
name:SET for one that travels with a package, for instance name:trump_approval; with --data_folder, the name of a set \
in that folder's manifest"
_STRICT = "end with code 3 where something is a reason to look, such as intervals that do not keep their promise"
_SKIP = "pass over rows of the table that the stream has read; a table that starts with them is refused by default"
_BAD_ROW = "about a number out of all proportion: take it for missing, skip its row, or stop"


def add_options(name: str, command: ArgumentParser) -> None:
    """Give a parser the options of a command that all commands do not have."""
    if name in ("resume", "compare"):
        _add_table(command)
    if name == "compare":
        _add_columns(command)
    if name == "stream":
        add_table_options(command)
        command.add_argument("--on_bad_row", type=Policy, default="missing", help=_BAD_ROW)
    if name == "resume":
        _add_missing(command)
        command.add_argument("--checkpoint", type=Path, required=True, help="folder of a run, or its checkpoint.pt")
        command.add_argument("--skip_seen", type=bool | None, default=None, help=_SKIP)
        command.add_argument("--device", type=str | None, default=None, help="where to run; as before by default")
    if name == "compare":
        command.add_argument("--configs", type=Path, nargs="+", required=True, help="names or YAML files")
        command.add_argument("--warmup", type=int | None, default=None, help="override the configs'")
        command.add_argument("--seed", type=int | None, default=None, help="override the configs'")
        command.add_argument("--seeds", type=int, nargs="+", default=[], help="run each config with each of these")
        command.add_argument("--device", type=str | None, default=None, help="override the configs'")
        command.add_argument(
            "--dtype", type=Literal["float64", "float32"] | None, default=None, help="override the configs'"
        )
    if name in ("stream", "resume"):
        add_line_options(command)
    if name != "compare":
        command.add_argument("--pictures", type=bool, default=True, help="draw pictures (needs matplotlib)")
        command.add_argument(
            "--report", type=bool, default=True, help="write report.html, a page that needs no network"
        )
        command.add_argument("--checkpoint_seconds", type=float, default=30.0, help="between checkpoints")
        command.add_argument("--strict", type=bool, default=False, help=_STRICT)


def add_table_options(command: ArgumentParser) -> None:
    """A table with its columns, and a config."""
    _add_table(command)
    _add_columns(command)
    command.add_argument("--config", action="config", help=_CONFIG)
    add_config(command)


def _add_table(command: ArgumentParser) -> None:
    command.add_argument("data", type=str, help=_DATA)
    command.add_argument("--data_folder", type=Path | None, default=None, help="a folder with a manifest.json")
    _add_dialect(command)


def _add_dialect(command: ArgumentParser) -> None:
    """How a table is written."""
    add = command.add_argument
    add("--delimiter", type=str | None, default=None, help="mark between cells, tab for tabs; found by default")
    add("--decimal", type=Literal[".", ","] | None, default=None, help="mark before decimals; found by default")
    add("--encoding", type=str | None, default=None, help="of characters, as Python names it; found by default")
    add("--header", type=bool | None, default=None, help="whether the first row holds names; found by default")


def _add_missing(command: ArgumentParser) -> None:
    told = "cells without a value besides empty ones and NA: -999,void"
    command.add_argument("--missing", type=str | None, default=None, help=told)


def _add_columns(command: ArgumentParser) -> None:
    """What the columns of a table are."""
    add = command.add_argument
    add("--target", type=str | None, default=None, help="column to predict")
    add("--features", type=str | None, default=None, help="input columns, comma-separated; all others by default")
    kinds = ", ".join(KINDS)
    add("--kinds", type=str | None, default=None, help=f"kinds of columns, NAME=KIND,...: {kinds}; found by default")
    _add_missing(command)
    add("--time", type=str | None, default=None, help="column that orders the rows; the first of dates by default")
    add("--series", type=str | None, default=None, help="column of the series of a row; each has a model of its own")
    add("--classes", type=str | None, default=None, help="values of a target that tells classes, comma-separated")
    add("--explain", type=bool, default=False, help="say what is made of each column and of time, and run nothing")


def run_command(name: str, values: Namespace) -> int:
    """Run a command; returns its exit code."""
    return {"stream": _stream, "resume": _resume, "compare": _compare, "demo": _demo}[name](values)


def request(values: Namespace) -> TableRequest:
    """The table that a command line names."""
    delimiter = {"tab": "\t", "\\t": "\t", "space": " "}.get(values.delimiter, values.delimiter)
    dialect = TableOptions(delimiter, values.decimal, values.encoding, values.header)
    if "missing" in values:
        dialect = replace(dialect, missing=split_names(values.missing) or ())
    if "target" not in values:
        return TableRequest(values.data, None, values.data_folder, dialect)
    features, classes = split_names(values.features), split_names(values.classes)
    kinds, series = split_kinds(values.kinds), values.series
    columns = replace(dialect, features=features, kinds=kinds, time=values.time, classes=classes, series=series)
    return TableRequest(values.data, values.target, values.data_folder, columns)


def _output(values: Namespace) -> Output:
    on_bad_row: Policy = values.on_bad_row if "on_bad_row" in values else "missing"
    seconds = values.checkpoint_seconds
    return Output(values.out, values.pictures, values.progress, seconds, on_bad_row, values.report)


def _stream(values: Namespace) -> int:
    table = request(values)
    if values.series is not None and (values.format != "table" or values.follow):
        raise ValueError("--series is for tables; lines of several series are not answered yet")
    config = _for_classes(config_from(values), values)
    if values.format != "table":
        if (values.out / CHECKPOINT).exists():
            raise ValueError(
                f"{values.out / CHECKPOINT} is there already; go on from it with resume, or choose another --out"
            )
        window = WINDOW if values.window is None else values.window
        return _answer(LineSession.for_target(config, table.target, table.options, window), values)
    if values.series is not None and not values.explain:
        named = None if values.ensemble is None else config
        print(stream_series(table, named, config, values.warmup, _output(values)))
        return 0
    if values.follow:
        raise ValueError("a growing file is read line by line; say how lines are written, --format jsonl or csv")
    if values.explain:
        return _explain(table, values.warmup, config.ensemble.forecast_columns)
    rows = table.open(values.warmup, config.ensemble.forecast_columns)
    if values.warmup is None and rows.num_rows is not None and rows.num_rows <= MIN_WARM_UP:
        raise ValueError(
            f"{rows.name} has {rows.num_rows} rows; {MIN_WARM_UP} are needed to fit a model, and more to use it"
        )
    output = _output(values)
    summary = stream(rows, replace(config, warmup=rows.num_warm_up), output)
    if values.warmup is None and rows.num_warm_up < StreamConfig().warmup:
        print(f"the warm-up took a third of the table, {rows.num_warm_up} rows; --warmup takes others")
    return _told(summary, output, values)


def _told(summary: dict[str, object], output: Output, values: Namespace) -> int:
    """Say what came of a run; the exit code is 3 where that is asked for and something is not well."""
    print(report(summary, output))
    return 3 if values.strict and health_lines(summary) else 0


def _for_classes(config: StreamConfig, values: Namespace) -> StreamConfig:
    """The config, or the default one for classes where they are named and no other is."""
    classes = split_names(values.classes)
    if classes is None or values.ensemble is not None:
        return config
    target = BinaryTarget() if len(classes) == 2 else ClassTarget(len(classes))
    return replace(config, ensemble=auto_for(target))


def _explain(table: TableRequest, num_warm_up: int | None, forecasts: Sequence[str]) -> int:
    """Say what is made of the columns, once the whole table was read; of refused ones at the end."""
    try:
        rows = table.open(num_warm_up, forecasts)
    except ColumnsError as error:
        kinds = {**table.options.kinds, **dict.fromkeys(error.names, "drop")}
        with suppress(ValueError):  # others may be left, or the target
            _explain(replace(table, options=replace(table.options, kinds=kinds)), num_warm_up, forecasts)
        raise
    try:
        for _ in rows:
            pass
    finally:
        print(explain(rows.encoder, rows.columns))
        print(f"\n{rows.num_given} rows, of which {rows.num_warm_up} told what the columns are")
    return 0


def _answer(session: LineSession, values: Namespace) -> int:
    """Answer lines as they come."""
    output = LineOutput(values.out, values.id, values.checkpoint_seconds)
    return answer_lines(session, request(values), values.format, output, follow=values.follow)


def _resume(values: Namespace) -> int:
    if is_of_series(values.checkpoint):
        output = _output(values)
        print(resume_series(request(values), values.checkpoint, output, values.device, values.skip_seen))
        return 0
    check_started(values.checkpoint)
    if values.checkpoint.is_dir():
        values.checkpoint = values.checkpoint / CHECKPOINT
    if values.format != "table":
        session = LineSession.load(values.checkpoint)
        if values.window is not None:
            session.set_window(values.window)
        return _answer(session, values)
    is_completed = complete(values.out)  # its tables were about to be put in their places when it was killed
    stopped = load_checkpoint(values.checkpoint, device=values.device)
    rows = request(values).reopen(stopped.table)
    if not rows.has_target:
        raise ValueError(f"{rows.path} has no column named {rows.target_name}, the target of the stream")
    had_rows = not rows.is_at_end
    pass_over_seen(stopped, rows, values.skip_seen)
    output = _output(values)
    in_place = output.out.resolve() == values.checkpoint.resolve().parent
    if rows.is_at_end and in_place and is_completed and not is_unfinished(output.out):
        print(f"the {stopped.num_read} rows of {rows.name} were learned already; their results are in {output.out} now")
        return 0
    if rows.is_at_end and not (in_place and is_unfinished(output.out)):
        raise ValueError(
            f"{rows.name} holds no row that comes after the {stopped.num_read} that the stream has read; there is "
            f"nothing to add"
            if had_rows
            else f"{rows.path} has a header but no data rows"
        )
    return _told(resume(stopped, rows, values.checkpoint, output), output, values)


def _compare(values: Namespace) -> int:
    if values.series is not None:
        raise ValueError("compare takes tables of one series; stream takes --series")
    table = request(values)
    if not table.can_be_read_again:
        raise ValueError("compare reads the table once for each config; give a file, not the standard input")
    warmup = values.warmup
    if warmup is None and all(warmup_in(find_config(path)) is None for path in values.configs):
        warmup = table.open().num_warm_up
    if values.seeds and values.seed is not None:
        raise ValueError("--seed and --seeds say the same; give one of them")
    configs = load_named_configs(values.configs, warmup, values.seed, values.device, values.dtype)
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
    print(f"{name}: {rows} rows predicted, each before its target was seen")
    print(comparison_table(results))
    for config in named if len(values.seeds) > 1 else ():
        print(over_seeds(config, results, values.seeds))
    print(values.out / "compare.csv")
    return 2 if any("error" in summary for summary in results.values()) else 0


def _demo(values: Namespace) -> int:
    output = _output(values)
    return _told(demo(output), output, values)
