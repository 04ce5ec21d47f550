r"""The experiments of the DOEBE paper again: families, collapse, ensembles, samples, switching (Waxman, Djuric 2024).

Features, kernels and warm-up as in the paper: about 100 features, three starting length scales, hyperparameters by
empirical Bayes on the first 1 000 rows, five experts per optimum, weights that walk with variance 1e-3. What differs,
because the published code is wrong there or the data cannot be had: every prediction is made before its target with
the weights :math:`w_{t|t-1}`, the transition's columns sum to one, the score is the log density of the mixture, radial
centers are not trained, experts have learned the warm-up rows, walks are scaled so that those of every basis add 1e-3
to the variance of the function (in experiment 2 to that of every weight, as in the paper), and kin8nm and sarcos_ias
stand for kin40k and SARCOS.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gp_ensembles.cli.out_folder import make_folder
from studies.doebe.methods import Method, family_methods, whole_methods
from studies.doebe.pictures import draw_deltas, draw_losses, draw_samples
from studies.doebe.scores import Scores, score_sets
from studies.doebe.tables import (
    delta_methods,
    delta_table,
    ensembles_table,
    families_table,
    long_rows,
    samples_methods,
    samples_table,
)
from studies.doebe.weights import run_weights
from studies.harness.report import write_report

MAX_ROWS = 6000


class Experiment(NamedTuple):
    """A table of the paper.

    Attributes:
        title: What it shows.
        methods: The methods it needs.
        table: Its table as text.
        picture: Draws its picture into a file.
    """

    title: str
    methods: list[Method]
    table: Callable[[Scores], str]
    picture: Callable[[Scores, Sequence[Method], Path], None]


TABLES = {
    "1": Experiment("families, static (OE) and dynamic (DOE)", family_methods(), families_table, draw_losses),
    "3": Experiment("ensembles of all families", [*whole_methods(), *family_methods()], ensembles_table, draw_losses),
    "C": Experiment("Laplace samples against one estimate", samples_methods(), samples_table, draw_samples),
    "D": Experiment("probability of a switch in E-DOEBE", delta_methods(), delta_table, draw_deltas),
}
EXPERIMENTS = ("1", "2", "3", "C", "D")


def run(
    experiment: str,
    data: Path | None,
    out: Path,
    *,
    seeds: int = 1,
    max_rows: int | None = None,
    progress: bool = False,
) -> str:
    """Run an experiment; write its table as CSV, its numbers as JSON and its picture as PNG.

    Files are ``doebe_experiment_<name>.csv``, ``.json`` and ``.png`` in ``out``. Finished parts are kept there too, so
    a call that was cut, or another experiment on the same sets, goes on with what is done.

    Args:
        experiment: ``1`` (families), ``2`` (collapse of weights), ``3`` (ensembles), ``C`` (Laplace samples) or ``D``
            (probability of a switch).
        data: Folder of sets with a manifest; ``None`` for synthetic sets alone.
        out: Folder of the results; it is made if need be.
        seeds: Number of seeds; tables show means over them.
        max_rows: Most rows of a set, warm-up included; by default 6 000, and all in experiment 2.
        progress: Show progress bars.

    Returns:
        The table as text.

    Raises:
        ValueError: If there is no such experiment, ``seeds`` or ``max_rows`` is too small, or no set can be run.
        OSError: If the folder of the sets cannot be read, or ``out`` cannot be written.

    Example:
        >>> run("4", None, Path("nowhere"))
        Traceback (most recent call last):
        ValueError: the DOEBE paper's experiments are 1, 2, 3, C, D; there is no '4'
    """
    name = experiment.upper()
    if name not in EXPERIMENTS:
        raise ValueError(f"the DOEBE paper's experiments are {', '.join(EXPERIMENTS)}; there is no {experiment!r}")
    if seeds < 1:
        raise ValueError(f"seeds={seeds} runs nothing; give at least 1")
    if max_rows is not None and max_rows < 100:
        raise ValueError(f"max_rows={max_rows} leaves too few rows to fit and to score; give at least 100")
    make_folder(out)
    stem = out / f"doebe_experiment_{name}"
    if name == "2":
        return run_weights(data, stem, seeds, max_rows, progress)
    found = TABLES[name]
    rows = MAX_ROWS if max_rows is None else max_rows
    scores = score_sets(found.methods, data, out, seeds, rows, progress)
    text = f"DOEBE, experiment {name}: {found.title}; {rows} rows at most, {seeds} seed(s)\n\n{found.table(scores)}"
    for failed, reason in scores.failures.items():
        text += f"\n{failed} failed: {reason}"
    header, lines = long_rows(scores, found.methods)
    content = {
        "experiment": name,
        "title": found.title,
        "max_rows": rows,
        "seeds": seeds,
        "rows": [dict(zip(header, line, strict=True)) for line in lines],
        "failures": scores.failures,
    }
    pictures = {"": lambda path: found.picture(scores, found.methods, path)}
    return write_report(stem, text, (header, lines), content, pictures)
