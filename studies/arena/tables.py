"""Markdown tables of the arena: sets by methods for each score, and a summary of the methods."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from studies.arena.contenders import METHODS
from studies.harness.parts import Results

_LOSSES = ("crps", "nmse", "width", "error_rate", "microseconds")
_TITLES = {
    "log_score": "Mean log score, nats per row in standardized units (higher is better)",
    "crps": "CRPS, standardized units (lower is better)",
    "nmse": "Mean squared error relative to the variance of the targets (lower is better)",
    "coverage": "Coverage of the 90 % interval",
    "windows": "Share of windows of 500 rows with a coverage of 85 to 95 %",
    "width": "Mean width of the 90 % interval, standardized units",
    "error_rate": "Error rate",
    "microseconds": "CPU time per row in microseconds (predicting and learning)",
}
_DIGITS = {"nmse": 4, "coverage": 3, "windows": 2, "microseconds": 0}


class ArenaPlan(NamedTuple):
    """The plan of a run.

    Attributes:
        sets: Names of the sets.
        kinds: Their kinds, by name.
        methods: Names of all methods.
        rows: Maximum number of scored rows per set.
    """

    sets: list[str]
    kinds: dict[str, str]
    methods: list[str]
    rows: int


class Summary(NamedTuple):
    """A method over all sets on which it was run.

    Attributes:
        num_sets: Number of sets.
        rank: Mean rank of its log score among the methods of a set, 1 the best.
        difference: Mean log score minus that of the reference, on sets with both.
        worst: The smallest of these differences.
        ratio: Geometric mean of its CRPS relative to the reference's; NaN for classes.
        best: Number of sets on which its log score is the best.
        coverage: Mean coverage of its 90 % interval.
        microseconds: Median over sets.
    """

    num_sets: int
    rank: float
    difference: float
    worst: float
    ratio: float
    best: int
    coverage: float
    microseconds: float


def present(results: Results[ArenaPlan], is_class: bool) -> tuple[list[str], list[str]]:
    """Numeric sets, or those with classes, and the methods with any scores."""
    plan = results.plan
    sets = [
        name
        for name in plan.sets
        if (plan.kinds[name] == "classes") == is_class and any(results.found(name, method) for method in plan.methods)
    ]
    methods = [method for method in plan.methods if any(results.found(name, method) for name in sets)]
    return sets, methods


def reference_of(methods: Sequence[str]) -> str:
    """The method that others are compared with: ``auto``, or the first if it was not run.

    Example:
        >>> reference_of(["previous", "auto"]), reference_of(["previous"])
        ('auto', 'previous')
    """
    return next((name for name in ("auto", "auto_classes") if name in methods), methods[0])


def summarize_methods(results: Results[ArenaPlan], is_class: bool) -> dict[str, Summary]:
    """The summary of every method with scores."""
    sets, methods = present(results, is_class)
    if not sets:
        return {}
    reference = reference_of(methods)
    scores = {method: {name: results.mean("log_score", name, method) for name in sets} for method in methods}
    ranks: dict[str, list[int]] = {method: [] for method in methods}
    for name in sets:
        there = sorted((m for m in methods if not math.isnan(scores[m][name])), key=lambda m: -scores[m][name])
        for place, method in enumerate(there, 1):
            ranks[method].append(place)
    found = {}
    for method in methods:
        both = [name for name in sets if not math.isnan(scores[method][name] - scores[reference][name])]
        differences = [scores[method][name] - scores[reference][name] for name in both] or [math.nan]
        logs = [_log_ratio(results, name, method, reference) for name in both]
        known = [value for value in logs if not math.isnan(value)]
        own = [name for name in sets if not math.isnan(scores[method][name])]
        coverage = [results.mean("coverage", name, method) for name in own]
        found[method] = Summary(
            len(own),
            statistics.fmean(ranks[method]),
            statistics.fmean(differences),
            min(differences),
            math.exp(statistics.fmean(known)) if known else math.nan,
            ranks[method].count(1),
            statistics.fmean(coverage),
            statistics.median(results.mean("microseconds", name, method) for name in own),
        )
    return found


def _log_ratio(results: Results[ArenaPlan], name: str, method: str, reference: str) -> float:
    ours, theirs = results.mean("crps", name, method), results.mean("crps", name, reference)
    return math.log(ours / theirs) if ours > 0 and theirs > 0 else math.nan


def arena_table(results: Results[ArenaPlan]) -> str:
    """All results as Markdown: summaries, then a table for each score."""
    parts = [f"# Arena: {len(results.plan.sets)} sets, at most {results.plan.rows} rows scored"]
    for is_class, kinds in ((False, tuple(_TITLES)), (True, ("log_score", "error_rate", "microseconds"))):
        sets, methods = present(results, is_class)
        if not sets:
            continue
        parts.append(summary_table(results, is_class))
        if not is_class and reference_of(methods) == "auto":
            parts.append(marks_table(results, sets))
        parts += [
            f"## {_TITLES[kind]}\n\n{score_table(results, kind, sets, methods)}"
            for kind in kinds
            if is_class or kind != "error_rate"
        ]
    return "\n\n".join(parts)


def summary_table(results: Results[ArenaPlan], is_class: bool) -> str:
    """The methods, best mean rank first, as Markdown."""
    summaries = summarize_methods(results, is_class)
    reference = reference_of(list(summaries))
    header = (
        f"| method | sets | mean rank | log score minus {reference}'s: mean | worst | best on | "
        "CRPS ratio | coverage | µs per row | description |"
    )
    lines = [header, "|---|" + "---:|" * 8 + "---|"]
    for name, found in sorted(summaries.items(), key=lambda item: item[1].rank):
        numbers = [
            f"{found.num_sets}",
            f"{found.rank:.2f}",
            f"{found.difference:+.3f}",
            f"{found.worst:+.3f}",
            f"{found.best}",
            _number(found.ratio, 3),
            _number(found.coverage, 3),
            f"{found.microseconds:.0f}",
        ]
        lines.append(f"| {name} | " + " | ".join(numbers) + f" | {METHODS[name].title} |")
    what = "with class targets" if is_class else "with numeric targets"
    return f"## Methods on sets {what}, by mean rank of the log score\n\n" + "\n".join(lines)


def marks_table(results: Results[ArenaPlan], sets: Sequence[str], method: str = "auto") -> str:
    """Goals for one method on every set, as Markdown: never behind a baseline, intervals with the stated coverage.

    Columns: its log score minus that of the best baseline, and the CRPS of the best baseline relative to its own, above
    0 and 1 if it is ahead; coverage of its 90 % interval, and the share of windows with a coverage of 85 to 95 %.
    """
    baselines = [name for name, contender in METHODS.items() if contender.family == "baseline"]
    lines = ["| set | log score ahead | CRPS ratio | coverage | windows | width |", "|---|" + "---:|" * 5]
    for name in sets:
        if not results.found(name, method):
            continue
        rivals = {kind: [results.mean(kind, name, other) for other in baselines] for kind in ("log_score", "crps")}
        known = {kind: [value for value in values if not math.isnan(value)] for kind, values in rivals.items()}
        ahead = results.mean("log_score", name, method) - max(known["log_score"], default=math.nan)
        ratio = min(known["crps"], default=math.nan) / results.mean("crps", name, method)
        own = [_number(results.mean(kind, name, method), 3) for kind in ("coverage", "windows", "width")]
        lines.append(f"| {name} | {ahead:+.3f} | {ratio:.3f} | " + " | ".join(own) + " |")
    return f"## {method} compared with the best baseline of each set, and its intervals\n\n" + "\n".join(lines)


def score_table(results: Results[ArenaPlan], kind: str, sets: Sequence[str], methods: Sequence[str]) -> str:
    """A score of all methods on all sets as Markdown; the best of each set is in bold, if defined."""
    lines = ["| set | " + " | ".join(methods) + " |", "|---|" + "---:|" * len(methods)]
    digits = _DIGITS.get(kind, 3)
    for name in sets:
        values = [results.mean(kind, name, method) for method in methods]
        known = [value for value in values if not math.isnan(value)]
        best = None
        if known and kind not in ("coverage", "width", "microseconds"):
            best = min(known) if kind in _LOSSES else max(known)
        cells = [f"**{_number(value, digits)}**" if value == best else _number(value, digits) for value in values]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def long_rows(results: Results[ArenaPlan], kinds: Sequence[str]) -> list[dict[str, object]]:
    """Means over seeds for a JSON file."""
    found = [results.summary(kinds, name, method) for name in results.plan.sets for method in results.plan.methods]
    return [row for row in found if row is not None]


def _number(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"
