"""Tables of the page on IE-GP."""

from collections.abc import Sequence
from statistics import median

from studies.ie_gplvm.methods import LABELS
from studies.page_tables.shared import Numbers, lines
from studies.pages import Number, PageTable, mean, values


def _classes(kept: str) -> Numbers:
    """Wrong labels of a set, percent; or ``seconds, SET``, the fit included, their median over shuffles."""

    def numbers(name: str, method: str) -> Sequence[Number]:
        what, _, timed = name.rpartition(", ")
        if what:
            return _medians(kept, "fit_seconds", "stream_seconds")(timed, method)
        found = mean(kept, "error_rate", set=name, method=method)
        return [Number(100 * found.mean, 100 * found.error)]

    return numbers


def _embedded(method: str, column: str) -> Sequence[Number]:
    """Errors of one nearest neighbor, percent: their median, the lowest and the highest; or the median of seconds."""
    name, _, timed = column.partition(" ")
    kept = f"ie-gp/figure-7_{name}.csv"
    if timed:
        return [Number(median(values(kept, "cpu_seconds", method=method)))]
    errors = values(kept, "error", method=method)
    shown = (median(errors), min(errors), max(errors)) if len(errors) > 1 else errors
    return [Number(100 * value) for value in shown]


def _medians(kept: str, *scores: str, spread: bool = False, draws: int | None = None) -> Numbers:
    """A row for each set, a column for each method: the median over (the first) draws of a sum of scores; its range."""

    def numbers(name: str, method: str) -> Sequence[Number]:
        columns = (values(kept, score, set=name, method=method) for score in scores)
        found = [sum(run) for run in zip(*columns, strict=True)][:draws]
        return [Number(value) for value in (median(found), *((min(found), max(found)) if spread else ()))]

    return numbers


_ONLINE = ("IE-GP", "SIE-GP", "DIE-GP")
_OTHERS = {"sarcos_thin10": "sarcos"}
_OF_CLASSES = (*_ONLINE, "SSGP", "AdaRaker", "Raker", "logistic regression")
TABLES = (
    PageTable(
        "ie_gp",
        "| | IE-GP | SIE-GP | DIE-GP | SSGP | I-SSGPR | AdaRaker |",
        _medians("ie-gp/figure-2.json", "nmse", spread=True),
        (*_ONLINE, "SSGP", "I-SSGPR", "AdaRaker", "Raker"),
        _OTHERS,
    ),
    PageTable(
        "ie_gp",
        "| | IE-GP | SIE-GP | DIE-GP | SSGP | I-SSGPR |\n",
        lines("ie-gp/figure-2.json", "log_score"),
        (*_ONLINE, "SSGP", "I-SSGPR"),
        _OTHERS,
    ),
    PageTable(
        "ie_gp",
        "| as published | IE-GP |",
        _medians("ie-gp/figure-2_as-published.json", "nmse"),
        (*_ONLINE, "SSGP", "I-SSGPR", "AdaRaker", "Raker"),
        _OTHERS,
    ),
    PageTable(
        "ie_gp",
        "| log score, as published | IE-GP |",
        lines("ie-gp/figure-2_as-published.json", "log_score"),
        (*_ONLINE, "SSGP", "I-SSGPR"),
        _OTHERS,
    ),
    *(
        PageTable(
            "ie_gp",
            f"| {title} | IE-GP |",
            _medians(f"ie-gp/{kept}.json", "fit_seconds", "stream_seconds", draws=draws),
            (*_ONLINE, "SSGP", "I-SSGPR", "AdaRaker", "Raker"),
            _OTHERS,
        )
        for title, kept, draws in (
            ("seconds", "figure-2_as-published", 3),
            ("seconds, as shipped", "figure-2", None),
        )
    ),
    *(
        PageTable("ie_gp", f"| error rate, percent, {way} | IE-GP |", _classes(f"ie-gp/figure-5{kept}.json"), methods)
        for way, kept, methods in (
            ("as published", "_as-published", (*_OF_CLASSES, "SSGP, batches of 20")),
            ("as shipped", "", _OF_CLASSES),
        )
    ),
    PageTable(
        "ie_gp",
        "| error, percent | oil_flow |",
        _embedded,
        [f"{name}{what}" for name in ("oil-flow", "digits", "usps", "mnist") for what in ("", " seconds")],
        {label: method for method, label in LABELS.items()},
    ),
)
