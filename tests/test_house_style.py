"""Names, tensors and docstrings of the library. Each check is tried on a planted breach as well."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType

import gp_ensembles
from tests.sources import library_classes, parsed, sources

PACKAGE = Path(gp_ensembles.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
STUDIES = ROOT / "studies"
TESTS = Path(__file__).parent

# Parts of a name (between underscores) that the field spells otherwise.
FORBIDDEN_WORDS = {
    "sigma": "noise, prior_variance or scale_tril",
    "nll": "log_prob",
    "cov": "covariance",
    "var": "variance",
    "lik": "likelihood",
    "ls": "lengthscale",
    "kwargs": "named arguments",
    "wild": "outlier",
}
# Old words, by what is written instead: names anywhere, names that are English words in code only, phrases anywhere.
RENAMED = (
    "AccessLock: in_turns; SharedBasisRunner: TwinRunner; SpeedSwitching: TwinSwitching; RowBatches: RowLanes, "
    "RowLane, BlockLane; InactiveColumns: Sleepers; "
    "AdaptiveKnots: EnoughKnots; external model: guest, guests, GuestModel, GuestRows, GuestTally, GuestReport, "
    "guest_tally, RegressorGuest, RiverGuest, FunctionGuest, ColumnsGuest; snapshot: way_back; "
    "impute_absent: stood_in; "
    "compile_now: rehearse; check_memory: check_room; InMemoryRows: RowsAtHand; RowReader: RowTaker; "
    "future rows: RowsToCome; ExpertRecord: FurtherExpert"
)
ENGLISH = (
    "predictions, row_buffer: said, Said; shared_bases: twins, Twins; AccessLock: Turns; PreparedCall: Begun; batch: "
    "lane, lanes, Lane, Lanes; fantasies: imagined; inactive: asleep, sleepers; activated_at: woke; prepared: begun; "
    "anomaly_counts: notable, Notable; RowTiming: Pace; row_noise: noisier; append_copies: beside; "
    "segments: stretches; invalid_rows: unsound; checkpoint_match: likeness; gradient_ascent: climb; flush: settle; "
    "report_text: told; count_events: happened, Happened; extra_experts: further"
)
PHRASES = (
    "refitted, restarted: found anew, started anew, begun anew, begins anew, begin anew, chosen anew, fitted anew, "
    "learned anew; per row: nats a row, microseconds a row, seconds a row; missing: a value that lacks; replaces, "
    "is imputed: stands in for, stood in for, stand in for; is reported: is told, are told; "
    "the series of each row: whose row it is; with the interfaces of: in the clothes of; has: has in hand; "
    "fix: mend the row; a warning: a reason to look; raw readings: as a meter leaves it; outliers: wild number, "
    "wild numbers; does not exist: is not there; skipped: passed over; distinguished: told apart; "
    "your own: of one's own; a separate path: a way of its own, a way of their own; known limitations: honest limits; "
    "not publicly available: cannot be had; architecture: this house, on the same beams, skins of; "
    "writers never block: nobody waits; deviations: so many deviations; quarantined: kept out; "
    "expected: told to expect"
)
HELD = [  # folders and files that are held to it
    *("gp_ensembles", "studies", "attacks", "tests", "benchmarks", "examples", "packaging", "configs", "docs"),
    *("notebooks", "README.md", "CONTRIBUTING.md", "SECURITY.md", "llms.txt", "conftest.py", "Makefile"),
    *("pyproject.toml", ".ci"),
]
# Written by commands, of code that was: numbers, results, and what a draw of mutants left.
QUOTED = (
    *("benchmarks/numbers", "studies/results", "attacks/numbers", "docs/generated", "docs/evidence/reliability.md"),
    "tests/test_house_style.py",
)
# Docstrings begin with a noun phrase: neither a question nor what the module does.
NOT_NOUNS = (
    *("What", "Whether", "How", "Which", "Who", "When", "Where", "Why"),
    *("Choose", "Draws", "Makes", "Prints", "Reads", "Runs", "Tells", "Writes"),
)
# Calls that reach for global state.
FORBIDDEN_CALLS = {
    *("torch.set_default_dtype", "torch.set_default_device", "torch.set_default_tensor_type"),
    *("torch.manual_seed", "torch.seed", "np.random.seed", "numpy.random.seed", "hasattr", "print"),
}
# Tensor factories that follow the default dtype, and those that make integers whatever it is.
FLOATING = {"eye", "zeros", "ones", "full", "empty", "linspace", "logspace", "tensor", "rand", "randn"}
INTEGER = {"arange", "randint", "randperm", "tril_indices", "triu_indices"}
# (file or package, what) -> why it may stand, which the tables above cannot know.
INTEGERS = "counts, flags and labels: integers and booleans do not follow the default dtype"
EXCEPTIONS = {
    ("cli", "print"): "the command line speaks to its user",
    ("__main__.py", "print"): "the same, where its extra is missing",
    ("data", "device"): "tables are born on the host; their user moves them",
    ("experts/empirical_bayes.py", "dtype"): INTEGERS,
    ("meta_learners/switching.py", "dtype"): INTEGERS,
    ("features/base.py", "device"): "a number becomes a parameter on the host; the module's .to moves it",
    ("meta_learners/switching.py", "device"): "built from plain numbers; the rule that takes them moves them",
}
# (file, name) -> whose word it is; the glossary is for our own.
NAMES_OF_OTHERS = {
    ("estimators/skpro.py", "_var"): "a method that skpro calls",
    ("estimators/sktime.py", "_predict_var"): "a method that sktime calls",
    ("estimators/sktime.py", "cov"): "its argument",
    ("estimators/river.py", "kwargs"): "river's signature of predict_proba_one",
    ("estimators/scikit_learn.py", "return_cov"): "scikit-learn's argument of predict",
}
# Private names that tests may use, and whose they are: others', or a convention of Python.
PRIVATE_NAMES_OF_OTHERS = {
    **dict.fromkeys(("_replace", "_asdict", "_fields"), "named tuples'"),
    "_repr_html_": "what notebooks call",
    "_exit": "of os: a process that ends at once",
    "_validate_args": "PyTorch's switch of its distributions' checks, which must stay as it is",
    "_load_attempted": "BoTorch's note that it looked for its compiled functions",
    **dict.fromkeys(("_experiment", "_generation_strategy"), "Ax's client"),
    "_unit_test_params": "river asks for the settings of its checks",
    # PyTorch's, of subclasses of its tensors (the stand-in device), and its operators.
    **dict.fromkeys(("_C", "_disabled_torch_function_impl", "_make_wrapper_subclass", "_schema"), "PyTorch's"),
    **dict.fromkeys(("_to_copy", "_local_scalar_dense", "_index_put_impl_", "_unsafe_index"), "operators of PyTorch"),
}
OUR_PACKAGES = ("gp_ensembles", "studies", "attacks", "benchmarks", "tests")
ATTRIBUTE_CALLS = {"setattr", "delattr", "getattr", "hasattr", "setitem", "delitem"}
NAMESPACES = {"__dict__", "__globals__"}
PRIVATE_IN_TEXT = re.compile(r"[\w)\]]\.(_[a-zA-Z]\w*)")  # of a dotted path, or in a program that a test starts
MAY_BE_PRIVATE = re.compile(r"\._[a-zA-Z]|[\"']_[a-zA-Z]|import _(?!_)")  # in any text that uses one
# Public names that may do without an example, and why.
WITHOUT_EXAMPLE = {"gp_ensembles.filters.textbook_filter": "a loop over textbook_step, which has one"}


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names the code itself gives: of functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def word_complaints(folder: Path) -> list[str]:
    complaints = []
    words = "|".join(FORBIDDEN_WORDS)
    may_hold = re.compile(rf"(?<![A-Za-z])(?:{words})(?![a-z])|(?i:{words})(?=[A-Z])|(?:{words.title()})(?![a-z])")
    for path in sorted(folder.rglob("*.py")):
        text, path = path.read_text(encoding="utf-8"), path.relative_to(folder)
        for name, line in bound_names(parsed(text)) if may_hold.search(text) else ():
            for part in re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"):
                if part in FORBIDDEN_WORDS and (path.as_posix(), name) not in NAMES_OF_OTHERS:
                    complaints.append(f"{path}:{line} names {name!r}; say {FORBIDDEN_WORDS[part]}")
    return complaints


def terms(table: str) -> dict[str, str]:
    """What is written instead of each word of a table."""
    entries = [entry.partition(": ") for entry in table.split("; ")]
    return {word.strip(): instead for instead, _, words in entries for word in words.split(", ")}


def texts(places: Iterable[str], root: Path = ROOT) -> Iterator[Path]:
    """Files of code and documentation of some folders and files."""
    kinds = {".py", ".pyi", ".md", ".ipynb", ".yaml", ".yml", ".html", ".toml", ".txt"}
    for place in places:
        for path in sorted((root / place).rglob("*")) if (root / place).is_dir() else [root / place]:
            name = path.relative_to(root).as_posix()
            is_text = path.suffix in kinds or name in ("Makefile", ".ci/run")
            if is_text and not name.startswith(QUOTED):
                yield path


def term_complaints(paths: Iterable[Path], root: Path = ROOT) -> Iterator[str]:
    """Words and phrases of files that are written otherwise, phrases over the ends of lines too."""
    names, phrases, english = terms(RENAMED), terms(PHRASES), terms(ENGLISH)
    over_lines = "|".join(phrases).replace(" ", r"\s+(?:[#*>]\s+)?")
    forbidden = re.compile(rf"\b(?:{'|'.join(names)}|(?i:{over_lines}))\b")
    english_in_code = re.compile(rf"\b(?:{'|'.join(english)})\b")
    for path in paths:
        text, place = path.read_text(encoding="utf-8"), path.relative_to(root)
        flat = " ".join(part for part in text.lower().split() if part not in ("#", "*", ">"))
        may_hold = any(name in text for name in names) or any(phrase in flat for phrase in phrases)  # quick
        for found in forbidden.finditer(text) if may_hold else ():
            word = re.sub(r"[\s#*>]+", " ", found[0])
            instead = names.get(word) or phrases[word.lower()]
            yield f"{place}:{text.count(chr(10), 0, found.start()) + 1} says {word!r}; write {instead}"
        if path.suffix == ".py" and english_in_code.search(text):
            bound = bound_names(parsed(text))
            yield from (f"{place}:{n} names {name!r}; write {english[name]}" for name, n in bound if name in english)


def opening_complaints(paths: Iterable[Path], root: Path = ROOT) -> Iterator[str]:
    """Modules whose docstring begins otherwise than with a noun phrase."""
    for path in paths:
        docstring = (ast.get_docstring(parsed(path.read_text(encoding="utf-8"))) or "").split(maxsplit=1)
        if path.suffix == ".py" and docstring and docstring[0].strip(",:") in NOT_NOUNS:
            yield f"{path.relative_to(root)} begins with {docstring[0]!r}"


def module_complaints(folder: Path) -> list[str]:
    """Modules that docstrings of packages name, in ``:mod:`` or at the beginning of a line, and that do not exist.

    The front door's docstring lists what it exports.
    """
    complaints = []
    for path, tree in sources(folder):
        text = (ast.get_docstring(tree) or "") if path.match("*/__init__.py") else ""
        entries = re.findall(r"^[ -]*((?:``[a-z_.]+``(?:, )?)+)(?=:|  |$| \()", text, re.MULTILINE)
        names = [*re.findall(r"[a-z_.]+", " ".join(entries)), *re.findall(r":mod:`~?(?:gp_ensembles)?([\w.]+)`", text)]
        for name in names:
            places = [base.joinpath(*name.strip(".").split(".")) for base in (folder / path.parent, folder)]
            if not any(place.is_dir() or place.with_suffix(".py").is_file() for place in places):
                complaints.append(f"{path} names {name}")
    return complaints


def bare_calls(folder: Path) -> Iterator[tuple[Path, int, str, str]]:
    """Calls that reach for global state, and what tensor factories are not told: path, line, call, what."""
    for path, tree in sources(folder):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            given = {keyword.arg for keyword in node.keywords}
            if name in FORBIDDEN_CALLS:
                yield path, node.lineno, name, name
            factory = name.removeprefix("torch.") if name.startswith("torch.") else ""
            # A range of floats follows the default dtype, a range of integers does not.
            of_floats = any(isinstance(part, ast.Constant) and isinstance(part.value, float) for part in node.args)
            if factory in FLOATING | INTEGER and "device" not in given:
                yield path, node.lineno, name, "device"
            if (factory in FLOATING or (factory == "arange" and of_floats)) and "dtype" not in given:
                yield path, node.lineno, name, "dtype"


def exception_for(path: Path, what: str) -> tuple[str, str] | None:
    keys = ((path.as_posix(), what), (path.parts[0], what))
    return next((key for key in keys if key in EXCEPTIONS), None)


def call_complaints(folder: Path) -> list[str]:
    return [
        f"{path}:{line} calls {call}" + (f" without {what}" if what != call else "")
        for path, line, call, what in bare_calls(folder)
        if exception_for(path, what) is None
    ]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_attributes(tree: ast.AST) -> set[int]:
    """Where a class uses, by ``self`` or ``cls``, private attributes that it makes itself: identities of nodes."""
    found: set[int] = set()
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        used = [
            node
            for node in ast.walk(kind)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
        ]
        made = {node.attr for node in used if isinstance(node.ctx, ast.Store)}
        made |= {node.name for node in kind.body if isinstance(node, ast.FunctionDef)}
        found |= {id(node) for node in used if node.attr in made}
    return found


def private_uses(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Private names that are read, written, patched or imported, but for a class's own, and where: name, line."""
    own = own_attributes(tree)
    for node in ast.walk(tree):
        parts: list[str] = []
        if isinstance(node, ast.Attribute) and id(node) not in own:
            parts = [node.attr]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            names = [f"{module}.{alias.name}" if module else alias.name for alias in node.names]
            parts = [part for name in names if name.split(".")[0] in OUR_PACKAGES for part in name.split(".")]
        elif isinstance(node, ast.Call) and {getattr(node.func, key, "") for key in ("id", "attr")} & ATTRIBUTE_CALLS:
            parts = [str(part.value) for part in node.args[:2] if isinstance(part, ast.Constant)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = PRIVATE_IN_TEXT.findall(node.value)
        elif isinstance(node, ast.Subscript) and getattr(node.value, "attr", None) in NAMESPACES:
            parts = [str(getattr(node.slice, "value", ""))]
        yield from ((part, node.lineno) for part in parts if is_private(part))


@cache
def private_names(folder: Path) -> list[tuple[Path, int, str]]:
    """The uses in all files of a folder but this one, which plants some: path, line, name."""
    others = (path for path in sorted(folder.rglob("*.py")) if path != Path(__file__))
    held = ((path.relative_to(folder), path.read_text(encoding="utf-8")) for path in others)
    may_hold = ((path, parsed(text)) for path, text in held if MAY_BE_PRIVATE.search(text))
    return [(path, line, name) for path, tree in may_hold for name, line in private_uses(tree)]


def private_complaints(folder: Path) -> list[str]:
    return [
        f"{path}:{line} uses {name}; assert what is seen from outside, or give it a public name in its module"
        for path, line, name in private_names(folder)
        if name not in PRIVATE_NAMES_OF_OTHERS
    ]


def marker_complaints(folder: Path) -> list[str]:
    marks = re.compile(r"\b(TODO|FIXME|XXX|raise NotImplementedError)\b|pragma: no " + "cover")
    complaints = []
    for path, _ in sources(folder):
        for number, line in enumerate((folder / path).read_text(encoding="utf-8").splitlines(), 1):
            if found := marks.search(line):
                complaints.append(f"{path}:{number} says {found[0]}")
    return complaints


def public_objects() -> Iterator[tuple[str, object]]:
    """What the packages export through ``__all__``, by full name."""
    modules = [info.name for info in pkgutil.iter_modules(gp_ensembles.__path__, "gp_ensembles.") if info.ispkg]
    for module in modules:
        exports = importlib.import_module(module)
        for name in getattr(exports, "__all__", ()):
            yield f"{module}.{name}", getattr(exports, name)


def needs_example(thing: object) -> bool:
    """Functions and concrete classes do; abstract classes, exceptions, aliases and plain records do not."""
    if inspect.isfunction(thing):
        return True
    if not inspect.isclass(thing) or inspect.isabstract(thing) or issubclass(thing, BaseException):
        return False
    own_methods = [name for name, member in vars(thing).items() if inspect.isfunction(member) and name[0] != "_"]
    return not issubclass(thing, tuple) or bool(own_methods)


def example_complaints(objects: list[tuple[str, object]]) -> list[str]:
    complaints = []
    for name, thing in objects:
        if needs_example(thing) and ">>> " not in (inspect.getdoc(thing) or ""):
            complaints.append(name)
    return complaints


def undocumented_methods(classes: Iterable[type]) -> list[str]:
    """Public methods and properties without a docstring of their own or of a class that they come from."""
    return [
        f"{cls.__name__}.{name}"
        for cls in classes
        if not cls.__name__.startswith("_")
        for name, member in vars(cls).items()
        if isinstance(member, FunctionType | property | classmethod | staticmethod) and name[0] != "_"
        if not any(vars(base)[name].__doc__ for base in cls.__mro__ if name in vars(base))
    ]


def test_names_follow_the_glossary():
    assert [*word_complaints(PACKAGE), *word_complaints(STUDIES)] == []


def test_words_are_the_fields():
    assert list(term_complaints(texts(HELD))) == []


def test_docstrings_of_modules_begin_with_a_noun_phrase():
    places = ("gp_ensembles", "studies", "attacks", "benchmarks", "examples", "packaging", "docs", "conftest.py")
    assert list(opening_complaints(path for path in texts(places) if path.suffix == ".py")) == []


def test_docstrings_of_packages_name_modules_that_exist():
    assert module_complaints(PACKAGE) == []


def test_a_module_that_is_gone_is_found(tmp_path):
    entries = "- ``a``: one, ``other``\n- ``b``, ``c``: more\n``d``\n    In :mod:`.e`\n``f`` is a name.\n"
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "__init__.py").write_text(f'"""Modules.\n\n{entries}"""\n')
    (tmp_path / "x" / "a.py").touch()
    found = [complaint.rpartition(" ")[2] for complaint in module_complaints(tmp_path)]
    assert found == ["b", "c", "d", ".e"]


