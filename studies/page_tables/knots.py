"""Tables of the page on knots one at a time."""

from studies.page_tables.shared import scores
from studies.pages import PageTable

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
    "figure 5, range of all its models, printed": None,
}
TABLES = tuple(
    PageTable("knots", begins, scores(f"knots/{kept}.csv"), _SCORES, _MODELS)
    for begins, kept in {
        "| of 490 rows | knots |": "boston",
        "| as published | knots |": "boston_as-published",
        "| of 1503 rows | knots |": "airfoil",
        "| of 9568 rows | knots |": "ccpp_one-split",
        "| of 9568 rows, five splits | knots |": "ccpp",
        "| of 2000 rows | knots |": "ccpp_2000-rows",
    }.items()
)
