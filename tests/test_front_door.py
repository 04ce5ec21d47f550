"""``import gp_ensembles``: cheap, lazy, and every name that its stub tells type checkers exists."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gp_ensembles as gpe
from tests.refusals import refused

STUB = Path(gpe.__file__).with_suffix(".pyi")


def exported() -> dict[str, str]:
    """Names of the stub, and where each comes from."""
    found = {}
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert alias.asname == alias.name, "a stub exports what is imported as itself"
                found[alias.name] = f"gp_ensembles.{node.module}" if node.module else "gp_ensembles"
    return found


def test_every_name_is_there_and_is_what_the_stub_says():
    names = exported()
    assert set(names) == set(gpe.__all__) <= set(dir(gpe))
    assert len(names) <= 41
    for name, module in names.items():
        if module == "gp_ensembles":
            assert getattr(gpe, name) is importlib.import_module(f"gp_ensembles.{name}")
        else:
            assert getattr(gpe, name) is getattr(importlib.import_module(module), name)


def test_nothing_is_loaded_before_it_is_used():
    program = (
        "import sys, gp_ensembles\n"
        "heavy = {'torch', 'gpytorch', 'botorch', 'sklearn', 'scipy', 'matplotlib', 'pandas', 'river'}\n"
        "print(sorted(heavy & set(sys.modules)), gp_ensembles.__version__)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == f"[] {gpe.__version__}\n"


HEAVY = "print(sorted({'botorch', 'sklearn', 'matplotlib', 'pandas', 'river'} & set(sys.modules)))\n"


def test_fitting_streaming_and_the_stream_command_import_nothing_heavy(tmp_path):
    """An ensemble without trees, its fit, and a stream; then the same by the command."""
    rows = "".join(f"{0.1 * row:.1f},{(0.1 * row) ** 2:.2f}\n" for row in range(30))
    (tmp_path / "table.csv").write_text("x,y\n" + rows)
    (tmp_path / "small.yaml").write_text(
        "ensemble:\n  like: oebe\n  bases: [LinearBasis]\n  fit_settings: {num_samples: 1}\n"
    )
    program = (
        "import dataclasses, sys, torch\n"
        "import gp_ensembles as gpe\n"
        "from gp_ensembles.ensembles.build import FitSettings\n"
        "from gp_ensembles.experts import LBFGS\n"
        "spec = dataclasses.replace(gpe.light, fit_settings=FitSettings(LBFGS(max_iterations=2), num_samples=1))\n"
        "X = torch.linspace(-1, 1, 30, dtype=torch.float64).unsqueeze(-1)\n"
        "y = (X + (9 * X).sin()).squeeze(-1)\n"
        "online = spec.fit(X[:20], y[:20], generator=torch.Generator().manual_seed(0))\n"
        "assert isinstance(online, gpe.OnlineEnsemble)\n"
        "online.observe(X[20:], y[20:])\n"
        "online.predict(X[:2])\n"
    )
    command = (
        "from gp_ensembles.cli.__main__ import main\n"
        "options = '--target y --config small.yaml --warmup 12 --out out --progress false'\n"
        "assert main(['stream', 'table.csv', *options.split()]) == 0\n"
    )
    call = [sys.executable, "-c", program + HEAVY + command + HEAVY]
    done = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, check=True)
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("[]", "[]")


X, y = torch.arange(6, dtype=torch.float64).unsqueeze(-1), torch.ones(6, dtype=torch.float64)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: gpe.marginalize(X, y),
            r"must be .* RegressionProblem\(X, y\), got Tensor of shape \(6, 1\)",
        ),
        (lambda: gpe.fit_fusion(X, y), "model must be an object such as HetGP"),
        (lambda: gpe.select_knots(X, y, strategy="vfe"), r"strategy must be .* AdaptiveKnots\(\), got 'vfe'"),
        (lambda: gpe.select_knots(X, y, 10), "kernel must be an object such as ScaleKernel"),
        (lambda: gpe.ie_gplvm(X), "num_outputs must be an integer, the number of columns, got Tensor of shape"),
        (
            lambda: gpe.RiverRegressor().learn_one([1, 2], 3.0),
            r"x must be .* \{'load': .*\}, got \[1, 2\]",
        ),
    ],
)
def test_what_is_put_in_the_wrong_place_is_named(call, text):
    refused(TypeError, text, call)
