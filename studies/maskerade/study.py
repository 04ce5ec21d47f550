r"""The tables of the MASKERADE paper again: solar, regression, time series, evidence (Hamid et al., 2022).

Splits and units as in the paper: several inputs are scaled to [0, 1] and targets standardized, both by training rows.
What differs: the budget is counted in likelihoods, not seconds; log density is that of the positive-weight mixture of
joint predictions; the prior is :func:`default_prior`, except for the method ``maskerade-paper``; and kernels of several
inputs are the cosine of a sum throughout. RBF and Matern kernels are fitted from three starts until they converge.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gp_ensembles.cli.summary import versions
from gp_ensembles.cli.text_tables import as_csv
from gp_ensembles.cli.writing import make_folder, write_json, write_text
from studies.maskerade.methods import METHODS
from studies.maskerade.pictures import draw_evidence, draw_scores
from studies.maskerade.scores import Plan, Scores, run_plan
from studies.maskerade.tables import (
    LAYOUTS,
    Layout,
    evidence_text,
    long_rows,
    summary_rows,
    table_text,
)

TABLES = tuple(LAYOUTS)
_EVIDENCE = 6
_FEWEST = 5


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
        table: 1 (solar), 2 (ten folds), 3 (mean squared errors), 5 (time series) or 6 (evidence).
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
        >>> run(4, None, Path("nowhere"))
        Traceback (most recent call last):
        ValueError: --table of maskerade must be one of 1, 2, 3, 5, 6, got 4 (4 needs 9 000 rows and a GPU)
    """
    if table not in LAYOUTS:
        why = " (4 needs 9 000 rows and a GPU)" if table == 4 else ""
        raise ValueError(f"--table of maskerade must be one of {', '.join(map(str, TABLES))}, got {table}{why}")
    if data is None:
        raise ValueError("the tables of maskerade need a folder with a manifest.json; name it with --data")
    layout = LAYOUTS[table]
    plan = _plan(layout, options)
    make_folder(out)
    parts = out / "maskerade_parts"
    try:
        scores = run_plan(plan, data, parts, progress)
    except KeyboardInterrupt:
        print(f"gp-ensembles: finished parts are in {parts}; the same command goes on with them", file=sys.stderr)
        raise
    return _written(table, layout, scores, out / f"maskerade_table_{table}")


def _plan(layout: Layout, options: Options) -> Plan:
    """The options as a plan, or what is wrong with them."""
    sets, methods = options.sets or list(layout.sets), options.methods or layout.methods
    for kind, given, known in (("set", sets, list(layout.sets)), ("method", methods, list(METHODS))):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ValueError(f"there is no {kind} {unknown[0]} in this table; choose from {', '.join(known)}")
        if len(set(given)) < len(given):
            raise ValueError(f"a {kind} is named twice: {', '.join(given)}")
    if options.evaluations < _FEWEST:
        raise ValueError(f"--evaluations={options.evaluations} is too small a budget; give at least {_FEWEST}")
    folds, limit = layout.holdout.parts if options.folds is None else options.folds, layout.holdout.limit
    if folds < 1 or (limit is not None and folds > limit):
        most = "" if limit is None else f" and at most {limit}"
        raise ValueError(f"--folds={folds} is out of range; give at least 1{most}")
    if options.seed < 0:
        raise ValueError(f"--seed must be zero or positive, got {options.seed}")
    return Plan(sets, methods, layout.holdout, folds, options.evaluations, options.seed)


def _written(table: int, layout: Layout, scores: Scores, stem: Path) -> str:
    plan = scores.plan
    title = f"MASKERADE, table {table}: {layout.title}; {plan.evaluations} evaluations, {plan.parts} split(s) a set"
    text = f"{title}\n{layout.remark}\n"
    text += "".join(f"{note}\n" for note in scores.notes) + f"\n{table_text(layout, scores)}"
    if table == _EVIDENCE:
        text += f"\n\n{evidence_text(scores)}"
    failures = []
    for (name, method, part), reason in scores.failures.items():
        failures.append({"set": name, "method": method, "part": part, "reason": reason})
        where = name if part < 0 else f"{name}, {method}, split {part + 1}"
        text += f"\n{where} failed: {reason}"
    header, lines = long_rows(scores)
    write_text(stem.with_suffix(".csv"), as_csv(header, lines))
    content = {
        "table": table,
        "title": layout.title,
        "remark": layout.remark,
        "notes": scores.notes,
        "split": plan.holdout.title,
        "parts": plan.parts,
        "evaluations": plan.evaluations,
        "seed": plan.seed,
        "rows": summary_rows(layout, scores),
        "failures": failures,
        "versions": versions(),
    }
    write_json(stem.with_suffix(".json"), content)
    write_text(stem.with_suffix(".txt"), text + "\n")
    try:
        if table == _EVIDENCE:
            draw_evidence(scores, stem.with_suffix(".png"))
        else:
            draw_scores(layout, scores, stem.with_suffix(".png"))
    except ImportError as error:
        text += f"\nno picture: {error}"
    return text
