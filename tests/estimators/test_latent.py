"""EnsembleGPLVM: the conventions of scikit-learn, and the same numbers as the model behind it."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from gp_ensembles.papers.gplvm import IEGPLVM, LatentSettings
from gp_ensembles.papers.gplvm.presets import rbf_features
from gp_ensembles.papers.gplvm.transformer import EnsembleGPLVM

WARMUP = 20


QUICK = LatentSettings(batch_iterations=15, row_iterations=20)


@dataclass(frozen=True)
class Small:
    """A cheap model; a record, because its name must not hold an address that differs between workers."""

    dtype: torch.dtype = torch.float64
    variances: tuple[float, ...] = (0.5, 2.0)

    def __call__(self, num_outputs, num_latent, num_frequencies, *, settings, generator):
        features = rbf_features(
            num_latent, num_frequencies, variances=self.variances, generator=generator, dtype=self.dtype
        )
        return IEGPLVM(features, num_outputs, settings=settings)


small = Small()


def table(num_rows=60, seed=0):
    """Five entries that are smooth functions of two hidden numbers, and a column that never changes, in the middle."""
    rng = np.random.default_rng(seed)
    u, v = rng.uniform(-1, 1, size=(2, num_rows))
    X = np.column_stack([u, v, np.full(num_rows, 7.0), np.sin(2 * u), np.cos(2 * v), u * v])
    return 5 + X + 0.01 * rng.normal(size=X.shape) * (np.arange(6) != 2)


def door(**given):
    start = {"warmup": WARMUP, "num_frequencies": 15, "preset": small, "settings": QUICK, "random_state": 0}
    return EnsembleGPLVM(**{**start, **given})


@pytest.fixture(scope="module")
def learned():
    """An estimator that has learned the table, not to be changed."""
    return door().fit(table())


light = QUICK._replace(batch_iterations=5)


@pytest.mark.slow
@parametrize_with_checks(
    [EnsembleGPLVM(warmup=WARMUP, block_size=10, num_frequencies=5, settings=light, random_state=0)]
)
def test_conventions(estimator, check):
    check(estimator)


def model_behind(preset, X, random_state, num_frequencies):
    """The rows without the column that never changes, and the model that has learned them."""
    seed = int(np.random.RandomState(random_state).randint(2**31 - 1))
    behind = preset(5, 2, num_frequencies, settings=QUICK, generator=torch.Generator().manual_seed(seed))
    rows = torch.from_numpy(X[:, [0, 1, 3, 4, 5]]).to(behind.omega)
    behind.start(rows[:WARMUP])
    behind.update(rows[WARMUP:])
    return rows, behind


def test_equals_the_model_behind_it():
    X = table()
    model = door(random_state=3).fit(X)
    rows, behind = model_behind(small, X, 3, 15)
    expected = behind.transform(rows).by_expert[behind.best_expert]
    np.testing.assert_array_equal(model.transform(X), expected.numpy())
    back = behind.inverse_transform(expected, torch.full((len(X),), behind.best_expert))
    mean, std = model.inverse_transform(expected.numpy(), return_std=True)
    np.testing.assert_allclose(mean[:, [0, 1, 3, 4, 5]], back.mean)
    np.testing.assert_allclose(std[:, [0, 1, 3, 4, 5]], back.variance.sqrt())
    assert np.all(mean[:, 2] == 12.0)
    assert np.all(std[:, 2] == 0.0)
    assert np.abs(mean - X).max() < 0.2
    np.testing.assert_allclose(model.expert_weights_.sum(), 1.0)


def test_gaps_are_embedded_from_the_rest_and_filled():
    X = table()
    gaps = X.copy()
    gaps[5, 0] = gaps[40, 3] = gaps[50, 2] = np.nan  # one in the rows to start from: that row waits its turn
    model = door().fit(gaps)
    filled = model.impute(gaps)
    seen = ~np.isnan(gaps)
    np.testing.assert_array_equal(filled[seen], gaps[seen])
    assert np.abs(filled - X).max() < 0.2
    assert np.isfinite(model.transform(gaps)).all()
    streamed = door()
    assert np.isfinite(streamed.partial_fit_transform(gaps)).all()


def test_until_there_are_enough_rows_it_says_how_many_there_are():
    X = table()
    model = door().partial_fit(X[:15])
    with pytest.raises(NotFittedError, match=f"15 of the {WARMUP} complete rows"):
        model.transform(X)
    assert np.isfinite(model.partial_fit_transform(X[15:30])).all()
    model.fit(X[:18])  # makes do with fewer
    assert model.transform(X).shape == (60, 2)


def test_pickle_clone_pipeline_and_names():
    X = table()
    model = make_pipeline(StandardScaler(), door()).fit(X)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_array_equal(clone(model).fit_transform(X), model.transform(X))
    assert list(model[-1].get_feature_names_out()) == ["ensemblegplvm0", "ensemblegplvm1"]
    assert door(preset=Small(torch.float32)).fit_transform(X).dtype == np.float64


def test_bad_input_changes_nothing(learned):
    X = table()
    model = learned
    waiting = door().partial_fit(X[:10])
    before = model.transform(X)
    empty, infinite = X.copy(), X.copy()
    empty[4], infinite[4, 1] = np.nan, np.inf
    for one in (model, waiting):
        for bad, words in ((empty, "row 4 of"), (infinite, "infinity"), (X[:, :3], "features")):
            with pytest.raises(ValueError, match=words):
                one.partial_fit(bad)
    with pytest.raises(ValueError, match="vary"):
        model.fit(np.ones((40, 3)))
    np.testing.assert_array_equal(model.transform(X), before)
    np.testing.assert_array_equal(waiting.partial_fit(X[10:]).transform(X), before)
    only_constant, gaps = X.copy(), np.where(np.arange(6) == 2, np.nan, table(200))
    only_constant[50, [0, 1, 3, 4, 5]] = np.nan
    for learn, bad, words in (
        (model.inverse_transform, np.zeros((3, 1)), r"shape \(N, 2\)"),
        (model.inverse_transform, np.zeros(2), "X must have shape"),
        (door().fit, np.column_stack([np.ones((40, 2)), np.arange(40.0)]), "of which 1 vary in the 20 rows"),
        (door(n_components=1).fit, gaps[:60], r"0 rows of 60 are complete.*column 2 is missing in 100%"),
        (door().partial_fit, gaps, r"of 200 rows only 0 are complete, and 20 are needed.*column 2 is missing"),
        (door().fit, only_constant, "row 50 of X has no observed entry besides constant columns"),
    ):
        with pytest.raises(ValueError, match=words):
            learn(bad)


def test_parameters_out_of_range_are_named():
    wrong = {"warmup": (-5, None, 10.5), "n_components": (0, 1.5), "block_size": (0,), "num_frequencies": (0,)}
    for name, value, learn in [(n, v, f) for n, some in wrong.items() for v in some for f in ("fit", "partial_fit")]:
        with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1"):
            getattr(door(**{name: value}), learn)(table())


def test_coordinates_stay_in_one_space_until_the_user_changes_it():
    X = table(300, seed=2)
    made, preset = [], Small(variances=(0.25, 0.5, 1.0, 2.0))

    def making(*arguments, **options):
        made.append(preset(*arguments, **options))
        return made[-1]

    model = door(preset=making, warmup=20, block_size=5)
    places = [model.partial_fit_transform(X[start : start + 20]) for start in range(0, 300, 20)]
    (behind,) = made
    assert behind.best_expert != model.expert_, "rows that came later have not spoken for another expert"
    np.testing.assert_allclose(model.inverse_transform(np.concatenate(places))[40:], X[40:], atol=0.35)
    chosen = model.choose_expert()
    assert chosen.expert_ == behind.best_expert
    kept = torch.from_numpy(X[:, [0, 1, 3, 4, 5]])
    np.testing.assert_array_equal(chosen.transform(X), behind.transform(kept).by_expert[chosen.expert_])