def test_words_and_openings_that_are_not_the_fields_are_found(tmp_path):
    (tmp_path / "a.py").write_text(
        '"""What it is."""\nfrom b import EnoughKnots\n\ndef told(further): ...  # found\n# anew\n'
    )
    (tmp_path / "b.md").write_text("A guest is\ntold that rows may be told apart; further rows follow.\n")
    paths = [tmp_path / "a.py", tmp_path / "b.md"]
    found = [line.replace("names", "says").split(";")[0] for line in term_complaints(paths, tmp_path)]
    wanted = {"a.py:2": ["EnoughKnots"], "a.py:4": ["found anew", "told", "further"], "b.md:1": ["guest", "is told"]}
    wanted["b.md:2"] = ["told apart"]
    assert found == [f"{place} says {word!r}" for place, words in wanted.items() for word in words]
    assert list(opening_complaints(paths[:1], tmp_path)) == ["a.py begins with 'What'"]


def test_no_global_state_and_no_bare_tensors():
    assert call_complaints(PACKAGE) == []
    # The studies are a program: they print what they have made.
    assert [complaint for complaint in call_complaints(STUDIES) if not complaint.endswith("calls print")] == []


def test_tests_assert_behavior_and_not_private_names():
    assert private_complaints(TESTS) == []


