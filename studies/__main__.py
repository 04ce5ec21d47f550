"""``python -m studies``: which paper, which figure, table or experiment, on what data."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import PositiveInt

from gp_ensembles.cli.out_folder import run_folder
from gp_ensembles.cli.running import THREADS, exit_code, read_arguments, threads
from studies.arena import study as arena
from studies.arena.contenders import METHODS as ARENA_METHODS
from studies.doebe import study as doebe
from studies.fusion import study as fusion
from studies.fusion.methods import METHODS as FUSION_METHODS
from studies.fusion.sets import NUM_ROWS
from studies.ie_gp import study as ie_gp
from studies.ie_gplvm import study as ie_gplvm
from studies.ie_gplvm.methods import METHODS as LATENT_METHODS
from studies.ie_gplvm.methods import Effort
from studies.ie_gplvm.sets import START_SHARES
from studies.knots import study as knots
from studies.knots.methods import METHODS as KNOT_METHODS
from studies.maskerade import study as maskerade
from studies.maskerade.methods import METHODS as KERNEL_METHODS

_EXPERIMENTS = ("1", "2", "3", "C", "D")


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
    parser = studies_parser()
    values = parser.parse_args(read_arguments(given))
    if values.subcommand is None:
        parser.print_help()
        return 2
    chosen = values[values.subcommand]
    with threads(chosen.num_threads), run_folder(chosen.out):
        print(STUDIES[values.subcommand].run(chosen))
    return 0


def studies_parser() -> ArgumentParser:
    """The parser of the command line, with a subcommand for each paper."""
    parser = ArgumentParser(prog="studies", exit_on_error=False, description="The papers' figures and tables again.")
    subcommands = parser.add_subcommands(required=False)
    for name, study in STUDIES.items():
        command = study_parser(name)
        subcommands.add_subcommand(name, command, help=study.paper)
    return parser


def study_parser(name: str) -> ArgumentParser:
    """The parser of one paper's subcommand."""
    command = ArgumentParser(exit_on_error=False, description=STUDIES[name].paper)
    command.add_argument("--config", action="config", help="YAML file with any of these options: studies/configs")
    STUDIES[name].add_options(command)
    command.add_argument("--out", type=Path, default=Path("out") / name, help="folder of the results")
    command.add_argument("--progress", type=bool, default=True, help="show a progress bar")
    command.add_argument("--num_threads", type=PositiveInt, default=1, help=THREADS)
    command.add_argument("--traceback", type=bool, default=False, help="show where an error came from")
    return command


class Study(NamedTuple):
    """A paper as a subcommand.

    Attributes:
        paper: Who wrote it, and what on.
        add_options: Gives a parser the options of the study.
        run: Makes what the options ask for and returns its table.
    """

    paper: str
    add_options: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], str]


def _add_data(parser: ArgumentParser) -> None:
    parser.add_argument("--data", type=Path | None, default=None, help="a folder with a manifest.json")


def _add_ie_gp(parser: ArgumentParser) -> None:
    effort, add = Effort(), parser.add_argument
    _add_data(parser)
    add("--figure", type=int | None, default=None, help="2, 3, 4, 7, 10 or 11")
    add("--draws", type=int, default=3, help="draws of frequencies; tables show their median")
    add("--max_rows", type=int | None, default=None, help="most rows of a stream or a set")
    add("--dataset", type=str | None, default=None, help=f"of figure 7: {', '.join(START_SHARES)}, all by default")
    methods = f"of figure 7: {', '.join(LATENT_METHODS)}, all by default"
    add("--methods", type=str, nargs="+", default=None, help=methods)
    add("--seed", type=int, default=0, help="of figure 7: seed of the first draw")
    block = "of figure 7: rows that the ensembles embed at once"
    add("--block_size", "--block-size", type=int, default=effort.block_size, help=block)
    add("--iterations", type=int, default=effort.iterations, help="of figure 7: steps of GPyTorch's model")


def _run_ie_gp(values: Namespace) -> str:
    if values.figure == ie_gplvm.FIGURE:
        effort = Effort(values.block_size, values.iterations)
        choices = ie_gplvm.Options(values.dataset, values.methods, values.draws, values.seed, values.max_rows, effort)
        return ie_gplvm.run(values.data, values.out, choices, progress=values.progress)
    if values.figure not in ie_gp.FIGURES:
        figures = sorted((*ie_gp.FIGURES, ie_gplvm.FIGURE))
        raise ValueError(f"--figure of ie-gp must be one of {', '.join(map(str, figures))}, got {values.figure}")
    return ie_gp.run(
        values.figure, values.data, values.out, draws=values.draws, max_rows=values.max_rows, progress=values.progress
    )


