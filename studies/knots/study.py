r"""The comparison of the knot-selection papers again (Garton, Niemi and Carriquiry, 2020), with our default beside it.

Random splits, inputs standardized by the training rows, targets in their own unit with a constant mean at their
average, an isotropic squared exponential kernel, and hyperparameters that start at half the targets' variance each and
length scale one. The nugget is a millionth of the kernel's variance on every set: the paper's is an absolute variance
(1e-6 Boston, 1e-4 airfoil, 1e-3 power plant), which at its starting values is 3e-8, 4e-6 and 7e-6 of it. One-at-a-time
selection ascends by L-BFGS within bounds in place of the paper's modified ADADELTA, which stops early.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.cli.error_messages import one_sentence
from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.data import Table
from gp_ensembles.files.checkpoint import fingerprint
from gp_ensembles.metrics import log_score, median_mnlp, sample_srmse
from gp_ensembles.metrics.scores import aukl
from gp_ensembles.numerics import normal
from studies.harness.parts import Parts, Record, Results, running
from studies.harness.plan import check_range, chosen
from studies.harness.report import write_report
from studies.knots.figures import run_figure
from studies.knots.methods import METHODS, KnotAnswer, KnotTask
from studies.knots.pictures import draw_growth, draw_scores
from studies.knots.sets import SETS, load_set, split_rows
from studies.knots.tables import EXACT, LAYOUTS, SCORES, table_text

_VERSION = 2  # of everything that scores depend on besides the data; a new number makes old files worthless
_REMARK = (
    "MNLP is the median over test rows, mean_nlp the mean; mnlp_twice is MNLP with the noise counted twice, as in the "
    "authors' code; SRMSE is over the sample deviation of the test targets; AUKL in nats from FGP to the model, of the "
    "function (f) and of targets (y); objective: log evidence (FGP), its lower bound, or FIC's approximation of it "
    "(OBFk); seconds of the processor. Nugget: 1e-6 of the kernel's variance."
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


class KnotPlan(NamedTuple):
    """What is to be run.

    Attributes:
        dataset: Name of the set, one of :data:`~studies.knots.sets.SETS`.
        methods: Names of the methods, in the order of the table.
        splits: How many splits.
        max_knots: Most knots of a selection.
        seed: Seed of the first split; the next ones count on from it.
    """

    dataset: str
    methods: Sequence[str]
    splits: int
    max_knots: int
    seed: int


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
    plan = make_plan(dataset, options)
    table = load_set(data, dataset)
    make_folder(out)
    results = Results(plan, ("method", "split"), plan.splits)
    with running(results, out / "knots_parts", plan.splits * len(plan.methods), progress) as parts:
        for split in range(plan.splits):
            _run_split(results, parts, table, split)
    return _written(results, out)


def make_plan(dataset: str, options: Options) -> KnotPlan:
    """The options as a plan, or what is wrong with them."""
    given = chosen(options.methods, METHODS, "method")
    check_range("splits", options.splits, 1)
    check_range("max_knots", options.max_knots, 1)
    check_range("seed", options.seed, 0)
    needed = {METHODS[name].needs for name in given}
    methods = [name for name in METHODS if name in given or name in needed]
    return KnotPlan(dataset, methods, options.splits, options.max_knots, options.seed)


def _run_split(results: Results[KnotPlan], parts: Parts, table: Table, split: int) -> None:
    """All methods on one split, then the divergence of each from the full process, if there is one."""
    plan = results.plan
    try:
        rows = split_rows(table, SETS[plan.dataset].train_share, plan.seed + split)
    except ValueError as error:
        parts.skip([("all methods", split)], one_sentence(error), len(plan.methods))
        return
    for method in plan.methods:
        start, needs = None, METHODS[method].needs
        if needs is not None:
            if (needs, split) not in results.records:
                parts.skip([(method, split)], f"it starts from the knots of {needs}, which failed", 1)
                continue
            start = found_knots(results.records[needs, split], rows.X.shape[1], rows.X)
        settings: dict[str, object] = {
            "version": _VERSION,
            "set": plan.dataset,
            "split": split,
            "method": method,
            "max_knots": plan.max_knots,
            "seed": plan.seed,
            "data": fingerprint(*rows),
        }
        if start is not None:
            settings["start"] = fingerprint(start)
        task = KnotTask(rows, plan.max_knots, start, torch.Generator().manual_seed(plan.seed + split))
        name = f"{plan.dataset}-{split}-{method}-{plan.max_knots}-seed{plan.seed}"
        label = f"{method}, split {split + 1} of {plan.splits}"
        parts.run((method, split), name, settings, lambda: run_part(method, task, settings), label)  # noqa: B023 (called at once)
    exact = results.records.get((EXACT, split))
    if exact is None:
        return
    mean, variance, noise = predictions(exact, rows.y)
    for method in plan.methods:
        if (method, split) in results.records:
            record = results.records[method, split]
            other = predictions(record, rows.y)
            record.scores["aukl_f"] = float(aukl(mean, variance, *other[:2]))
            record.scores["aukl_y"] = float(aukl(mean, variance, *other[:2], noise=(noise, other[2])))


def predictions(record: Record, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means and variances of the function at the test rows, and the noise variance, from a finished part."""
    mean, variance, noise = (like.new_tensor(record.curves[name]) for name in ("mean", "variance", "noise"))
    return mean, variance, noise


