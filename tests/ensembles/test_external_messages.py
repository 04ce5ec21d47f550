"""What is said to those who give a model itself where an external model or a record is needed: how it is wrapped."""

from dataclasses import replace

import pytest
from sklearn.linear_model import LinearRegression

from gp_ensembles.engine import Ensemble
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.external_models import Boosting, ExternalModel, ForecastColumns
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.experts.adapters import FunctionAdapter, RegressorAdapter, RiverAdapter
from gp_ensembles.experts.external_row import HistogramBoosting
from gp_ensembles.meta_learners import FixedShare

SPEC = replace(oebe, bases=(LinearBasis(),))


class OneByOne:
    """As river's regressors."""

    def learn_one(self, x, y):
        pass

    def predict_one(self, x):
        return 0.0


def last_target(X, rows):
    return rows.targets[-1].expand(len(X))


def predicted(make):
    with pytest.raises(TypeError) as caught:
        make()
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        (LinearRegression(), "use ExternalModel(RegressorAdapter(LinearRegression(...)))"),
        (LinearRegression, "use ExternalModel(RegressorAdapter(LinearRegression()))"),
        (RegressorAdapter(LinearRegression()), "use ExternalModel(RegressorAdapter(...))"),
        (HistogramBoosting(), "use ExternalModel(HistogramBoosting(...))"),
        (HistogramBoosting, "use ExternalModel(HistogramBoosting())"),
        (OneByOne(), "use ExternalModel(RiverAdapter(OneByOne(...)))"),
        (last_target, "use ExternalModel(FunctionAdapter(last_target))"),
        (lambda X, rows: X[:, 0], "use ExternalModel(FunctionAdapter(function))"),
        (Boosting, "instantiate it, Boosting(...)"),
        ("nwp", "for a column of forecasts use ForecastColumns('nwp')"),
        (3, "got 3"),
    ],
)
def test_a_bare_extra_expert_is_refused_with_its_wrapper(given, fix):
    message = predicted(lambda: replace(SPEC, extra_experts=(Boosting(), given)))
    assert message.startswith("extra_experts[1] must be a record such as WindowGP(), got ")
    assert message.endswith(fix)


@pytest.mark.parametrize(
    ("make", "fix"),
    [
        (lambda: replace(SPEC, extra_experts=Boosting()), "use extra_experts=(Boosting(...),)"),
        (lambda: replace(SPEC, extra_experts=LinearRegression()), "got LinearRegression(...)"),
        (lambda: ExternalModel(LinearRegression()), "use ExternalModel(RegressorAdapter(LinearRegression(...)))"),
        (lambda: ExternalModel(ForecastColumns("nwp")), "ForecastColumns goes into extra_experts directly"),
        (lambda: RegressorAdapter(last_target), "got last_target; use FunctionAdapter(last_target)"),
        (lambda: RegressorAdapter(OneByOne()), "use RiverAdapter(OneByOne(...))"),
        (lambda: RegressorAdapter(LinearRegression(), scale=3), "with fit and predict, got int(...)"),
        (lambda: RiverAdapter(LinearRegression()), "use RegressorAdapter(LinearRegression(...))"),
        (lambda: FunctionAdapter(LinearRegression()), "use RegressorAdapter(LinearRegression(...))"),
        (lambda: FunctionAdapter(7), "got int(...)"),
        (lambda: Ensemble([HistogramBoosting()], FixedShare()), "got HistogramBoosting"),
    ],
)
def test_the_right_wrapper_is_named(make, fix):
    assert predicted(make).endswith(fix)
