"""scikit-learn's conventions, and the same numbers as the model behind them."""

import itertools
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from gp_ensembles.ensembles import targets
from gp_ensembles.ensembles.bases import LinearBasis, RadialBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import e_doebe
from gp_ensembles.estimators.scikit_learn import OnlineClassifier, OnlineRegressor
from gp_ensembles.estimators.targets import is_sorted
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.meta_learners import FixedShare
from gp_ensembles.streaming.columns import Standardizer
from gp_ensembles.streaming.input_states import InputRange
from tests.refusals import refused

small = replace(
    e_doebe,
    bases=(LinearBasis(), RadialBasis(num_centers=10, starts=(0.7,))),
    fit_settings=FitSettings(num_samples=1),
    random_walk_variances=(1e-3,),
)


def table(num_rows=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, 3)) * [1.0, 10.0, 0.1] + [0.0, 100.0, 5.0]
    return X, 50 + 3 * np.sin(X[:, 0]) + 0.2 * X[:, 1] + 0.1 * rng.normal(size=num_rows)


# scikit-learn's checks fit dozens of tiny tables: one basis and few steps.
light = replace(
    small, bases=(LinearBasis(),), fit_settings=FitSettings(LBFGS(max_iterations=5), num_samples=1), name="light"
)


@parametrize_with_checks([OnlineRegressor(light, warmup=60, random_state=0)])
def test_conventions(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        OnlineRegressor(replace(light, target=targets.UnknownNoiseTarget()), warmup=60, random_state=0),
        OnlineClassifier(light, warmup=60, random_state=0),
        OnlineClassifier(replace(light, target=targets.LevelTarget(3)), warmup=60, random_state=0),
    ]
)
def test_conventions_of_others(estimator, check):
    check(estimator)


def test_equals_the_ensemble_behind_it():
    X, y = table()
    model = OnlineRegressor(small, warmup=60, random_state=3).fit(X, y)
    mean, std = model.predict(X[:20], return_std=True)
    rows, targets = torch.from_numpy(X), torch.from_numpy(y)
    standardizer = Standardizer.fit(rows[:60], targets[:60])
    warm, stream = standardizer.transform(rows[:60], targets[:60]), standardizer.transform(rows[60:], targets[60:])
    seed = int(np.random.RandomState(3).randint(2**31 - 1))
    online = small.fit(*warm, generator=torch.Generator().manual_seed(seed))
    online.observe(InputRange.of(warm[0]).follow(stream[0])[1], stream[1])
    inputs = InputRange.of(warm[0]).follow(stream[0])[0].limit(standardizer.transform_inputs(rows[:20]))
    mixture = online.predict(inputs)
    ahead = model.model_.predict(rows[:20])
    np.testing.assert_allclose(ahead.base.mean, standardizer.inverse_mean(mixture.mean), rtol=1e-9)
    np.testing.assert_allclose(ahead.base.stddev, standardizer.y_scale * mixture.stddev, rtol=1e-9)
    np.testing.assert_array_equal(mean, ahead.mean)
    np.testing.assert_array_equal(std, ahead.stddev)
    assert model.score(X[60:], y[60:]) > 0.9
    assert sum(model.expert_weights_.values()) == pytest.approx(1.0)


def test_before_the_warm_up_it_predicts_the_running_mean():
    X, y = table()
    model = OnlineRegressor(small, warmup=60).partial_fit(X[:20], y[:20])
    mean, std = model.predict(X[:2], return_std=True)
    np.testing.assert_allclose(mean, y[:20].mean())
    np.testing.assert_allclose(std, y[:20].std(ddof=1))
    assert model.expert_weights_ == {}


