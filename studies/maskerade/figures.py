"""Shared parts of figures 3 and 4: methods run on the splits of a series, and the files written."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.files.checkpoint import fingerprint
from studies.harness.comparison import estimate
from studies.harness.experiment import Choices
from studies.harness.parts import Record, Results, running
from studies.harness.plan import check_range, chosen
from studies.harness.report import write_report
from studies.harness.text import aligned
from studies.maskerade.methods import AS_PUBLISHED
from studies.maskerade.sets import Split

RunPart = Callable[[str, Split, dict[str, object]], Record]
_VERSION = 1


class Plan(NamedTuple):
    """What is to be run: methods and their budget, by the authors' choices or ours."""

    methods: list[str]
    evaluations: int
    as_published: bool


def make_plan(choices: Choices, known: Sequence[str], evaluations: int) -> Plan:
    """The choices as a plan; an error if a method is unknown, or there are too few evaluations."""
    methods = chosen(choices.methods, known, "method")
    check_range("evaluations", evaluations, 5)
    return Plan(methods, evaluations, choices.as_published)


def run_figure(
    choices: Choices, plan: Plan, number: int, splits: Sequence[Split], trial_name: str, run_part: RunPart
) -> Results[Plan]:
    """Every method on every split (a trial, which ``trial_name`` says what it is); finished parts are read back."""
    make_folder(choices.out)
    results = Results(plan, ("method", "trial"), len(splits))
    total = len(splits) * len(plan.methods)
    with running(results, choices.out / "maskerade_parts", total, choices.progress) as parts:
        for trial, split in enumerate(splits):
            for method in plan.methods:
                settings: dict[str, object] = {
                    "version": _VERSION,
                    "method": method,
                    "evaluations": plan.evaluations,
                    "seed": choices.seed + trial,
                    "as_published": plan.as_published,
                    "data": fingerprint(split.X, split.y, split.test_X, split.test_y),
                }
                name = f"figure{number}-{method}-{plan.evaluations}-seed{choices.seed + trial}"
                name += "-published" if plan.as_published else ""
                label = f"{method}, {trial_name} {trial + 1} of {len(splits)}"
                parts.run((method, trial), name, settings, partial(run_part, method, split, settings), label)
    return results


def write_figure(
    results: Results[Plan],
    out: Path,
    number: int,
    title: str,
    remark: str,
    scores: Sequence[str],
    pictures: Mapping[str, Callable[[Path], object]],
    below: str = "",
) -> str:
    """The table of a figure, a remark above and text below it; its files, and pictures by the end of their name."""
    plan = results.plan
    title = f"MASKERADE, figure-{number}: {title}" + (", AS PUBLISHED" if plan.as_published else "")
    rows: list[list[object]] = [
        [method, *(str(estimate(results.values(kind, method))) for kind in scores)] for method in plan.methods
    ]
    published = [f"The authors' choices: {AS_PUBLISHED}."] if plan.as_published else []
    parts = [
        "\n".join([title, remark, *published, *results.notes]),
        aligned(["method", *scores], rows),
        below,
        "\n".join(results.failure_lines()),
    ]
    content: dict[str, object] = {"figure": f"figure-{number}", "title": title, "evaluations": plan.evaluations}
    content["failures"] = results.failed()
    content["rows"] = [one for method in plan.methods if (one := results.summary(scores, method)) is not None]
    stem = f"maskerade_figure-{number}{'_as_published' if plan.as_published else ''}"
    lines = ([*results.fields, *scores], results.rows(scores))
    return write_report(out / stem, "\n\n".join(filter(None, parts)), lines, content, pictures)
