r"""The tables of predictions of the MASKERADE paper again: solar, regression, time series (Hamid et al., 2022).

Splits and units as in the paper: several inputs are scaled to [0, 1] and targets standardized, both by training rows.
What differs: the budget is counted in likelihoods, not seconds; log density is that of the positive-weight mixture of
joint predictions; the prior is :func:`default_prior`, except as published; and kernels of several inputs are the cosine
of a sum throughout. RBF and Matern kernels are fitted from three starts until they converge.
"""

import time

import torch

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.cli.running import one_sentence
from gp_ensembles.files.checkpoint import fingerprint
from studies.harness.experiment import Choices, found_sets
from studies.harness.parts import Parts, Record, Results, running
from studies.harness.plan import check_range, chosen
from studies.harness.report import write_report
from studies.maskerade.methods import AS_PUBLISHED, METHODS, PUBLISHED
from studies.maskerade.pictures import draw_scores
from studies.maskerade.predictions import scored
from studies.maskerade.sets import Split, load_sample, split_sample
from studies.maskerade.tables import ALL_SCORES, Layout, Plan, paired_text, printed_text, table_text

_FEWEST = 5
_FEWEST_ROWS = 20
_VERSION = 2  # of everything that scores depend on besides the data; a new number makes old files worthless


def run(layout: Layout, choices: Choices, evaluations: int | None = None) -> str:
    """Make a table; write it as text, its lines as CSV, its means as JSON and a picture as PNG.

    Files are ``maskerade_<name>.txt``, ``.csv``, ``.json`` and ``.png`` in the folder of the results. Finished parts (a
    set, a method, a split) are kept in ``maskerade_parts`` there, so an interrupted call resumes with what is done, and
    another table with the same splits takes them over.

    Args:
        layout: The table.
        choices: What may be chosen of every experiment.
        evaluations: Likelihoods that a method may spend on a split; the table's own number by default.

    Returns:
        The table as text.

    Raises:
        ValueError: If there is no such set or method, a number is out of range, or nothing could be run.
        OSError: If the sets cannot be read, or the results cannot be written.
    """
    plan = make_plan(layout, choices, evaluations)
    found, notes = found_sets(choices, layout.sets)
    plan = plan._replace(sets=[one.name for one in found])
    make_folder(choices.out)
    results = Results(plan, ("set", "method", "part"), plan.parts)
    results.notes += [note for note in notes if note not in [one.note for one in found]]
    total = len(found) * plan.parts * len(plan.methods)
    with running(results, choices.out / "maskerade_parts", total, choices.progress) as parts:
        for one in found:
            try:
                sample = load_sample(one, plan.max_rows, plan.seed)
            except ValueError as error:
                parts.skip([(one.name, "all methods", -1)], one_sentence(error), plan.parts * len(plan.methods))
                continue
            for part in range(plan.parts):
                split = split_sample(sample, plan.holdout.choose(len(sample.table.y), part, plan.seed))
                results.notes.extend(note for note in split.notes if note not in results.notes)
                for method in plan.methods:
                    _run_part(parts, plan, (one.name, method, part), split)
    return _written(layout, results, choices, [one.name for one in found if one.is_own])


def make_plan(layout: Layout, choices: Choices, evaluations: int | None) -> Plan:
    """The choices as a plan, or what is wrong with them."""
    names = chosen(choices.sets, [one.name for one in layout.sets], "set")
    known = [name for name in layout.methods if name in PUBLISHED] if choices.as_published else layout.methods
    methods = chosen(choices.methods, known, "method")
    budget = layout.evaluations if evaluations is None else evaluations
    check_range("evaluations", budget, _FEWEST)
    check_range("trials", choices.trials, 1, layout.holdout.limit)
    check_range("seed", choices.seed, 0)
    if choices.max_rows is not None:
        check_range("max_rows", choices.max_rows, _FEWEST_ROWS)
    return Plan(
        names, methods, layout.holdout, choices.trials, budget, choices.max_rows, choices.seed, choices.as_published
    )  # fmt: skip


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
        "as_published": plan.as_published,
        "data": fingerprint(split.X, split.y, split.test_X, split.test_y),
    }
    file = f"{name}-{plan.holdout.key}-{part}-{method}-{plan.evaluations}-seed{plan.seed}"
    file += "-published" if plan.as_published else ""
    label = f"{name}, {method}, part {part + 1} of {plan.parts}"
    parts.run(key, file, settings, lambda: run_part(plan, method, split, part, settings), label)


def run_part(plan: Plan, method: str, split: Split, part: int, settings: dict[str, object]) -> Record:
    """One part: what a method predicts of the test rows of a split, scored."""
    clock = time.perf_counter()
    known = PUBLISHED if plan.as_published else METHODS
    answer = known[method].run(split, plan.evaluations, torch.Generator().manual_seed(plan.seed + part))
    found = scored(answer.posterior, split)
    cost = {"seconds": time.perf_counter() - clock, "evaluations": float(answer.evaluations)}
    return Record(settings, found | cost | answer.diagnostics, {})


def _written(layout: Layout, results: Results[Plan], choices: Choices, own: list[str]) -> str:
    plan = results.plan
    title = f"MASKERADE, {layout.name}: {layout.title}; {plan.evaluations} evaluations, {plan.parts} split(s) a set"
    title += ", AS PUBLISHED" if plan.as_published else ""
    known = PUBLISHED if plan.as_published else METHODS
    published = [f"The authors' choices: {AS_PUBLISHED}."] if plan.as_published else []
    parts = [
        "\n".join([title, layout.remark, *published, *results.notes]),
        "\n".join(f"{name}: {known[name].title}" for name in plan.methods),
        table_text(layout, results),
        paired_text(layout, results),
        printed_text(layout, results, own),
        "\n".join(results.failure_lines()),
    ]
    summaries = (results.summary(ALL_SCORES, name, method) for name in plan.sets for method in plan.methods)
    content = {
        "table": layout.name,
        "title": title,
        "remark": layout.remark,
        "notes": results.notes,
        "split": plan.holdout.title,
        **{name: getattr(plan, name) for name in ("parts", "evaluations", "max_rows", "seed", "as_published")},
        "rows": [summary for summary in summaries if summary is not None],
        "failures": results.failed(),
    }
    lines = ([*results.fields, *ALL_SCORES], results.rows(ALL_SCORES))
    stem = f"maskerade_{layout.name}{'_as_published' if plan.as_published else ''}"
    pictures = {"": lambda path: draw_scores(layout, results, own, path)}
    return write_report(choices.out / stem, "\n\n".join(filter(None, parts)), lines, content, pictures)