def test_nothing_is_left_half_done():
    assert [*marker_complaints(PACKAGE), *marker_complaints(STUDIES)] == []


def test_public_functions_and_classes_show_an_example():
    assert set(example_complaints(list(public_objects()))) - set(WITHOUT_EXAMPLE) == set()


def test_methods_have_a_docstring_or_inherit_one():
    class Base:
        def said(self):
            """Something."""

        def silent(self): ...

    class Heir(Base):
        def said(self): ...

        @property
        def bare(self): ...

    assert undocumented_methods([Base, Heir]) == ["Base.silent", "Heir.bare"]
    assert undocumented_methods(library_classes()) == []


def test_exceptions_are_still_needed():
    used = {exception_for(path, what) for path, _, _, what in bare_calls(PACKAGE)}
    assert {key for key in EXCEPTIONS if "/" in key[0]} - used == set()
    assert set(PRIVATE_NAMES_OF_OTHERS) - {name for _, _, name in private_names(TESTS)} == set()
    assert set(WITHOUT_EXAMPLE) - set(example_complaints(list(public_objects()))) == set()


def test_exported_names_exist_once():
    names = [name for name, _ in public_objects()]
    assert len(names) == len(set(names))


def test_a_forbidden_name_is_found(tmp_path):
    planted = ["sigma_theta = 1.0", "def f(cov, **kwargs): ...", "self.best_nll = 2", "class CovFactory: ..."]
    (tmp_path / "planted.py").write_text("covariance = x.covar.sigma\n" + "\n".join(planted) + "\n")
    found = [re.findall(r"names '(\w+)'; say ", complaint)[0] for complaint in word_complaints(tmp_path)]
    assert sorted(found) == ["CovFactory", "best_nll", "cov", "kwargs", "sigma_theta"]


