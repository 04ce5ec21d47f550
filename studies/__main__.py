"""``python -m studies``: which paper, which figure, table or experiment, on what data."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import PositiveInt

from gp_ensembles.cli.out_folder import run_folder
from gp_ensembles.cli.running import THREADS, exit_code, read_arguments, threads
from studies.arena import study as arena
from studies.arena.contenders import METHODS as ARENA_METHODS
from studies.harness.experiment import Choices, Experiment, Paper, check_own
from studies.harness.plan import check_range
from studies.harness.sources import Sources
from studies.registry import PAPERS, listing, paper_named

_USAGE = f"""usage: python -m studies PAPER EXPERIMENT [options]   make a figure or a table of a paper again
       python -m studies PAPER EXPERIMENT --help      its options
       python -m studies list [PAPER ...] [--data FOLDER]
       python -m studies arena [options]              our presets and what a user would pick, on all tables

papers: {", ".join(PAPERS)}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a study.

    Args:
        argv: Arguments; those of the process by default.

    Returns:
        Exit code: 0 for success, 2 for bad input (one sentence on the standard error), 1 for a defect, 130 after an
        interruption.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    return exit_code("studies", given, _run, "what was finished is kept")


def _run(given: Sequence[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        print(_USAGE)
        return 0 if given else 2
    name, *rest = given
    if name == "list":
        return _list(rest)
    if name == "arena":
        values = arena_parser().parse_args(read_arguments(["arena", *rest])[1:])
        with threads(values.num_threads), run_folder(values.out):
            print(_run_arena(values))
        return 0
    paper = paper_named(name)
    if not rest or rest[0].startswith("-"):
        print(listing([name], None))
        return 2
    experiment = paper.experiment(rest[0])
    words = read_arguments(rest)[1:]
    values = experiment_parser(paper, experiment).parse_args(words)
    if values.quick and experiment.quick_settings is not None:  # what was not given is as quick as can be
        experiment = dataclasses.replace(experiment, settings=experiment.quick_settings)
        values = experiment_parser(paper, experiment).parse_args(words)
    with threads(values.num_threads), run_folder(values.out):
        print(_run_experiment(experiment, values))
    return 0


def _list(words: Sequence[str]) -> int:
    parser = ArgumentParser(prog="studies list", exit_on_error=False, description="What can be made again.")
    parser.add_argument("papers", nargs="*", type=str, default=[], help=f"of {', '.join(PAPERS)}; all by default")
    _add_data(parser)
    values = parser.parse_args(read_arguments(["list", *words])[1:])
    print(listing(list(values.papers), values.data))
    print("\nSets in brackets were not found: name a folder with --data, or give one with --data-set NAME=FILE:TARGET.")
    return 0


def experiment_parser(paper: Paper, experiment: Experiment) -> ArgumentParser:
    """The parser of one experiment's options."""
    parser = _parser(f"studies {paper.name} {experiment.name}", f"{experiment.title}. {experiment.protocol}")
    add, quick = parser.add_argument, experiment.quick_size
    if experiment.sets:
        _add_data(parser)
        names = ", ".join(one.name for one in experiment.sets)
        own = f"NAME=FILE:TARGET, a table of yours in the place of a set; sets: {names}"
        add("--data_set", "--data-set", type=str, nargs="+", default=[], help=own)
        add("--sets", type=str, nargs="+", default=None, help=f"only these of {names}")
        add(
            "--max_rows", "--max-rows", type=int | None, default=None, help="most rows of a set; the paper's by default"
        )
    if experiment.methods:
        add("--methods", type=str, nargs="+", default=None, help=f"only these of {', '.join(experiment.methods)}")
    trials = f"draws, seeds, splits or folds; {experiment.paper_size.trials} by default, as in the paper"
    add("--trials", type=int | None, default=None, help=trials)
    add("--seed", type=int, default=0, help="seed of the first trial; the next ones count on from it")
    rows = "" if quick.max_rows is None else f" of at most {quick.max_rows} rows"
    add("--quick", type=bool, default=False, help=f"{quick.trials} trial(s){rows}: minutes, not hours")
    if experiment.published:
        add("--as_published", "--as-published", type=bool, default=False, help=experiment.published)
    if experiment.settings is not None:
        hints = get_type_hints(type(experiment.settings))
        for field in dataclasses.fields(experiment.settings):
            names_of = {f"--{field.name}", f"--{field.name.replace('_', '-')}"}
            value = getattr(experiment.settings, field.name)
            hint = hints[field.name]
            several: dict[str, Any] = {"type": hint}
            if get_origin(hint) is list:
                several = {"nargs": "+", "type": get_args(hint)[0]}
            add(*sorted(names_of), dest=field.name, default=value, help=field.metadata["help"], **several)
    _add_running(parser, Path("out") / f"{paper.name}_{experiment.name}")
    return parser


def _run_experiment(experiment: Experiment, values: Namespace) -> str:
    size = experiment.quick_size if values.quick else experiment.paper_size
    sources = Sources(values.get("data"), values.get("data_set") or [])
    check_own(sources, experiment.sets)
    trials = size.trials if values.trials is None else values.trials
    check_range("trials", trials, 1)
    check_range("seed", values.seed, 0)
    max_rows = values.get("max_rows")
    choices = Choices(
        sources=sources,
        out=values.out,
        trials=trials,
        max_rows=size.max_rows if max_rows is None else max_rows,
        sets=values.get("sets"),
        methods=values.get("methods"),
        seed=values.seed,
        as_published=bool(values.get("as_published")),
        progress=values.progress,
    )
    settings = experiment.settings
    if settings is not None:
        fields = [field.name for field in dataclasses.fields(settings)]
        settings = dataclasses.replace(settings, **{name: values[name] for name in fields})
    return experiment.run(choices, settings)


def _parser(program: str, description: str) -> ArgumentParser:
    parser = ArgumentParser(prog=program, exit_on_error=False, description=description)
    parser.add_argument("--config", action="config", help="YAML file with any of these options")
    return parser


def _add_data(parser: ArgumentParser) -> None:
    parser.add_argument("--data", type=Path | None, default=None, help="a folder with a manifest.json")


def _add_running(parser: ArgumentParser, out: Path) -> None:
    parser.add_argument("--out", type=Path, default=out, help="folder of the results")
    parser.add_argument("--progress", type=bool, default=True, help="show a progress bar")
    parser.add_argument("--num_threads", type=PositiveInt, default=1, help=THREADS)
    parser.add_argument("--traceback", type=bool, default=False, help="show where an error came from")


def arena_parser() -> ArgumentParser:
    """The parser of the arena's options."""
    parser = _parser("studies arena", "Our presets and what a user would pick, one step ahead on all tables.")
    start, add = arena.Options(), parser.add_argument
    _add_data(parser)
    add("--sets", type=str, nargs="+", default=None, help="only these sets")
    add("--methods", type=str, nargs="+", default=None, help=f"run only these of {', '.join(ARENA_METHODS)}")
    add("--rows", type=int, default=start.rows, help="most rows of a set that are scored")
    add("--seeds", type=int, default=start.seeds, help="seeds of the methods that have one; tables show means")
    add("--experts", type=bool, default=start.experts, help="keep what every expert of our ensembles says")
    _add_running(parser, Path("out") / "arena")
    return parser


def _run_arena(values: Namespace) -> str:
    options = arena.Options(values.sets, values.methods, values.rows, values.seeds, values.experts)
    return arena.run(values.data, values.out, options, progress=values.progress)


if __name__ == "__main__":
    sys.exit(main())
