"""The count of BoTorch's own tests, of a suite of three."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import unittest
import torch
from botorch.models import SingleTaskGP

X = torch.rand(4, 1).double()


class TestModels(unittest.TestCase):
    def test_parts(self):
        for name in ("posterior", "mean_module", "likelihood"):
            with self.subTest(name):
                self.assertTrue(hasattr(SingleTaskGP(X, X), name))

    def test_whole(self):
        self.assertEqual(SingleTaskGP(X, X).num_outputs, 1)

    def test_of_another_version(self):
        self.assertTrue(hasattr(SingleTaskGP(X, X), "what_it_never_had"))

    @unittest.skip("a GPU")
    def test_skipped(self):
        pass
"""


@pytest.mark.slow
@pytest.mark.skipif(int(pytest.__version__.split(".")[0]) < 9, reason="pytest reports subtests from version 9 on")
def test_tests_and_subtests_are_counted_with_either_class(tmp_path):
    (tmp_path / "test_models.py").write_text(SUITE)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "benchmarks.botorch_suite", "--tests", str(tmp_path), "--out", str(out)]
    root = Path(__file__).resolve().parents[1]
    printed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    assert "of 6 tests and subtests 5 hold with SingleTaskGP, 3 with" in printed
    found = json.loads((out / "summary.json").read_text())
    # three functions and three subtests; a function fails with its subtest
    wanted = {"checks": 6, "rival": 5, "ours": 3, "both": 3, "built": 2, "kept": 1}
    assert {name: found[name] for name in wanted} == wanted
    failed = sorted(name for tests in found["failed"].values() for name in tests)
    assert failed == [f"test_models.py::TestModels::test_parts{end}" for end in ("", " [1]")]
