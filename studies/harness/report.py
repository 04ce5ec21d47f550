"""What a study leaves behind: a table as text, its lines as CSV, everything as JSON, and pictures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gp_ensembles.cli.summary import versions
from gp_ensembles.cli.text_tables import as_csv
from gp_ensembles.cli.writing import write_json, write_text


def write_report(
    stem: Path,
    text: str,
    table: tuple[Sequence[str], Sequence[Sequence[object]]],
    content: Mapping[str, object],
    pictures: Mapping[str, Callable[[Path], object]],
) -> str:
    """Write the files of a study.

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
    write_text(stem.with_suffix(".csv"), as_csv(*table))
    write_json(stem.with_suffix(".json"), {**content, "versions": versions()})
    try:
        for end, draw in pictures.items():
            draw(stem.with_name(f"{stem.name}{end}.png"))
    except ImportError as error:
        text += f"\nno picture: {error}"
    write_text(stem.with_suffix(".txt"), text + "\n")
    return text
