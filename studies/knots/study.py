r"""The comparison of the knot-selection papers again (Garton, Niemi and Carriquiry, 2020), with our default beside it.

Random splits, inputs standardized by the training rows, targets in their own unit with a constant mean at their
average, an isotropic squared exponential kernel, and hyperparameters that start at half the targets' variance each and
length scale one.

As published, everything ascends by the authors' modified ADADELTA, which stops when a step changes the objective by
less than 0.001 nats; Bayesian optimization evaluates 40 rows, of which 5 are random; and the nugget is an absolute
variance (1e-6 Boston, 1e-4 airfoil, 1e-3 power plant), which at the starting values is 3e-8, 4e-6 and 7e-6 of the
kernel's. In place of these we have L-BFGS within bounds (20 iterations a knot, 200 for everything at once), all rows as
candidates where that is cheaper, and a nugget of a millionth of the kernel's variance. Slips of the authors' code
(the chain factor of a knot, the noise's gradient at a knot on a row, knots that drift) are in neither.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.cli.running import one_sentence
from gp_ensembles.data import Table
from gp_ensembles.files.checkpoint import fingerprint
from gp_ensembles.metrics import log_score, median_mnlp, sample_srmse
from gp_ensembles.numerics import normal
from studies.harness.experiment import Choices, found_sets
from studies.harness.parts import Parts, Record, Results, running
from studies.harness.plan import check_range, chosen
from studies.harness.report import write_report
from studies.knots.methods import METHODS, PUBLISHED, KnotAnswer, KnotTask
from studies.knots.pictures import draw_growth, draw_runs
from studies.knots.scores import aukl
from studies.knots.sets import SETS, load_set, split_rows
from studies.knots.tables import EXACT, SCORES, paired_text, printed_text, table_text

_VERSION = 3  # of everything that scores depend on besides the data; a new number makes old files worthless
_FEWEST_ROWS = 20
_REMARK = (
    "Means over splits with standard errors. MNLP is the median over test rows, mean_nlp the mean; mnlp_twice is MNLP "
    "with the noise counted twice, as in the authors' code; SRMSE is over the sample deviation of the test targets; "
    "AUKL in nats from FGP to the model, of the function (f) and of targets (y); objective: log evidence (FGP, "
    "default), its lower bound, or FIC's approximation of it (OBFk); seconds of the processor."
)
_OURS = (
    "Fits by L-BFGS within bounds in place of the authors' ADADELTA (OBVk-AD has it); all rows are candidates where "
    "that costs less than Bayesian optimization; the nugget is 1e-6 of the kernel's variance."
)
_THEIRS = (
    "The authors' choices: all fits by their modified ADADELTA, 40 candidates of which 5 are random, an absolute "
    "nugget; predictions and gradients without the slips of their code."
)


class KnotPlan(NamedTuple):
    """What is to be run.

    Attributes:
        dataset: Name of the set, one of :data:`~studies.knots.sets.SETS`.
        methods: Names of the methods, in the order of the table.
        splits: How many splits.
        max_knots: Most knots of a selection.
        max_rows: Most rows of a split; all if ``None``.
        seed: Seed of the first split; the next ones count on from it.
        as_published: Whether the choices are the authors'.
    """

    dataset: str
    methods: Sequence[str]
    splits: int
    max_knots: int
    max_rows: int | None
    seed: int
    as_published: bool


def run(dataset: str, choices: Choices, max_knots: int = 80) -> str:
    """Make a table; write it as text, its lines as CSV, its means as JSON and pictures as PNG.

    Files are ``knots_<dataset>.txt``, ``.csv``, ``.json``, ``.png`` and ``knots_<dataset>_growth.png`` in the folder of
    the results. Finished parts (a method and a split) are kept in ``knots_parts`` there, so a call that was cut goes on
    with what is done.

    Args:
        dataset: boston, airfoil or ccpp.
        choices: What may be chosen of every experiment.
        max_knots: Most knots of a selection.

    Returns:
        The table as text.

    Raises:
        ValueError: If there is no such method, a number is out of range, the set is not publicly available, or nothing
            could be run.
        OSError: If the set cannot be read, or the results cannot be written.
    """
    plan = make_plan(dataset, choices, max_knots)
    (found,), notes = found_sets(choices, [SETS[dataset].paper_set])
    table = load_set(choices.sources, dataset)
    make_folder(choices.out)
    results = Results(plan, ("method", "split"), plan.splits)
    results.notes += notes
    with running(results, choices.out / "knots_parts", plan.splits * len(plan.methods), choices.progress) as parts:
        for split in range(plan.splits):
            _run_split(results, parts, table, split)
    return _written(results, choices, compared=not found.is_own)


def make_plan(dataset: str, choices: Choices, max_knots: int) -> KnotPlan:
    """The choices as a plan, or what is wrong with them.

    Methods that start from OBVk's knots bring it with them.
    """
    known = PUBLISHED if choices.as_published else tuple(METHODS)
    given = chosen(choices.methods, known, "method")
    check_range("trials", choices.trials, 1)
    check_range("max_knots", max_knots, 1)
    check_range("seed", choices.seed, 0)
    if choices.max_rows is not None:
        check_range("max_rows", choices.max_rows, _FEWEST_ROWS)
    needed = {METHODS[name].needs for name in given}
    methods = [name for name in known if name in given or name in needed]
    return KnotPlan(
        dataset, methods, choices.trials, max_knots, choices.max_rows, choices.seed, choices.as_published
    )  # fmt: skip


def _run_split(results: Results[KnotPlan], parts: Parts, table: Table, split: int) -> None:
    """All methods on one split, then the divergence of each from the full process, if there is one."""
    plan, kind = results.plan, SETS[results.plan.dataset]
    try:
        rows = split_rows(table, kind.train_share, plan.seed + split, plan.max_rows)
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
            "as_published": plan.as_published,
            "data": fingerprint(*rows),
        }
        if start is not None:
            settings["start"] = fingerprint(start)
        generator = torch.Generator().manual_seed(plan.seed + split)
        task = KnotTask(rows, plan.max_knots, start, generator, kind.nugget, plan.as_published)
        name = f"{plan.dataset}-{split}-{method}-{plan.max_knots}-seed{plan.seed}"
        name += "-published" if plan.as_published else ""
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
    found = {}
    if answer.targets is None:
        as_coded = normal.log_prob(y, answer.mean, answer.variance + 2.0 * answer.noise)
        found["mnlp_twice"] = float(median_mnlp(as_coded, y))
    else:
        log_prob = answer.targets.log_prob(y)
    found |= {
        "mnlp": float(median_mnlp(log_prob, y)),
        "mean_nlp": -float(log_score(log_prob, y)),
        "srmse": float(sample_srmse(answer.mean, y)),
        "objective": answer.objective,
    }
    return found | ({"knots": float(len(answer.knots))} if len(answer.knots) else {})


def _written(results: Results[KnotPlan], choices: Choices, *, compared: bool) -> str:
    plan = results.plan
    rows = "" if plan.max_rows is None else f" of at most {plan.max_rows} rows"
    title = (
        f"Knot selection, {plan.dataset}: {plan.splits} split(s){rows}, at most {plan.max_knots} knots"
        f"{', AS PUBLISHED' if plan.as_published else ''}"
    )
    remarks = [_REMARK, _THEIRS if plan.as_published else _OURS, *results.notes]
    paper = [name for name in plan.methods if name in PUBLISHED]
    parts = [
        "\n".join([title, *remarks]),
        "\n".join(f"{name}: {METHODS[name].title}" for name in plan.methods),
        table_text(results, plan.methods),
        paired_text(results, plan.methods),
        printed_text(results, paper, plan.dataset) if compared else "",
        "\n".join(results.failure_lines()),
    ]
    summaries = (results.summary(SCORES, method) for method in plan.methods)
    content = {
        "dataset": plan.dataset,
        "title": title,
        "remarks": remarks,
        **{name: getattr(plan, name) for name in ("splits", "max_knots", "max_rows", "seed", "as_published")},
        "rows": [summary for summary in summaries if summary is not None],
        "failures": results.failed(),
    }
    lines = [[plan.dataset, *line] for line in results.rows(SCORES)]
    pictures = {
        "": lambda path: draw_runs(results, plan.methods, title, path),
        "_growth": lambda path: draw_growth(results, plan.methods, plan.dataset, path),
    }
    header, stem = ["set", *results.fields, *SCORES], f"knots_{plan.dataset}"
    stem += "_as_published" if plan.as_published else ""
    return write_report(choices.out / stem, "\n\n".join(filter(None, parts)), (header, lines), content, pictures)
