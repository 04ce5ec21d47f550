"""Our scores beside what is known of the published method's."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from gp_ensembles.cli.text_tables import aligned
from studies.harness.parts import Plan, Results

SCORES = ("knots", "mnlp", "mnlp_twice", "mean_nlp", "srmse", "aukl_f", "aukl_y", "objective", "seconds")
EXACT = "FGP"
_ROW = ("knots", "mnlp", "mnlp_twice", "srmse", "aukl_f", "seconds")


class Known(NamedTuple):
    """Numbers of others, in brackets below ours.

    Attributes:
        name: Whose they are.
        scores: The numbers, under the names of ours that they are to be compared with.
    """

    name: str
    scores: dict[str, float]


class Layout(NamedTuple):
    """What stands around a table.

    Attributes:
        title: The set and how it is split.
        known: Numbers of others.
        remark: Where they are from.
    """

    title: str
    known: tuple[Known, ...]
    remark: str


def _averaged(name: str, *runs: tuple[float, float, float, float, float, float]) -> Known:
    """The mean of runs of knots, MNLP, MNLP with noise twice, SRMSE, AUKL of f and seconds; NaN is no number."""
    scores = {}
    for kind, values in zip(_ROW, zip(*runs, strict=True), strict=True):
        there = [value for value in values if not math.isnan(value)]
        if there:
            scores[kind] = sum(there) / len(there)
    return Known(name, scores)


_NONE = math.nan
_RUN = (
    "Numbers in brackets: the authors' R code, the mean of two splits drawn by R, which are not these splits; CPU "
    "seconds on one thread. Its own MNLP is mnlp_twice."
)
LAYOUTS: dict[str, Layout] = {
    "boston": Layout(
        "Boston housing (rm, ptratio, lstat; medv below 50), 80/20",
        (
            _averaged("(R: FGP)", (_NONE, 2.224, 2.483, 0.3548, 0.0, 44.0), (_NONE, 2.333, 2.526, 0.4459, 0.0, 69.0)),
            _averaged(
                "(R: OBVk)", (80, 2.225, 2.484, 0.3551, 0.0041, 291.0), (66, 2.332, 2.526, 0.4462, 0.0004, 246.0)
            ),
            _averaged(
                "(R: ORVk)", (80, 2.223, 2.482, 0.3552, 0.0028, 237.0), (64, 2.331, 2.526, 0.4464, 0.0004, 172.0)
            ),
            _averaged("(R: OBFk)", (25, 2.219, 2.416, 0.3658, 0.34, 185.0), (21, 2.349, 2.500, 0.4537, 0.27, 162.0)),
            _averaged("(R: SVk)", (80, 2.222, 2.482, 0.3553, 2e-4, _NONE), (64, 2.333, 2.526, 0.4460, 1e-5, _NONE)),
            _averaged("(R: SVO)", (80, 2.222, 2.481, 0.3552, 5e-6, _NONE), (64, 2.333, 2.527, 0.4460, 2e-7, _NONE)),
        ),
        _RUN + " SVk and SVO had vectorized gradients in place of the code's.",
    ),
    "airfoil": Layout(
        "airfoil self-noise, 80/20",
        (
            _averaged("(R: FGP)", (_NONE, 2.009, 2.226, 0.333, 0.0, _NONE), (_NONE, 1.980, 2.181, 0.382, 0.0, 14.0)),
            _averaged("(R: OBVk)", (80, 2.281, 2.517, 0.454, _NONE, _NONE), (80, 2.261, 2.487, 0.475, 2.42, 67.0)),
            _averaged("(R: ORVk)", (80, 2.275, 2.509, 0.448, _NONE, _NONE), (80, 2.261, 2.487, 0.476, 2.50, 52.0)),
            _averaged("(R: OBFk)", (47, 2.423, 2.423, 0.576, _NONE, _NONE), (69, 2.308, 2.312, 0.566, 0.98, 87.0)),
            _averaged("(R: SVk)", (80, 2.236, 2.460, 0.420, _NONE, _NONE), (80, 2.194, 2.418, 0.456, 1.58, 9.6)),
            _averaged("(R: SVO)", (80, 2.224, 2.453, 0.416, _NONE, _NONE), (80, 2.195, 2.415, 0.456, 1.54, 11.0)),
        ),
        _RUN + " The code's gradients were replaced by vectorized ones of the same values; AUKL and seconds are of one "
        "split.",
    ),
    "ccpp": Layout(
        "combined cycle power plant, 50/50",
        (
            Known("(paper: lower end)", {"mnlp_twice": 2.74, "srmse": 0.23}),
            Known("(paper: upper end)", {"mnlp_twice": 2.83, "srmse": 0.25}),
        ),
        "Numbers in brackets: the range in the paper's figure over its models and numbers of knots up to 80, read as "
        "mnlp_twice, which alone fits its code and these models.",
    ),
}


def table_text(results: Results[Plan], methods: Sequence[str], dataset: str) -> str:
    """The table for the eye: methods down, then numbers of others."""
    rows: list[list[object]] = []
    for method in methods:
        done = len(results.found(method))
        if done:
            rows.append([method, *(_spread(results, method, kind) for kind in SCORES), str(done)])
    for known in LAYOUTS[dataset].known:
        rows.append([known.name, *(_bracketed(known.scores.get(kind, math.nan)) for kind in SCORES), "-"])
    return aligned(["method", *SCORES, "splits"], rows)


def _spread(results: Results[Plan], method: str, kind: str) -> str:
    mean, deviation = results.mean(kind, method), results.deviation(kind, method)
    if math.isnan(mean):
        return "-"
    shown = f"{mean:.2f}" if kind == "objective" else f"{mean:.4g}"
    return shown if math.isnan(deviation) else f"{shown} ± {deviation:.2g}"


def _bracketed(value: float) -> str:
    return "-" if math.isnan(value) else f"({value:.4g})"
