"""Settings varied in a figure of the fusion paper, and its scores as text and findings."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from studies.fusion.methods import METHODS, Sampling
from studies.fusion.sets import DRAWN, NOISE, NUM_ROWS
from studies.harness.comparison import estimate, paired
from studies.harness.parts import Results
from studies.harness.text import aligned

ORDER = ("MoGPE", "PoGPE", "P-BHS", "BHS")  # the paper's, the best first
CHECKS = ("rhat", "high_pareto_k", "divergences", "chains_with_weight")
_EVEN = 0.005  # nats; smaller differences are not worth a word
UNPRINTED = (
    "The paper shows its scores as boxes only: its order is MoGPE, PoGPE, P-BHS, BHS from best to worst, and no number "
    "of it is known here."
)


class Setting(NamedTuple):
    """Where a figure has a group of boxes.

    Attributes:
        num_experts: Number of experts K.
        num_frequencies: Number of frequencies M of every function.
        half_width: Inputs are uniform on [-half_width, half_width].
    """

    num_experts: int
    num_frequencies: int
    half_width: float

    def __str__(self) -> str:
        return f"K = {self.num_experts}, M = {self.num_frequencies}, |x| < {self.half_width:g}"


class Making(NamedTuple):
    """How rows are made up.

    Attributes:
        num_rows: How many.
        noise: Deviation of the noise, or :data:`~studies.fusion.sets.DRAWN`.
        redrawn: Whether every split is of other rows, so that splits are independent.
    """

    num_rows: int = NUM_ROWS
    noise: float = NOISE
    redrawn: bool = False

    def __str__(self) -> str:
        """For titles."""
        noise = "drawn noise" if self.noise == DRAWN else f"noise of deviation {self.noise:g}"
        return f"{self.num_rows} rows, {noise}{', other rows for each split' * self.redrawn}"


class FusionPlan(NamedTuple):
    """What is to be run.

    Attributes:
        settings: The figure's groups.
        methods: Names of the methods, in the order of the table.
        splits: How many splits.
        sampling: How posteriors are found.
        seed: Seed of the made-up rows, splits and frequencies.
        made: How rows are made up.
    """

    settings: Sequence[Setting]
    methods: Sequence[str]
    splits: int
    sampling: Sampling
    seed: int
    made: Making = Making()


class FusionScores(NamedTuple):
    """What came of a plan.

    Attributes:
        plan: The plan.
        truth: Mean negative log density under the true mixture, by half width and split.
        results: Finished parts by method, setting and split.
    """

    plan: FusionPlan
    truth: dict[tuple[float, int], float]
    results: Results[FusionPlan]


def table_text(scores: FusionScores) -> str:
    """The table for the eye: methods down within each setting, splits across."""
    plan = scores.plan
    checks = [kind for kind in CHECKS if any(kind in record.scores for record in scores.results.records.values())]
    header = ["method", "K", "M", "|x| <", "NLPD", *(f"split {k + 1}" for k in range(plan.splits)), "seconds", *checks]
    rows: list[list[object]] = []
    for setting in plan.settings:
        for method in ("truth", *plan.methods):
            found = _nlpd(scores, method, setting)
            if all(math.isnan(value) for value in found):
                continue
            uses = METHODS[method].uses if method in METHODS else frozenset()
            rows.append(
                [
                    method,
                    str(setting.num_experts) if "num_experts" in uses else "-",
                    str(setting.num_frequencies) if "frequencies" in uses else "-",
                    f"{setting.half_width:g}",
                    _shown(found),
                    *(f"{value:.3f}" for value in found),
                    *(scores.results.mean(kind, method, setting) for kind in ("seconds", *checks)),
                ]
            )
    return aligned(header, rows)


def paired_text(scores: FusionScores) -> str:
    """Each method compared with the next one of the paper's order, split by split; empty with a single split."""
    rows: list[list[object]] = []
    for setting in scores.plan.settings:
        for better, worse in pairwise(ORDER):
            if {better, worse} <= set(scores.plan.methods):
                found = paired(_nlpd(scores, better, setting), _nlpd(scores, worse, setting))
                if found.num > 1:
                    lower = f"{found.num - found.num_larger} of {found.num}"
                    p_values = [_p_value(found.t_p_value), _p_value(found.wilcoxon_p_value)]
                    rows.append([str(setting), f"{better} less {worse}", f"{found.mean:+.3f}", lower, *p_values])
    if not rows:
        return ""
    header = ["setting", "NLPD of", "difference", "lower on", "t-test p", "Wilcoxon p"]
    return f"Paired over splits, in the paper's order\n{aligned(header, rows)}"