def test_a_forbidden_call_is_found(tmp_path):
    fine = (
        "y = x.new_zeros(3)\n"
        "g = torch.Generator().manual_seed(0)\n"
        "z = torch.ones(3, dtype=d, device=torch.arange(3, device=e).device)\n"
    )
    planted = {
        "torch.set_default_dtype(torch.float64)": "calls torch.set_default_dtype",
        "torch.manual_seed(0)": "calls torch.manual_seed",
        "hasattr(x, 'noise')": "calls hasattr",
        "torch.eye(3, device=x.device)": "calls torch.eye without dtype",
        "torch.arange(0.5, 3, device=x.device)": "calls torch.arange without dtype",
        "torch.zeros(3, dtype=x.dtype)": "calls torch.zeros without device",
        "torch.randperm(3)": "calls torch.randperm without device",
        "torch.randn(3, generator=g, device=x.device)": "calls torch.randn without dtype",
    }
    (tmp_path / "planted.py").write_text(fine + "\n".join(planted))
    wanted = [f"planted.py:{line} {complaint}" for line, complaint in enumerate(planted.values(), 4)]
    assert call_complaints(tmp_path) == wanted


def test_a_private_name_is_found(tmp_path):
    fine = (
        "import _thread\n"
        "from torch.utils._python_dispatch import TorchDispatchMode\n"
        "state._replace(draws=1).__dict__['draws']\n"
        "names = [key for key, _ in pairs if key.endswith('_factor') or saved['_extra_state']]\n"
        "class Own:\n"
        "    def __init__(self): self._number = self._first()\n"
        "    def _first(self): return 1\n"
    )
    planted = [
        ("model._cache", "_cache"),
        ("online.bound().lanes._order = 1", "_order"),
        ("class Mine(Theirs):\n    def read(self): return self._bases", "_bases"),
        ("from gp_ensembles.streaming.joint import _covariance", "_covariance"),
        ("from studies._plan import make", "_plan"),
        ("import gp_ensembles.numerics._fast", "_fast"),
        ("monkeypatch.setattr(knots, '_ran', refuse)", "_ran"),
        ("monkeypatch.setattr('gp_ensembles.papers.sparse.tails._ROWS', 7)", "_ROWS"),
        ("getattr(model, '_state')", "_state"),
        ("subprocess.run([python, '-c', 'stream._learn = stop'])", "_learn"),
        ("patch.setitem(train.__globals__, '_process', other)", "_process"),
        ("train.__globals__['_process']", "_process"),
    ]
    for number, text in enumerate([fine, *(fine + line for line, _ in planted)]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "planted.py").write_text(text)
    assert private_complaints(tmp_path / "0") == []
    for number, (line, name) in enumerate(planted, 1):
        (found,) = private_complaints(tmp_path / str(number))
        assert found.startswith(f"planted.py:{8 + line.count(chr(10))} uses {name};")


def test_a_mark_is_found(tmp_path):
    (tmp_path / "planted.py").write_text("x = 1  # TO" + "DO: more\n")
    assert marker_complaints(tmp_path) == ["planted.py:1 says TO" + "DO"]


def test_a_missing_example_is_found():
    def shown():
        """One.

        >>> 1
        1
        """

    def bare():
        """One."""

    class Record(tuple):
        """Plain."""

    class Failure(ValueError):
        """Plain."""

    objects = [("shown", shown), ("bare", bare), ("Record", Record), ("Failure", Failure)]
    assert example_complaints(objects) == ["bare"]
