"""The command line: ``gp-ensembles`` and ``python -m gp_ensembles``."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module, metadata
from itertools import pairwise
from pathlib import Path

from jsonargparse import ArgumentParser
from jsonargparse.typing import PositiveInt

from gp_ensembles.cli.named_configs import config_titles, find_config
from gp_ensembles.cli.out_folder import run_folder
from gp_ensembles.cli.running import THREADS, exit_code, read_arguments, threads

_OUT = "output folder; earlier results in it stay until this run is complete"
_STREAM = "gp_ensembles.cli.commands"
_HELP = {
    "stream": "Predict each row of a table before its target is revealed, then learn from it.",
    "resume": "Continue a stream from its checkpoint, exactly as if it had never stopped.",
    "forecast": "Forecast the rows after the last one of a run, jointly and row by row; learns nothing.",
    "compare": "Run several configs on one stream and print one table.",
    "demo": "Run everything on a messy hourly table, in under two minutes.",
    "configs": "List the configs that --config and --configs accept by name.",
}
# The module of a command has its add_options and run_command, and is imported when the command is called.
_MODULES = {
    "stream": _STREAM,
    "resume": _STREAM,
    "compare": _STREAM,
    "demo": _STREAM,
    "forecast": "gp_ensembles.cli.forecast_command",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        The exit code: 1 for a defect of the library, 2 for wrong input, 3 for a warning with ``--strict``, 130 after an
            interruption, 143 after SIGTERM, else 0.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    learned = given[:1] and given[0] in ("stream", "resume")
    kept = "what was learned is in the checkpoint, see resume" if learned else "what was finished is kept"
    return exit_code("gp-ensembles", given, _run, kept)


def _run(given: Sequence[str]) -> int:
    if list(given) == ["--version"]:
        print(f"gp_ensembles {metadata.version('gp_ensembles')}")
        return 0
    arguments = read_arguments(given)
    for place, (option, file) in enumerate(pairwise(arguments), start=1):
        if option == "--config" and arguments[0] == "stream":
            arguments[place] = str(find_config(file))
            import_module("gp_ensembles.cli.config").load_config(arguments[place])  # its complaints name the file
    parser = _parser(arguments[0] if arguments else "")
    values = parser.parse_args(arguments)
    command = values.subcommand
    if command is None:
        parser.print_help()
        return 2
    if command == "configs":
        print("\n".join(f"{name:<16}  {title}" for name, title in config_titles().items()))
        return 0
    chosen = values[command]
    explains = "explain" in chosen and chosen.explain  # which writes nothing
    with threads(chosen.num_threads), nullcontext() if explains else run_folder(chosen.out):
        code: int = import_module(_MODULES[command]).run_command(command, chosen)
        return code


def _parser(called: str) -> ArgumentParser:
    """A parser of all commands, with the options of the one that is called."""
    parser = ArgumentParser(
        prog="gp-ensembles",
        exit_on_error=False,
        description="Online ensembles of Gaussian processes on tables whose rows arrive over time.",
        epilog="gp-ensembles --version prints the installed version.",
    )
    subcommands = parser.add_subcommands(required=False)
    for name, text in _HELP.items():
        command = ArgumentParser(exit_on_error=False, description=text)
        if name == called and name in _MODULES:
            import_module(_MODULES[name]).add_options(name, command)
            command.add_argument("--out", type=Path, default=Path("out") / name, help=_OUT)
            command.add_argument("--progress", type=bool, default=True, help="show a progress bar")
            command.add_argument("--num_threads", type=PositiveInt, default=1, help=THREADS)
            command.add_argument("--traceback", type=bool, default=False, help="show the traceback of an error")
        subcommands.add_subcommand(name, command, help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
