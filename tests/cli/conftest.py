"""Small tables and configs for the command line."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

CONFIG = """\
ensemble:
  like: e_doebe
  bases: [LinearBasis, {PolynomialBasis: {orders: [2]}}]
  random_walk_variances: [0.001]
  fit_settings: {method: {LBFGS: {max_iterations: 8}}, num_samples: 1}
"""


def write_table(path: Path, rows: list[list[object]], header: tuple[str, ...] = ("a", "b", "y")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def make_rows(num_rows: int = 700) -> list[list[object]]:
    """Two inputs and a target that bends and drifts, far from standardized."""
    generator = torch.Generator().manual_seed(7)
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    drift = torch.linspace(0, 2, num_rows, dtype=torch.float64)
    noise = torch.randn(num_rows, generator=generator, dtype=torch.float64)
    y = 50 + 8 * X[:, 0] + 3 * X[:, 1] ** 2 + drift + noise
    return [[f"{v:.6f}" for v in (*x, t)] for x, t in zip((X * 4 + 10).tolist(), y.tolist(), strict=True)]


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="session")
def small() -> SimpleNamespace:
    """How tests of the command line make and read small files."""
    return SimpleNamespace(config=CONFIG, write=write_table, rows=make_rows, read=read_rows)


@pytest.fixture
def refused(capsys):
    """Check that a command has ended with status 2 and told why."""

    def check(status: int, words: str) -> None:
        assert status == 2
        assert words in capsys.readouterr().err

    return check