def test_intervals():
    X, y = table()
    model = OnlineRegressor(small, warmup=60, random_state=0).fit(X, y)
    low, high = model.predict_interval(X[:30])
    for end, wanted in zip((low, high), model.model_.predict_interval(torch.from_numpy(X[:30])), strict=True):
        np.testing.assert_array_equal(end, wanted.numpy())
    assert model.model_.interval_levels() != (0.05, 0.95)  # they have learned
    low, high = model.predict_interval(X[:30], 0.6)
    np.testing.assert_array_equal(np.stack([low, high]), model.predict_quantiles(X[:30], [0.2, 0.8]))
    refused(ValueError, "above 0 and below 1", lambda: model.predict_interval(X, 1.0))
    both = OnlineRegressor(small, warmup=60, random_state=0).fit(X, np.column_stack([y, -y]))
    assert both.predict_interval(X[:7])[0].shape == (7, 2)


def test_pickle_clone_and_pipeline():
    X, y = table()
    model = make_pipeline(StandardScaler(), OnlineRegressor(small, warmup=60, random_state=0)).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(clone(model).fit(X, y).predict(X), model.predict(X))


def test_bad_input_changes_nothing():
    X, y = table()
    model = OnlineRegressor(small, warmup=60, random_state=0, on_bad_row="refuse").fit(X, y)
    before = model.predict(X)
    refused(ValueError, "shape", lambda: model.partial_fit(X, y[:-1]))
    infinite = X.copy()
    infinite[3, 1] = np.inf
    for learn, bad, words in (
        (model.partial_fit, (infinite, y), "infinite"),
        (model.partial_fit, (X[:, :2], y), "features"),
        (model.partial_fit, (X, y + np.inf), "inf"),
        (model.log_prob, (X[:5], y[:1]), "shape"),
    ):
        with pytest.raises(ValueError, match=words):
            learn(*bad)
    missing = np.where(np.isinf(infinite), np.nan, infinite)
    lenient, same = (OnlineRegressor(small, warmup=60, random_state=0).fit(rows, y) for rows in (infinite, missing))
    np.testing.assert_array_equal(lenient.predict(infinite), same.predict(missing))
    with pytest.warns(UserWarning, match="has not ended"), pytest.raises(ValueError, match="the target is constant"):
        model.fit(X[:, :1], np.ones(150))
    np.testing.assert_array_equal(model.predict(X), before)
    refused(ValueError, "at least 10", lambda: OnlineRegressor(small, warmup=60).fit(X[:6], y[:6]))
    refused(ValueError, "constant", lambda: OnlineRegressor(small, warmup=60).fit(np.ones((80, 2)), y[:80]))
    for text in (["low", "high"] * 40, np.array(["low"] * 80, dtype=object)):
        words = "y must be numbers .*: 'low'.*; for classes use OnlineClassifier"
        refused(ValueError, words, lambda text=text: OnlineRegressor(small).fit(X[:80], text))
    for kind, wrong in itertools.product((OnlineRegressor, OnlineClassifier), ("auto", targets.CountTarget())):
        with pytest.raises(TypeError, match="spec must be"):
            kind(wrong).fit(X, y > np.median(y))
    refused(TypeError, "warmup must be an integer", lambda: OnlineRegressor(small, warmup=None).fit(X, y))


def test_missing_inputs_are_between_the_last_value_and_the_mean():
    X, y = table()
    deviation = X[:60, 1] - X[:60, 1].mean()
    size = np.sqrt((deviation[1:] ** 2).sum() * (deviation[:-1] ** 2).sum())
    persistence = max(0.0, (deviation[1:] * deviation[:-1]).sum() / size)
    holes, filled = X.copy(), X.copy()
    holes[100:110, 1] = np.nan
    filled[100:110, 1] = X[:60, 1].mean() + persistence ** np.arange(1, 11) * (X[99, 1] - X[:60, 1].mean())
    labels = y > np.median(y)
    one, other = (OnlineClassifier(light, warmup=60, random_state=0).fit(rows, labels) for rows in (holes, filled))
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X), rtol=1e-9)
    # What replaces a number is less sure than the same number seen.
    model = OnlineRegressor(small, warmup=60, random_state=0).fit(X, y)
    row = np.array([[X[-1, 0], np.nan, *X[-1, 2:]]])
    known = row.copy()
    known[0, 1] = X[:60, 1].mean() + persistence * (X[-1, 1] - X[:60, 1].mean())
    (mean, spread), (wanted, smaller) = (model.predict(rows, return_std=True) for rows in (row, known))
    np.testing.assert_allclose(mean, wanted, rtol=1e-2)
    assert spread[0] > smaller[0]


