"""``docs/reliability.md`` from the numbers that the attacks have written.

``python -m attacks page --numbers FOLDER --out docs/reliability.md``: every JSON file of the folder becomes a section
with its command; the text between them stands in ``attacks/reliability.md``.
"""

import argparse
import json
import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_TEXT = Path(__file__).with_name("reliability.md")


def main(argv: Sequence[str]) -> int:
    """Write the page; returns 0, or 2 where there are no numbers."""
    parser = argparse.ArgumentParser("python -m attacks page", description=__doc__)
    parser.add_argument("--numbers", type=Path, default=Path("attacks/numbers"), help="folder of JSON files")
    parser.add_argument("--out", type=Path, default=Path("docs/reliability.md"))
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
    told = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    return f"{told}, Python {platform.python_version()}, {platform.machine()}"


def _section(content: Mapping[str, Any]) -> str:
    tables = content.get("tables") or _TABLES[content["attack"]](content)
    command = re.sub(r" --(out|crashes) \S+", "", content["command"])  # wherever that was
    return "\n\n".join([f"`{command}`:", *map(_table, tables)])


def _table(table: Mapping[str, Any]) -> str:
    lines = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
    rows = ["|" + "|".join(line) + "|" if line[0] == "---" else f"| {' | '.join(map(str, line))} |" for line in lines]
    return "\n".join([table["title"], "", *rows])


def _tables_of_fuzz(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Inputs by reader: read, refused in a sentence, and any other end."""
    rows = [
        [name, *(row[key] for key in ("inputs", "refused", "read", "findings"))]
        for name, row in content["readers"].items()
    ]
    columns = ["reader", "inputs", "refused in a sentence", "read", "anything else"]
    return [{"title": f"{content['seconds']:.0f} seconds of {content['engine']}", "columns": columns, "rows": rows}]


def _tables_of_streams(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows by expert, and what was found."""
    rows = [[name, row["rows"], row["rejected"]] for name, row in content["experts"].items()]
    columns = ["expert", "rows", "refused in a sentence"]
    found = [f"{len(content['findings'])} findings in {content['seconds']:.0f} seconds"]
    tables = [{"title": f"Adversarial rows, {found[0]}", "columns": columns, "rows": rows}]
    if content["findings"]:
        columns, found = ["found", "where"], content["findings"]
        rows = [[one["what"], f"{one['instance']}; {one['rows']} rows"] for one in found]
        tables.append({"title": "What was found, and is open", "columns": columns, "rows": rows})
    return tables


def _tables_of_kills(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Commands by fault, and operations on files, survived of tried."""
    commands = content["commands"]
    faults = list(dict.fromkeys(fault for row in commands.values() for fault in row))

    def cell(row: Mapping[str, Any], fault: str) -> str:
        return f"{row[fault]['survived']} of {row[fault]['tried']}" if fault in row else "-"

    by_command = [[name, *(cell(row, fault) for fault in faults)] for name, row in commands.items()]
    by_point = [[kind, f"{row['survived']} of {row['tried']}"] for kind, row in content["points"].items()]
    tables = [{"title": "Survived of tried, by command", "columns": ["command", *faults], "rows": by_command}]
    if by_point:
        title = "By the operation at which the fault was"
        tables.append({"title": title, "columns": ["operation", "survived"], "rows": by_point})
    return tables


_TABLES = {"fuzz": _tables_of_fuzz, "kills": _tables_of_kills, "streams": _tables_of_streams}