def found_knots(record: Record, num_inputs: int, like: Tensor) -> Tensor:
    """Knots of a finished part, shape (K, D)."""
    return like.new_tensor(record.curves["knots"]).reshape(-1, num_inputs)


def run_part(method: str, task: KnotTask, settings: dict[str, object]) -> Record:
    """One part: what a method predicts of the test rows of a split, scored, with its knots."""
    clock = time.process_time()
    answer = METHODS[method].run(task)
    seconds = time.process_time() - clock
    curves = {
        "mean": answer.mean.tolist(),
        "variance": answer.variance.tolist(),
        "noise": [answer.noise],
        "knots": answer.knots.flatten().tolist(),
        **answer.history,
    }
    return Record(settings, scored(answer, task.split.test_y) | {"seconds": seconds}, curves)


def scored(answer: KnotAnswer, y: Tensor) -> dict[str, float]:
    """Scores of a method on the test targets, noise counted once except in ``mnlp_twice``."""
    log_prob = normal.log_prob(y, answer.mean, answer.variance + answer.noise)
    as_published = normal.log_prob(y, answer.mean, answer.variance + 2.0 * answer.noise)
    found = {
        "mnlp": float(median_mnlp(log_prob, y)),
        "mnlp_twice": float(median_mnlp(as_published, y)),
        "mean_nlp": -float(log_score(log_prob, y)),
        "srmse": float(sample_srmse(answer.mean, y)),
        "objective": answer.objective,
    }
    return found | ({"knots": float(len(answer.knots))} if len(answer.knots) else {})


def _written(results: Results[KnotPlan], out: Path) -> str:
    plan = results.plan
    layout = LAYOUTS[plan.dataset]
    title = f"Knot selection: {layout.title}; {plan.splits} split(s), at most {plan.max_knots} knots"
    titles = "".join(f"{name}: {METHODS[name].title}\n" for name in plan.methods)
    text = f"{title}\n{_REMARK}\n{layout.remark}\n\n{titles}\n{table_text(results, plan.methods, plan.dataset)}"
    text = "\n".join([text, *results.failure_lines()])
    summaries = (results.summary(SCORES, method) for method in plan.methods)
    content = {
        "dataset": plan.dataset,
        "title": title,
        "remark": _REMARK,
        "known": layout.remark,
        "splits": plan.splits,
        "max_knots": plan.max_knots,
        "seed": plan.seed,
        "rows": [
            *(summary for summary in summaries if summary is not None),
            *({"method": known.name, "mean": known.scores} for known in layout.known),
        ],
        "failures": results.failed(),
    }
    lines = [[plan.dataset, *line] for line in results.rows(SCORES)]
    pictures = {
        "": lambda path: draw_scores(results, plan.methods, plan.dataset, path),
        "_growth": lambda path: draw_growth(results, plan.methods, plan.dataset, path),
    }
    header = ["set", *results.fields, *SCORES]
    return write_report(out / f"knots_{plan.dataset}", text, (header, lines), content, pictures)
