"""The command line: ``gp-ensembles`` and ``python -m gp_ensembles``."""

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import PositiveInt

from gp_ensembles.cli import demo
from gp_ensembles.cli.checkpoint import load_checkpoint
from gp_ensembles.cli.commands import Output, report, resume, stream
from gp_ensembles.cli.compare import compare, comparison_table, load_named_configs
from gp_ensembles.cli.config import add_config, config_from, load_config
from gp_ensembles.cli.embed.command import add_embed, run_embed
from gp_ensembles.cli.named_configs import config_titles, find_config
from gp_ensembles.cli.optimize.command import add_optimize, run_optimize
from gp_ensembles.cli.running import THREADS, exit_code, read_arguments, threads
from gp_ensembles.cli.tables import read_more, read_table, without_constant

_OUT = "folder of the results; results that are there stay until this run is complete"
_CONFIG = "a config's name (gp-ensembles configs lists them) or a YAML file"
_DATA = "a CSV file (.csv or .csv.gz) with a header, or name:SET for a table that travels with a package, for instance \
name:trump_approval; with --data_folder, the name of a table in that folder's manifest"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments; those of the process by default.

    Returns:
        Exit code: 0 for success, 2 for bad input (one sentence on the standard error), 1 for a defect of this
        library, 130 after an interruption.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    learned = given[:1] and given[0] in ("stream", "resume")
    kept = "what was learned is in the checkpoint, see resume" if learned else "what was finished is kept"
    return exit_code("gp-ensembles", given, _run, kept)


def _run(given: Sequence[str]) -> int:
    arguments = read_arguments(given)
    for place, (option, file) in enumerate(pairwise(arguments), start=1):
        if option == "--config" and arguments[0] == "stream":
            arguments[place] = str(find_config(file))
            load_config(arguments[place])  # alone first: its complaints name the file
    parser, commands = _parsers()
    values = parser.parse_args(arguments)
    command = values.subcommand
    if command is None:
        parser.print_help()
        return 2
    if command == "configs":
        print("\n".join(f"{name:<16}  {title}" for name, title in config_titles().items()))
        return 0
    with threads(values[command].num_threads):
        return _COMMANDS[command](commands[command], values[command])


def _parsers() -> tuple[ArgumentParser, dict[str, ArgumentParser]]:
    parser = ArgumentParser(
        prog="gp-ensembles", exit_on_error=False,
        description="Online ensembles of Gaussian processes on tables whose rows arrive in time.",
    )  # fmt: skip
    subcommands = parser.add_subcommands(required=False)
    commands = {}
    for name, text in _HELP.items():
        command = ArgumentParser(exit_on_error=False, description=text)
        commands[name] = command
        if name == "configs":
            subcommands.add_subcommand(name, command, help=text)
            continue
        if name == "optimize":
            add_optimize(command)
        elif name == "embed":
            add_embed(command)
        elif name != "demo":
            command.add_argument("data", type=str, help=_DATA)
            command.add_argument("--data_folder", type=Path | None, default=None, help="a folder with a manifest.json")
        if name in ("stream", "compare"):
            command.add_argument("--target", type=str | None, default=None, help="column to predict")
            command.add_argument("--features", type=str | None, default=None, help="input columns, comma-separated")
        if name == "stream":
            command.add_argument("--config", action="config", help=_CONFIG)
            add_config(command)
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
            command.add_argument("--drop_constant", type=bool, default=False, help="leave constant columns out")
        command.add_argument("--out", type=Path, default=Path("out") / name, help=_OUT)
        if name not in ("compare", "optimize"):
            command.add_argument("--pictures", type=bool, default=True, help="draw pictures (needs matplotlib)")
            command.add_argument("--checkpoint_seconds", type=float, default=30.0, help="between checkpoints")
        command.add_argument("--progress", type=bool, default=True, help="show a progress bar")
        command.add_argument("--num_threads", type=PositiveInt, default=1, help=THREADS)
        command.add_argument("--traceback", type=bool, default=False, help="show where an error came from")
        subcommands.add_subcommand(name, command, help=text)
    return parser, commands


def _output(values: Namespace) -> Output:
    return Output(values.out, values.pictures, values.progress, values.checkpoint_seconds)


def _stream(parser: ArgumentParser, values: Namespace) -> int:
    config = config_from(values)
    table = read_table(values.data, values.target, values.features, values.data_folder)
    if config.drop_constant:
        table = without_constant(table, config.warmup)
    output = _output(values)
    print(report(stream(table, config, output), output))
    return 0


def _resume(parser: ArgumentParser, values: Namespace) -> int:
    session = load_checkpoint(values.checkpoint, device=values.device)
    table = read_more(values.data, session, values.skip_seen, values.data_folder)
    output = _output(values)
    print(report(resume(session, table, values.checkpoint, output), output))
    return 0


def _compare(parser: ArgumentParser, values: Namespace) -> int:
    configs = load_named_configs(values.configs, values.warmup, values.seed, values.device, values.dtype)
    warmup = next(iter(configs.values())).warmup
    table = read_table(values.data, values.target, values.features, values.data_folder)
    if values.drop_constant or any(config.drop_constant for config in configs.values()):
        table = without_constant(table, warmup)
    results = compare(table, configs, values.out, progress=values.progress)
    print(f"{table.name}: {table.y.shape[0] - warmup} rows predicted, each before its target was seen")
    print(comparison_table(results))
    print(values.out / "compare.csv")
    return 2 if any("error" in summary for summary in results.values()) else 0


def _demo(parser: ArgumentParser, values: Namespace) -> int:
    output = _output(values)
    print(report(demo.run_demo(output), output))
    return 0


def _optimize(parser: ArgumentParser, values: Namespace) -> int:
    return run_optimize(values)


def _embed(parser: ArgumentParser, values: Namespace) -> int:
    return run_embed(values)


_HELP = {
    "stream": "Predict every row of a table before its target is seen, and learn from it.",
    "resume": "Go on with a stream where a checkpoint stands, as if it had never stopped.",
    "compare": "Run several configs on one stream and print one table.",
    "configs": "List the configs that --config and --configs know by name.",
    "demo": "The whole job on real data that travels with the package, in under two minutes.",
    "optimize": "Bayesian optimization with ensembles and with single Gaussian processes, in one table of regrets.",
    "embed": "A few coordinates for each row of many entries, as the rows come, and a picture of them.",
}
_COMMANDS = {
    "stream": _stream, "resume": _resume, "compare": _compare, "demo": _demo, "optimize": _optimize, "embed": _embed,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
