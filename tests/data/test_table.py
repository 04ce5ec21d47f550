"""The CSV reader: exact values, and one clear sentence for each way a file can be wrong."""

import gzip
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gp_ensembles.data import read_csv

GOOD = "time,load,price\n0,1.5,7\n1,,8\n2,2.25,9e-3\n"


def written(folder, text, name="small.csv"):
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_bytes(text.encode())
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


def test_features_come_in_the_order_asked_for(tmp_path):
    path = written(tmp_path, GOOD)
    assert read_csv(str(path), "load", ["price", "time"]).X[0].tolist() == [7.0, 0.0]
    assert read_csv(path, "load", ["price"]).X.shape == (3, 1)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", "\n\n"),
        GOOD.rstrip("\n"),
        GOOD.replace(",", " , "),
        GOOD.replace("1,,8", "1,NaN,8"),
        '"time","load","price"\n"0","1.5","7"\n1,"",8\n2,2.25,9e-3\n',
    ],
)
def test_harmless_differences_do_no_harm(tmp_path, text):
    table, plain = (read_csv(written(tmp_path, t), "load") for t in (text, GOOD))
    torch.testing.assert_close(table.X, plain.X, rtol=0, atol=0)
    torch.testing.assert_close(table.y, plain.y, rtol=0, atol=0, equal_nan=True)
    assert table.feature_names == plain.feature_names


@pytest.mark.parametrize(
    ("text", "target", "features", "message"),
    [
        ("", "load", None, "is empty"),
        ("\n\n", "load", None, "is empty"),
        ("time,load\n", "load", None, "no data rows"),
        (GOOD, "laod", None, "no column named laod; did you mean load.*columns are time, load, price"),
        (GOOD, "zzz", None, "columns are time, load, price"),
        (GOOD, "load", ["tme"], "no column named tme; did you mean time"),
        (GOOD, "load", ["time", "load"], "target load is also among the features"),
        (GOOD, "load", ["time", "time"], "named twice"),
        (GOOD, "load", [], "no input column"),
        ("load\n1\n", "load", None, "no input column"),
        ("time,load\n1,2\n3\n", "load", None, r"data row 2 \(line 3\): 1 cells under 2"),
        ("time,load\n1,2\n3,4,5\n", "load", None, r"data row 2 \(line 3\): 3 cells under 2"),
        ("time,load\n-inf,2\n", "load", None, r"data row 1 \(line 2\), column time: the input is infinite"),
        ("time,load\n1,2\n1,inf\n", "load", None, r"data row 2 \(line 3\), column load: the target is infinite"),
        (
            "time,load\n" + "1,2\n" * 19 + "Monday,3\n",
            "load",
            None,
            r"data row 20 \(line 21\), column time: 'Monday' is not a number",
        ),
        (
            "time,load\n" + "202404,2\n" * 19 + "2024_05,3\n",
            "load",
            None,
            r"data row 20 \(line 21\), column time: '2024_05' is not a number",
        ),
        ("time,load\n1,high\n", "load", None, r"data row 1 \(line 2\), column load: the target 'high' is not a number"),
        (
            "time,load\n1,no\n2,yes\n",
            "load",
            None,
            r"text with 2 values in the first 2 rows \(no, yes\): for classification",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, target, features, message):
    with pytest.raises(ValueError, match=message):
        read_csv(written(tmp_path, text), target, features)


def test_true_and_false_are_targets_in_any_case(tmp_path):
    table = read_csv(written(tmp_path, "time,load\n0,true\n1,FALSE\n2,\n3, False \n4,1\n"), "load")
    assert table.y[[0, 1, 3, 4]].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert math.isnan(table.y[2])
    assert table.source.has_words
    assert not read_csv(written(tmp_path, GOOD), "load").source.has_words


def test_a_table_knows_the_lines_of_its_rows(tmp_path):
    path = written(tmp_path, "\n\ntime,load\n\n1,2\n\n\n3,4\n")
    table = read_csv(path, "load")
    assert table.source.lines.tolist() == [5, 8]
    assert table.where(1) == f"{path}, data row 2 (line 8)"


def test_lines_are_those_of_the_file(tmp_path):
    path = written(tmp_path, '\n\n"time",load\n\n' + "1,2\n\n\n" * 10 + "red,2\n")
    with pytest.raises(ValueError, match=r"data row 11 \(line 35\), column time: 'red'"):
        read_csv(path, "load")


def test_missing_inputs_are_kept_and_what_is_no_number_is_encoded(tmp_path):
    text = "day,on,site,load,site\n2024-01-01,true,a,1,x\n2024-01-02,,b,2,y\n2024-01-03,false,,3,y\n"
    table = read_csv(written(tmp_path, text), "load")
    assert table.feature_names == ("day: days", "on", "site=a", "site=b", "site.2=x", "site.2=y")
    assert table.X.nan_to_num(-1.0).tolist() == [
        [0.0, 1.0, 1.0, 0.0, 1.0, 0.0],
        [1.0, -1.0, 0.0, 1.0, 0.0, 1.0],
        [2.0, 0.0, -1.0, -1.0, 0.0, 1.0],
    ]


def test_other_dialects_are_read_too(tmp_path):
    german = GOOD.replace(",", ";").replace("1.5", "1,5").replace("2.25", "2,25").replace("9e-3", "0,009")
    table, plain = (read_csv(written(tmp_path, t), "load") for t in (german, GOOD))
    assert torch.equal(table.X, plain.X)
    assert table.y[[0, 2]].tolist() == [1.5, 2.25]


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_csv(tmp_path / "absent.csv", "load")
    with pytest.raises(FileNotFoundError, match="a folder"):
        read_csv(tmp_path, "load")


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
    with pytest.raises(ValueError, match="not a text table"):
        read_csv(tmp_path / name, "load")


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    rows=st.lists(st.tuples(finite, finite, st.none() | finite), min_size=1, max_size=8),
    target=st.sampled_from([0, 1, 2]),
)
def test_a_table_survives_the_way_through_a_file(tmp_path_factory, rows, target):
    path = tmp_path_factory.mktemp("round") / "table.csv"
    names = ["a", "b"]
    names.insert(target, "y")
    cells = []
    for a, b, y in rows:
        row = [repr(a), repr(b)]
        row.insert(target, "" if y is None else repr(y))
        cells.append(",".join(row))
    path.write_text("\n".join([",".join(names), *cells]))
    table = read_csv(path, "y")
    assert table.X.tolist() == [[a, b] for a, b, _ in rows]
    assert [None if math.isnan(y) else y for y in table.y.tolist()] == [y for *_, y in rows]
