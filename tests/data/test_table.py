"""The CSV reader: exact values, and one clear sentence for each way a file can be wrong."""

import gzip
import math

import pytest
import torch

from gp_ensembles.data import read_csv
from tests.refusals import refused

GOOD = "time,load,price\n0,1.5,7\n1,,8\n2,2.25,9e-3\n"


def written(folder, text, name="small.csv"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["small.csv", "small.csv.gz"])
def test_exact_values(tmp_path, name, wrong_default_dtype):
    table = read_csv(written(tmp_path, GOOD, name), "load")
    assert table.feature_names == ("time", "price")
    assert (table.target_name, table.name) == ("load", "small")
    assert table.X.dtype == table.y.dtype == torch.float64
    assert table.X.tolist() == [[0.0, 7.0], [1.0, 8.0], [2.0, 0.009]]
    assert table.y[[0, 2]].tolist() == [1.5, 2.25]
    assert math.isnan(table.y[1])
    assert table.X.is_contiguous()


@pytest.mark.parametrize(
    ("text", "target", "features", "message"),
    [
        (GOOD, "laod", None, "no column named laod; did you mean load.*columns are time, load, price"),
        (GOOD, "zzz", None, "columns are time, load, price"),
        (GOOD, "load", ["tme"], "no column named tme; did you mean time"),
        (GOOD, "load", ["time", "load"], "target load is also listed in the features"),
        (GOOD, "load", ["time", "time"], "named twice"),
        (GOOD, "load", [], "no input column"),
        ("load\n1\n", "load", None, "no input column"),
        ("\n\n", "load", None, "is empty"),
        ("time,load\n1,2\n3\n", "load", None, r"data row 2 \(line 3\): 1 cells but 2"),
        ("time,load\n" + "202404,2\n" * 19 + "2024_05,3\n", "load", None, "column time: '2024_05' is not a number"),
        ("time,load\n1,high\n", "load", None, r"data row 1 \(line 2\), column load: the target 'high' is not a number"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, target, features, message):
    refused(ValueError, message, lambda: read_csv(written(tmp_path, text), target, features))


def test_true_and_false_are_targets_in_any_case(tmp_path):
    table = read_csv(written(tmp_path, "time,load\n0,true\n1,FALSE\n2,\n3, False \n4,1\n"), "load")
    assert table.y[[0, 1, 3, 4]].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert math.isnan(table.y[2])


def test_files_that_are_not_there(tmp_path):
    refused(FileNotFoundError, "does not exist", lambda: read_csv(tmp_path / "absent.csv", "load"))
    refused(FileNotFoundError, "a folder", lambda: read_csv(tmp_path, "load"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bytes.csv", b"time,load\n\x00\x01\xfe,1\n"),
        ("short.csv.gz", gzip.compress(GOOD.encode(), mtime=0)[:-10]),
        ("broken.csv.gz", gzip.compress(GOOD.encode(), mtime=0)[:10] + b"\xff" * 30),
    ],
)
def test_files_that_are_no_text(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    refused(ValueError, "not a text table", lambda: read_csv(tmp_path / name, "load"))
