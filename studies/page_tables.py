"""Which number of which file stands in which cell of the papers' pages.

``python -m studies.page_tables`` writes the tables of ``docs/papers`` again, of what is in ``studies/results``.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gp_ensembles.files.replacing import write_text
from studies.pages import Number, PageTable, mean, with_numbers

PAGES = Path(__file__).resolve().parents[1] / "docs" / "papers"

_Numbers = Callable[[str, str], Sequence[Number]]


def _case(kept: str) -> _Numbers:
    """A row for each case of a file of means, a column for each score."""
    return lambda case, score: [mean(kept, score, case=case)]


_RULES = ("BMA", "DMA", "fixed share", "Soft-Bayes", "ONS", "ONS 0.1", "D-ONS", "auto's rule", "best mixture")
_ROUNDS = [f"{what}, {rounds}" for what in ("mean", "evidence") for rounds in (0, 20, 100, 300)]
_INDEX = {"index, ours": "index", "as published, ours": "index"} | dict.fromkeys(
    ("printed", "mean of 11 series less the best expert", "standard error")
)
_FOLLOW_UPS = (
    PageTable("follow_ups", "| | BMA | DMA |", _case("follow-ups/stacking.csv"), _RULES, _INDEX),
    PageTable(
        "follow_ups",
        "| | worst expert | best expert |",
        _case("follow-ups/stacking_as-published.csv"),
        ("worst expert", "best expert", *_RULES),
        _INDEX,
    ),
    PageTable(
        "follow_ups",
        "| | factor | mean, 0 rounds |",
        _case("follow-ups/consensus.csv"),
        ("rate", *_ROUNDS),
        {"all to all, 8 or 16": None},
    ),
    PageTable(
        "follow_ups",
        "| | 20 labels | 40 | 80 |",
        _case("follow-ups/active-learning.csv"),
        ("nMSE, 20", "nMSE, 40", "nMSE, 80"),
    ),
)


def _fused(kept: str) -> _Numbers:
    """A row for each method, a column for experts, frequencies and half of the range of inputs."""

    def numbers(method: str, setting: str) -> Sequence[Number]:
        experts, frequencies, width = setting.split()
        return [mean(kept, "nlpd", method=method, experts=experts, frequencies=frequencies, half_width=width)]

    return numbers


_FUSED = {"constant stacking": "stacking", "het-RFF-GP": "HetGP"}
_FUSION = (
    PageTable(
        "fusion",
        "| | K = 2 | K = 3 | K = 4 | K = 5 | seconds |",
        _fused("fusion/figure-3a.csv"),
        ("2 30 1.0", "3 30 1.0", "4 30 1.0", "5 30 1.0", None),
        _FUSED,
    ),
    PageTable(
        "fusion",
        "| | [-1, 1], M = 10 |",
        _fused("fusion/figure-3b.csv"),
        [f"2 {frequencies} {width}" for width in ("1.0", "3.0") for frequencies in (10, 30, 50)],
        _FUSED,
    ),
)


def _knots(kept: str) -> _Numbers:
    """A row for each method, a column for each score."""
    return lambda method, score: [mean(f"knots/{kept}.csv", score, method=method)]


_SCORES = ("knots", "mnlp", "mnlp_twice", "srmse", "aukl_f", "seconds")
_MODELS = {
    "full GP": "FGP",
    "OBVk: OAT-BO, VFE": "OBVk",
    "ORVk: OAT-RS, VFE": "ORVk",
    "OBFk: OAT-BO, FIC": "OBFk",
    "SVk: at once, from k-means": "SVk",
    "SVO: at once, from OBVk's": "SVO",
    "OBVk by the authors' ADADELTA": "OBVk-AD",
    "greedy blocks": "blocks",
    "today's default": "default",
    "figure 5, range of all its models": None,
}
_KNOTS = tuple(
    PageTable("knots", begins, _knots(kept), _SCORES, _MODELS)
    for begins, kept in {
        "| of 490 rows | knots |": "boston",
        "| as published | knots |": "boston_as-published",
        "| of 1503 rows | knots |": "airfoil",
        "| of 9568 rows | knots |": "ccpp_one-split",
        "| of 9568 rows, five splits | knots |": "ccpp",
        "| of 2000 rows | knots |": "ccpp_2000-rows",
    }.items()
)


def _doebe(kept: str) -> _Numbers:
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


def _twins(*families: str) -> list[str]:
    return [f"OE-{family} / DOE-{family}" for family in families]


def _changes(name: str, column: str) -> Sequence[Number]:
    found = mean("doebe/table-2-changes.csv", column, set=name, variant="the authors' way")
    return [Number(10**found.mean) if column.endswith("log10") else found]


_FAMILIES = [f"{kind}-{family}" for family in ("HSGP", "RFF", "RBF") for kind in ("OE", "DOE")]
_TWO = ("OE-HSGP", "DOE-HSGP", "OE-RFF", "DOE-RFF")
_STREAMS = {"sarcos_ias": "sarcos", "barrett_wam": "kuka1"}  # what stood for them
_TWINS = {
    "every tenth row of SARCOS": "sarcos",
    "static, then drifting": "static_then_drifting",
    "barrett_wam": "kuka1",
}
_SHARES = ("10", "25", "50", "100")  # of the rows, percent
_DOEBE = (
    PageTable(
        "doebe",
        "| set | HSGP | RFF | RBF | Poly |",
        _doebe("experiment-1"),
        _twins("HSGP", "RFF", "RBF", "Poly", "Linear"),
        _STREAMS,
    ),
    PageTable(
        "doebe", "| set | OE | DOE |", _doebe("appendix-b"), ("OE-RFF / OE-RFF-QMC", "DOE-RFF / DOE-RFF-QMC"), _STREAMS
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
        "| set | as they score |",
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
    PageTable(
        "doebe",
        "| on barrett_wam | after 10 % |",
        lambda method, share: [mean("doebe/appendix-f.csv", f"log_score after {share}%", set="kuka1", method=method)],
        _SHARES,
    ),
    PageTable(
        "doebe",
        "| stream, the authors' way |",
        _changes,
        ("static", "dynamic", "pruned BMA", "BMA", "E-DOEBE, seen", "E-DOEBE, moments", "lowest weight, log10"),
        _TWINS,
    ),
    PageTable(
        "doebe",
        "| stream, our way |",
        lambda name, rule: [mean("doebe/experiment-2.csv", "log_score", set=name, rule=rule)],
        ("BMA, pruned at 1e-16", "BMA, not pruned", "E-DOEBE, delta 0.01"),
        _TWINS,
    ),
    PageTable(
        "doebe",
        "| set | .0001 | .001 |",
        _doebe("appendix-d"),
        [f"delta {delta} less delta 0.01" for delta in (0.0001, 0.001, 0.05, 0.1, 0.2)],
        _STREAMS,
    ),
    PageTable(
        "doebe",
        "| nine sets | OE-HSGP |",
        _doebe("appendix-e_nine-sets"),
        [f"{method} / {method}: nmse" for method in _TWO],
    ),
    PageTable("doebe", "| all seventeen | OE-HSGP |", _doebe("appendix-e"), _TWO, {"kin8nm": "kin40k"}),
    PageTable(
        "doebe",
        "| set | DOE-HSGP | DOE-RFF |",
        _doebe("appendix-c"),
        [f"DOE-{family}, S=10 less DOE-{family}, S=1" for family in ("HSGP", "RFF")],
        _STREAMS,
    ),
    PageTable(
        "doebe",
        "| wrong classes, share |",
        _doebe("appendix-a"),
        [f"{method}: error" for method in ("OE-HSGP", "OE-RFF", "OE-RBF", "E-DOEBE")],
        {"banana_sorted, from left to right": "banana_sorted"},
    ),
    PageTable(
        "doebe",
        "| set | DOE, random / fitted |",
        _doebe("appendix-h"),
        ("DOE-RFF / DOE-OFF", "OE-RFF / OE-OFF"),
        _STREAMS,
    ),
)


def _nodes(drawn: str, kernels: str) -> Sequence[Number]:
    nodes, rule = drawn.split()
    return [mean("maskerade/table-6.csv", "log_evidence", observations=kernels, nodes=nodes, rule=rule)]


def _spectra(method: str, score: str) -> Sequence[Number]:
    return [mean("maskerade/figure-3.csv", score, method=method)]


def _folds(kept: str, *scores: str) -> _Numbers:
    """A row for each method, a column for each set: some of its scores."""
    return lambda method, name: [mean(f"maskerade/{kept}.csv", score, set=name, method=method) for score in scores]


_BY_KERNELS = {
    "-I": "maskerade-i",
    "-U": "maskerade-u",
    "-R": "maskerade-r",
    "one spectral mixture (`sm`)": "sm",
    "VSSGP": "vssgp",
    "RBF": "rbf",
    "Matern-5/2": "matern",
    "draws of the prior": "sobol",
}
_DRAWN = {"at random": "monte-carlo", "Sobol": "sobol", "a third around the best kernels": "around"}
_MASKERADE = (
    PageTable(
        "maskerade",
        "| MSE | concrete | airfoil |",
        _folds("table-3", "mse_standardized"),
        ("concrete", "airfoil"),
        _BY_KERNELS,
    ),
    PageTable(
        "maskerade",
        "| | RMSE | joint log density | distance |",
        _spectra,
        ("rmse_standardized", "log_prob_joint", "distance"),
        {
            "one mixture of up to five components": "sm",
            "marginalized, one to three": "maskerade-3",
            "marginalized, one to eight": "maskerade-8",
        },
    ),
    PageTable(
        "maskerade",
        "| nodes a size, drawn | 20 kernels |",
        _nodes,
        ("20", "50"),
        {f"{nodes}, {words}": f"{nodes} {rule}" for nodes in (50, 200) for words, rule in _DRAWN.items()},
    ),
)


def _classes(what: str, method: str) -> Sequence[Number]:
    score, name = what.split()
    found = mean("ie-gp/figure-5.json", score, set=name, method=method)
    return [Number(100 * found.mean, 100 * found.error) if score == "error_rate" else found]


def _streams(score: str, kept: str = "figure-2") -> _Numbers:
    return lambda name, method: [mean(f"ie-gp/{kept}.json", score, set=name, method=method)]


_ONLINE = ("IE-GP", "SIE-GP", "DIE-GP")
_OTHERS = {"sarcos_thin10": "sarcos"}
_IE_GP = (
    PageTable(
        "ie_gp",
        "| | IE-GP | SIE-GP | DIE-GP | SSGP | I-SSGPR | AdaRaker |",
        _streams("nmse"),
        (*_ONLINE, "SSGP", "I-SSGPR", "AdaRaker", "Raker"),
        _OTHERS,
    ),
    PageTable(
        "ie_gp",
        "| | IE-GP | SIE-GP | DIE-GP | SSGP | I-SSGPR |\n",
        _streams("log_score"),
        (*_ONLINE, "SSGP", "I-SSGPR"),
        _OTHERS,
    ),
    PageTable(
        "ie_gp",
        "| as published | IE-GP |",
        _streams("nmse", "figure-2_as-published"),
        (*_ONLINE, "SSGP", "I-SSGPR", "AdaRaker", "Raker"),
        _OTHERS,
    ),
    PageTable(
        "ie_gp",
        "| seconds | IE-GP |",
        _streams("stream_seconds"),
        (*_ONLINE, "SSGP", "I-SSGPR", "AdaRaker", "Raker"),
        _OTHERS,
    ),
    PageTable(
        "ie_gp",
        "| | IE-GP | SIE-GP | DIE-GP | AdaRaker | Raker | logistic regression |",
        _classes,
        (*_ONLINE, "AdaRaker", "Raker", "logistic regression"),
        {name: f"error_rate {name}" for name in ("banana", "musk2", "ionosphere")}
        | {f"seconds, {name}": f"stream_seconds {name}" for name in ("banana", "musk2")},
    ),
)
TABLES = (*_IE_GP, *_DOEBE, *_KNOTS, *_FUSION, *_MASKERADE, *_FOLLOW_UPS)


def main() -> int:
    """Write the pages again that have other numbers than they should."""
    for name in dict.fromkeys(table.page for table in TABLES):
        page = PAGES / f"{name}.md"
        text = old = page.read_text(encoding="utf-8")
        for table in TABLES:
            if table.page == name:
                text = with_numbers(text, table)
        if text != old:
            write_text(page, text)
            print(f"{page.name} is new")
    return 0


if __name__ == "__main__":
    sys.exit(main())
