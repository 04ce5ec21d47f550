"""Folders with a manifest: columns by name, never by place."""

import json

import numpy as np
import pytest

from gp_ensembles.data import load_folder
from gp_ensembles.data.folder import folder_names

CSV = "date,torque2,angle,torque1,speed\n20240101,9,0.5,1,2\n20240102,8,0.25,,3\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "arm.csv").write_text(CSV)
    (tmp_path / "holes.csv").write_text("a,b,y\n1,,2\n3,4,5\n")
    np.savez(tmp_path / "digits.npz", X=np.arange(6, dtype=np.uint8).reshape(3, 2), y=np.array([0, 1, 1]))
    np.savez(tmp_path / "odd.npz", X=np.zeros((3, 2)), y=np.zeros(2))
    np.savez(tmp_path / "infinite.npz", X=np.array([[0.0, 1.0], [0.0, np.inf]]), y=np.zeros(2))
    arm = {"name": "arm", "file": "arm.csv", "features": ["speed", "angle"], "target": "torque1"}
    digits = {"name": "digits", "file": "digits.npz", "features": "X", "target": "y"}
    entries = [
        arm,
        arm | {"name": "arm_series", "features": [], "other_targets": ["torque2"]},
        arm | {"name": "gone", "file": "gone.csv"},
        arm | {"name": "gone_digits", "file": "gone.npz", "features": "X"},
        {"name": "holes", "file": "holes.csv", "features": ["a", "b"], "target": "y"},
        {"name": "no_target", "file": "arm.csv", "features": ["speed"]},
        arm | {"name": "one_word", "features": "speed"},
        digits,
        digits | {"name": "digits_labels", "target": "label"},
        digits | {"name": "odd", "file": "odd.npz"},
        digits | {"name": "infinite", "file": "infinite.npz"},
    ]
    (tmp_path / "manifest.json").write_text(json.dumps({"datasets": entries}))
    return tmp_path


def test_columns_are_the_manifests(folder):
    table = load_folder(folder, "arm")
    assert table.feature_names == ("speed", "angle")
    assert (table.name, table.target_name) == ("arm", "torque1")
    assert table.X.tolist() == [[2.0, 0.5], [3.0, 0.25]]
    assert table.y.isnan().tolist() == [False, True]


def test_other_features_may_be_asked_for(folder):
    assert load_folder(folder, "arm", features=["torque2"]).X.tolist() == [[9.0], [8.0]]
    assert load_folder(folder, "holes", features=["a"]).X.tolist() == [[1.0], [3.0]]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("am", {}, "no data set named am; did you mean arm"),
        ("zzz", {}, "no data set named zzz; it has arm, "),
        ("arm_series", {}, r"no inputs, only targets \(others: torque2\)"),
        ("no_target", {}, "has no target"),
        ("one_word", {}, "are 'speed', not a list of column names"),
        ("digits_labels", {}, "no array label; it has X, y"),
        ("odd", {}, r"inputs \(3, 2\) and targets \(2,\)"),
        ("infinite", {}, "row 2, column 1 is not finite"),
        ("digits", {"features": ["X0"]}, "without named columns"),
        ("arm", {"features": ["angel"]}, "did you mean angle"),
    ],
)
def test_what_is_wrong_is_said(folder, name, options, message):
    with pytest.raises(ValueError, match=message):
        load_folder(folder, name, **options)


def test_what_is_not_there(folder, tmp_path_factory):
    for name in ("gone", "gone_digits"):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            load_folder(folder, name)
    with pytest.raises(FileNotFoundError, match="needs a manifest"):
        folder_names(tmp_path_factory.mktemp("bare"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"datasets": 3}', '{"datasets": [{}]}', '{"datasets": ["arm"]}'])
def test_malformed_manifests(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match="not a manifest"):
        folder_names(tmp_path)


@pytest.mark.parametrize(
    "name", ["airfoil_raw", "airline_passengers", "brent_oil", "mcycle", "trump_approval", "usps_0to4", "water_flow"]
)
def test_shared_sets_agree_with_their_manifest(shared, name):
    folder = shared / "data"
    entries = json.loads((folder / "manifest.json").read_text())["datasets"]
    (entry,) = (entry for entry in entries if entry["name"] == name)
    table = load_folder(folder, name)
    assert table.X.shape == (entry["rows"], entry["n_features"])
    assert float(table.y.mean()) == pytest.approx(entry["checks"]["target_mean"], rel=1e-9)
    assert float(table.y.min()) == entry["checks"]["target_min"]
    if entry["format"] == "csv.gz":
        assert list(table.feature_names) == entry["features"]
