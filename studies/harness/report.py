"""Output of a study: a table as text, its lines as CSV, everything as JSON, and pictures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gp_ensembles.cli.summary import versions
from gp_ensembles.cli.text_tables import as_csv
from gp_ensembles.files.replacing import staged, write_json, write_text


def write_report(
    stem: Path,
    text: str,
    table: tuple[Sequence[str], Sequence[Sequence[object]]],
    content: Mapping[str, object],
    pictures: Mapping[str, Callable[[Path], object]],
) -> str:
    """Write the files of a study; they replace those of an earlier run together.

    Args:
        stem: Their path without ending; its folder exists.
        text: The table for the eye, for the ``.txt`` file.
        table: Header and lines of the ``.csv`` file.
        content: What the ``.json`` file holds besides the versions of what the numbers depend on.
        pictures: Draw a picture into a file, by the end of the file's name.

    Returns:
        The text, with a line that says so if matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> stem = Path(tempfile.mkdtemp()) / "table"
        >>> write_report(stem, "score 1", (["score"], [[1]]), {"score": 1}, {})
        'score 1'
        >>> sorted(path.name for path in stem.parent.iterdir())
        ['table.csv', 'table.json', 'table.txt']
    """
    with staged(stem.parent) as place:
        write_text(place / f"{stem.name}.csv", as_csv(*table))
        write_json(place / f"{stem.name}.json", {**content, "versions": versions()})
        try:
            for end, draw in pictures.items():
                draw(place / f"{stem.name}{end}.png")
        except ImportError as error:
            text += f"\nno picture: {error}"
        write_text(place / f"{stem.name}.txt", text + "\n")
    return text
