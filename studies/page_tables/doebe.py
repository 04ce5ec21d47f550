"""Tables of the page on DOEBE."""

from collections.abc import Sequence

from studies.page_tables.shared import Numbers, scores
from studies.pages import Number, PageTable, mean


def _doebe(kept: str) -> Numbers:
    """A row for each set, a column of methods: ``OE-RFF / DOE-RFF``, ``OE-RFF: nmse``, ``E-DOEBE less OE-RFF``.

    ``best`` is the best family of a set by its mean log score.
    """
    path = f"doebe/{kept}.csv"

    def number(name: str, what: str, score: str) -> Number:
        if what == "best":
            return max(number(name, family, score) for family in _FAMILIES)
        return mean(path, score, set=name, method=what)

    def numbers(name: str, column: str) -> Sequence[Number]:
        found = []
        for part in column.split(" / "):
            what, _, score = part.partition(": ")
            first, less, second = what.partition(" less ")
            one = number(name, first, score or "log_score")
            found.append(Number(one.mean - number(name, second, score or "log_score").mean) if less else one)
        return found

    return numbers


def _twins(*families: str, score: str = "log_score") -> list[str]:
    return [f"OE-{family}: {score} / DOE-{family}: {score}" for family in families]


def _changes(name: str, column: str) -> Sequence[Number]:
    found = mean("doebe/table-2-changes.csv", column, set=name, variant="the authors' way")
    return [Number(10**found.mean) if column.endswith("log10") else found]


def _collapse(kept: str, score: str) -> Numbers:
    """A row for each stream, a column for each rule; ``lowest``: the dynamic expert's lowest weight, not pruned."""

    def number(name: str, rule: str) -> Sequence[Number]:
        if rule == "lowest":
            return [Number(10 ** mean(kept, "min_log10", set=name, rule="BMA, not pruned").mean)]
        return [mean(kept, score, set=name, rule=rule)]

    return number


_FAMILIES = [f"{kind}-{family}" for family in ("HSGP", "RFF", "RBF") for kind in ("OE", "DOE")]
_TWO = ("OE-HSGP", "DOE-HSGP", "OE-RFF", "DOE-RFF")
_STREAMS = {"sarcos_ias": "sarcos", "barrett_wam": "kuka1"}  # what stood for them
_TWINS = {
    "every tenth row of SARCOS": "sarcos",
    "static, then drifting": "static_then_drifting",
    "barrett_wam": "kuka1",
}
_PUBLISHED = (", as published", "_as-published")
_SHARES = ("10", "25", "50", "100")  # of the rows, percent
TABLES = (
    *(
        PageTable(
            "doebe",
            f"| set{way} | HSGP | RFF | RBF | Poly |",
            _doebe(f"experiment-1{kept}"),
            _twins("HSGP", "RFF", "RBF", "Poly", "Linear", score=score),
            _STREAMS,
        )
        for way, kept, score in (("", "", "log_score"), (*_PUBLISHED, "log_score_as_published"))
    ),
    PageTable(
        "doebe",
        "| set | HSGP | RFF | RBF | E-DOEBE |",
        _doebe("experiment-3"),
        (*_twins("HSGP", "RFF", "RBF"), "E-DOEBE", "E-DOEBE less best"),
        _STREAMS,
    ),
    PageTable(
        "doebe",
        "| barrett_wam, whole | HSGP |",
        lambda kept, column: _doebe(kept)("kuka1", column),
        (*_twins("HSGP", "RFF", "RBF"), "both, BMA pruned", "both, BMA", "E-DOEBE"),
        {"as shipped": "experiment-3", "as published": "experiment-3_as-published"},
    ),
    PageTable(
        "doebe",
        "| set | authors' scoring |",
        _doebe("experiment-3_as-published"),
        ("E-DOEBE less best: log_score_as_published", "E-DOEBE less best"),
        _STREAMS,
    ),
    PageTable(
        "doebe",
        "| set | after 10 % |",
        _doebe("appendix-g"),
        [f"E-DOEBE less best: log_score after {share}%" for share in _SHARES],
        _STREAMS,
    ),
    *(
        PageTable(
            "doebe",
            f"| on barrett_wam{way} | after 10 % |",
            scores(f"doebe/appendix-f{kept}.csv", set="kuka1"),
            [f"log_score after {share}%" for share in _SHARES],
        )
        for way, kept in (("", ""), _PUBLISHED)
    ),
    PageTable(
        "doebe",
        "| stream, authors' choices |",
        _changes,
        ("static", "dynamic", "pruned BMA", "BMA", "E-DOEBE, seen", "E-DOEBE, moments", "lowest weight, log10"),
        _TWINS,
    ),
    *(
        PageTable(
            "doebe",
            f"| stream, {way} |",
            _collapse(f"doebe/{kept}.csv", score),
            ("BMA, pruned at 1e-16", "BMA, not pruned", "E-DOEBE, delta 0.01", "lowest"),
            _TWINS,
        )
        for way, kept, score in (
            ("as published", "experiment-2_as-published", "log_score_gaussian"),
            ("as shipped", "experiment-2", "log_score"),
        )
    ),
    PageTable(
        "doebe",
        "| table 3 | HSGP, optimum |",
        _doebe("appendix-c_as-published"),
        [
            f"DOE-{family}, S={number}: log_score_as_published / DOE-{family}, S={number}: nmse_as_published"
            for family in ("HSGP", "RFF")
            for number in (1, 10)
        ],
        {
            "elevators, ours": "elevators",
            "cpusmall, ours": "cpusmall",
            "sarcos_ias, ours": "sarcos",
            **dict.fromkeys(("elevators, printed", '"CaData", printed', "SARCOS, printed")),
        },
    ),
    PageTable(
        "doebe",
        "| set | 0.0001 | 0.001 |",
        _doebe("appendix-d"),
        [f"delta {delta} less delta 0.01" for delta in (0.0001, 0.001, 0.05, 0.1, 0.2)],
        _STREAMS,
    ),
    PageTable(
        "doebe",
        "| authors' scoring | log score, 0.05 |",
        _doebe("appendix-d_as-published"),
        [
            *(f"delta {delta} less delta 0.01: log_score_as_published" for delta in (0.05, 0.2)),
            *(f"delta {delta}: nmse_as_published" for delta in (0.01, 0.05, 0.2)),
        ],
        _STREAMS,
    ),
    *(
        PageTable(
            "doebe",
            f"| {what} | OE-HSGP |",
            _doebe(kept),
            [f"{method} / {method}: nmse" for method in _TWO],
            {"kin8nm": "kin40k"},
        )
        for what, kept in (("nine sets", "appendix-e_nine-sets"), ("seven sets", "appendix-e"))
    ),
    PageTable(
        "doebe",
        "| set | DOE-HSGP | DOE-RFF |",
        _doebe("appendix-c"),
        [f"DOE-{family}, S=10 less DOE-{family}, S=1" for family in ("HSGP", "RFF")],
        _STREAMS,
    ),
    PageTable(
        "doebe",
        "| error rate |",
        _doebe("appendix-a"),
        [*(f"OE-{family}: error / DOE-{family}: error" for family in ("HSGP", "RFF", "RBF")), "E-DOEBE: error"],
        {"shuffled": "banana_shuffled", "from left to right": "banana_sorted"},
    ),
    PageTable(
        "doebe",
        "| set | DOE, random / fitted |",
        _doebe("appendix-h"),
        ("DOE-RFF / DOE-OFF", "OE-RFF / OE-OFF"),
        _STREAMS,
    ),
)
