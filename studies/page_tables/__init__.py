"""Mapping from cells of the papers' pages to numbers in files: a file for each page.

``python -m studies.page_tables`` writes the tables of ``docs/papers`` again, of what is in ``studies/results``.
"""

from pathlib import Path

from studies.page_tables import doebe, follow_ups, fusion, ie_gp, knots, maskerade
from studies.pages import PageTable

PAGES: Path = Path(__file__).resolve().parents[2] / "docs" / "papers"
TABLES: tuple[PageTable, ...] = (
    *ie_gp.TABLES,
    *doebe.TABLES,
    *knots.TABLES,
    *fusion.TABLES,
    *maskerade.TABLES,
    *follow_ups.TABLES,
)