def _add_doebe(parser: ArgumentParser) -> None:
    _add_data(parser)
    parser.add_argument("--experiment", type=str | None, default=None, help=", ".join(_EXPERIMENTS))
    parser.add_argument("--seeds", type=int, default=1, help="repetitions; tables show their mean")
    parser.add_argument("--max_rows", type=int | None, default=None, help="most rows of a stream")


def _run_doebe(values: Namespace) -> str:
    if values.experiment not in _EXPERIMENTS:
        raise ValueError(f"--experiment of doebe must be one of {', '.join(_EXPERIMENTS)}, got {values.experiment}")
    return doebe.run(
        values.experiment,
        values.data,
        values.out,
        seeds=values.seeds,
        max_rows=values.max_rows,
        progress=values.progress,
    )


def _add_maskerade(parser: ArgumentParser) -> None:
    start, add = maskerade.Options(), parser.add_argument
    _add_data(parser)
    add("--table", type=int | None, default=None, help="1, 2, 3, 5 or 6")
    add("--evaluations", type=int, default=start.evaluations, help="likelihoods for a method and a split")
    add("--folds", type=int | None, default=None, help="splits of each set; the paper's number by default")
    add("--sets", type=str, nargs="+", default=None, help="only these sets")
    methods = f"{', '.join(KERNEL_METHODS)}; those of the table by default"
    add("--methods", type=str, nargs="+", default=None, help=methods)
    add("--seed", type=int, default=start.seed, help="seed of the first split")


def _run_maskerade(values: Namespace) -> str:
    options = maskerade.Options(values.evaluations, values.folds, values.sets, values.methods, values.seed)
    return maskerade.run(values.table, values.data, values.out, options, progress=values.progress)


def _add_knots(parser: ArgumentParser) -> None:
    start, add = knots.Options(), parser.add_argument
    _add_data(parser)
    add("--dataset", type=str | None, default=None, help="boston, airfoil or ccpp")
    add("--figure", type=int | None, default=None, help="1 or 2, in place of a table")
    add("--splits", type=int, default=start.splits, help="random splits of the set")
    add("--max_knots", "--max-knots", type=int, default=start.max_knots, help="most knots")
    add("--methods", type=str, nargs="+", default=None, help=f"{', '.join(KNOT_METHODS)}; all by default")
    add("--seed", type=int, default=start.seed, help="seed of the first split")


def _run_knots(values: Namespace) -> str:
    options = knots.Options(values.splits, values.max_knots, values.methods, values.seed)
    return knots.run(values.dataset, values.data, values.out, options, figure=values.figure, progress=values.progress)


def _add_fusion(parser: ArgumentParser) -> None:
    start, add = fusion.Options(), parser.add_argument
    add("--figure", type=int | str | None, default=None, help="3a or 3b")
    add("--splits", type=int, default=start.splits, help="random splits of the set")
    add("--models", type=str, nargs="+", default=None, help=f"{', '.join(FUSION_METHODS)}; all by default")
    add("--inference", type=str, default=start.inference, help="hmc or laplace")
    add("--seed", type=int, default=start.seed, help="seed of the first split")
    add("--max_rows", type=int, default=NUM_ROWS, help="rows made up")


def _run_fusion(values: Namespace) -> str:
    options = fusion.Options(values.splits, values.models, values.inference, values.seed, values.max_rows)
    return fusion.run(values.figure, values.out, options, progress=values.progress)


def _add_arena(parser: ArgumentParser) -> None:
    start, add = arena.Options(), parser.add_argument
    _add_data(parser)
    add("--sets", type=str, nargs="+", default=None, help="only these sets")
    add("--methods", type=str, nargs="+", default=None, help=f"run only these of {', '.join(ARENA_METHODS)}")
    add("--rows", type=int, default=start.rows, help="most rows of a set that are scored")
    add("--seeds", type=int, default=start.seeds, help="seeds of the methods that have one; tables show means")
    add("--experts", type=bool, default=start.experts, help="keep what every expert of our ensembles says")


def _run_arena(values: Namespace) -> str:
    options = arena.Options(values.sets, values.methods, values.rows, values.seeds, values.experts)
    return arena.run(values.data, values.out, options, progress=values.progress)


STUDIES = {
    "ie-gp": Study("Lu et al. 2022: incremental ensembles on streams and of latent variables.", _add_ie_gp, _run_ie_gp),
    "doebe": Study("Waxman and Djuric 2024: dynamic ensembles of basis expansions.", _add_doebe, _run_doebe),
    "maskerade": Study("Hamid et al. 2022: kernels marginalized by quadrature.", _add_maskerade, _run_maskerade),
    "knots": Study("Garton et al. 2020: knots chosen one at a time.", _add_knots, _run_knots),
    "fusion": Study("Ajirak et al. 2024: fusion of Gaussian process experts.", _add_fusion, _run_fusion),
    "arena": Study("Our presets and what a user would pick, one step ahead on all tables.", _add_arena, _run_arena),
}

if __name__ == "__main__":
    sys.exit(main())
