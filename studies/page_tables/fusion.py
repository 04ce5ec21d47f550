"""Tables of the page on fusion by Monte Carlo."""

from collections.abc import Sequence
from statistics import median

from studies.harness.comparison import paired
from studies.page_tables.shared import Numbers
from studies.pages import Number, PageTable, mean, values


def _fused(kept: str) -> Numbers:
    """A row for each method, or ``METHOD: SCORE``, a column for experts, frequencies and half of the inputs' range."""

    def numbers(row: str, setting: str) -> Sequence[Number]:
        experts, frequencies, width = setting.split()
        method, _, score = row.partition(": ")
        return [mean(kept, score or "nlpd", method=method, experts=experts, frequencies=frequencies, half_width=width)]

    return numbers


def _paired(pair: str, experts: str) -> Sequence[Number]:
    """The mean difference of two methods split by split, and its p-value by the paired t-test."""
    kept = "fusion/figure-3a.csv"
    first, second = (values(kept, "nlpd", method=one, experts=experts) for one in pair.split(" less "))
    found = paired(first, second)
    return [Number(found.mean), Number(found.t_p_value)]


def _sampled(kept: str, column: str) -> Sequence[Number]:
    """Scores of the first split by ``METHOD EXPERTS SCORE ...``."""
    method, experts, *scores = column.split()
    where = {"method": method, "experts": experts, "split": "0"}
    return [Number(values(kept, score, **where)[0]) for score in scores]


def _mixing(method: str, column: str) -> Sequence[Number]:
    """R-hat: its median over parts and the largest; or how many are above 1.05."""
    kept, _, above = column.partition(" ")
    found = values(f"fusion/{kept}.csv", "rhat", method=method)
    return [Number(sum(one > 1.05 for one in found))] if above else [Number(median(found)), Number(max(found))]


_FUSED = {"constant stacking": "stacking", "het-RFF-GP": "HetGP"}
TABLES = (
    PageTable(
        "fusion",
        "| | K = 2 | K = 3 | K = 4 | K = 5 | seconds |",
        _fused("fusion/figure-3a.csv"),
        ("2 30 1.0", "3 30 1.0", "4 30 1.0", "5 30 1.0", None),
        _FUSED,
    ),
    PageTable(
        "fusion",
        "| drawn noise | K = 2 |",
        _fused("fusion/figure-3a_drawn-noise.csv"),
        ("2 30 1.0", "3 30 1.0", "4 30 1.0", "5 30 1.0"),
        {"the mixture itself": "MoGPE: truth", "R-hat of MoGPE": "MoGPE: rhat"},
    ),
    PageTable(
        "fusion",
        "| | P-BHS, K = 2 |",
        _sampled,
        [f"{method} {experts} nlpd seconds" for method in ("P-BHS", "BHS") for experts in (2, 3, 4, 5)],
        {
            "`hmc`, 16 of 150": "fusion/figure-3a.csv",
            "`nuts`, 4 of 500": "fusion/figure-3a_nuts.csv",
            "`--as-published`, 4 of 500": "fusion/figure-3a_as-published.csv",
        },
    ),
    PageTable(
        "fusion",
        "| first split, K = 2 | MoGPE |",
        _sampled,
        ("MoGPE 2 nlpd rhat", "PoGPE 2 nlpd rhat"),
        {
            "16 of 150, from modes, stacked": "fusion/figure-3a.csv",
            "4 of 500, from the prior, equal weights": "fusion/figure-3a_as-published-hmc.csv",
        },
    ),
    PageTable(
        "fusion",
        "| R-hat | figure 3a |",
        _mixing,
        ("figure-3a", "figure-3a above", "figure-3b", "figure-3b above"),
        {"het-RFF-GP": "HetGP"},
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
