"""Who may import whom, where imports stand, and how deep classes go. The tables below are the law.

Each check is a function from sources (or classes) to complaints, so that its own test can plant a breach.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest

import gp_ensembles
from gp_ensembles.engine.predictions import AnyMixture
from gp_ensembles.experts.base import BoundExpert, Expert, Runner
from gp_ensembles.filters.states import FilterState
from tests.sources import library_classes, sources

PACKAGE = Path(gp_ensembles.__file__).parent
STUDIES, ATTACKS = (Path(__file__).resolve().parents[1] / name for name in ("studies", "attacks"))
MAX_LINES = 500

# package -> (packages of gp_ensembles it may import, outside packages it may import besides torch).
# A dotted outside name allows that part only. The standard library is free.
EVERYTHING = (
    "numerics spectral likelihoods features filters experts meta_learners innovations calibration distributions engine "
    "ensembles streaming fleet scale estimators bo files tables data metrics plots"
)
TABLE = {
    # numpy and scipy: distribution functions and quadrature rules that torch lacks.
    # numba: an optional extra, at its one door numerics/compiled.py. GPyTorch: the names of its types, nothing else.
    # tqdm: a search may take seconds.
    "numerics": ("", "numpy scipy numba tqdm gpytorch.kernels gpytorch.likelihoods gpytorch.means gpytorch.Module"),
    # numpy: a row at a time, where a call of torch costs more than its numbers.
    "innovations": ("numerics", "numpy"),
    "metrics": ("numerics", ""),
    # numpy: recursions over rows on a few dozen numbers.
    "calibration": ("numerics", "numpy"),
    # What writes files. safetensors: states that other programs read. filelock: one writer of a folder.
    "files": ("", "safetensors filelock"),
    # pandas: dates. narwhals, pyarrow: frames and Parquet files. sklearn: codes of categories.
    "tables": ("extras", "numpy pandas narwhals pyarrow sklearn"),
    "data": ("files numerics tables", "numpy river sklearn"),
    # numpy: a row at a time, here and in the two below. scipy: triangular solves in the memory of a factor.
    "filters": ("numerics", "numpy scipy"),
    "meta_learners": ("numerics", "numpy"),
    "spectral": ("numerics", "gpytorch"),
    "likelihoods": ("numerics", "gpytorch"),
    "features": ("numerics spectral", "gpytorch numpy"),
    # sklearn: boosted trees, trained in one thread (threadpoolctl). numpy: a row at a time.
    "experts": ("numerics features filters likelihoods", "gpytorch numpy sklearn threadpoolctl"),
    # likelihoods, gpytorch: latent values become classes and counts. scipy: quantiles of the gamma distribution.
    "distributions": ("numerics likelihoods", "gpytorch scipy"),
    # What runs an ensemble. numpy: a row at a time, as in streaming.
    "engine": (
        "numerics distributions experts features filters likelihoods meta_learners metrics innovations",
        "gpytorch numpy",
    ),
    # What describes one. gpytorch: presets build kernels and likelihoods. files: what is built, as objects.
    "ensembles": (
        "engine numerics experts features filters likelihoods meta_learners innovations spectral files",
        "gpytorch numpy",
    ),
    # The one pipeline: tables in, distributions in the units of the target out.
    "streaming": (
        "numerics distributions likelihoods features filters experts meta_learners engine ensembles calibration "
        "innovations files",
        "numpy",
    ),
    # A model for each of many series: states of all of them, the parts of an ensemble on them.
    "fleet": (
        "numerics features filters experts meta_learners ensembles innovations files engine calibration distributions "
        "streaming",
        "tqdm",
    ),
    # Series over several machines: a divided fleet hands on what its shards say. streaming: sweeps of configs.
    "scale": ("numerics engine files distributions fleet streaming", "ray pyarrow"),
    # experts, features, filters, meta_learners: joint predictions are made from their parts.
    "bo": (
        "numerics distributions features filters experts meta_learners engine ensembles spectral",
        "gpytorch botorch linear_operator tqdm ax",
    ),
    # bo: the posterior of a mixture. distributions, papers/sparse: predictions with tails. scipy: L-BFGS.
    "papers/quadrature": (
        "numerics spectral bo files distributions papers/sparse papers/rows papers/plain",
        "gpytorch botorch linear_operator numpy scipy tqdm",
    ),
    # scipy: L-BFGS with bounds. numpy: what it speaks. features: knots as a feature map of online experts.
    # filters, experts, meta_learners, engine: fitted models go on as the experts of an online ensemble.
    # bo: the contract of models that BoTorch takes.
    "papers/sparse": (
        "numerics distributions features filters experts meta_learners engine bo papers/rows",
        "gpytorch botorch linear_operator numpy scipy tqdm",
    ),
    # engine, bo: mixtures as distributions and posteriors. metrics: the best fixed mixture. spectral: frequencies.
    "papers/fusion": (
        "numerics features spectral metrics engine bo distributions files papers/rows papers/plain",
        "gpytorch botorch linear_operator tqdm numpy",
    ),
    # features, spectral: the frequencies of the experts' kernels. meta_learners: how experts are weighed.
    # filters: the posterior of the weights. engine: what Ctrl-C must not tear. estimators, streaming: its transformer.
    "papers/gplvm": (
        "numerics spectral features filters meta_learners engine estimators streaming",
        "gpytorch numpy sklearn",
    ),
    "papers": ("", ""),
    # numpy: the language of scikit-learn. pandas: tables of river and others. bo, botorch: what Optuna's sampler asks.
    "estimators": (
        "bo distributions engine ensembles numerics streaming tables",
        "numpy pandas sklearn river skpro sktime optuna botorch",
    ),
    # numpy: the language of matplotlib.
    "plots": ("files", "numpy matplotlib"),
    # The command line. extras: its door.
    "cli": (f"{EVERYTHING} extras", "numpy plotly sklearn tqdm jsonargparse yaml"),
    # gp_ensembles/__init__.py and __main__.py
    # lazy_loader: what ``import gp_ensembles`` offers is loaded when it is used. extras: the door of the extra ``cli``.
    "": (f"{EVERYTHING} papers/sparse papers/fusion papers/quadrature papers/gplvm cli extras", "lazy_loader"),
}
ALLOWED = {package: tuple(frozenset(names.split()) for names in both) for package, both in TABLE.items()}
# package -> what it may import inside a function: optional extras, at their one door.
DOORS = {
    # The extra cli, without which there is no command line.
    "": ("gp_ensembles.cli",),
    # pandas, narwhals: of the extra cli, for dates and frames. sklearn: only tables with many levels need it.
    "tables": ("narwhals", "pandas", "pyarrow", "sklearn"),
    "data": ("river", "sklearn"),
    "experts": ("sklearn", "threadpoolctl"),
    "bo": ("ax",),
    "scale": ("ray", "pyarrow"),
    "estimators": ("pandas", "river", "sklearn", "skpro", "sktime"),
    "cli": ("gp_ensembles.plots",),
}


# file -> why it asks what kind an expert or a state is, where that is not its own. A new kind of expert should be one
# file and one line in a table: let this list become shorter.
KIND_SWITCHES: dict[str, str] = {
    # Two forms of one state, each its own or handed to it.
    "experts/gaussian.py": "covariance and square root",
    "experts/window.py": "a block staged whole, or as rows",
    "filters/block.py": "covariance and square root",
    "filters/transitions.py": "covariance and square root",
    "filters/update.py": "the table of what each state learns and predicts",
    # The evidence of Gaussian noise on fixed features has a closed form.
    "experts/empirical_bayes.py": "the class whose noise and scale are profiled",
    # To become methods or entries of tables.
    "bo/model.py": "which kinds observe numbers",
    "engine/input_checks.py": "likelihoods of a stream",
    "engine/ensemble.py": "likelihoods, and names of external models",
    "engine/external_report.py": "counts of external models",
    "engine/recorded.py": "which states are recorded",
    "engine/runners.py": "which experts share a basis",
    "engine/state.py": "rows that a window appends",
    "fleet/ensemble_fleet.py": "which kinds a fleet runs",
    "fleet/fitting.py": "which kinds are fitted to each series",
    "streaming/joint.py": "kinds without a quadratic form",
}


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Dotted names a tree imports, with their lines; ``from a import b`` counts as ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)


def room(path: Path) -> str:
    """The package of a file; empty for files at the top. Those of ``papers`` are rooms of their own."""
    folders = path.parts[:-1]
    return "/".join(folders[: 2 if folders[:1] == ("papers",) else 1])


def room_of(parts: list[str]) -> str:
    """The room of a dotted name's parts below the library."""
    return "/".join(parts[: 2 if parts[0] == "papers" else 1])


