r"""The comparison of the fusion paper again (Ajirak et al. 2024, Figure 3), with rules of fixed weights beside it.

The hyperparameters of all models are those of the made-up rows. The fixed experts of BHS and P-BHS are exact Gaussian
processes on disjoint parts of the first half of the training rows, and weights are learned on the second half.
"""

import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.files.checkpoint import fingerprint
from studies.fusion.methods import INFERENCES, METHODS, FusionTask
from studies.fusion.pictures import draw_boxes
from studies.fusion.sets import NUM_ROWS, expert_source, made_up_mixture, make_priors, split_mixture
from studies.fusion.tables import CHECKS, FusionPlan, FusionScores, Setting, findings, summary_rows, table_text
from studies.harness.parts import Parts, Record, Results, running
from studies.harness.plan import check_range, chosen
from studies.harness.report import write_report

_VERSION = 1  # of everything that scores depend on besides the data; a new number makes old files worthless
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
    "are means over splits."
)


class Options(NamedTuple):
    """What may be chosen of a figure.

    Attributes:
        splits: How many random splits.
        models: Which models and rules; all by default.
        inference: hmc or laplace.
        seed: Seed of rows, splits and frequencies.
        num_rows: How many rows are made up, a fifth of them for testing.
    """

    splits: int = 5
    models: Sequence[str] | None = None
    inference: str = "hmc"
    seed: int = 0
    num_rows: int = NUM_ROWS


def run(
    figure: str | int | None,
    out: Path,
    options: Options = Options(),  # noqa: B008 (immutable)
    *,
    progress: bool = False,
) -> str:
    """Make a figure; write its table as text, its scores as CSV, its means as JSON and its boxes as PNG.

    Files are ``fusion_figure_<figure>.txt``, ``.csv``, ``.json`` and ``.png`` in ``out``. Finished parts (a model, a
    setting and a split) are kept in ``out/fusion_parts``, so a call that was cut goes on with what is done.

    Args:
        figure: 3a or 3b.
        out: Folder of the results; it is made if need be.
        options: Splits, models, inference, seed and rows.
        progress: Show a progress bar.

    Returns:
        The table and what is to be read from it, as text.

    Raises:
        ValueError: If there is no such figure, model or inference, a number is out of range, or nothing could be run.
        OSError: If ``out`` cannot be written.

    Example:
        >>> run("4", Path("nowhere"))
        Traceback (most recent call last):
        ValueError: --figure of fusion must be one of 3a, 3b, got 4
    """
    plan = make_plan(str(figure), options)
    make_folder(out)
    scores = FusionScores(plan, {}, Results(plan, ("method", "setting", "split"), plan.splits))
    total = len(plan.settings) * len(plan.methods) * plan.splits
    with running(scores.results, out / "fusion_parts", total, progress) as parts:
        for width in dict.fromkeys(setting.half_width for setting in plan.settings):
            rows = made_up_mixture(width, plan.num_rows, plan.seed)
            for number in range(plan.splits):
                split = split_mixture(rows, plan.seed, number)
                scores.truth[width, number] = split.truth
                experts = expert_source(split, plan.seed, number)
                for setting in (setting for setting in plan.settings if setting.half_width == width):
                    priors = make_priors(rows.X, setting.num_frequencies, plan.seed, number)
                    for method in plan.methods:
                        generator = torch.Generator().manual_seed(10_000 * (plan.seed + 1) + number)
                        task = FusionTask(split, setting.num_experts, priors, experts, plan.inference, generator)
                        _run_part(parts, plan, (method, setting, number), task)
    return _written(scores, str(figure), out)


def make_plan(figure: str, options: Options) -> FusionPlan:
    """The options as a plan, or what is wrong with them."""
    if figure not in FIGURES:
        raise ValueError(f"--figure of fusion must be one of {', '.join(FIGURES)}, got {figure}")
    if options.inference not in INFERENCES:
        raise ValueError(f"--inference must be one of {', '.join(INFERENCES)}, got {options.inference}")
    methods = chosen(options.models, METHODS, "model")
    check_range("splits", options.splits, 1)
    check_range("seed", options.seed, 0)
    check_range("max_rows", options.num_rows, _FEWEST_ROWS)
    kind = FIGURES[figure]
    settings = [
        Setting(experts, frequencies, half_width)
        for half_width in kind.half_widths
        for experts in kind.experts
        for frequencies in kind.frequencies
    ]
    return FusionPlan(settings, methods, options.splits, options.inference, options.seed, options.num_rows)


def _run_part(parts: Parts, plan: FusionPlan, key: tuple[str, Setting, int], task: FusionTask) -> None:
    """A method on a split; one that does not depend on the experts or frequencies is run once for all of them."""
    method, setting, split = key
    uses = METHODS[method].uses
    settings: dict[str, object] = {
        "version": _VERSION,
        "method": method,
        "experts": setting.num_experts if "num_experts" in uses else 0,
        "frequencies": setting.num_frequencies if "frequencies" in uses else 0,
        "half_width": setting.half_width,
        "split": split,
        "inference": plan.inference if "frequencies" in uses else "none",
        "seed": plan.seed,
        "rows": plan.num_rows,
    }
    name = "-".join(str(value) for value in settings.values())
    settings["data"] = fingerprint(*task.split[:4])
    label = f"{method}, {setting}, split {split + 1} of {plan.splits}"
    parts.run(key, name, settings, lambda: run_part(method, task, settings), label)


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
        warnings.simplefilter("ignore", UserWarning)  # what they warn of stands in the table
        answer = kind.run(task)
    seconds = time.perf_counter() - clock
    nlpd = -float(answer.log_prob.mean())
    if not math.isfinite(nlpd):
        raise ValueError(f"a density of a test target is not finite: the mean of their logarithms is {-nlpd}")
    return Record(settings, {"nlpd": nlpd, "seconds": seconds, **answer.checks}, {})


def _written(scores: FusionScores, figure: str, out: Path) -> str:
    plan, results = scores.plan, scores.results
    title = (
        f"Fusion, Figure {figure}: {FIGURES[figure].title}; {plan.splits} split(s) of {plan.num_rows} rows, "
        f"inference by {plan.inference}"
    )
    titles = "".join(f"{name}: {METHODS[name].title}\n" for name in plan.methods)
    found = findings(scores)
    text = "\n".join([title, _REMARK, "", titles, table_text(scores), "", *found, *results.failure_lines()])
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
        "inference": plan.inference,
        "seed": plan.seed,
        "num_rows": plan.num_rows,
        "rows": summary_rows(scores),
        "findings": found,
        "failures": results.failed(),
    }
    pictures = {"": lambda path: draw_boxes(scores, path)}
    return write_report(out / f"fusion_figure_{figure}", text, (header, lines), content, pictures)
