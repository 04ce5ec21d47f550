"""``docs/evidence/reliability.md`` from the numbers that the attacks have written.

``python -m attacks page --numbers FOLDER --out docs/evidence/reliability.md``: every JSON file of the folder becomes a
section with its command; the text between them stands in ``attacks/reliability.md``.
"""

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_TEXT = Path(__file__).with_name("reliability.md")


def main(argv: Sequence[str]) -> int:
    """Write the page; returns 0, or 2 where there are no numbers."""
    parser = argparse.ArgumentParser("python -m attacks page", description=__doc__)
    parser.add_argument("--numbers", type=Path, default=Path("attacks/numbers"), help="folder of JSON files")
    parser.add_argument("--out", type=Path, default=Path("docs/evidence/reliability.md"))
    values = parser.parse_args(list(argv))
    files = sorted(values.numbers.glob("*.json"))
    if not files:
        print(f"attacks: there are no numbers in {values.numbers}; run the attacks with --out")
        return 2
    numbers = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    values.out.write_text(page(_TEXT.read_text(encoding="utf-8"), numbers), encoding="utf-8")
    print(values.out)
    return 0


def page(text: str, numbers: Sequence[Mapping[str, Any]]) -> str:
    r"""The text with a section for each attack where it says ``<!-- NAME -->``; further ones stand at the end.

    Example:
        >>> table = {"title": "Errors", "columns": ["precision", "error"], "rows": [["float64", "1e-12"]]}
        >>> print(page("# All\n\n<!-- drift -->", [{"attack": "drift", "command": "python -m x", "tables": [table]}]))
        # All
        <BLANKLINE>
        `python -m x`:
        <BLANKLINE>
        Errors
        <BLANKLINE>
        | precision | error |
        |---|---|
        | float64 | 1e-12 |
    """
    for attack in dict.fromkeys(one["attack"] for one in numbers):
        mark = f"<!-- {attack} -->"
        sections = "\n\n".join(_section(one) for one in numbers if one["attack"] == attack)
        text = text.replace(mark, sections) if mark in text else f"{text}\n\n{sections}"
    return text.replace("<!-- versions -->", versions())


def versions() -> str:
    """What the numbers were made with."""
    names = ("gp_ensembles", "torch", "gpytorch", "botorch", "numpy")
    reported = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    return f"{reported}, Python {platform.python_version()}, {platform.machine()}"


def _section(content: Mapping[str, Any]) -> str:
    return "\n\n".join([f"`{content['command']}`:", *map(_table, content["tables"])])


def _table(table: Mapping[str, Any]) -> str:
    head, *rows = (f"| {' | '.join(map(_cell, line))} |" for line in [table["columns"], *table["rows"]])
    return "\n".join([table["title"], "", head, "|" + "---|" * len(table["columns"]), *rows])


def _cell(value: object) -> str:
    return str(value).replace("|", r"\|")  # a bar ends a cell, in code too
