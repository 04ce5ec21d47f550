"""The import table as a picture, drawn from the table that a test checks the code against."""

import importlib.util
from graphlib import TopologicalSorter
from pathlib import Path

import matplotlib.pyplot as plt
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
_INK, _PALE, _DOT = "#1f2933", "#e4e9ee", "#2563a8"


def allowed() -> dict[str, frozenset[str]]:
    """For each package those that it may import, every package after those that it imports."""
    spec = importlib.util.spec_from_file_location("test_architecture", ROOT / "tests" / "test_architecture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = {room: ours - {room} for room, (ours, _) in module.ALLOWED.items()}
    order = TopologicalSorter(table).static_order()
    return {room: table[room] for room in order if room not in ("", "extras", "papers") and room in table}


def draw(path: Path) -> None:
    """Packages down and across, a dot where the one on the left may import the one above."""
    table = allowed()
    rooms = list(table)
    figure, axis = plt.subplots(figsize=(7.6, 7.6), layout="constrained")
    for row, room in enumerate(rooms):
        axis.plot([-0.5, row - 0.5], [row, row], color=_PALE, linewidth=0.8, zorder=0)
        axis.plot([row, row], [row + 0.5, len(rooms) - 0.5], color=_PALE, linewidth=0.8, zorder=0)
        places = [rooms.index(other) for other in table[room] if other in table]
        axis.plot(places, [row] * len(places), "o", color=_DOT, markersize=6)
        axis.text(row, row, room.replace("/", "."), color=_INK, fontsize=9, ha="left", va="center")
    axis.set_xlim(-0.7, len(rooms) + 4.0)
    axis.set_ylim(len(rooms) - 0.3, -0.7)
    axis.axis("off")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("builder-inited", lambda app: draw(Path(app.srcdir) / "generated" / "imports.svg"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
