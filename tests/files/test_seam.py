"""Everything that is written goes through ``gp_ensembles.files``, where tests can cut it short."""

import ast
from collections.abc import Iterator
from pathlib import Path

import gp_ensembles

PACKAGE = Path(gp_ensembles.__file__).parent
STUDIES = PACKAGE.parent / "studies"
# Methods of paths and files, and functions, that change what is on a disk.
METHODS = {
    *("write_text", "write_bytes", "touch", "unlink", "rmdir", "mkdir", "rename", "symlink_to", "hardlink_to", "to_csv")
}
OF_OS = ("replace", "rename", "remove", "unlink", "mkdir", "makedirs", "fsync", "rmdir")
CALLS = ("shutil.", *(f"os.{name}" for name in OF_OS))
ALLOWED = {"shutil.copyfileobj", "shutil.disk_usage"}  # between open files; writes nothing


def is_written_to(call: ast.Call) -> bool:
    """Whether a call of open has a mode that writes."""
    given = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
    modes = [part.value for part in given if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes)


def dotted(node: ast.expr) -> str:
    """The name of what is called, as in ``os.replace``; parts that are no names are left out."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(parts)])


def complaints(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        here = path.relative_to(folder)
        if here.parts[0] == "files":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = dotted(node.func)
            last = name.rpartition(".")[2]
            own = last == "open" and is_written_to(node)
            called = name.startswith(CALLS) and name not in ALLOWED
            method = isinstance(node.func, ast.Attribute) and last in METHODS and not name.startswith("operations.")
            to_path = name in ("torch.save", "np.save", "np.savez", "np.savez_compressed") or last == "savefig"
            if own or called or method or (to_path and not is_given_a_file(node)):
                yield f"{here}:{node.lineno} calls {name}"


def is_given_a_file(call: ast.Call) -> bool:
    """Whether one of the first two arguments is the file of ``replace_file``'s function."""
    return any(isinstance(part, ast.Name) and part.id == "file" for part in call.args[:2])


def test_nothing_is_written_past_the_layer():
    assert [*complaints(PACKAGE), *complaints(STUDIES)] == []


def test_planted_breaches_are_found(tmp_path):
    fine = "path.open('rb')\nopen(path)\ntorch.save(x, file)\nwrite_text(path, 'a')\n"
    breaches = ["path.write_text('a')", "open(path, 'w')", "path.open(mode='ab')", "os.replace(a, b)", "path.unlink()"]
    breaches += ["shutil.copyfile(a, b)", "torch.save(x, path)", "figure.savefig(path)"]
    (tmp_path / "planted.py").write_text(fine + "\n".join(breaches))
    found = [complaint.partition(" calls ")[0] for complaint in complaints(tmp_path)]
    assert found == [f"planted.py:{line}" for line in range(5, 13)]
