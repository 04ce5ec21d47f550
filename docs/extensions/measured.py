"""``{measured} NAME``: the table that a benchmark has written, with its command, its day and its processor."""

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from benchmarks import measured


class Measured(Directive):
    """The directive of a page; its argument is the name under which the table was kept."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The table as a page would write it by hand, read by the parser of the page."""
        name = self.arguments[0]
        file = measured.FOLDER / f"{name}.json"
        if not file.exists():
            raise self.error(f"no command has written {file.name}")
        self.state.document.settings.env.note_dependency(str(file))
        held = nodes.container()
        text = measured.markdown(measured.read(name))
        self.state.nested_parse(StringList(text.splitlines(), source=str(file)), self.content_offset, held)
        return held.children


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_directive("measured", Measured)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
