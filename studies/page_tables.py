"""Which number of which file stands in which cell of the papers' pages.

``python -m studies.page_tables`` writes the tables of ``docs/papers`` again, of what is in ``studies/results``.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from statistics import median

from gp_ensembles.files.replacing import write_text
from studies.harness.comparison import estimate, paired
from studies.pages import Number, PageTable, lines_of, mean, mean_of_parts, values, with_numbers

PAGES = Path(__file__).resolve().parents[1] / "docs" / "papers"

_Numbers = Callable[[str, str], Sequence[Number]]


def _scores(kept: str, by: str = "method", **where: str) -> _Numbers:
    """A row for each value of a column of a file, a column for each score; of the lines that have these values."""
    return lambda row, score: [mean(kept, score, **{by: row}, **where)]


def _lines(kept: str, *scores: str, down: str = "set", across: str = "method") -> _Numbers:
    """A row and a column for values of two columns of a file; some scores in each cell."""
    return lambda row, column: [mean(kept, score, **{down: row, across: column}) for score in scores]


_RULES = ("BMA", "DMA", "fixed share", "Soft-Bayes", "ONS", "ONS 0.1", "D-ONS", "auto's rule", "best mixture")
_ROUNDS = [f"{what}, {rounds}" for what in ("mean", "evidence") for rounds in (0, 20, 100, 300)]


def _stacked(row: str, score: str) -> Sequence[Number]:
    """A score of the index, or what it gains over the best expert: its mean over all series, or the error of that."""
    kept = "follow-ups/stacking.csv"
    if row == "index":
        return [mean(kept, score, case=row)]
    cases = dict.fromkeys(line["case"] for line in lines_of(kept))
    gains = [mean(kept, score, case=one).mean - mean(kept, "best expert", case=one).mean for one in cases]
    gain = estimate(gains)
    return [Number(gain.error if row == "error" else gain.mean)]


_FOLLOW_UPS = (
    PageTable(
        "follow_ups",
        "| | BMA | DMA |",
        _stacked,
        _RULES,
        {
            "index, ours": "index",
            "printed": None,
            "mean of 11 series less the best expert": "gain",
            "standard error": "error",
        },
    ),
    PageTable(
        "follow_ups",
        "| | worst expert | best expert |",
        _scores("follow-ups/stacking_as-published.csv", "case"),
        ("worst expert", "best expert", *_RULES),
        {"as published, ours": "index"},
    ),
    PageTable(
        "follow_ups",
        "| | factor | mean, 0 rounds |",
        _scores("follow-ups/consensus.csv", "case"),
        ("rate", *_ROUNDS),
        {"all to all, 8": "complete of 8", "all to all, 16": "complete of 16"},
    ),
    PageTable(
        "follow_ups",
        "| | 20 labels | 40 | 80 |",
        _scores("follow-ups/active-learning.csv", "case"),
        ("nMSE, 20", "nMSE, 40", "nMSE, 80"),
    ),
)


def _fused(kept: str) -> _Numbers:
    """A row for each method, a column for experts, frequencies and half of the range of inputs."""

    def numbers(method: str, setting: str) -> Sequence[Number]:
        experts, frequencies, width = setting.split()
        return [mean(kept, "nlpd", method=method, experts=experts, frequencies=frequencies, half_width=width)]

    return numbers


def _paired(pair: str, experts: str) -> Sequence[Number]:
    """The mean difference of two methods split by split, and its p-value by the paired t-test."""
    kept = "fusion/figure-3a.csv"
    first, second = (values(kept, "nlpd", method=one, experts=experts) for one in pair.split(" less "))
    found = paired(first, second)
    return [Number(found.mean), Number(found.t_p_value)]


_FUSED = {"constant stacking": "stacking", "het-RFF-GP": "HetGP"}
_FUSION = (
    PageTable(
        "fusion",
        "| | K = 2 | K = 3 | K = 4 | K = 5 | seconds |",
        _fused("fusion/figure-3a.csv"),
        ("2 30 1.0", "3 30 1.0", "4 30 1.0", "5 30 1.0", None),
        _FUSED,
    ),
    PageTable("fusion", "| difference | K = 2 |", _paired, ("2", "3", "4", "5")),
    PageTable(
        "fusion",
        "| | [-1, 1], M = 10 |",
        _fused("fusion/figure-3b.csv"),
        [f"2 {frequencies} {width}" for width in ("1.0", "3.0") for frequencies in (10, 30, 50)],
        _FUSED,
    ),
)


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
    PageTable("knots", begins, _scores(f"knots/{kept}.csv"), _SCORES, _MODELS)
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
        _scores("doebe/appendix-f.csv", set="kuka1"),
        [f"log_score after {share}%" for share in _SHARES],
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
        _lines("doebe/experiment-2.csv", "log_score", across="rule"),
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


_TEN_FOLDS = ("maskerade-i", "maskerade-r", "sm", "matern")


def _three_folds(method: str, name: str) -> Sequence[Number]:
    """Scores on the first three folds, also of methods that were run on all ten; solar has one split."""
    if name == "solar":
        return [mean("maskerade/table-1.csv", score, set=name, method=method) for score in ("rmse", "log_prob_sum")]
    kept = "maskerade/table-2_ten-folds.csv" if method in _TEN_FOLDS else "maskerade/table-2_three-folds.csv"
    scores = ("rmse", "log_prob_joint", "log_prob_sum")
    return [mean_of_parts(kept, score, 3, set=name, method=method) for score in scores]


def _as_published(what: str, way: str) -> Sequence[Number]:
    table, name, score = what.split()
    if way != "ours":
        return [mean(f"maskerade/{table}_as-published.csv", score, set=name, method=way)]
    if name == "airline":
        return [mean("maskerade/table-5_airline.csv", score, set=name, method="maskerade-i")]
    return [mean_of_parts("maskerade/table-2_ten-folds.csv", score, 3, set=name, method="maskerade-i")]


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
        "| | yacht | MPG |",
        _lines("maskerade/table-2_ten-folds.csv", "rmse", "log_prob_joint", down="method", across="set"),
        ("yacht", "mpg"),
        _BY_KERNELS,
    ),
    PageTable("maskerade", "| | solar RMSE / summed", _three_folds, ("solar", "yacht", "mpg"), _BY_KERNELS),
    PageTable(
        "maskerade",
        "| | -I | -R | printed, -I | our way, -I |",
        _as_published,
        ("maskerade-i", "maskerade-r", None, "ours"),
        {
            "table 5, airline, RMSE (standardized)": "table-5 airline rmse_standardized",
            "table 2, yacht, RMSE": "table-2 yacht rmse",
            "table 2, yacht, joint log density": "table-2 yacht log_prob_joint",
        },
    ),
    PageTable(
        "maskerade",
        "| MSE | concrete | airfoil |",
        _lines("maskerade/table-3.csv", "mse_standardized", down="method", across="set"),
        ("concrete", "airfoil"),
        _BY_KERNELS,
    ),
    PageTable(
        "maskerade",
        "| airline | RMSE |",
        _scores("maskerade/table-5_airline.csv", set="airline"),
        ("rmse_standardized", "log_prob_joint"),
        _BY_KERNELS,
    ),
    PageTable(
        "maskerade",
        "| | RMSE | joint log density | distance |",
        _scores("maskerade/figure-3.csv"),
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


def _embedded(method: str, name: str) -> Sequence[Number]:
    """Errors of one nearest neighbor, percent: their median, the lowest and the highest."""
    errors = values(f"ie-gp/figure-7_{name}.csv", "error", method=method)
    return [Number(100 * value) for value in (median(errors), min(errors), max(errors))]


_ONLINE = ("IE-GP", "SIE-GP", "DIE-GP")
_OTHERS = {"sarcos_thin10": "sarcos"}
_IE_GP = (
    PageTable(
        "ie_gp",
        "| | IE-GP | SIE-GP | DIE-GP | SSGP | I-SSGPR | AdaRaker |",
        _lines("ie-gp/figure-2.json", "nmse"),
        (*_ONLINE, "SSGP", "I-SSGPR", "AdaRaker", "Raker"),
        _OTHERS,
    ),
    PageTable(
        "ie_gp",
        "| | IE-GP | SIE-GP | DIE-GP | SSGP | I-SSGPR |\n",
        _lines("ie-gp/figure-2.json", "log_score"),
        (*_ONLINE, "SSGP", "I-SSGPR"),
        _OTHERS,
    ),
    PageTable(
        "ie_gp",
        "| as published | IE-GP |",
        _lines("ie-gp/figure-2_as-published.json", "nmse"),
        (*_ONLINE, "SSGP", "I-SSGPR", "AdaRaker", "Raker"),
        _OTHERS,
    ),
    PageTable(
        "ie_gp",
        "| seconds | IE-GP |",
        _lines("ie-gp/figure-2.json", "stream_seconds"),
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
    PageTable(
        "ie_gp",
        "| error, percent | oil_flow |",
        _embedded,
        ("oil-flow", "digits"),
        {
            "IE-GPLVM, in one latent space": "ie_gplvm_one_space",
            "the same, each row as it was reported": "ie_gplvm",
            "switching, in one space": "sie_gplvm_one_space",
            "switching, as it was reported": "sie_gplvm",
            "dynamic, in one space": "die_gplvm_one_space",
            "dynamic, as it was reported": "die_gplvm",
            "GPyTorch's Bayesian GPLVM, all rows at once": "bayesian_gplvm",
            "principal components": "pca",
            "incremental principal components": "incremental_pca",
            "kernel principal components": "kernel_pca",
        },
    ),
)
TABLES = (*_IE_GP, *_DOEBE, *_KNOTS, *_FUSION, *_MASKERADE, *_FOLLOW_UPS)


def main() -> None:
    """Write the pages again that have other numbers than they should."""
    for name in dict.fromkeys(table.page for table in TABLES):
        page = PAGES / f"{name}.md"
        old = page.read_text(encoding="utf-8")
        text = reduce(with_numbers, (table for table in TABLES if table.page == name), old)
        if text != old:
            write_text(page, text)
            print(f"{page.name} is new")


if __name__ == "__main__":
    main()
