"""OpenML through a fetcher that never leaves the house."""

import urllib.error

import numpy as np
import pytest

from gp_ensembles.data import load_openml

datasets = pytest.importorskip("sklearn.datasets")
Bunch = pytest.importorskip("sklearn.utils").Bunch


class Sparse:
    def __init__(self, array):
        self.array = array

    def toarray(self):
        return self.array


@pytest.fixture
def answers(monkeypatch):
    """Let the fetcher answer (or raise) what a test says; returns what it was asked."""
    asked = []

    def set_answer(data, target=None, error=None, categories=None):
        def fetch(**options):
            asked.append(options)
            if error is not None:
                raise error
            names = [f"c{j}" for j in range(data.shape[1])]
            return Bunch(data=data, target=np.asarray(target), feature_names=names, categories=categories)

        monkeypatch.setattr(datasets, "fetch_openml", fetch)
        return asked

    return set_answer


X = np.array([[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize("data", [X, X.astype(object), Sparse(X)], ids=["floats", "objects", "sparse"])
def test_a_set_becomes_a_table(answers, tmp_path, data):
    if isinstance(data, Sparse):
        data.shape = X.shape
    asked = answers(data, ["5", "nan"])
    table = load_openml(189, "y", cache=tmp_path)
    assert table.X.tolist() == X.tolist()
    assert table.y[0] == 5.0
    assert table.y.isnan().tolist() == [False, True]
    assert (table.feature_names, table.target_name, table.name) == (("c0", "c1"), "y", "openml_189")
    assert asked[0]["data_home"] == str(tmp_path)
    assert (asked[0]["data_id"], asked[0]["target_column"]) == (189, "y")


@pytest.mark.parametrize("error", [urllib.error.URLError("no route"), TimeoutError("slow"), ConnectionResetError()])
def test_without_a_network(answers, tmp_path, error):
    answers(X, error=error)
    with pytest.raises(ConnectionError, match=r"OpenML set 189 is not in .* fetch it once with a network"):
        load_openml(189, "y", cache=tmp_path)


@pytest.mark.parametrize(
    ("data", "target", "message"),
    [
        (np.array([[1.0, 2.0], [3.0, np.nan]]), [1, 2], "row 2, column c1: the input is missing"),
        (np.array([["1", "red"], ["2", "blue"]], dtype=object), [1, 2], "an input of OpenML set 189 is not numeric"),
        (X, ["yes", "no"], "the target y is not numeric"),
        (X, [1.0, np.inf], "target y is infinite"),
    ],
)
def test_what_is_wrong_is_said(answers, tmp_path, data, target, message):
    answers(data, target)
    with pytest.raises(ValueError, match=message):
        load_openml(189, "y", cache=tmp_path)


def test_categories_are_not_taken_for_numbers(answers, tmp_path):
    answers(X, [1, 2], categories={"c1": ["red", "blue"], "y": ["no", "yes"]})
    with pytest.raises(ValueError, match="inputs of OpenML set 189 are categories, not numbers: c1;"):
        load_openml(189, "y", cache=tmp_path)
    answers(X, ["1", "2"], categories={"y": ["1", "2"]})
    assert load_openml(189, "y", cache=tmp_path).y.tolist() == [1.0, 2.0]