def findings(scores: FusionScores) -> list[str]:
    """Lines that say whether the paper's ordering came out, and what more experts or frequencies brought."""
    lines = []
    plan = scores.plan
    if set(ORDER) <= set(plan.methods):
        for setting in plan.settings:
            columns = [_nlpd(scores, method, setting) for method in ORDER]
            ranked = [all(low < high for low, high in pairwise(split)) for split in zip(*columns, strict=True)]
            words = " < ".join(ORDER)
            lines.append(f"{setting}: {words} on {sum(ranked)} of {plan.splits} split(s)")
    for width in dict.fromkeys(setting.half_width for setting in plan.settings):
        settings = [setting for setting in plan.settings if setting.half_width == width]
        if len(settings) > 1:
            lines += [_trend(scores, method, settings) for method in plan.methods if METHODS[method].uses]
    return [line for line in lines if line]


def summary_rows(scores: FusionScores) -> list[dict[str, object]]:
    """Means and standard errors over splits for the JSON file."""
    rows: list[dict[str, object]] = []
    for setting in scores.plan.settings:
        for method in scores.plan.methods:
            found = scores.results.known("nlpd", method, setting)
            if found:
                rows.append(
                    {
                        **setting._asdict(),
                        "method": method,
                        "splits": len(found),
                        "nlpd": scores.results.mean("nlpd", method, setting),
                        "error": estimate(found).error,
                        "seconds": scores.results.mean("seconds", method, setting),
                    }
                )
    return rows


def _nlpd(scores: FusionScores, method: str, setting: Setting) -> list[float]:
    if method == "truth":
        return [scores.truth[setting.half_width, split] for split in range(scores.plan.splits)]
    return scores.results.values("nlpd", method, setting)


def _trend(scores: FusionScores, method: str, settings: Sequence[Setting]) -> str:
    """What the last setting brought over the first; nothing where the method has no use for the difference."""
    first, last = settings[0], settings[-1]
    uses = METHODS[method].uses
    changes = [("num_experts", first.num_experts, last.num_experts, "K")]
    changes += [("frequencies", first.num_frequencies, last.num_frequencies, "M")]
    moved = [f"{letter} = {low} to {high}" for what, low, high, letter in changes if low != high and what in uses]
    pairs = list(zip(_nlpd(scores, method, first), _nlpd(scores, method, last), strict=True))
    done = [(before, after) for before, after in pairs if not math.isnan(before + after)]
    if not moved or not done:
        return ""
    better = sum(after < before - _EVEN for before, after in done)
    worse = sum(after > before + _EVEN for before, after in done)
    means = " -> ".join(f"{scores.results.mean('nlpd', method, setting):.3f}" for setting in settings)
    where = f"{', '.join(moved)}, |x| < {first.half_width:g}"
    return f"{method}, {where}: {means}; better on {better} and worse on {worse} of {len(done)} split(s)"


def _shown(values: Sequence[float]) -> str:
    found = estimate(values)
    return f"{found.mean:.3f}" if math.isnan(found.error) else f"{found.mean:.3f} ± {found.error:.3f}"


def _p_value(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2g}"
