"""The reference: every public name has a page, every name on a page exists, and its tables say what is there."""

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import gp_ensembles
from gp_ensembles.cli.named_configs import config_titles
from tests.sources import extension

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md")}
ENTRIES = sorted(set(re.findall(r"^   (gp_ensembles\.[\w.]+)$", "\n".join(PAGES.values()), flags=re.MULTILINE)))
QUOTED = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", "\n".join(PAGES.values())))))
ROOMS = [
    name.removeprefix("gp_ensembles.")
    for _, name, is_package in pkgutil.walk_packages(gp_ensembles.__path__, "gp_ensembles.")
    if is_package and name.count(".") == (2 if ".papers." in name else 1)
]


def named(entry):
    """The object of a dotted name; a name that a package exports comes before a module that is called so."""
    first, *rest = entry.split(".")
    found = importlib.import_module(first)
    for k, part in enumerate(rest):
        found = getattr(found, part, None) or importlib.import_module(".".join([first, *rest[: k + 1]]))
    return found


def without_a_page(exported, entries, quoted):
    """Classes and functions need an entry, what is neither (records, modules) a word in the text."""
    pages = {id(entry) for entry in entries}
    return sorted(
        name
        for name, thing in exported.items()
        if id(thing) not in pages and (isinstance(thing, type) or hasattr(thing, "__code__") or name not in quoted)
    )


def entry_complaints(entry):
    """What keeps a name on a page from being one: a docstring, and its own name."""
    thing = named(entry)
    wanted = {entry.rpartition(".")[2], "a constant"}
    if not thing.__doc__ or getattr(thing, "__name__", "a constant") not in wanted:
        yield entry


def test_every_entry_exists():
    assert (len(ENTRIES) > 250, len(ROOMS) > 20) == (True, True)
    assert [found for entry in ENTRIES for found in entry_complaints(entry)] == []


def test_every_public_name_has_a_page():
    missing = []
    for package in [gp_ensembles, *(importlib.import_module(f"gp_ensembles.{room}") for room in ROOMS)]:
        names = [name for name in getattr(package, "__all__", ()) if not name.startswith("_")]
        exported = {name: getattr(package, name) for name in names}
        missing += [f"{package.__name__}.{name}" for name in without_a_page(exported, map(named, ENTRIES), QUOTED)]
    assert missing == []


@pytest.fixture(scope="module")
def examples():
    return extension("examples")


def shown(thing, examples):
    """A docstring as the reference shows it."""
    lines = inspect.getdoc(thing).splitlines()
    return "\n".join(examples.with_imports(lines, getattr(thing, "__module__", "gp_ensembles")))


def test_examples_are_shown_with_the_imports_that_they_need(examples):
    lacking = []
    for entry in ENTRIES:
        text = shown(named(entry), examples)
        are_run = all(doctest.SKIP not in one.options for one in doctest.DocTestParser().get_examples(text))
        if are_run and examples.needed(text):
            lacking.append(f"{entry} needs {examples.needed(text)}")
    assert lacking == []


def test_examples_run_in_a_session_that_knows_nothing(examples):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=flags)
    entries = [entry for entry in ENTRIES if entry.startswith("gp_ensembles.metrics.")]
    for entry in entries:
        text = shown(named(entry), examples)
        runner.run(doctest.DocTestParser().get_doctest(text, {}, entry, None, None))
    assert (runner.failures, runner.tries > len(entries)) == (0, True)


def private_types(entry, defaults):
    """Names with an underscore that a signature shows on the site."""
    thing = named(entry)
    is_error = isinstance(thing, type) and issubclass(thing, Exception)
    if is_error or not (isinstance(thing, type) or hasattr(thing, "__code__")):
        return []
    signature = inspect.signature(thing)
    bare = signature.replace(parameters=[one.replace(default=one.empty) for one in signature.parameters.values()])
    text = defaults.written(defaults.stringify_signature(bare, unqualified_typehints=True), thing.__module__)
    short = re.sub(r"[~\w]+\.(?=\w)", "", text)
    return [f"{entry} shows {name}" for name in re.findall(r"\b_[A-Za-z]\w*", short)]


def test_no_signature_shows_a_private_type():
    defaults = extension("defaults")
    assert [found for entry in ENTRIES for found in private_types(entry, defaults)] == []


def test_a_name_without_a_page_is_noticed():
    exported = {"Path": Path, "named": named, "word": 3, "seen": 4}
    assert without_a_page(exported, [Path], {"seen", "named"}) == ["named", "word"]


def test_the_table_of_configs_is_what_the_files_say():
    rows = re.findall(r"^\| `([\w/]+)` \| (.*) \|$", PAGES["configs"], flags=re.MULTILINE)
    assert dict(rows) == config_titles()
    assert len(rows) == len(dict(rows))


def test_the_page_on_releases_names_commands_that_exist():
    text = (ROOT / "docs" / "project" / "releases.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = set(re.findall(r"`make ([a-z-]+)`", text))
    assert "release" in commands
    assert [name for name in commands if not re.search(rf"^{name}:", makefile, flags=re.MULTILINE)] == []
    steps = re.findall(
        r"^def (\w+)\(\) -> str:$", (ROOT / "packaging" / "release.py").read_text(encoding="utf-8"), re.M
    )
    assert re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE) == [step for step in steps if step != "version"]


def test_pages_for_language_models_exist():
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    links = re.findall(r"^- \[[^]]+\]\(([^)]+)\): \S.*\.$", text, flags=re.MULTILINE)
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).is_file()] == []
    assert len(links) == text.count("](")