def test_rows_in_any_order_have_no_last_value():
    """In a table sorted by an input, what is missing there is its mean, with its variance, not the last row's value."""
    X, y = table(80)
    X, y = X[X[:, 1].argsort()], y[X[:, 1].argsort()]
    model = OnlineRegressor(random_state=0).fit(X, y)
    row = np.array([[X[0, 0], np.nan, X[0, 2]], [X[0, 0], X[:, 1].mean(), X[0, 2]]])
    mean, spread = model.predict(row, return_std=True)
    np.testing.assert_allclose(mean[0], mean[1], rtol=1e-2)
    assert spread[0] > 0.7 * 0.2 * X[:, 1].std()  # the slope times what is not known


NUMBERS = (targets.RealTarget(), targets.UnknownNoiseTarget(), targets.OutlierTarget(), targets.CountTarget())


@pytest.mark.parametrize("target", NUMBERS, ids=str)
def test_every_kind_of_number(target):
    X, y = table()
    y = np.round(y) if target == targets.CountTarget() else y
    model = OnlineRegressor(replace(light, target=target), warmup=60, random_state=0).fit(X[:100], y[:100])
    model.partial_fit(X[100:], y[100:])
    mean, std = model.predict(X, return_std=True)
    low, middle, high = model.predict_quantiles(X, [0.05, 0.5, 0.95])
    assert np.all((low <= middle) & (middle <= high) & (std > 0))
    assert 0.7 < np.mean((low <= y) & (y <= high)) <= 1.0
    samples = model.sample_y(X[:20], n_samples=1000, random_state=0)
    np.testing.assert_allclose(samples.mean(1), mean[:20], atol=5 * std.max() / np.sqrt(1000))
    # The density is the slope of the distribution function, or the probability of a count.
    density = np.exp(model.log_prob(X[:5], y[:5]))
    distribution = model.model_.predict(torch.from_numpy(X[:5]))
    if target == targets.CountTarget():
        steps = [distribution.cdf(torch.from_numpy(y[:5] + k)).numpy() for k in (0, -1)]
        np.testing.assert_allclose(density, steps[0] - steps[1], atol=1e-6)
    else:
        steps = [distribution.cdf(torch.from_numpy(y[:5] + h)).numpy() for h in (1e-4, -1e-4)]
        np.testing.assert_allclose(density, (steps[0] - steps[1]) / 2e-4, rtol=1e-3, atol=1e-8)


def test_several_targets():
    X, y = table()
    both = np.column_stack([y, -0.01 * y + np.cos(X[:, 0])])
    model = OnlineRegressor(small, warmup=60, random_state=0).fit(X, both)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (150, 2)
    assert model.score(X, both) > 0.5
    assert model.predict_quantiles(X[:7], [0.1, 0.9]).shape == (2, 7, 2)
    assert model.sample_y(X[:7], n_samples=5).shape == (7, 2, 5)
    assert model.log_prob(X[:7], both[:7]).shape == (7, 2)
    _, covariance = model.predict(X[:4], return_cov=True)
    np.testing.assert_allclose(np.einsum("nno->no", covariance), std[:4] ** 2)
    with pytest.raises(TypeError, match="several targets need"):
        OnlineRegressor(replace(small, target=targets.UnknownNoiseTarget())).fit(X, both)


