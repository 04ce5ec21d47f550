"""Experts of every kind in one fusion: rows that do not match, and experts that knew the rows."""

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import RBFKernel
from sklearn.base import clone
from sklearn.ensemble import BaggingRegressor, ExtraTreesRegressor, RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from gp_ensembles.bo import EnsembleModel, ExactEnsembleModel
from gp_ensembles.papers.fusion import PBHS, ExpertPredictions, fit_fusion, fuse
from gp_ensembles.papers.fusion.forecasts import moment_forecast, quantile_forecast
from gp_ensembles.papers.fusion.gathering import gather_experts, gather_predictions
from gp_ensembles.papers.fusion.regressors import known_rows, scale_regressors
from gp_ensembles.papers.sparse import ExactGP as SparseExactGP
from gp_ensembles.papers.sparse import SparseGP
from tests.papers.fusion.cases import seeded
from tests.refusals import refused


def rows(number):
    generator = seeded()
    X = torch.rand(number, 1, generator=generator, dtype=torch.float64)
    return X, (3.0 * X[:, 0]).sin() + 0.1 * torch.randn(number, generator=generator, dtype=torch.float64)


def test_a_fusion_of_forecasts_needs_forecasts_to_predict():
    X, y = rows(50)
    experts = [moment_forecast(y + 0.1, 0.2), quantile_forecast(torch.stack([y, y + 0.4], 1), [0.2, 0.8])]
    fitted = fit_fusion(PBHS(X, y, experts), generator=seeded())
    assert fitted.model.experts == tuple(experts)
    assert fitted.predict(X, experts).mean.shape == (50,)
    refused(ValueError, r"experts \[0, 1\] are known by forecasts of other rows only", lambda: fitted.predict(X))
    with pytest.raises(ValueError, match=r"expert 1 is a forecast of 50 row\(s\), but there are 10 rows"):
        fitted.predict(X[:10], [moment_forecast(y[:10], 0.2), experts[1]])


def test_rows_that_do_not_match():
    X, y = rows(20)
    good = moment_forecast(y, 1.0)
    for experts, message in [
        ([moment_forecast(y[:19], 1.0), good], r"expert 0 is a forecast of 19 row\(s\), but"),
        ([good, moment_forecast(y[:7], 1.0)], r"expert 1 is a forecast of 7 .* are 20 rows"),
        ([], "at least one expert"),
        ([ExpertPredictions(*(torch.ones(2, 20).double(),) * 3)], r"expert 0 must be a forecast of one expert"),
    ]:
        with pytest.raises(ValueError, match=message):
            PBHS(X, y, experts)
    refused(ValueError, r"do not fit: \(20, 1\) and \(19,\)", lambda: PBHS(X, y[:19], [good]))
    refused(ValueError, "need inputs X", lambda: fuse([LinearRegression()], space="y"))
    refused(ValueError, "are 20 rows", lambda: fuse([good, moment_forecast(y[1:], 1.0)], space="y"))
    refused(TypeError, "cannot serve as an expert", lambda: gather_predictions(["a model"], X))


def test_warns_of_errors_far_below_what_an_expert_says():
    X, y = rows(40)
    message = "the errors of expert 1 on these rows are 0.1 of its stated standard deviations"
    with pytest.warns(UserWarning, match=message) as caught:
        PBHS(X, y, [moment_forecast(y + 0.2, 0.2), moment_forecast(y + 0.02, 0.2)])
    assert caught[0].filename == __file__, "it points at the caller"


def test_forecasts_take_the_precision_of_the_inputs():
    X, y = (part.float() for part in rows(40))
    regressor = LinearRegression().fit(X[:10].numpy(), y[:10].numpy())
    model = PBHS(X[10:], y[10:], [moment_forecast(y[10:].double() + 0.2, 0.2), regressor])
    fitted = fit_fusion(model, generator=seeded())
    ahead = [moment_forecast(y[:10].double(), 0.2), model.experts[1]]
    assert fitted.predict(X[:10], ahead).mean.dtype == torch.float32


