r"""The comparison of the knot-selection papers again (Garton, Niemi and Carriquiry, 2020), with our default beside it.

Random splits, inputs standardized by the training rows, targets in their own unit with a constant mean at their
average, an isotropic squared exponential kernel, and hyperparameters that start at half the targets' variance each and
length scale one. The nugget is a millionth of the kernel's variance on every set: the paper's is an absolute variance
(1e-6 Boston, 1e-4 airfoil, 1e-3 power plant), which at its starting values is 3e-8, 4e-6 and 7e-6 of it. One-at-a-time
selection ascends by L-BFGS within bounds in place of the paper's modified ADADELTA, which stops early.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gp_ensembles.cli.summary import versions
from gp_ensembles.cli.text_tables import as_csv
from gp_ensembles.cli.writing import make_folder, write_json, write_text
from studies.knots.figures import run_figure
from studies.knots.methods import METHODS
from studies.knots.pictures import draw_growth, draw_scores
from studies.knots.scores import KnotPlan, KnotScores, run_knots
from studies.knots.sets import SETS, load_set
from studies.knots.tables import LAYOUTS, long_rows, summary_rows, table_text

_REMARK = (
    "MNLP is the median over test rows, mean_nlp the mean; mnlp_twice is MNLP with the noise counted twice, as in the "
    "authors' code; SRMSE is over the sample deviation of the test targets; AUKL in nats from FGP to the model, of the "
    "function (f) and of targets (y); objective: log evidence (FGP), its lower bound, or FIC's approximation of it "
    "(OBFk); seconds on the wall. Nugget: 1e-6 of the kernel's variance."
)


class Options(NamedTuple):
    """What may be chosen of a table.

    Attributes:
        splits: How many random splits.
        max_knots: Most knots of a selection.
        methods: Which methods; all by default. Methods that start from OBVk's knots bring it with them.
        seed: Seed of the first split; the next ones count on from it.
    """

    splits: int = 5
    max_knots: int = 80
    methods: Sequence[str] | None = None
    seed: int = 0


def run(
    dataset: str | None,
    data: Path | None,
    out: Path,
    options: Options = Options(),  # noqa: B008 (immutable)
    *,
    figure: int | None = None,
    progress: bool = False,
) -> str:
    """Make a table; write it as text, its lines as CSV, its means as JSON and pictures as PNG. Or make a figure.

    Files are ``knots_<dataset>.txt``, ``.csv``, ``.json``, ``.png`` and ``knots_<dataset>_growth.png`` in ``out``.
    Finished parts (a method and a split) are kept in ``out/knots_parts``, so a call that was cut goes on with what is
    done.

    Args:
        dataset: boston, airfoil or ccpp.
        data: Folder of sets with a manifest.
        out: Folder of the results; it is made if need be.
        options: Splits, knots, methods and seed.
        figure: 1 or 2 for a figure of the paper on made-up rows, in place of a table; no set is needed then.
        progress: Show a progress bar.

    Returns:
        The table, or what came of the figure, as text.

    Raises:
        ValueError: If there is no such set, method or figure, a number is out of range, or nothing could be run.
        OSError: If the folder of the sets cannot be read, or ``out`` cannot be written.

    Example:
        >>> run("yacht", None, Path("nowhere"))
        Traceback (most recent call last):
        ValueError: --dataset of knots must be one of boston, airfoil, ccpp, got yacht
    """
    if figure is not None:
        return run_figure(figure, out, options.seed)
    if dataset not in SETS:
        raise ValueError(f"--dataset of knots must be one of {', '.join(SETS)}, got {dataset}")
    if data is None:
        raise ValueError("the tables of knots need a folder with a manifest.json; name it with --data")
    plan = _plan(dataset, options)
    table = load_set(data, dataset)
    make_folder(out)
    parts = out / "knots_parts"
    try:
        scores = run_knots(plan, table, parts, progress)
    except KeyboardInterrupt:
        print(f"gp-ensembles: finished parts are in {parts}; the same command goes on with them", file=sys.stderr)
        raise
    return _written(scores, out)


def _plan(dataset: str, options: Options) -> KnotPlan:
    """The options as a plan, or what is wrong with them."""
    given = list(METHODS) if options.methods is None else list(options.methods)
    unknown = [name for name in given if name not in METHODS]
    if unknown or not given:
        raise ValueError(f"there is no method {unknown[0] if unknown else ''}; choose from {', '.join(METHODS)}")
    if len(set(given)) < len(given):
        raise ValueError(f"a method is named twice: {', '.join(given)}")
    if options.splits < 1:
        raise ValueError(f"--splits={options.splits} is out of range; give at least 1")
    if options.max_knots < 1:
        raise ValueError(f"--max_knots={options.max_knots} is out of range; give at least 1")
    if options.seed < 0:
        raise ValueError(f"--seed must be zero or positive, got {options.seed}")
    needed = {METHODS[name].needs for name in given}
    methods = [name for name in METHODS if name in given or name in needed]
    return KnotPlan(dataset, methods, options.splits, options.max_knots, options.seed)


def _written(scores: KnotScores, out: Path) -> str:
    plan = scores.plan
    layout, stem = LAYOUTS[plan.dataset], out / f"knots_{plan.dataset}"
    title = f"Knot selection: {layout.title}; {plan.splits} split(s), at most {plan.max_knots} knots"
    titles = "".join(f"{name}: {METHODS[name].title}\n" for name in plan.methods)
    text = f"{title}\n{_REMARK}\n{layout.remark}\n\n{titles}\n{table_text(scores)}"
    failures = []
    for (method, split), reason in scores.failures.items():
        failures.append({"method": method, "split": split, "reason": reason})
        text += f"\n{method}, split {split + 1} failed: {reason}"
    header, lines = long_rows(scores)
    write_text(stem.with_suffix(".csv"), as_csv(header, lines))
    content = {
        "dataset": plan.dataset,
        "title": title,
        "remark": _REMARK,
        "known": layout.remark,
        "splits": plan.splits,
        "max_knots": plan.max_knots,
        "seed": plan.seed,
        "rows": summary_rows(scores),
        "failures": failures,
        "versions": versions(),
    }
    write_json(stem.with_suffix(".json"), content)
    write_text(stem.with_suffix(".txt"), text + "\n")
    try:
        draw_scores(scores, stem.with_suffix(".png"))
        draw_growth(scores, stem.with_name(f"{stem.name}_growth.png"))
    except ImportError as error:
        text += f"\nno picture: {error}"
    return text
