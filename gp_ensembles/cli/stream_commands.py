"""The commands ``stream``, ``resume``, ``compare`` and ``demo``: their options, and what runs them."""

from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser, Namespace

from gp_ensembles.cli import demo
from gp_ensembles.cli.bad_rows import Policy
from gp_ensembles.cli.checkpoint import load_checkpoint
from gp_ensembles.cli.commands import Output, report, resume, stream
from gp_ensembles.cli.compare import compare, comparison_table, load_named_configs
from gp_ensembles.cli.config import add_config, config_from
from gp_ensembles.cli.tables import read_more, read_table, split_names, without_seen

_CONFIG = "a config's name (gp-ensembles configs lists them) or a YAML file"
_DATA = "a CSV file (.csv or .csv.gz) with a header, or name:SET for a table that travels with a package, for instance \
name:trump_approval; with --data_folder, the name of a table in that folder's manifest"


_BAD_ROW = "about a number out of all proportion: take it for missing, skip its row, or stop"


def add_options(name: str, command: ArgumentParser) -> None:
    """Give a parser the options of a command that all commands do not have."""
    if name != "demo":
        command.add_argument("data", type=str, help=_DATA)
        command.add_argument("--data_folder", type=Path | None, default=None, help="a folder with a manifest.json")
    if name in ("stream", "compare"):
        command.add_argument("--target", type=str | None, default=None, help="column to predict")
        command.add_argument("--features", type=str | None, default=None, help="input columns, comma-separated")
    if name == "stream":
        command.add_argument("--config", action="config", help=_CONFIG)
        add_config(command)
        command.add_argument("--on_bad_row", type=Policy, default="missing", help=_BAD_ROW)
    if name == "resume":
        command.add_argument("--checkpoint", type=Path, required=True, help="the checkpoint.pt to go on from")
        command.add_argument("--skip_seen", type=bool, default=False, help="the table starts with the rows seen")
        command.add_argument("--device", type=str | None, default=None, help="where to run; as before by default")
    if name == "compare":
        command.add_argument("--configs", type=Path, nargs="+", required=True, help="names or YAML files")
        command.add_argument("--warmup", type=int | None, default=None, help="override the configs'")
        command.add_argument("--seed", type=int | None, default=None, help="override the configs'")
        command.add_argument("--device", type=str | None, default=None, help="override the configs'")
        command.add_argument(
            "--dtype", type=Literal["float64", "float32"] | None, default=None, help="override the configs'"
        )
    if name != "compare":
        command.add_argument("--pictures", type=bool, default=True, help="draw pictures (needs matplotlib)")
        command.add_argument(
            "--report", type=bool, default=True, help="write report.html, a page that needs no network"
        )
        command.add_argument("--checkpoint_seconds", type=float, default=30.0, help="between checkpoints")


def run_command(name: str, values: Namespace) -> int:
    """Run a command; returns its exit code."""
    return {"stream": _stream, "resume": _resume, "compare": _compare, "demo": _demo}[name](values)


def _output(values: Namespace) -> Output:
    on_bad_row: Policy = values.on_bad_row if "on_bad_row" in values else "missing"
    seconds = values.checkpoint_seconds
    return Output(values.out, values.pictures, values.progress, seconds, on_bad_row, values.report)


def _stream(values: Namespace) -> int:
    config = config_from(values)
    forecasts = config.ensemble.forecast_columns
    table = read_table(values.data, values.target, values.features, values.data_folder, forecasts)
    output = _output(values)
    print(report(stream(table, config, output), output))
    return 0


def _resume(values: Namespace) -> int:
    stopped = load_checkpoint(values.checkpoint, device=values.device)
    names = stopped.model.feature_names or ()
    ensemble = stopped.model.config.ensemble
    table = read_more(values.data, stopped.target_name, names, ensemble, values.data_folder)
    if values.skip_seen:
        table = without_seen(table, stopped.num_read, stopped.progress.last_row)
    output = _output(values)
    print(report(resume(stopped, table, values.checkpoint, output), output))
    return 0


def _compare(values: Namespace) -> int:
    configs = load_named_configs(values.configs, values.warmup, values.seed, values.device, values.dtype)
    warmup = next(iter(configs.values())).warmup
    forecasts = list(dict.fromkeys(name for c in configs.values() for name in c.ensemble.forecast_columns))
    table = read_table(values.data, values.target, values.features, values.data_folder, forecasts)
    features = split_names(values.features)
    results = compare(table, configs, values.out, progress=values.progress, features=features)
    print(f"{table.name}: {table.y.shape[0] - warmup} rows predicted, each before its target was seen")
    print(comparison_table(results))
    print(values.out / "compare.csv")
    return 2 if any("error" in summary for summary in results.values()) else 0


def _demo(values: Namespace) -> int:
    output = _output(values)
    print(report(demo.run_demo(output), output))
    return 0
