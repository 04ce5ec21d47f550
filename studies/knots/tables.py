"""The knot-selection tables: means and standard errors over splits, paired tests, comparison with printed numbers."""

import math
from collections.abc import Sequence
from pathlib import Path

from studies.harness.comparison import Estimate, beside_printed, estimate, paired, read_printed
from studies.harness.parts import Plan, Results
from studies.harness.text import aligned

SCORES = ("knots", "mnlp", "mnlp_twice", "mean_nlp", "srmse", "aukl_f", "aukl_y", "objective", "seconds")
EXACT = "FGP"
BESIDE = ("default",)  # another kernel: its divergence from the full process of this one is no approximation's
_REFERENCE = "OBVk"  # the paper's method, with which the others are compared
_COMPARED = ("mnlp", "mean_nlp", "srmse", "aukl_f", "seconds")
_THEIRS = [Path(__file__).with_name(f"{name}.csv") for name in ("printed", "authors_code")]  # read, and run
_OF_ALL = {"lowest of all": min, "highest of all": max}  # where only the range of a figure is known


def table_text(results: Results[Plan], methods: Sequence[str]) -> str:
    """Methods down, scores across, each a mean and its standard error."""
    rows: list[list[object]] = []
    for method in methods:
        done = len(results.found(method))
        if done:
            rows.append([method, *(_shown(results, method, kind) for kind in SCORES), str(done)])
    return aligned(["method", *SCORES, "splits"], rows)


def paired_text(results: Results[Plan], methods: Sequence[str]) -> str:
    """What each method has more than OAT by Bayesian optimization, split by split; empty with a single split."""
    rows: list[list[object]] = []
    for method in methods:
        for kind in _COMPARED:
            trivial = kind == "aukl_f" and method in (EXACT, *BESIDE)
            if method == _REFERENCE or trivial or not results.found(method):
                continue
            found = paired(results.values(kind, method), results.values(kind, _REFERENCE))
            if found.num > 1:
                p_values = [_p_value(found.t_p_value), _p_value(found.wilcoxon_p_value)]
                rows.append([method, kind, f"{found.mean:+.3g}", f"{found.num_larger} of {found.num}", *p_values])
    if not rows:
        return ""
    header = ["method", "score", f"less {_REFERENCE}'s", "larger on", "t-test p", "Wilcoxon p"]
    return f"Paired over splits\n{aligned(header, rows)}"


def printed_text(results: Results[Plan], methods: Sequence[str], dataset: str) -> str:
    """Published numbers compared with ours, of methods that were run; empty if none is known."""

    def ours(_: str, method: str, score: str) -> Estimate | None:
        if method in _OF_ALL:
            found = [estimate(results.values(score, name)) for name in methods if results.known(score, name)]
            return _OF_ALL[method](found) if found else None
        return estimate(results.values(score, method))

    known = [*methods, *_OF_ALL] if methods else []
    entries = [entry for path in _THEIRS for entry in read_printed(path, dataset)]
    text = beside_printed([entry for entry in entries if entry.method in known], ours)
    return f"Beside the authors' numbers\n{text}" if text else ""


def _shown(results: Results[Plan], method: str, kind: str) -> str:
    found = estimate(results.values(kind, method))
    if not found.num:
        return "-"
    if kind != "objective":
        return str(found)
    return f"{found.mean:.2f}" if math.isnan(found.error) else f"{found.mean:.2f} ± {found.error:.2g}"


def _p_value(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2g}"
