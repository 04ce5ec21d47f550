"""The command ``optimize``: methods of Bayesian optimization on problems, from several seeds, in one table."""

import sys

from jsonargparse import ArgumentParser, Namespace

from gp_ensembles.cli.error_messages import drawn_if_possible
from gp_ensembles.cli.optimize.methods import METHODS
from gp_ensembles.cli.optimize.pictures import draw_regrets
from gp_ensembles.cli.optimize.problems import PROBLEMS
from gp_ensembles.cli.optimize.runner import Plan, run_all
from gp_ensembles.cli.optimize.tables import (
    curves_csv,
    differences,
    differences_markdown,
    summarize,
    table_csv,
    table_markdown,
)
from gp_ensembles.files.replacing import write_text
from gp_ensembles.files.together import staged

_SLOW = ("bayesian-logei", "saas-logei", "map-saas-logei", "vbll-logei")


_REFERENCE = "gp-logei"  # what methods are compared with, seed by seed


def add_options(name: str, parser: ArgumentParser) -> None:
    """Give a parser the options of the command."""
    methods = [name for name in METHODS if name not in _SLOW]
    parser.add_argument("--problems", type=str, nargs="+", default=list(PROBLEMS), help=f"of {', '.join(PROBLEMS)}")
    parser.add_argument(
        "--methods", type=str, nargs="+", default=methods, help=f"of {', '.join(METHODS)}; all but the slow by default"
    )
    parser.add_argument("--seeds", type=int, default=10, help="runs of each method on each problem")
    parser.add_argument("--iterations", type=int, default=40, help="suggestions of a run, after the initial design")
    parser.add_argument(
        "--num_initial", type=int | None, default=None, help="points of the initial design; 2 D + 2 by default"
    )
    parser.add_argument("--device", type=str, default="cpu", help="where models are, in float64: cpu, cuda, cuda:1")


def run_command(name: str, values: Namespace) -> int:
    """Make the runs that are not there yet, then the tables and the pictures; print the table.

    Files are ``runs/PROBLEM-METHOD-SEED.csv``, ``optimize.csv``, ``optimize.md``, ``curves.csv``,
    ``simple_regret.png`` and ``cumulative_regret.png`` in the folder ``values.out``.

    Returns:
        Exit code, 0 for success, 2 if a run has failed, 130 after an interruption.

    Raises:
        ValueError: If a name is unknown or a number too small.
        ImportError: If a package is missing that a method needs.
        OSError: If the folder cannot be written.
    """
    plan = Plan(values.problems, values.methods, values.seeds, values.iterations, values.num_initial, values.device)
    folder = values.out / "runs"
    try:
        results = run_all(plan, folder, progress=values.progress)
    except KeyboardInterrupt:
        print(f"gp-ensembles: interrupted; the same command goes on with the runs in {folder}", file=sys.stderr)
        return 130
    if not results.traces:
        print("gp-ensembles: error: every run has failed, so there is no table", file=sys.stderr)
        return 2
    summaries = summarize(results)
    text = table_markdown(summaries, results)
    paired = differences_markdown(differences(results, _REFERENCE), _REFERENCE)
    text += f"\n\n{paired}" if paired else ""
    for (problem, method, seed), reason in results.failures.items():
        text += f"\n{problem}, {method}, seed {seed} failed: {reason}"
    print(text)
    with staged(values.out) as place:
        write_text(place / "optimize.csv", table_csv(summaries))
        write_text(place / "curves.csv", curves_csv(summaries))
        write_text(place / "optimize.md", text + "\n")
        drawn_if_possible("pictures", lambda: draw_regrets(summaries, results.problems, place))
    print(values.out / "optimize.md")
    return 2 if results.failures else 0