def test_covariance_of_rows():
    X, y = table()
    model = OnlineRegressor(small, warmup=60, random_state=0).fit(X, y)
    mean, covariance = model.predict(X[:5], return_cov=True)
    _, std = model.predict(X[:5], return_std=True)
    np.testing.assert_allclose(np.diag(covariance), std**2)
    np.testing.assert_allclose(mean, model.predict(X[:5]))
    refused(ValueError, "cannot both be true", lambda: model.predict(X, return_std=True, return_cov=True))


@pytest.mark.parametrize(
    ("spec", "labels", "kind"),
    [
        (light, ["no", "yes"], targets.BinaryTarget()),
        (light, [False, True], targets.BinaryTarget()),
        (light, [3, 7, 11], targets.ClassTarget(3)),
        (replace(light, target=targets.BinaryTarget(is_probit=True)), [-1, 1], targets.BinaryTarget(is_probit=True)),
        (replace(light, target=targets.BinaryTarget()), ["a", "b", "c"], targets.ClassTarget(3)),
        (replace(light, target=targets.LevelTarget(5)), [1, 2, 3], targets.LevelTarget(3)),
    ],
)
def test_labels_of_any_kind(spec, labels, kind):
    X, y = table()
    cuts = np.quantile(y, np.linspace(0, 1, len(labels) + 1)[1:-1])
    named = np.array(labels)[np.searchsorted(cuts, y)]
    model = OnlineClassifier(spec, warmup=60, random_state=0).fit(X[:100], named[:100])
    model.partial_fit(X[100:120], named[100:120])
    assert model.classes_.tolist() == labels
    assert model.model_.config.ensemble.target == kind
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), probabilities)
    assert np.all(model.predict(X) == model.classes_[probabilities.argmax(1)])
    assert model.score(X[120:], named[120:]) > 0.6
    assert sum(model.expert_weights_.values()) == pytest.approx(1.0)


def test_classes_are_named_before_the_first_rows():
    X, y = table()
    named = np.where(y > y.mean(), "high", "low")
    model = OnlineClassifier(light, warmup=60, random_state=0)
    refused(ValueError, "classes must be passed", lambda: model.partial_fit(X, named))
    with pytest.raises(ValueError, match="'high' is not among the classes"):
        model.partial_fit(X[:20], np.full(20, "high"), classes=["low", "middle"])
    model.partial_fit(X[:20], named[:20], classes=["low", "high", "other"])
    counts = np.array([(named[:20] == label).sum() + 1 for label in ("high", "low", "other")])
    np.testing.assert_allclose(model.predict_proba(X[:2]), np.tile(counts / counts.sum(), (2, 1)), rtol=1e-6)
    model.partial_fit(X[20:], named[20:])
    assert model.model_.is_fitted
    assert model.predict_proba(X)[:, 2].max() < 0.2
    refused(ValueError, "differ from those of the first", lambda: model.partial_fit(X, named, classes=["low", "high"]))
    refused(ValueError, "at least two classes", lambda: OnlineClassifier(light).fit(X, np.full(150, "one")))
    with pytest.raises(TypeError, match="use OnlineClassifier"):
        OnlineRegressor(replace(light, target=targets.BinaryTarget())).fit(X, y > 50)


@pytest.mark.parametrize("method", ["predict_distribution", "sample_y", "predict_interval"])
def test_a_regressor_without_a_model_says_that_it_is_not_fitted(method):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(OnlineRegressor(), method)(np.zeros((2, 1)))


def test_several_rows_predicted_from_the_last_targets_warn():
    # Between hours that were learned there are no last targets.
    rng, hours = np.random.default_rng(0), np.arange(200.0).reshape(-1, 1)
    load, known = hours[:, 0] + rng.normal(size=200), rng.random(200) < 0.8
    kept, asked = hours[known], hours[~known]
    lagged = replace(light, lags=TargetLags((1, 2)), rule=FixedShare())
    model = OnlineRegressor(lagged, random_state=0).fit(kept, load[known])
    assert model.predict(asked[:1]).shape == (1,)
    for predict in (model.predict, model.predict_interval, model.sample_y, lambda X: model.predict_quantiles(X, [0.5])):
        with pytest.warns(UserWarning, match="from the targets up to 2 rows before it"):
            predict(asked)
    assert OnlineRegressor(light, random_state=0).fit(kept, load[known]).predict(asked).shape == (len(asked),)


