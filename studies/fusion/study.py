r"""The comparison of the fusion paper again (Ajirak et al. 2024, Figure 3), with rules of fixed weights beside it.

The hyperparameters of all models are those of the made-up rows. The fixed experts of BHS and P-BHS are exact Gaussian
processes on disjoint parts of the first half of the training rows, and weights are learned on the second half.
"""

import math
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.files.checkpoint import fingerprint
from studies.fusion.methods import METHODS, FusionTask, Sampling
from studies.fusion.pictures import draw_boxes
from studies.fusion.sets import (
    MIXTURE,
    FusionRows,
    FusionSplit,
    StackedExperts,
    expert_source,
    made_up_mixture,
    make_priors,
    split_rows,
    table_rows,
)
from studies.fusion.tables import (
    CHECKS,
    UNPRINTED,
    FusionPlan,
    FusionScores,
    Making,
    Setting,
    findings,
    paired_text,
    summary_rows,
    table_text,
)
from studies.harness.experiment import Choices
from studies.harness.parts import Parts, Record, Results, running
from studies.harness.plan import check_range, chosen
from studies.harness.report import write_report
from studies.harness.sources import FoundSet

_VERSION = 2  # of everything that scores depend on besides the data; a new number makes old files worthless
_FEWEST_ROWS = 50


class _Figure(NamedTuple):
    """A figure of the paper: what is varied, and on what ranges of the inputs."""

    title: str
    experts: tuple[int, ...]
    frequencies: tuple[int, ...]
    half_widths: tuple[float, ...]


FIGURES = {
    "3a": _Figure("more experts", (2, 3, 4, 5), (30,), (1.0,)),
    "3b": _Figure("more frequencies", (2,), (10, 30, 50), (1.0, 3.0)),
}
_REMARK = (
    "NLPD: mean negative log predictive density of the test rows, in nats; 'truth' is the mixture that the rows come "
    "from. Seconds on the wall, without the training of the fixed experts. rhat: largest rank R-hat of the log joint "
    "and of log densities, over all chains; chains of MoGPE are in different modes and combined by stacking, none of "
    "which is a sign of convergence. high_pareto_k: share of leave-one-out densities with Pareto k above 0.7. Numbers "
    "are means over splits, with standard errors."
)


def run(figure: str, choices: Choices, sampling: Sampling, made: Making = Making()) -> str:  # noqa: B008 (immutable)
    """Make a figure; write its table as text, its scores as CSV, its means as JSON and its boxes as PNG.

    Files are ``fusion_figure_<figure>.txt``, ``.csv``, ``.json`` and ``.png`` in the folder of the results. Finished
    parts (a model, a setting and a split) are kept in ``fusion_parts`` there, so a call that was cut goes on with what
    is done.

    Args:
        figure: 3a or 3b.
        choices: What may be chosen of every experiment.
        sampling: How posteriors are found.
        made: How rows are made up, or the most of a table; a fifth of them is for testing.

    Returns:
        The table and what is to be read from it, as text.

    Raises:
        ValueError: If there is no such method, a number is out of range, or nothing could be run.
        OSError: If a table cannot be read, or the results cannot be written.
    """
    plan = make_plan(figure, choices, sampling, made)
    own = choices.sources.find(MIXTURE) if choices.sources.has(MIXTURE) else None
    make_folder(choices.out)
    scores = FusionScores(plan, {}, Results(plan, ("method", "setting", "split"), plan.splits))
    scores.results.notes += [own.note] if own is not None else []
    total = len(plan.settings) * len(plan.methods) * plan.splits
    with running(scores.results, choices.out / "fusion_parts", total, choices.progress) as parts:
        for width in dict.fromkeys(setting.half_width for setting in plan.settings):
            for number in range(plan.splits):
                rows = rows_of(own, width, plan, number)
                split = split_rows(rows, plan.seed, number)
                scores.truth[width, number] = split.truth
                experts = expert_source(split, plan.seed, number)
                for setting in (setting for setting in plan.settings if setting.half_width == width):
                    for method in plan.methods:
                        task = make_task(split, setting, experts, plan, number)
                        _run_part(parts, plan, (method, setting, number), task)
    return _written(scores, figure, choices)


def rows_of(own: FoundSet | None, half_width: float, plan: FusionPlan, split: int) -> FusionRows:
    """The made-up rows of a split, or those of a table."""
    seed = plan.seed + split * plan.made.redrawn
    if own is None:
        return made_up_mixture(half_width, plan.made.num_rows, seed, plan.made.noise)
    return table_rows(own.table, half_width, plan.made.num_rows, seed)


def make_task(
    split: FusionSplit, setting: Setting, experts: Callable[[int], StackedExperts], plan: FusionPlan, number: int
) -> FusionTask:
    """What a method is given on a split."""
    priors = make_priors(split.X, setting.num_frequencies, plan.seed, number)
    generator = torch.Generator().manual_seed(10_000 * (plan.seed + 1) + number)
    return FusionTask(split, setting.num_experts, priors, experts, plan.sampling, generator)


