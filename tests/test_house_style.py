"""Names, tensors and docstrings of the library. Each check is tried on a planted breach as well."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import gp_ensembles
from tests.sources import sources

PACKAGE = Path(gp_ensembles.__file__).parent
STUDIES = Path(__file__).resolve().parents[1] / "studies"
TESTS = Path(__file__).parent

# Parts of a name (between underscores) that stand for something the glossary of CONTRIBUTING.md spells otherwise.
FORBIDDEN_WORDS = {
    "sigma": "noise, prior_variance or scale_tril",
    "nll": "log_prob",
    "cov": "covariance",
    "var": "variance",
    "lik": "likelihood",
    "ls": "lengthscale",
    "kwargs": "named arguments",
}
# Calls that reach for global state.
FORBIDDEN_CALLS = {
    "torch.set_default_dtype",
    "torch.set_default_device",
    "torch.set_default_tensor_type",
    "torch.manual_seed",
    "torch.seed",
    "np.random.seed",
    "numpy.random.seed",
    "hasattr",
    "print",
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
    ("features/neural.py", "device"): "a number becomes a parameter on the host; the module's .to moves it",
    ("features/shapes.py", "device"): "a number becomes a parameter on the host; the module's .to moves it",
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
    "_replace": "named tuples'",
    "_asdict": "named tuples'",
    "_fields": "named tuples'",
    "_repr_html_": "what notebooks call",
    "_exit": "of os: a process that ends at once",
    "_validate_args": "PyTorch's switch of its distributions' checks, which must stay as it is",
    "_priors": "GPyTorch's modules keep their priors there",
    "_load_attempted": "BoTorch's note that it looked for its compiled functions",
    "_experiment": "Ax's client",
    "_generation_strategy": "Ax's client",
    "_unit_test_params": "river asks for the settings of its checks",
    "_C": "PyTorch's, of subclasses of its tensors: the stand-in device",
    "_disabled_torch_function_impl": "the same",
    "_make_wrapper_subclass": "the same",
    "_schema": "the same: what an operator changes",
    "_to_copy": "an operator of PyTorch",
    "_local_scalar_dense": "the same",
    "_index_put_impl_": "the same",
    "_unsafe_index": "the same",
}
OUR_PACKAGES = ("gp_ensembles", "studies", "attacks", "benchmarks", "tests")
ATTRIBUTE_CALLS = {"setattr", "delattr", "getattr", "hasattr", "setitem", "delitem"}
NAMESPACES = {"__dict__", "__globals__"}
PRIVATE_IN_TEXT = re.compile(r"[\w)\]]\.(_[a-zA-Z]\w*)")  # of a dotted path, or in a program that a test starts
# Public names that may do without an example, and why.
WITHOUT_EXAMPLE = {
    "gp_ensembles.filters.textbook_filter": "a loop over textbook_step, which has one",
}


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
    for path, tree in sources(folder):
        for name, line in bound_names(tree):
            for part in re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"):
                if part in FORBIDDEN_WORDS and (path.as_posix(), name) not in NAMES_OF_OTHERS:
                    complaints.append(f"{path}:{line} names {name!r}; say {FORBIDDEN_WORDS[part]}")
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
    others = ((path, tree) for path, tree in sources(folder) if folder / path != Path(__file__))
    return [(path, line, name) for path, tree in others for name, line in private_uses(tree)]


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


def test_names_follow_the_glossary():
    assert [*word_complaints(PACKAGE), *word_complaints(STUDIES)] == []


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


def test_exceptions_are_still_needed():
    used = {exception_for(path, what) for path, _, _, what in bare_calls(PACKAGE)}
    assert {key for key in EXCEPTIONS if "/" in key[0]} - used == set()
    assert set(PRIVATE_NAMES_OF_OTHERS) - {name for _, _, name in private_names(TESTS)} == set()
    assert set(WITHOUT_EXAMPLE) - set(example_complaints(list(public_objects()))) == set()


def test_exported_names_exist_once():
    names = [name for name, _ in public_objects()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("sigma_theta = 1.0", "sigma_theta"),
        ("def f(cov): ...", "cov"),
        ("self.best_nll = 2", "best_nll"),
        ("class CovFactory: ...", "CovFactory"),
        ("def f(**kwargs): ...", "kwargs"),
    ],
)
def test_a_forbidden_name_is_found(tmp_path, line, word):
    (tmp_path / "planted.py").write_text(f"covariance = x.covar.sigma\n{line}\n")
    (found,) = word_complaints(tmp_path)
    assert found.startswith(f"planted.py:2 names {word!r}")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("torch.set_default_dtype(torch.float64)", "calls torch.set_default_dtype"),
        ("torch.manual_seed(0)", "calls torch.manual_seed"),
        ("hasattr(x, 'noise')", "calls hasattr"),
        ("torch.eye(3, device=x.device)", "calls torch.eye without dtype"),
        ("torch.arange(0.5, 3, device=x.device)", "calls torch.arange without dtype"),
        ("torch.zeros(3, dtype=x.dtype)", "calls torch.zeros without device"),
        ("torch.randperm(3)", "calls torch.randperm without device"),
        ("torch.randn(3, generator=g, device=x.device)", "calls torch.randn without dtype"),
    ],
)
def test_a_forbidden_call_is_found(tmp_path, line, complaint):
    fine = (
        "y = x.new_zeros(3)\n"
        "g = torch.Generator().manual_seed(0)\n"
        "z = torch.ones(3, dtype=d, device=torch.arange(3, device=e).device)\n"
    )
    (tmp_path / "planted.py").write_text(fine + line)
    assert call_complaints(tmp_path) == [f"planted.py:4 {complaint}"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
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
    ],
)
def test_a_private_name_is_found(tmp_path, line, name):
    fine = (
        "import _thread\n"
        "from torch.utils._python_dispatch import TorchDispatchMode\n"
        "state._replace(draws=1).__dict__['draws']\n"
        "names = [key for key, _ in pairs if key.endswith('_factor') or saved['_extra_state']]\n"
        "class Own:\n"
        "    def __init__(self): self._number = self._first()\n"
        "    def _first(self): return 1\n"
    )
    for folder, text in (("clean", fine), ("planted", fine + line)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "planted.py").write_text(text)
    assert private_complaints(tmp_path / "clean") == []
    (found,) = private_complaints(tmp_path / "planted")
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