@pytest.mark.filterwarnings("ignore:the 9 rows are sorted")
def test_rows_are_sorted_by_targets_that_no_clock_explains():
    X = torch.tensor([[3.0], [1.0], [4.0], [1.5], [9.0], [2.6], [5.0], [3.5], [8.0]], dtype=torch.float64)
    clock, rising = torch.arange(9.0, dtype=torch.float64), torch.tensor([0.0, 0, 1, 1, 1, 4, 4, 6, 7]).double()
    gaps, groups = rising.clone(), torch.tensor([2.0, 2, 0, 0, 0, 1, 1, 1, 1]).double()
    gaps[[0, 5]] = torch.nan
    for y in (rising, -rising, gaps):
        assert is_sorted(X, y, has_labels=False)
        for time in (clock, -clock, clock.div(2).floor(), torch.where(clock == 3, torch.nan, clock)):  # ties, a gap
            assert not is_sorted(torch.cat([X, time.unsqueeze(-1)], -1), y, has_labels=False)
        for cause in (clock > 4, clock.div(3).floor(), torch.where(clock > 3, torch.nan, clock)):  # none is a clock
            assert is_sorted(torch.cat([X, cause.double().unsqueeze(-1)], -1), y, has_labels=False)
    assert is_sorted(X, groups, has_labels=True)
    for y in (groups, X[:, 0], 0 * clock, torch.stack([rising, rising], -1)):
        assert not is_sorted(X, y, has_labels=False)
    assert not is_sorted(X, groups.roll(1), has_labels=True)


@pytest.mark.filterwarnings("ignore:the 40 rows are sorted")
def test_a_refused_row_of_a_sorted_table_is_named_as_it_was_given():
    X, y = table(40)
    X, y = X[y.argsort()], np.sort(y)
    for row, code in ((7, 1e200), (30, np.inf)):
        spoiled = X.copy()
        spoiled[row, 1] = code
        for warmup in (20, 1000):
            model = OnlineRegressor(warmup=warmup, random_state=0, on_bad_row="refuse")
            refused(ValueError, rf"'column 1' is .*\brow {row + 1}\b", partial(model.fit, spoiled, y))


def test_text_is_no_target_of_a_regressor():
    X, y = table(40)
    model, text = OnlineRegressor(light, warmup=30, random_state=0).fit(X, y), ["a"] * 40
    for method in (model.fit, model.partial_fit, OnlineRegressor(light).partial_fit, model.log_prob):
        refused(ValueError, "y must be numbers .*'a'.*; for classes use OnlineClassifier", partial(method, X, text))


@pytest.mark.slow
def test_a_table_that_is_sorted_by_its_target_is_learned_as_any_other():
    """Sorted rows explain new ones as well as the same rows in a random order; with a clock they stay in order."""
    X, y = table(160)
    y = np.round(y, 1)  # ties, too
    names = np.where(y > 70, "many", "few")
    for estimator, known in ((OnlineRegressor(random_state=0), y), (OnlineClassifier(random_state=0), names)):
        order = np.argsort(known[:60], kind="stable")[::-1]
        as_drawn = estimator.fit(X[:60], known[:60]).score(X[60:], known[60:])
        with pytest.warns(UserWarning, match="sorted by target"):
            estimator.fit(X[order], known[order])
        assert estimator.score(X[60:], known[60:]) > as_drawn - 0.05
    clock = np.arange(60.0).reshape(-1, 1)
    assert abs(OnlineRegressor(random_state=0).fit(clock, 3 * clock[:, 0]).predict([[60.0]])[0] - 180) < 3