def within(name: str, allowed: Iterable[str]) -> bool:
    return any(name == other or name.startswith(other + ".") for other in allowed)


def import_complaints(folder: Path) -> list[str]:
    import sys

    complaints = []
    for path, tree in sources(folder):
        inside, outside = ALLOWED.get(room(path), (frozenset(), frozenset()))
        for name, line in imported(tree):
            top, *rest = name.split(".")
            if top == "gp_ensembles":
                legal = bool(rest) and (room_of(rest) == room(path) or room_of(rest) in inside)
            else:
                legal = top in sys.stdlib_module_names or within(name, {"torch", *outside})
            if not legal:
                complaints.append(f"{path}:{line} imports {name}")
    return complaints


def function_import_complaints(folder: Path) -> list[str]:
    complaints = []
    for path, tree in sources(folder):
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                for name, line in imported(function):
                    if not within(name, DOORS.get(room(path), ())):
                        complaints.append(f"{path}:{line} imports {name} inside a function")
    return sorted(set(complaints))


def cycle_complaints(folder: Path, by_package: bool, library: str = "gp_ensembles") -> list[str]:
    """Cycles among the packages, or among the modules, of ``folder`` as ``library``."""
    modules = {".".join((library, *path.with_suffix("").parts)): tree for path, tree in sources(folder)}
    graph: dict[str, set[str]] = {}
    for module, tree in modules.items():
        for name, _ in imported(tree):
            if not name.startswith(f"{library}."):
                continue
            known = name if name in modules else name.rpartition(".")[0]
            if by_package:
                source, target = module.split(".")[1], name.split(".")[1]
            else:
                source, target = module, known
            # A package's __init__ gathers its modules; that alone is no cycle.
            if source != target and not source.endswith("__init__"):
                graph.setdefault(source, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def length_complaints(folder: Path) -> list[str]:
    lengths = {path: len((folder / path).read_text(encoding="utf-8").splitlines()) for path, _ in sources(folder)}
    return [f"{path} has {length} lines" for path, length in lengths.items() if length > MAX_LINES]


def class_complaints(classes: Iterable[type], library: str = "gp_ensembles") -> list[str]:
    """Classes deeper than one level, children of final classes, and overrides of what was implemented.

    An abstract family may stand on the abstract contract of another package.
    """
    complaints = []
    for cls in classes:
        ancestors = [base for base in cls.__mro__[1:] if base.__module__.split(".")[0] == library]
        packages = {".".join(base.__module__.split(".")[:2]) for base in ancestors}
        if len(ancestors) > 1 and not (len(packages) == 2 and all(map(inspect.isabstract, ancestors))):
            complaints.append(f"{cls.__name__} stands on {[base.__name__ for base in ancestors]}: too deep")
        for base in ancestors:
            if not inspect.isabstract(base):
                complaints.append(f"{cls.__name__} extends {base.__name__}, which is final")
            abstract = getattr(base, "__abstractmethods__", frozenset())
            for name, member in vars(base).items():
                implemented = callable(member) or isinstance(member, property | classmethod | staticmethod)
                private = name.startswith("__")
                if implemented and not private and name not in abstract and name in vars(cls):
                    complaints.append(f"{cls.__name__} overrides {base.__name__}.{name}")
    return complaints


def kinds() -> set[str]:
    """Names of the classes of experts, of their views for loops, of what runs them, and of their states."""
    families = (Expert, BoundExpert, Runner)
    found = {cls.__name__ for cls in library_classes() if issubclass(cls, families) and cls not in families}
    return found | {state.__name__ for state in get_args(FilterState)}


def kind_complaints(folder: Path, names: set[str]) -> list[str]:
    """Tests on kinds outside the file that defines the kind; an assertion for the type checker is no switch."""
    complaints = []
    for path, tree in sources(folder):
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        asserted = {id(call) for node in ast.walk(tree) if isinstance(node, ast.Assert) for call in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
                asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)} & names - own
                if asked and id(node) not in asserted:
                    complaints.append(f"{path}:{node.lineno} asks for {', '.join(sorted(asked))}")
    return complaints


