"""The tables of experiments 1, 3, C and D."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import wilcoxon

from gp_ensembles.cli.text_tables import aligned
from studies.doebe.methods import Exchange, Method, e_doebe, family_methods, whole_methods
from studies.doebe.scores import Scores

SAMPLES = (1, 3, 5)
DELTAS = (1e-4, 1e-3, 1e-2, 5e-2, 0.1)
_KINDS = {"log_score": "mean log score (nats per row, standardized targets; larger is better)", "nmse": "nMSE"}


class Comparison(NamedTuple):
    """A method with more samples of its hyperparameters against itself with one, over sets.

    Attributes:
        median: Median over sets of the gain in log score, in nats per row.
        num_better: Sets on which more samples are better.
        p_value: Two-sided p-value of the Wilcoxon signed-rank test; NaN if there is no difference at all.
    """

    median: float
    num_better: int
    p_value: float


def compare_pairs(more: Sequence[float], one: Sequence[float]) -> Comparison:
    """Wilcoxon's signed-rank test of paired scores, one pair a set.

    Example:
        >>> compare_pairs([1.0, 2.0, 3.0], [0.5, 1.0, 1.0])
        Comparison(median=1.0, num_better=3, p_value=0.25)
    """
    gains = np.asarray(more, dtype=np.float64) - np.asarray(one, dtype=np.float64)
    p_value = float(wilcoxon(gains).pvalue) if bool(gains.any()) else math.nan
    return Comparison(float(np.median(gains)), int((gains > 0).sum()), p_value)


def families_table(scores: Scores) -> str:
    """Experiment 1: every family on its own, static (OE) and dynamic (DOE)."""
    return _by_set(scores, family_methods())


def ensembles_table(scores: Scores) -> str:
    """Experiment 3: all families together, beside the family that is best in hindsight."""
    parts = []
    methods, families = whole_methods(), family_methods()
    for kind, title in _KINDS.items():
        rows: list[list[object]] = []
        sign = 1.0 if kind == "log_score" else -1.0
        for name in scores.sets:
            by_family = [sign * scores.mean(name, family, kind) for family in families]
            best = families[by_family.index(max(by_family))]
            rows.append(
                [name, *(scores.mean(name, m, kind) for m in methods), scores.mean(name, best, kind), best.name]
            )
        parts.append(f"{title}\n" + aligned(["set", *(m.name for m in methods), "best family", "which"], rows))
    return "\n\n".join(parts)


def samples_methods() -> list[Method]:
    """The methods of experiment C."""
    return [method for count in SAMPLES for method in (*family_methods(count), e_doebe(num_samples=count))]


def samples_table(scores: Scores) -> str:
    """Experiment C: one estimate of the hyperparameters against several Laplace samples."""
    by_count = {count: [*family_methods(count), e_doebe(num_samples=count)] for count in SAMPLES}
    rows: list[list[object]] = []
    for versions in zip(*by_count.values(), strict=True):
        one, *others = ([scores.mean(name, version, "log_score") for name in scores.sets] for version in versions)
        row: list[object] = [versions[0].name, *(sum(each) / len(each) for each in (one, *others))]
        for more in others:
            found = compare_pairs(more, one)
            row += [found.median, f"{found.num_better}/{len(one)}", found.p_value]
        rows.append(row)
    header = ["method", *(f"S={count}" for count in SAMPLES)]
    for count in SAMPLES[1:]:
        header += [f"{count}-1: median", "better", "p"]
    title = (
        "log score, mean over sets, with S experts per optimum; gain of S over 1: median, sets, two-sided Wilcoxon p "
        "(one test a row, not corrected for their number)"
    )
    return f"{title}\n" + aligned(header, rows)


def delta_methods() -> list[Method]:
    """The methods of experiment D."""
    return [e_doebe(delta) for delta in DELTAS]


def delta_table(scores: Scores) -> str:
    """Experiment D: E-DOEBE with other probabilities of a switch."""
    return _by_set(scores, delta_methods())


def long_rows(scores: Scores, methods: Sequence[Method]) -> tuple[list[str], list[list[object]]]:
    """Header and rows of the CSV file: one line a set, seed and method."""
    kinds = list(_KINDS)
    rows: list[list[object]] = []
    for name in scores.sets:
        for seed in range(scores.num_seeds):
            for method in methods:
                found = scores.values[name, method.key, seed]
                delta = method.rule.delta if isinstance(method.rule, Exchange) else math.nan
                row = [name, seed, method.name, method.num_samples, delta]
                rows.append([*row, *(found[kind] for kind in (*kinds, "log_score_gaussian"))])
    return ["set", "seed", "method", "num_samples", "delta", *kinds, "log_score_gaussian"], rows


def _by_set(scores: Scores, methods: Sequence[Method]) -> str:
    """A table a score: sets down, methods across, and the mean over sets below."""
    names = [f"delta {m.rule.delta:g}" if isinstance(m.rule, Exchange) else m.name for m in methods]
    parts = []
    for kind, title in _KINDS.items():
        rows: list[list[object]] = [
            [name, *(scores.mean(name, method, kind) for method in methods)] for name in scores.sets
        ]
        columns = [[scores.mean(name, method, kind) for name in scores.sets] for method in methods]
        rows.append(["mean", *(sum(column) / len(column) for column in columns)])
        parts.append(f"{title}\n" + aligned(["set", *names], rows))
    return "\n\n".join(parts)
