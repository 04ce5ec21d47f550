"""Figure 4 of the paper: the carbon dioxide of Mauna Loa, fitted and extrapolated by several methods."""

import time
from functools import partial
from typing import NamedTuple

import torch

from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.cli.text_tables import aligned
from gp_ensembles.files.checkpoint import fingerprint
from studies.harness.comparison import estimate
from studies.harness.experiment import Choices, found_sets
from studies.harness.parts import Record, Results, running
from studies.harness.plan import check_range, chosen
from studies.harness.report import write_report
from studies.maskerade.fits import Curve, draw_curve, drawn_fit, places_between
from studies.maskerade.methods import AS_PUBLISHED, METHODS, PUBLISHED
from studies.maskerade.predictions import scored
from studies.maskerade.sets import CO2, Split, load_sample, split_sample, tenth_rows

SHOWN = ("maskerade-i", "maskerade-r", "sm", "vssgp")
_RECENT, _BEYOND = 0.2, 0.15  # shares of the range that are drawn: its end, and what follows it
_VERSION = 1
_SCORES = ("rmse", "rmse_standardized", "log_prob_sum", "log_prob_joint", "evaluations", "seconds")
_REMARK = (
    "A tenth of the rows is held out at random, as in the authors' code. Pictures show the last fifth of the series "
    "and what each method says of the years after it. The paper's third method, FKL, has no maintained package."
)


class Plan(NamedTuple):
    """What is to be run: methods and their budget, by the authors' choices or ours."""

    methods: list[str]
    evaluations: int
    as_published: bool


def run(choices: Choices, evaluations: int) -> str:
    """Make the figure: ``maskerade_figure-4.txt``, ``.csv``, ``.json``, and a fit of each method as PNG.

    Args:
        choices: What may be chosen of every experiment; a trial is a draw of the test rows.
        evaluations: Likelihoods of each method.

    Raises:
        ValueError: If a method is unknown, a number is out of range, or the set cannot be had or has several inputs.
        OSError: If the set cannot be read, or the results cannot be written.
    """
    known = [name for name in SHOWN if name in PUBLISHED] if choices.as_published else SHOWN
    plan = Plan(chosen(choices.methods, known, "method"), evaluations, choices.as_published)
    check_range("evaluations", evaluations, 5)
    (found,), notes = found_sets(choices, [CO2])
    if found.table.X.shape[1] != 1:
        raise ValueError(f"figure 4 is of a series: {found.name} must have one input, got {found.table.X.shape[1]}")
    sample = load_sample(found, choices.max_rows, choices.seed)
    make_folder(choices.out)
    results = Results(plan, ("method", "trial"), choices.trials)
    results.notes += [*notes, *(note for note in sample.notes if note not in notes)]
    total = choices.trials * len(plan.methods)
    with running(results, choices.out / "maskerade_parts", total, choices.progress) as parts:
        for trial in range(choices.trials):
            split = split_sample(sample, tenth_rows(len(sample.table.y), trial, choices.seed))
            for method in plan.methods:
                settings: dict[str, object] = {
                    "version": _VERSION,
                    "method": method,
                    "evaluations": evaluations,
                    "seed": choices.seed + trial,
                    "as_published": choices.as_published,
                    "data": fingerprint(split.X, split.y, split.test_X, split.test_y),
                }
                name = f"figure4-{method}-{evaluations}-seed{choices.seed + trial}"
                name += "-published" if choices.as_published else ""
                label = f"{method}, split {trial + 1} of {choices.trials}"
                parts.run((method, trial), name, settings, partial(run_part, plan, method, split, settings), label)
    split = split_sample(sample, tenth_rows(len(sample.table.y), 0, choices.seed))
    is_test = torch.zeros_like(sample.table.y, dtype=torch.bool)
    is_test[tenth_rows(len(sample.table.y), 0, choices.seed)] = True
    center = float(sample.table.y[~is_test].mean())
    names = sample.table.feature_names[0], sample.table.target_name
    return _written(results, choices, split, center, names)


def run_part(plan: Plan, method: str, split: Split, settings: dict[str, object]) -> Record:
    """Scores of the test rows, and the fit of the end of the series and of what follows it."""
    clock = time.perf_counter()
    first, last = float(split.X.min()), float(split.X.max())
    extent = last - first
    grid = places_between(split.X, last - _RECENT * extent, last + _BEYOND * extent)
    everything = split._replace(test_X=torch.cat([split.test_X, grid]))
    known = PUBLISHED if plan.as_published else METHODS
    generator = torch.Generator().manual_seed(int(str(settings["seed"])))
    answer = known[method].run(everything, plan.evaluations, generator)
    num_tests = len(split.test_y)
    scores = scored(_part(answer.posterior, slice(None, num_tests)), split) | answer.diagnostics
    cost = {"evaluations": float(answer.evaluations), "seconds": time.perf_counter() - clock}
    return Record(settings, scores | cost, drawn_fit(_part(answer.posterior, slice(num_tests, None)), grid))


def _part(posterior: MixturePosterior, rows: slice) -> MixturePosterior:
    """The mixture at some of its points."""
    covariance = posterior.component_covariance[..., rows, rows]
    return MixturePosterior(posterior.log_weights, posterior.component_mean[..., rows, :], covariance)


def _written(results: Results[Plan], choices: Choices, split: Split, center: float, names: tuple[str, str]) -> str:
    plan = results.plan
    title = f"MASKERADE, figure-4: Mauna Loa; {plan.evaluations} evaluations, {choices.trials} split(s)"
    title += ", AS PUBLISHED" if plan.as_published else ""
    rows: list[list[object]] = [
        [method, *(str(estimate(results.values(kind, method))) for kind in _SCORES)] for method in plan.methods
    ]
    published = [f"The authors' choices: {AS_PUBLISHED}."] if plan.as_published else []
    parts = [
        "\n".join([title, _REMARK, *published, *results.notes]),
        aligned(["method", *_SCORES], rows),
        "\n".join(results.failure_lines()),
    ]
    content = {"figure": "figure-4", "title": title, "evaluations": plan.evaluations, "failures": results.failed()}
    content["rows"] = [one for method in plan.methods if (one := results.summary(_SCORES, method)) is not None]
    pictures = {
        f"_{method}": draw_curve(Curve(method, results.records[method, 0].curves, split, center, names))
        for method in plan.methods
        if (method, 0) in results.records
    }
    stem = f"maskerade_figure-4{'_as_published' if plan.as_published else ''}"
    lines = ([*results.fields, *_SCORES], results.rows(_SCORES))
    return write_report(choices.out / stem, "\n\n".join(filter(None, parts)), lines, content, pictures)
