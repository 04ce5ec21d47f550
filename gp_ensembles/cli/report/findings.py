"""What a run came to, in sentences: the headings of a report say what is below them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gp_ensembles.calibration.coverage import WINDOW
from gp_ensembles.cli.report.history import RunHistory
from gp_ensembles.cli.report.markup import Markup, joined, number, number_text

Summary = Mapping[str, Any]


class Card(NamedTuple):
    """A number that matters and what it says.

    Attributes:
        value: The number.
        text: What it is.
        is_bad: Whether it is not as it should be.
    """

    value: object
    text: object
    is_bad: bool = False


def best_baseline(summary: Summary) -> str | None:
    """The baseline with the highest log score; ``None`` without any."""
    scored = {
        name: entry["log_score"] for name, entry in summary["baselines"].items() if entry["log_score"] is not None
    }
    return max(scored, key=lambda name: scored[name]) if scored else None


def lead(summary: Summary) -> float | None:
    """Log score of the model minus that of the best baseline, nats a row."""
    best = best_baseline(summary)
    if best is None or summary["log_score"] is None:
        return None
    return float(summary["log_score"] - summary["baselines"][best]["log_score"])


def kept(summary: Summary) -> Mapping[str, Any] | None:
    """What intervals of 90 % have kept; ``None`` where there are none or no target."""
    entry: Mapping[str, Any] | None = (summary.get("intervals") or {}).get("0.9")
    return entry if entry is not None and entry["coverage"] is not None else None


def verdict(summary: Summary, history: RunHistory) -> str:
    """One or two sentences on the whole run.

    Example:
        >>> scores = {"log_score": -1.0, "baselines": {"last value": {"log_score": -1.5}}, "rows_scored": 900}
        >>> verdict(scores, RunHistory("model", "load", [], []))
        'The predictions beat all simple baselines, the best of them (last value) by 0.50 nats a row.'
    """
    if not summary["rows_scored"]:
        return "No row had a target, so nothing could be scored."
    ahead, best = lead(summary), best_baseline(summary)
    said = []
    if ahead is not None and ahead > 0:
        said.append(f"The predictions beat all simple baselines, the best of them ({best}) by {ahead:.2f} nats a row.")
    elif ahead is not None:
        said.append(
            f"A simple baseline, {best}, predicted as well or better, by {-ahead:.2f} nats a row: look at the inputs "
            f"and at the scores over time below."
        )
    entry = kept(summary)
    if entry is not None and entry["windows"]:
        broken = int(entry["windows"] - entry["windows_kept"])
        said.append(
            f"The intervals kept their promise in all {int(entry['windows'])} windows of {WINDOW} targets."
            if not broken
            else f"The intervals broke it in {broken} of {int(entry['windows'])} windows of {WINDOW} targets."
        )
    return " ".join(said)


def cards(summary: Summary) -> list[Card]:
    """The numbers at the top."""
    found = []
    best, ahead = best_baseline(summary), lead(summary)
    if ahead is not None:
        side = "ahead of" if ahead > 0 else "behind"
        found.append(Card(f"{abs(ahead):.2f} nats", f"a row {side} the best baseline, {best}", ahead <= 0))
    entry = kept(summary)
    if entry is not None:
        covered = Markup(f"{percent(entry['coverage'])}")
        found.append(Card(covered, "of the targets within their 90 % intervals", abs(entry["coverage"] - 0.9) > 0.05))
    if summary.get("error_rate") is not None:
        others = [one["error_rate"] for one in summary["baselines"].values() if one["error_rate"] is not None]
        beside = f" ({percent(min(others))} by the best baseline)" if others else ""
        is_bad = bool(others) and summary["error_rate"] >= min(others)
        found.append(Card(percent(summary["error_rate"]), f"of the targets predicted wrongly{beside}", is_bad))
    if summary.get("mean_absolute_error") is not None:
        text = joined("mean absolute error, in units of ", summary["target"])
        found.append(Card(number(summary["mean_absolute_error"], "mean_absolute_error"), text))
    if summary.get("nmse") is not None:
        found.append(Card(percent(1 - summary["nmse"]), "of the variance explained", summary["nmse"] >= 1))
    if summary.get("microseconds_per_row"):
        rate = 1e6 / summary["microseconds_per_row"]
        found.append(Card(number_text(round(rate)), "rows a second, predicted and learned"))
    return found


def coverage_heading(summary: Summary) -> str:
    """On the intervals.

    Example:
        >>> entry = {"coverage": 0.904, "windows": 12.0, "windows_kept": 11.0}
        >>> coverage_heading({"intervals": {"0.9": entry}})
        'Intervals of 90 % covered 90.4 %; 1 of 12 windows broke'
    """
    entry = kept(summary)
    if entry is None:
        return "Intervals"
    text = f"Intervals of 90 % covered {percent(entry['coverage'])}"
    if not entry["windows"]:
        return text
    windows, broken = int(entry["windows"]), int(entry["windows"] - entry["windows_kept"])
    return f"{text}; {broken if broken else 'none'} of {windows} windows broke"


def score_heading(summary: Summary) -> str:
    """On the scores."""
    ahead, best = lead(summary), best_baseline(summary)
    if ahead is None:
        return "Scores over time"
    return f"{abs(ahead):.2f} nats a row {'ahead of' if ahead > 0 else 'behind'} {best}, the best baseline"


def weights_heading(history: RunHistory) -> str:
    """On who predicted."""
    sizes = history.bins.sizes
    totals: dict[str, float] = {}
    for family, means in history.weights().items():
        totals[family.kind] = totals.get(family.kind, 0.0) + float((means * sizes).sum() / sizes.sum())
    first, *others = sorted(totals.items(), key=lambda pair: -pair[1])
    text = f"{first[0]}: {100 * first[1]:.0f} % of the weight on average"
    return text + (f", then {others[0][0]} with {100 * others[0][1]:.0f} %" if others else "")


def signed(value: float) -> str:
    """A score with two decimals.

    Example:
        >>> signed(-4.789)
        '−4.79'
    """
    return f"{value:.2f}".replace("-", "−")


def percent(share: float) -> str:
    """A share in percent.

    Example:
        >>> percent(0.9043)
        '90.4 %'
    """
    return f"{100 * share:.1f} %"
