"""Writing a figure so that nobody ever finds half a file."""

import os
from pathlib import Path

from matplotlib.figure import Figure


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure to ``path`` in one step; the suffix chooses the format.

    The file is written beside its goal and then renamed, so a reader sees the old picture or the new one, and an
    error leaves the old one where it was.

    Args:
        figure: The figure.
        path: Where to write; its folder must exist. ``.png``, ``.pdf`` and ``.svg`` are supported.

    Returns:
        The path written.

    Raises:
        ValueError: If the suffix is not one of those.
        OSError: If the folder does not exist or cannot be written.

    Example:
        >>> import tempfile
        >>> from matplotlib.figure import Figure
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_figure(Figure(figsize=(1, 1)), folder + "/empty.png").name
        'empty.png'
    """
    goal = Path(path)
    kind = goal.suffix.lower().removeprefix(".")
    if kind not in ("png", "pdf", "svg"):
        raise ValueError(f"cannot write a picture to {goal.name!r}; end its name in .png, .pdf or .svg")
    partial = goal.with_name(f".{goal.name}.{os.getpid()}.partial")
    try:
        figure.savefig(partial, format=kind)
        os.replace(partial, goal)
    finally:
        partial.unlink(missing_ok=True)
    return goal