def test_errors_of_regressors_name_the_expert():
    X, y = rows(40)
    line, wide = LinearRegression().fit(X.numpy(), y.numpy()), torch.cat([X, X], 1)
    joined = moment_forecast(y, 1.0)
    with pytest.raises(ValueError, match=r"expert 1, a LinearRegression, does not predict .* not fitted"):
        gather_experts([joined, LinearRegression()], X, y)
    with pytest.raises(ValueError, match=r"expert 2, a LinearRegression, does not predict these rows of 2 column\(s\)"):
        gather_experts([joined, joined, line], wide, y)
    with pytest.raises(ValueError, match="expert 1, a LinearRegression, has no errors"):
        gather_experts([joined, line], X, torch.as_tensor(line.predict(X.numpy())))
    with pytest.raises(ValueError, match="expert 1, a LinearRegression, does not predict"):
        scale_regressors([line, LinearRegression()], X, y)


PROCESSES = {
    "exact": lambda X, y: SparseExactGP(X, y, RBFKernel()),
    "knots": lambda X, y: SparseGP(X, y, X[:5], RBFKernel()),
    "knots, transformed": lambda X, y: SparseGP(X, y, X[:5], RBFKernel(), input_transform=Normalize(1)),
    "of botorch": lambda X, y: SingleTaskGP(X, y.unsqueeze(-1), covar_module=RBFKernel(), input_transform=Normalize(1)),
    "exact ensemble": lambda X, y: ExactEnsembleModel(X, y.unsqueeze(-1)),
    "features": lambda X, y: EnsembleModel(X, y.unsqueeze(-1), generator=seeded()),
}


def test_warns_of_every_process_that_keeps_its_rows():
    X, y = rows(30)
    y = 5.0 * y
    for make in PROCESSES.values():
        model = make(X, y)
        with pytest.warns(UserWarning, match="expert 1 was trained on 10 of the 20 rows"):
            gather_experts([moment_forecast(y[:20] + 1.0, 1.0), model], torch.cat([X[:10], X[10:20] + 0.01]), y[:20])
        assert known_rows(model, X + 0.01, y) == 0
        assert known_rows(model, X[:1].expand(20, -1), y) == 0  # replicates of one design


REGRESSORS = {
    "forest": RandomForestRegressor(10, random_state=0),
    "extra trees": ExtraTreesRegressor(5, random_state=0),
    "tree": DecisionTreeRegressor(),
    "bagging": BaggingRegressor(n_estimators=5, max_features=0.5, random_state=0),
    "neighbors": make_pipeline(StandardScaler(), KNeighborsRegressor()),
    "search": GridSearchCV(KNeighborsRegressor(), {"n_neighbors": [2, 3]}),
    "process": GaussianProcessRegressor(alpha=0.01),
    "kernel": KernelRidge(),
}


def test_warns_of_regressors_on_their_own_rows():
    """Half of the rows are their own; none of the rows that come after, not even where targets are rounded."""
    for kind in REGRESSORS:
        X, y = rows(200)
        X, y = torch.cat([X, X.cos()], 1), (100.0 * y).round() if kind == "forest" else y
        model = clone(REGRESSORS[kind]).fit(X[:100].numpy(), y[:100].numpy())
        with pytest.warns(UserWarning, match=r"expert 1 was trained on \d+ of the 100 rows"):
            gather_experts([moment_forecast(y[50:150] + 1.0, 1.0), model], X[50:150], y[50:150])
        with pytest.warns(UserWarning, match=r"expert 0, a \w+, was fitted to \d+ of these 100 rows") as caught:
            scaled = scale_regressors([model], X[50:150], y[50:150])
        assert caught[0].filename == __file__
        with pytest.warns(UserWarning, match="expert 0 was trained on"):
            gather_experts(scaled.experts, X[50:150], y[50:150])
        gather_experts([model], X[100:], y[100:])  # warnings are errors
