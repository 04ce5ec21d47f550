"""Tables of the page on papers that came after."""

from collections.abc import Sequence

from studies.harness.comparison import estimate
from studies.page_tables.shared import scores
from studies.pages import Number, PageTable, lines_of, mean

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


TABLES = (
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
        scores("follow-ups/stacking_as-published.csv", "case"),
        ("worst expert", "best expert", *_RULES),
        {"as published, ours": "index"},
    ),
    PageTable(
        "follow_ups",
        "| | factor | mean, 0 rounds |",
        scores("follow-ups/consensus.csv", "case"),
        ("rate", *_ROUNDS),
        {"all to all, 8": "complete of 8", "all to all, 16": "complete of 16"},
    ),
    PageTable(
        "follow_ups",
        "| | 20 labels | 40 | 80 |",
        scores("follow-ups/active-learning.csv", "case"),
        ("nMSE, 20", "nMSE, 40", "nMSE, 80"),
    ),
)
