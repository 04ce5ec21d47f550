r"""The tables of the MASKERADE paper again: solar, regression, time series, evidence (Hamid et al., 2022).

Splits and units as in the paper: several inputs are scaled to [0, 1] and targets standardized, both by training rows.
What differs: the budget is counted in likelihoods, not seconds; log density is that of the positive-weight mixture of
joint predictions; the prior is :func:`default_prior`, except for the method ``maskerade-paper``; and kernels of several
inputs are the cosine of a sum throughout. Likelihoods are dense up to 2 000 rows; the series of table 4 is a grid with
gaps, whose likelihoods are exact by Toeplitz matrices, and its road network has the variational bound of 300 knots. RBF
and Matern kernels are fitted from three starts until they converge.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from gp_ensembles.cli.error_messages import one_sentence
from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.files.checkpoint import fingerprint
from studies.harness.parts import Parts, Record, Results, running
from studies.harness.plan import check_range, chosen
from studies.harness.report import write_report
from studies.maskerade.methods import METHODS
from studies.maskerade.pictures import draw_evidence, draw_scores
from studies.maskerade.predictions import scored
from studies.maskerade.sets import Split, load_sample, split_sample
from studies.maskerade.tables import ALL_SCORES, LAYOUTS, Layout, Plan, evidence_text, table_text

TABLES = tuple(LAYOUTS)
_EVIDENCE = 6
_FEWEST = 5
_VERSION = 1  # of everything that scores depend on besides the data; a new number makes old files worthless


class Options(NamedTuple):
    """What may be chosen of a table.

    Attributes:
        evaluations: Likelihoods that a method may spend on a split.
        folds: How many splits are run; all of the paper's by default.
        sets: Which sets; all of the table's by default.
        methods: Which methods; the table's own by default.
        seed: Seed of the first split; the next ones count on from it.
    """

    evaluations: int = 200
    folds: int | None = None
    sets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    seed: int = 0


def run(
    table: int | None,
    data: Path | None,
    out: Path,
    options: Options = Options(),  # noqa: B008 (immutable)
    *,
    progress: bool = False,
) -> str:
    """Make a table; write it as text, its lines as CSV, its means as JSON and a picture as PNG.

    Files are ``maskerade_table_<number>.txt``, ``.csv``, ``.json`` and ``.png`` in ``out``. Finished parts (a set, a
    method, a split) are kept in ``out/maskerade_parts``, so a call that was cut goes on with what is done, and another
    table with the same splits takes them over.

    Args:
        table: 1 (solar), 2 (ten folds), 3 (mean squared errors), 4 (thousands of rows), 5 (time series) or 6
            (evidence).
        data: Folder of sets with a manifest.
        out: Folder of the results; it is made if need be.
        options: Budget, splits, sets, methods and seed.
        progress: Show a progress bar.

    Returns:
        The table as text.

    Raises:
        ValueError: If there is no such table, set or method, a number is out of range, or nothing could be run.
        OSError: If the folder of the sets cannot be read, or ``out`` cannot be written.

    Example:
        >>> run(7, None, Path("nowhere"))
        Traceback (most recent call last):
        ValueError: --table of maskerade must be one of 1, 2, 3, 4, 5, 6, got 7
    """
    if table not in LAYOUTS:
        raise ValueError(f"--table of maskerade must be one of {', '.join(map(str, TABLES))}, got {table}")
    if data is None:
        raise ValueError("the tables of maskerade need a folder with a manifest.json; name it with --data")
    layout = LAYOUTS[table]
    plan = make_plan(layout, options)
    make_folder(out)
    results = Results(plan, ("set", "method", "part"), plan.parts)
    total = len(plan.sets) * plan.parts * len(plan.methods)
    with running(results, out / "maskerade_parts", total, progress) as parts:
        for name in plan.sets:
            try:
                sample = load_sample(data, name)
            except ValueError as error:
                parts.skip([(name, "all methods", -1)], one_sentence(error), plan.parts * len(plan.methods))
                continue
            for part in range(plan.parts):
                split = split_sample(sample, plan.holdout.choose(len(sample.table.y), part, plan.seed))
                results.notes.extend(note for note in split.notes if note not in results.notes)
                for method in plan.methods:
                    _run_part(parts, plan, (name, method, part), split)
    return _written(table, layout, results, out / f"maskerade_table_{table}")


def make_plan(layout: Layout, options: Options) -> Plan:
    """The options as a plan, or what is wrong with them."""
    sets, methods = options.sets or list(layout.sets), options.methods or layout.methods
    chosen(sets, layout.sets, "set")
    chosen(methods, METHODS, "method")
    check_range("evaluations", options.evaluations, _FEWEST)
    folds = layout.holdout.parts if options.folds is None else options.folds
    check_range("folds", folds, 1, layout.holdout.limit)
    check_range("seed", options.seed, 0)
    return Plan(sets, methods, layout.holdout, folds, options.evaluations, options.seed)


def _run_part(parts: Parts, plan: Plan, key: tuple[str, str, int], split: Split) -> None:
    name, method, part = key
    settings: dict[str, object] = {
        "version": _VERSION,
        "set": name,
        "split": plan.holdout.title,
        "part": part,
        "method": method,
        "evaluations": plan.evaluations,
        "seed": plan.seed,
        "data": fingerprint(split.X, split.y, split.test_X, split.test_y),
    }
    file = f"{name}-{plan.holdout.key}-{part}-{method}-{plan.evaluations}-seed{plan.seed}"
    label = f"{name}, {method}, part {part + 1} of {plan.parts}"
    parts.run(key, file, settings, lambda: run_part(method, split, plan.evaluations, plan.seed + part, settings), label)


def run_part(method: str, split: Split, evaluations: int, seed: int, settings: dict[str, object]) -> Record:
    """One part: what a method predicts of the test rows of a split, scored."""
    clock = time.perf_counter()
    answer = METHODS[method].run(split, evaluations, torch.Generator().manual_seed(seed))
    found = scored(answer.posterior, split)
    cost = {"seconds": time.perf_counter() - clock, "evaluations": float(answer.evaluations)}
    return Record(settings, found | cost | answer.diagnostics, answer.curves)


def _written(table: int, layout: Layout, results: Results[Plan], stem: Path) -> str:
    plan = results.plan
    title = f"MASKERADE, table {table}: {layout.title}; {plan.evaluations} evaluations, {plan.parts} split(s) a set"
    text = "\n".join([title, layout.remark, *results.notes, "", table_text(layout, results)])
    if table == _EVIDENCE:
        text += f"\n\n{evidence_text(results)}"
    text = "\n".join([text, *results.failure_lines()])
    rows: list[dict[str, object]] = []
    for name in plan.sets:
        summaries = (results.summary(ALL_SCORES, name, method) for method in plan.methods)
        rows += [summary for summary in summaries if summary is not None]
        rows += [{"set": name, "method": printed.name, "mean": printed.scores} for printed in layout.sets[name]]
    content = {
        "table": table,
        "title": layout.title,
        "remark": layout.remark,
        "notes": results.notes,
        "split": plan.holdout.title,
        "parts": plan.parts,
        "evaluations": plan.evaluations,
        "seed": plan.seed,
        "rows": rows,
        "failures": results.failed(),
    }

    def draw(path: Path) -> None:
        if table == _EVIDENCE:
            draw_evidence(results, path)
        else:
            draw_scores(layout, results, path)

    lines = ([*results.fields, *ALL_SCORES], results.rows(ALL_SCORES))
    return write_report(stem, text, lines, content, {"": draw})
