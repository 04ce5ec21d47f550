"""The programs of ``examples``, run as they are: on one process, on two, and killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = str(ROOT / "examples" / "series_on_devices.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


@pytest.fixture
def table(tmp_path):
    """Rows of five series in turn; one comes late."""
    rng = np.random.default_rng(0)
    names = [f"meter {number}" for number in range(4)] * 150
    names[400::7] = ['the "late" one, too'] * len(names[400::7])
    x = rng.normal(size=len(names))
    level = np.array([sum(map(ord, name)) % 97 for name in names])
    frame = pd.DataFrame({"x": x, "meter": names, "load": level + np.sin(2 * x) + 0.1 * rng.normal(size=len(names))})
    frame.loc[33, "load"] = np.nan
    path = tmp_path / "meters.csv"
    frame.to_csv(path, index=False)
    return path


def words(table, out) -> list[str]:
    rest = ["--series", "meter", "--target", "load", "--out", str(out), "--config", "configs/oe_linear.yaml"]
    return [PROGRAM, str(table), *rest, "--first", "240", "--warmup", "30", "--batch", "50", "--seconds", "0"]


def run(*command) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)


def predictions(out) -> pd.DataFrame:
    parts = [pd.read_csv(path) for path in sorted(out.glob("*/predictions.csv"))]
    return pd.concat(parts).sort_values("row", ignore_index=True)


@pytest.mark.slow
def test_two_processes_say_what_one_says_and_go_on_where_one_was_killed(table, tmp_path):
    done = run(sys.executable, *words(table, tmp_path / "one"))
    assert done.returncode == 0, done.stderr
    assert "600/600" in done.stderr
    alone = predictions(tmp_path / "one")
    assert alone["row"].tolist() == list(range(1, 601))
    assert alone["mean"].notna().sum() > 400
    ranked = os.environ | {"RANK": "1", "WORLD_SIZE": "2"}
    killed = subprocess.Popen([sys.executable, *words(table, tmp_path / "two")], env=ranked, cwd=ROOT)
    while not (tmp_path / "two" / "1-of-2" / "fleet" / "fleet.pt").exists():
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    (tmp_path / "two" / "0-of-2" / "fleet").mkdir(parents=True)  # the other was killed in its first save
    done = run(*TORCHRUN, "2", *words(table, tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["0-of-2", "1-of-2"]
    shares = [set(pd.read_csv(path)["series"]) for path in (tmp_path / "two").glob("*/predictions.csv")]
    assert all(shares)
    assert not set.intersection(*shares)
    pd.testing.assert_frame_equal(predictions(tmp_path / "two"), alone, rtol=1e-6, atol=1e-6)
