"""Numbers on the site that a command has written: each is shown, and each says what writes it again."""

import ast
import importlib.util
import re
from pathlib import Path

from benchmarks import measured

ROOT = Path(__file__).resolve().parents[1]
KEPT = sorted(path.stem for path in measured.FOLDER.glob("*.json"))
SHOWN = [
    name
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for name in re.findall(r"^```\{measured\} (\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]
COMMANDS = sorted(
    {
        found
        for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"]
        for found in re.findall(
            r"python (?:-m benchmarks\.|benchmarks/)(\w+)(?:\.py)?([^`\n]*)", page.read_text("utf-8")
        )
    }
)


def command_complaints(script, given):
    """A script that does not exist, or those of its options."""
    places = (ROOT / "benchmarks" / f"{script}.py", ROOT / "benchmarks" / script / "__main__.py")
    text = next((path.read_text(encoding="utf-8") for path in places if path.exists()), None)
    if text is None:
        return [f"no {script}"]
    return [f"{script} has no {option}" for option in re.findall(r"--[\w-]+", given) if f'"{option}"' not in text]


def test_commands_that_pages_name_exist_with_their_options():
    assert [found for command in COMMANDS for found in command_complaints(*command)] == []
    assert command_complaints("nowhere", "") == ["no nowhere"]
    assert command_complaints("prices", " --keep --no-such") == ["prices has no --no-such"]


def option_complaints(text):
    """Attributes of parsed options that a script reads, but no parser of it has."""
    known, names, reads = set(), set(), []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument" | "add_subparsers")):
                known |= {part.value for part in node.args if isinstance(part, ast.Constant)}
                known |= {part.value.value for part in node.keywords if part.arg == "dest"}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Attribute(attr="parse_args"))):
                names.add(name)
            case ast.Attribute(value=ast.Name() | ast.Call() as read, attr=attribute):
                reads.append((ast.unparse(read), attribute))
    known = {name.lstrip("-").replace("-", "_") for name in known}
    parsed = {name for name, _ in reads if name in names or ".parse_args(" in name}
    return [f"{name}.{attribute}" for name, attribute in reads if name in parsed and attribute not in known]


def test_benchmarks_read_the_options_that_they_have():
    scripts = {path.name: path.read_text("utf-8") for path in (ROOT / "benchmarks").rglob("*.py")}
    assert {name: found for name, text in scripts.items() if (found := option_complaints(text))} == {}
    planted = "parser.add_argument('--num-turns')\noptions = parser.parse_args()\n"
    assert option_complaints(f"{planted}options.num_turns + options.access") == ["options.access"]
    assert option_complaints("parser.add_argument('--a')\nparser.parse_args().b") == ["parser.parse_args().b"]


def test_what_is_kept_is_what_is_shown():
    assert sorted(SHOWN) == KEPT
    assert len(KEPT) >= 5


def test_each_table_says_what_writes_it_again():
    for table in map(measured.read, KEPT):
        module = re.match(r"python -m (benchmarks\.\w+)\b", table.command)
        assert module is not None, table.command
        assert importlib.util.find_spec(module[1]) is not None, table.command
        assert table.rows, table.command
        assert all(len(row) == len(table.columns) for row in table.rows), table.command
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", table.date), table.command


def test_numbers_have_three_digits():
    shown = {None: "", "x": "x", 12345.6: "12\N{NO-BREAK SPACE}346", 14.26: "14.3", 2: "2", 0.0649: "0.065", 0.0: "0"}
    shown[1.99e11] = "1.99 · 10¹¹"
    assert {value: measured.shown(value) for value in shown} == shown