def make_plan(figure: str, choices: Choices, sampling: Sampling, made: Making) -> FusionPlan:
    """The choices as a plan, or what is wrong with them."""
    methods = chosen(choices.methods, METHODS, "method")
    check_range("trials", choices.trials, 1)
    check_range("seed", choices.seed, 0)
    check_range("num_rows", made.num_rows, _FEWEST_ROWS)
    if not 0 <= made.noise < math.inf:
        raise ValueError(f"--noise must be a deviation, or 0 for noise that is drawn, got {made.noise:g}")
    kind = FIGURES[figure]
    settings = [
        Setting(experts, frequencies, half_width)
        for half_width in kind.half_widths
        for experts in kind.experts
        for frequencies in kind.frequencies
    ]
    return FusionPlan(settings, methods, choices.trials, sampling, choices.seed, made)


def _run_part(parts: Parts, plan: FusionPlan, key: tuple[str, Setting, int], task: FusionTask) -> None:
    method, setting, split = key
    settings = part_settings(method, setting, split, plan)
    name = "-".join(str(value) for value in settings.values())
    settings["data"] = fingerprint(*task.split[:4])
    label = f"{method}, {setting}, split {split + 1} of {plan.splits}"
    parts.run(key, name, settings, lambda: run_part(method, task, settings), label)


def part_settings(method: str, setting: Setting, split: int, plan: FusionPlan) -> dict[str, object]:
    """What a part depends on; one that has no use for experts or frequencies is the same for all numbers of them."""
    uses, sampling = METHODS[method].uses, plan.sampling
    is_inferred = "frequencies" in uses
    has_chains = is_inferred and sampling.inference != "laplace"
    return {
        "version": _VERSION,
        "method": method,
        "experts": setting.num_experts if "num_experts" in uses else 0,
        "frequencies": setting.num_frequencies if is_inferred else 0,
        "half_width": setting.half_width,
        "split": split,
        "inference": sampling.inference if is_inferred else "none",
        "chains": sampling.num_chains if has_chains else 0,
        "draws": sampling.num_draws if has_chains else 0,
        "as_published": has_chains and sampling.as_published,
        "seed": plan.seed,
        **plan.made._asdict(),
    }


def run_part(method: str, task: FusionTask, settings: dict[str, object]) -> Record:
    """One part: what a method predicts of the test rows of a split, scored.

    Raises:
        ValueError: If a density of a test target is not finite.
    """
    kind = METHODS[method]
    if "experts" in kind.uses:
        task.experts(task.num_experts)  # their training is not in the seconds of what fuses them
    clock = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what they warn of is in the table
        answer = kind.run(task)
    seconds = time.perf_counter() - clock
    nlpd = -float(answer.log_prob.mean())
    if not math.isfinite(nlpd):
        raise ValueError(f"a density of a test target is not finite: the mean of their logarithms is {-nlpd}")
    return Record(settings, {"nlpd": nlpd, "seconds": seconds, **answer.checks}, {})


def _written(scores: FusionScores, figure: str, choices: Choices) -> str:
    plan, results = scores.plan, scores.results
    title = (
        f"Fusion, figure {figure}: {FIGURES[figure].title}; {plan.splits} split(s) of {plan.made}, "
        f"inference by {plan.sampling}{', AS PUBLISHED' if plan.sampling.as_published else ''}"
    )
    found = findings(scores)
    parts = [
        "\n".join([title, _REMARK, *results.notes]),
        "\n".join(f"{name}: {METHODS[name].title}" for name in plan.methods),
        table_text(scores),
        paired_text(scores),
        "\n".join([*found, UNPRINTED]),
        "\n".join(results.failure_lines()),
    ]
    lines: list[list[object]] = []
    for (method, setting, split), record in results.records.items():
        assert isinstance(setting, Setting)
        assert isinstance(split, int)
        found_scores = [record.scores.get(kind, math.nan) for kind in ("seconds", *CHECKS)]
        truth = scores.truth[setting.half_width, split]
        lines.append([*setting, method, split, record.scores["nlpd"], truth, *found_scores])
    header = ["experts", "frequencies", "half_width", "method", "split", "nlpd", "truth", "seconds", *CHECKS]
    content = {
        "title": title,
        "remark": _REMARK,
        "splits": plan.splits,
        "sampling": plan.sampling._asdict(),
        "seed": plan.seed,
        **plan.made._asdict(),
        "rows": summary_rows(scores),
        "findings": found,
        "failures": results.failed(),
    }
    pictures = {"": lambda path: draw_boxes(scores, path)}
    stem = f"fusion_figure_{figure}{'_as_published' if plan.sampling.as_published else ''}"
    text = "\n\n".join(filter(None, parts))
    return write_report(choices.out / stem, text, (header, lines), content, pictures)
