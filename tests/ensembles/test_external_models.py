"""External models as experts: regressors, functions, and quantiles."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge, LinearRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.external_models import Boosting, ExternalModel, ForecastColumns
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import auto_for
from gp_ensembles.ensembles.records import spec_to_plain
from gp_ensembles.ensembles.targets import RealTarget
from gp_ensembles.experts.adapters import (
    FunctionAdapter,
    ModelAdapter,
    RegressorAdapter,
    RiverAdapter,
    TrainingRows,
    error_size,
    moments_of,
)
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.features.linear import InputFeatures
from gp_ensembles.streaming import OnlineModel, StreamConfig
from tests.refusals import refused

D = 2


def rows(num_rows=160):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, D, generator=g, dtype=torch.float32).double()
    y = X[:, 0].sin() + 0.3 * torch.randn(num_rows, generator=g, dtype=torch.float64)
    return X, y


def expert(adapter, **settings):
    features = InputFeatures(D, torch.ones((), dtype=torch.float64))
    return ExternalExpert(adapter, features, **{"first": 40, "every": 40, **settings})


def predicted(adapter, X, y, **settings):
    one = expert(adapter, **settings)
    return one.update(one.init(), X, y)[1]


def test_a_regressor_without_deviations_has_the_size_of_its_errors():
    X, y = rows()
    steps = predicted(RegressorAdapter(LinearRegression()), X, y)
    model = LinearRegression().fit(X[:120].numpy(), y[:120].numpy())
    torch.testing.assert_close(steps.mean[120:], torch.from_numpy(model.predict(X[120:].numpy())))
    errors = (y - steps.mean)[40:120]
    torch.testing.assert_close(steps.variance[120:], errors.square().mean().expand(40))
    torch.testing.assert_close(steps.variance[40:80], y[:40].var(correction=0).expand(40))


def test_a_regressor_may_state_its_deviations():
    X, y = rows()
    kernel = RBF() + WhiteKernel()
    for regressor in (BayesianRidge(), GaussianProcessRegressor(kernel, random_state=0)):
        steps = predicted(RegressorAdapter(regressor), X, y)
        fitted = copy.deepcopy(regressor).fit(X[:120].numpy(), y[:120].numpy())
        mean, deviation = fitted.predict(X[120:].numpy(), return_std=True)
        torch.testing.assert_close(steps.mean[120:], torch.from_numpy(mean))
        torch.testing.assert_close(steps.variance[120:].sqrt(), torch.from_numpy(deviation))


def test_quantiles_become_a_normal_distribution():
    X, y = rows()
    levels = (0.1, 0.5, 0.9)
    settings = {"loss": "quantile", "n_estimators": 20, "random_state": 0}
    several = [GradientBoostingRegressor(alpha=level, **settings) for level in levels]
    steps = predicted(RegressorAdapter(several, levels=levels), X, y)
    fitted = [m.fit(X[:120].numpy(), y[:120].numpy()).predict(X[120:].numpy()) for m in several]
    q = torch.from_numpy(np.stack(fitted, 1))
    score = float(torch.special.ndtri(torch.tensor(0.9, dtype=torch.float64)))
    torch.testing.assert_close(steps.mean[120:], q.mean(-1))
    torch.testing.assert_close(steps.variance[120:].sqrt(), (q[:, 2] - q[:, 0]) / (2 * score))


def test_a_second_regressor_learns_the_scale():
    X, y = rows(400)
    y = X[:, 0] + torch.where(X[:, 1] > 0, 1.0, 0.05) * torch.randn(400, generator=torch.Generator().manual_seed(1))
    forest = RandomForestRegressor(30, min_samples_leaf=20, random_state=0)
    steps = predicted(RegressorAdapter(LinearRegression(), scale=forest), X, y.double(), every=100)
    loud, quiet = (steps.variance[300:][(X[300:, 1] > 0) == side].sqrt().mean() for side in (True, False))
    assert 0.6 < float(loud) < 1.6
    assert float(quiet) < 0.2


def test_functions_say_moments_draws_or_quantiles():
    X, y = rows()
    moments = FunctionAdapter(lambda X, rows: (rows.targets[-1].expand(len(X)), torch.full((len(X),), 0.7)))
    steps = predicted(moments, X, y)
    torch.testing.assert_close(steps.mean[80:], torch.stack([y[79], y[119]]).repeat_interleave(40))
    torch.testing.assert_close(steps.variance[80:], torch.full_like(y[80:], 0.49))
    draws = predicted(FunctionAdapter(lambda X, rows: rows.targets[-20:].expand(len(X), -1)), X, y)
    torch.testing.assert_close(draws.mean[120:], y[100:120].mean().expand(40))
    torch.testing.assert_close(draws.variance[120:], y[100:120].var().expand(40))
    plain = predicted(FunctionAdapter(lambda X, rows: X[:, 0].sin().numpy()), X, y)
    torch.testing.assert_close(plain.mean[40:], X[40:, 0].sin())
    torch.testing.assert_close(plain.variance[80:120], (y - plain.mean)[40:80].square().mean().expand(40))
    newest = predicted(FunctionAdapter(lambda X, rows: (rows.targets[-1:], X.new_ones(1))), X, y, every=1, first=10)
    torch.testing.assert_close(newest.mean[20:], y[19:-1])  # trained after every row, it knows the last one


class Careless(ModelAdapter):
    """Arrays instead of tensors, and now and then nothing at all."""

    def fit(self, rows):
        mean = rows.targets.mean().item()
        return lambda X: None if len(X) == 7 else (np.full(len(X), mean, dtype=np.float32), np.ones(len(X)))


def test_arrays_will_do_and_nonsense_is_no_failure_of_others():
    X, y = rows()
    steps = predicted(Careless(), X, y)
    torch.testing.assert_close(steps.mean[120:], y[:120].mean().expand(40), rtol=1e-6, atol=1e-6)
    one = expert(Careless())
    state, _ = one.update(one.init(), X[:100], y[:100])
    after, block = one.update(state, X[100:107], y[100:107])
    assert not bool(block.mean.isnan().any())  # asked for one by one
    assert int(after.reason) == int(state.reason)  # none since then


def test_what_cannot_be_is_refused():
    refused(TypeError, "the class LinearRegression: instantiate it", lambda: RegressorAdapter(LinearRegression))
    refused(ValueError, "as many levels", lambda: RegressorAdapter([LinearRegression(), LinearRegression()]))
    for levels in ((0.5,), (0.1, 0.1), (0.0, 0.5)):
        with pytest.raises(ValueError, match="levels"):
            FunctionAdapter(print, levels)
    refused(ValueError, "3 quantiles per row", lambda: moments_of(torch.zeros(4, 2), (0.1, 0.5, 0.9)))
    refused(ValueError, "2 inputs, but 1 columns", lambda: expert(RegressorAdapter(LinearRegression()), columns=(0,)))
    one = torch.ones(3, dtype=torch.float64)
    assert error_size(TrainingRows(one.unsqueeze(-1), one, one * torch.nan)) == 1e-3


def test_lightgbm_is_one_of_them():
    lightgbm = pytest.importorskip("lightgbm")
    X, y = rows()
    model = lightgbm.LGBMRegressor(n_estimators=10, n_jobs=1, verbose=-1, random_state=0)
    steps = predicted(RegressorAdapter(model), X, y)
    assert float((steps.mean[120:] - y[120:]).square().mean()) < float(y.var())


def test_regressors_of_river_learn_the_stored_rows_one_by_one():
    river = pytest.importorskip("river.linear_model")
    preprocessing = pytest.importorskip("river.preprocessing")
    X, y = rows()
    steps = predicted(RiverAdapter(preprocessing.StandardScaler() | river.LinearRegression()), X, y, num_rows=60)
    model = preprocessing.StandardScaler() | river.LinearRegression()
    names = ("x0", "x1")
    for row, target in zip(X[60:120].tolist(), y[60:120].tolist(), strict=True):
        model.learn_one(dict(zip(names, row, strict=True)), target)
    want = [model.predict_one(dict(zip(names, row, strict=True))) for row in X[120:].tolist()]
    torch.testing.assert_close(steps.mean[120:], torch.tensor(want, dtype=torch.float64))
    refused(TypeError, "the class LinearRegression: instantiate it", lambda: RiverAdapter(river.LinearRegression))


NEIGHBORS = ExternalModel(RegressorAdapter(KNeighborsRegressor()), every=50, lags=False, name="neighbors")
SPEC = replace(
    auto_for(RealTarget(), one_step=False),
    bases=(LinearBasis(),),
    random_walk_variances=(1e-3,),
    extra_experts=(Boosting(10, every=50), NEIGHBORS),
    lags=TargetLags(lags=(1, 3), bases=()),
)


def test_a_model_with_external_models_is_kept_by_pickling(tmp_path):
    X, y = rows()
    model = OnlineModel(StreamConfig(SPEC, warmup=60))
    model.observe(X[:100], y[:100])
    assert [adapter.name for adapter in model.external_models] == ["boosting/0", "neighbors/0"]
    loaded = pickle.loads(pickle.dumps(model))
    assert torch.equal(loaded.observe(X[100:], y[100:]).log_prob, model.observe(X[100:], y[100:]).log_prob)
    refused(TypeError, "ExternalModel cannot be saved", lambda: model.save(tmp_path / "model.pt"))
    refused(TypeError, "ExternalModel cannot be saved", lambda: spec_to_plain(SPEC))


class Rewriting(LinearRegression):
    """A regressor that writes into what it is given."""

    def fit(self, X, y):
        super().fit(X, y)
        X[:], y[:] = 0.0, 0.0
        return self

    def predict(self, X):
        predicted = super().predict(X)
        X[:] = 0.0
        return predicted


def test_a_regressor_that_writes_into_its_arrays_changes_nothing():
    X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = X[:, 0] - X[:, 1]
    rows, before = TrainingRows(X.clone(), y.clone(), torch.full_like(y, torch.nan)), X.clone()
    forecast = RegressorAdapter(Rewriting()).fit(rows)
    predicted = forecast(X)
    assert torch.equal(X, before)
    assert torch.equal(rows.inputs, before)
    assert torch.equal(rows.targets, y)
    plain = RegressorAdapter(LinearRegression()).fit(rows)(X)
    both = (pair for pair in zip(predicted, plain, strict=True) if isinstance(pair[0], torch.Tensor))
    assert all(torch.equal(*pair) for pair in both)


def test_the_message_says_what_to_give():
    with pytest.raises(TypeError, match="columns of ForecastColumns must be names such as 'nwp', got 2"):
        ForecastColumns(2)


def test_without_past_targets_records_that_differ_in_seeing_them_are_one_expert_and_no_others():
    X, y = rows(60)
    ridges = [ExternalModel(RegressorAdapter(Ridge(alpha=size)), name=f"ridge {size}") for size in (1.0, 1e6)]
    functions = [ExternalModel(FunctionAdapter(lambda X, k=k: X[:, k]), name=f"column {k}") for k in range(2)]
    trees = [
        Boosting(num_trees=2),
        Boosting(num_trees=2, lags=False, name="of inputs"),
        Boosting(num_trees=3, name="3"),
    ]
    spec = replace(auto_for(RealTarget()), bases=(LinearBasis(),), lags=None)
    found = replace(spec, extra_experts=(*ridges, *functions, *trees)).fit(X, y).ensemble.expert_names
    names = {name.split("/")[0] for name in found}
    assert names - {"linear"} == {"ridge 1.0", "ridge 1000000.0", "column 0", "column 1", "boosting", "3"}
    lagged = replace(spec, lags=TargetLags(lags=(1,), bases=()), extra_experts=trees).fit(X, y).ensemble
    assert lagged.expert_names[-3:] == ("boosting/0", "of inputs/0", "3/0")
