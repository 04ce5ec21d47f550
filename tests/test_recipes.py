"""The recipes of the site, followed to the letter: their code is run, used, and put to the contract tests."""

import ast
import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import yaml
from scipy import stats

from gp_ensembles.cli.__main__ import main
from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts import GaussianExpert, LaplaceExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.features.linear import ConstantFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.meta_learners import BayesianModelAveraging

TESTS = Path(__file__).resolve().parent
NAMES = ("add_an_expert.md", "add_a_rule.md", "add_a_layer.md", "recipes.md")
PAGES = [TESTS.parent / "docs" / "project" / name for name in NAMES]
GUIDE = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def recipe(title: str) -> str:
    """The section with this title."""
    return re.split(r"^## ", GUIDE.split(f"## {title}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def blocks(title: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", recipe(title), flags=re.DOTALL)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(code: str, folder: Path) -> ModuleType:
    """The module whose file a recipe's code is."""
    (folder / "made.py").write_text(code, encoding="utf-8")
    return load(folder / "made.py")


class Outcomes:
    """Counts the tests of a run inside a test, and gives it the fixtures of all tests."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed
        if report.failed:
            self.failed.append(f"{report.nodeid}\n{report.longreprtext}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid}\n{report.longreprtext}")


def with_recipe(source: str, table: str, line: str, code: str, folder: Path) -> Path:
    """A copy of a file of contract tests whose table has nothing but the recipe's line, without tests of other things.

    The tests are those that a decorator runs on the table, or on what is made of it at the top of the file.
    """
    text = (TESTS / source).read_text(encoding="utf-8")
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assigned = [(named(node), node) for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    tables = [node for name, node in assigned if name == table]
    above = (tables or imports)[-1]
    names = {table}
    names |= {name for name, node in assigned if node.value is not None and names & words(node.value)}
    parts = []
    for node in tree.body:
        is_test = isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if not is_test or any(names & words(decorator) for decorator in node.decorator_list):
            parts.append(ast.unparse(node))
        if node is above:
            parts += [code, f"{table} = type({table})()", line]
    copy = folder / f"{folder.name}_{Path(source).stem}.py"  # a name of its own, as modules stay imported
    copy.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return copy


def named(node: ast.Assign | ast.AnnAssign) -> str:
    """What an assignment gives a value to."""
    return ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)


def words(tree: ast.AST) -> set[str]:
    """The names in a part of a file."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def run_contracts(copies: list[Path], folder: Path) -> Outcomes:
    """Run copies of contract tests."""
    settings = folder / "pytest.ini"
    own = tomllib.loads((TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    own_lines = [f"{key} =\n  " + "\n  ".join(own[key]) for key in ("markers", "filterwarnings")]
    settings.write_text("\n".join(["[pytest]", *own_lines]) + "\n", encoding="utf-8")
    outcomes, fixtures = Outcomes(), load(TESTS / "conftest.py")
    off = [f"-pno:{plugin}" for plugin in ("cacheprovider", "terminal", "timeout", "xdist")]
    options = ["-c", str(settings), "--import-mode=importlib", *off]
    pytest.main([*options, *map(str, copies)], plugins=[outcomes, fixtures])
    return outcomes


@pytest.mark.slow
def test_the_feature_map_keeps_the_contract(tmp_path):
    code, line = blocks("A new feature map")
    copy = with_recipe("features/test_contract.py", "CASES", line, code, tmp_path)
    outcomes = run_contracts([copy], tmp_path)
    assert outcomes.failed == []
    assert outcomes.passed >= 5


def test_the_feature_map_is_used_by_an_expert(tmp_path, generator):
    code, _ = blocks("A new feature map")
    features = made(code, tmp_path).SeasonalFeatures(1, 0.5, torch.tensor(1.0, dtype=torch.float64))
    X = 10 * torch.rand(200, 1, generator=generator, dtype=torch.float64)
    y = torch.sin(4 * torch.pi * X[:, 0]) + 0.1 * torch.randn(200, generator=generator, dtype=torch.float64)
    line = LinearFeatures.from_data(X)
    online = OnlineEnsemble(Ensemble([GaussianExpert(features), GaussianExpert(line)], BayesianModelAveraging()))
    weights = online.observe(X, y).log_weights.exp()
    assert float(weights[0, -1]) > 0.99
    first, last = features(X[:1]), features(X[:1] + 0.5)  # the kernel has unit output scale and this period
    torch.testing.assert_close(first @ last.mT, torch.ones(1, 1, dtype=torch.float64))


@pytest.fixture
def clipped(tmp_path):
    """The class of the recipe of an expert."""
    (code,) = blocks("A new expert")
    return made(code, tmp_path).ClippedExpert


def stream(num_rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    y = X @ torch.tensor([1.0, -2.0], dtype=torch.float64)
    y = y + 0.3 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    y[7::10] += 100.0
    y[5] = torch.nan
    return X, y


def test_the_expert_is_its_recursion_row_by_row(clipped, generator):
    X, y = stream(60, generator)
    features = LinearFeatures(2, torch.tensor([1.0, 4.0], dtype=torch.float64))
    expert = clipped(features, transition=RandomWalk(0.01), most_deviations=2.0)
    with torch.no_grad():
        _, predicted = expert.update(expert.init(), X, y)
    rows = features(X).detach().numpy().reshape(-1, 60, 3)[0]  # both experts have the same
    for m, prior in enumerate([1.0, 4.0]):
        mean, covariance = np.zeros(3), prior * np.eye(3)
        for t, phi in enumerate(rows):
            covariance = covariance + 0.01 * np.eye(3)
            center, variance = phi @ mean, phi @ covariance @ phi + 0.5
            np.testing.assert_allclose([predicted.mean[m, t], predicted.variance[m, t]], [center, variance], rtol=1e-9)
            if t != 5:
                expected = stats.norm.logpdf(float(y[t]), center, np.sqrt(variance))
                np.testing.assert_allclose(predicted.log_prob[m, t], expected, rtol=1e-9)
                gain, edge = covariance @ phi / variance, 2 * np.sqrt(variance)
                mean = mean + gain * np.clip(float(y[t]) - center, -edge, edge)
                covariance = covariance - np.outer(gain, phi @ covariance)


def test_the_likelihood_is_learned_by_an_expert(tmp_path, generator):
    (code,) = blocks("A new likelihood")
    expert = LaplaceExpert(
        ConstantFeatures(1, torch.tensor(4.0, dtype=torch.float64)), made(code, tmp_path).WaitingTimeLikelihood()
    )
    online = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
    y = torch.empty(400, dtype=torch.float64).exponential_(5.0, generator=generator)
    predicted = online.observe(torch.zeros(400, 1, dtype=torch.float64), y).log_prob
    z = torch.linspace(-20, 20, 20_001, dtype=torch.float64)  # before any target the latent value is N(0, 4)
    joint = z - z.exp() * y[0] + torch.distributions.Normal(0.0, 2.0).log_prob(z)
    torch.testing.assert_close(predicted[0], joint.logsumexp(0) + (z[1] - z[0]).log(), rtol=0, atol=0.01)
    best = torch.distributions.Exponential(1 / y.mean()).log_prob(y).mean()  # in hindsight
    assert float(best) - 0.02 < float(predicted[20:].mean()) < float(best) + 0.2


def test_the_weight_rule_keeps_the_contract_and_experts_can_join(tmp_path):
    code, contract, growth = blocks("A new weight rule")
    copies = [
        with_recipe("meta_learners/test_contract.py", "RULES", contract, code, tmp_path),
        with_recipe("meta_learners/test_growth.py", "RULES", growth, code, tmp_path),
    ]
    outcomes = run_contracts(copies, tmp_path)
    assert outcomes.failed == []
    assert outcomes.passed >= 12


def test_the_weight_rule_weighs_an_ensemble(tmp_path, generator):
    rule = made(blocks("A new weight rule")[0], tmp_path).TemperedAveraging(0.5)
    X = torch.randn(100, 2, generator=generator, dtype=torch.float64)
    y = X @ torch.tensor([1.0, -2.0], dtype=torch.float64)
    narrow = LinearFeatures.from_data(X, prior_variance=1e-4)
    online = OnlineEnsemble(Ensemble([GaussianExpert(narrow), GaussianExpert(LinearFeatures.from_data(X))], rule))
    predictions = online.observe(X, y)
    expected = 0.5 * predictions.experts.log_prob.cumsum(-1)[:, :-1]
    torch.testing.assert_close(predictions.log_weights[:, 1:], expected.log_softmax(0))
    with pytest.raises(ValueError, match="learning_rate"):
        type(rule)(2.0)


def test_the_config_runs_and_a_key_that_is_unknown_is_an_error(tmp_path, generator, capsys):
    (text,) = blocks("A new config", "yaml")
    assert text.startswith("# ")
    table = torch.randn(150, 3, generator=generator).tolist()
    lines = ["a,b,y", *(f"{a:.4f},{b:.4f},{a + b * b + e:.4f}" for a, b, e in table)]
    (tmp_path / "data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "new.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "wrong.yaml").write_text(text + "bases: []\n", encoding="utf-8")
    command = ["stream", str(tmp_path / "data.csv"), "--target", "y", "--warmup", "100"]
    command += ["--progress", "false", "--out", str(tmp_path / "out")]
    assert main([*command, "--config", str(tmp_path / "new.yaml")]) == 0
    assert len((tmp_path / "out" / "predictions.csv").read_text().splitlines()) == 51
    assert main([*command, "--config", str(tmp_path / "wrong.yaml")]) != 0
    assert "bases" in capsys.readouterr().err
    assert yaml.safe_load(text)["ensemble"]


def test_the_layer_is_the_same_in_blocks_and_knows_only_what_came(tmp_path, generator):
    code, use = blocks("A new layer")
    layer = made(f"{code}\n{use}", tmp_path)
    mean, y = torch.randn(2, 4, 30, generator=generator, dtype=torch.float64)  # four series
    y[1, 7] = torch.nan
    stddev, start = 0.5 + mean.abs(), layer.init_bias(y[:, 0])
    after, whole = layer.update_bias(start, mean, stddev, y)
    state, parts = start, []
    for rows in torch.arange(30).split(7):
        assert torch.equal(layer.predict_bias(state, mean[:, rows[:1]], stddev[:, rows[:1]]), whole[:, rows[:1]])
        state, part = layer.update_bias(state, mean[:, rows], stddev[:, rows], y[:, rows])
        parts.append(part)
    assert torch.equal(torch.cat(parts, dim=-1), whole)
    assert torch.equal(state.bias, after.bias)
    errors = torch.where(y.isnan(), torch.nan, (y - mean) / stddev)
    for series in range(4):
        bias = 0.0
        for number in range(30):
            expected = float(mean[series, number] + bias * stddev[series, number])
            assert float(whole[series, number]) == pytest.approx(expected, rel=1e-12)
            error = float(errors[series, number])
            bias = bias if error != error else 0.95 * bias + 0.05 * error
    changed = torch.where(torch.arange(30) < 20, y, y + 9.0)
    torch.testing.assert_close(layer.update_bias(start, mean, stddev, changed)[1][:, :21], whole[:, :21])
