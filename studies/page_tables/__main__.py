"""The tables of the papers' pages, written again."""

from functools import reduce

from gp_ensembles.files.replacing import write_text
from studies.page_tables import PAGES, TABLES
from studies.pages import with_numbers


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