def test_every_package_stands_in_the_table():
    packages = {room(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("__init__.py")}
    assert packages | {""} == set(ALLOWED)


def test_the_table_has_no_cycle():
    TopologicalSorter({package: inside for package, (inside, _) in ALLOWED.items()}).prepare()


def test_imports_keep_to_the_table():
    assert import_complaints(PACKAGE) == []


def test_imports_stand_at_the_top():
    assert function_import_complaints(PACKAGE) == []


def test_no_import_cycles():
    assert cycle_complaints(PACKAGE, by_package=True) == []
    assert cycle_complaints(PACKAGE, by_package=False) == []
    assert cycle_complaints(STUDIES, by_package=False, library="studies") == []
    assert cycle_complaints(ATTACKS, by_package=False, library="attacks") == []


def test_files_are_short():
    assert length_complaints(PACKAGE) == []
    assert [*length_complaints(STUDIES), *length_complaints(ATTACKS)] == []


def test_classes_are_abstract_or_final():
    assert class_complaints(library_classes()) == []


@pytest.mark.parametrize(
    ("package", "line", "complaint"),
    [
        ("filters", "from gp_ensembles.features.base import FeatureMap", "gp_ensembles.features.base.FeatureMap"),
        ("filters", "from gp_ensembles import features", "gp_ensembles.features"),
        ("numerics", "import gpytorch", "gpytorch"),
        ("experts", "from botorch import models", "botorch.models"),
        ("metrics", "from ..numerics import mixtures", "..numerics.mixtures"),
        ("numerics", "import gp_ensembles", "gp_ensembles"),
        ("unheard_of", "import numpy", "numpy"),
        ("cli", "from studies.knots import study", "studies.knots.study"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path, package, line, complaint):
    (tmp_path / package).mkdir()
    (tmp_path / package / "planted.py").write_text(f"import math\nimport torch\n{line}\n")
    (found,) = import_complaints(tmp_path)
    assert found == f"{Path(package) / 'planted.py'}:3 imports {complaint}"


def test_an_import_in_a_function_is_found(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "planted.py").write_text("def f():\n    import river.stream\n    import json\n")
    (found,) = function_import_complaints(tmp_path)
    assert found.endswith("planted.py:3 imports json inside a function")


def test_cycles_are_found(tmp_path):
    for package, other in (("features", "filters"), ("filters", "features")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "a.py").write_text(f"from gp_ensembles.{other}.b import thing\n")
        (tmp_path / package / "b.py").write_text("")
    assert cycle_complaints(tmp_path, by_package=True)
    assert not cycle_complaints(tmp_path, by_package=False)
    for package, other in (("features", "filters"), ("filters", "features")):
        (tmp_path / package / "a.py").write_text(f"from gp_ensembles.{other}.a import thing\n")
    assert cycle_complaints(tmp_path, by_package=False)


def test_a_long_file_is_found(tmp_path):
    (tmp_path / "long.py").write_text("x = 1\n" * (MAX_LINES + 1))
    (tmp_path / "short.py").write_text("x = 1\n" * MAX_LINES)
    assert length_complaints(tmp_path) == [f"long.py has {MAX_LINES + 1} lines"]


def test_deep_final_and_overriding_classes_are_found():
    from abc import ABC, abstractmethod

    class Base(ABC):
        @abstractmethod
        def open(self): ...
        def closed(self):
            return True

    class Good(Base):
        def __init__(self): ...
        def open(self): ...
        def another(self): ...

    class Overriding(Base):
        def open(self): ...
        def closed(self): ...

    class Deep(Good): ...

    library = Base.__module__.split(".")[0]
    assert class_complaints([Base, Good], library) == []
    assert class_complaints([Overriding], library) == ["Overriding overrides Base.closed"]
    assert class_complaints([Deep], library) == [
        "Deep stands on ['Good', 'Base']: too deep",
        "Deep extends Good, which is final",
    ]


def test_kinds_of_experts_are_asked_for_in_their_own_files_and_tables_only():
    found = kind_complaints(PACKAGE, kinds())
    files = {complaint.partition(":")[0] for complaint in found}
    assert [complaint for complaint in found if complaint.partition(":")[0] not in KIND_SWITCHES] == []
    assert set(KIND_SWITCHES) - files == set()  # what is no longer needed leaves the table


def test_kinds_of_mixtures_are_not_asked_for_on_the_way_of_a_row():
    mixtures = {kind.__name__ for kind in get_args(AnyMixture)}
    assert [kind_complaints(PACKAGE / package, mixtures) for package in ("engine", "streaming")] == [[], []]


def test_a_switch_on_kinds_is_found(tmp_path):
    (tmp_path / "own.py").write_text("class Kind: ...\ndef f(x):\n    return isinstance(x, Kind)\n")
    (tmp_path / "narrow.py").write_text("def f(x):\n    assert isinstance(x, Kind)\n    return isinstance(x, Other)\n")
    (tmp_path / "switch.py").write_text("def f(x):\n    return isinstance(x, Other | Kind) or issubclass(x, (Kind,))\n")
    assert kind_complaints(tmp_path, {"Kind"}) == ["switch.py:2 asks for Kind", "switch.py:2 asks for Kind"]
