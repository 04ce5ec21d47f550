"""What is said to those who give a model itself where an external model or a record is needed: how it is wrapped."""

from dataclasses import replace

import pytest
from sklearn.linear_model import LinearRegression

from gp_ensembles.engine import Ensemble
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.external_models import Boosting, ExternalModel, ForecastColumns
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.experts.adapters import FunctionAdapter, RegressorAdapter, RiverAdapter
from gp_ensembles.experts.boosting import HistogramBoosting
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
    ("given", "mend"),
    [
        (LinearRegression(), "use ExternalModel(RegressorAdapter(LinearRegression(...)))"),
        (LinearRegression, "use ExternalModel(RegressorAdapter(LinearRegression()))"),
        (RegressorAdapter(LinearRegression()), "use ExternalModel(RegressorAdapter(...))"),
        (HistogramBoosting(), "use ExternalModel(HistogramBoosting(...))"),
        (HistogramBoosting, "use ExternalModel(HistogramBoosting())"),
        (OneByOne(), "use ExternalModel(RiverAdapter(OneByOne(...)))"),
        (last_target, "use ExternalModel(FunctionAdapter(last_target))"),
        (lambda X, rows: X[:, 0], "use ExternalModel(FunctionAdapter(function))"),
        (Boosting, "call it, Boosting(...)"),
        ("nwp", "for a column of forecasts use ForecastColumns('nwp')"),
        (3, "got 3"),
    ],
)
def test_what_stands_in_further_bare_is_told_its_wrapper(given, mend):
    message = predicted(lambda: replace(SPEC, extra_experts=(Boosting(), given)))
    assert message.startswith("extra_experts[1] must be a record such as WindowGP(), got ")
    assert message.endswith(mend)


def test_a_record_alone_is_told_to_be_one_of_a_tuple():
    assert predicted(lambda: replace(SPEC, extra_experts=Boosting())).endswith("use extra_experts=(Boosting(...),)")
    assert predicted(lambda: replace(SPEC, extra_experts=LinearRegression())).endswith("got LinearRegression(...)")


def test_the_right_wrapper_of_a_model_is_named():
    assert predicted(lambda: ExternalModel(LinearRegression())).endswith(
        "use ExternalModel(RegressorAdapter(LinearRegression(...)))"
    )
    assert predicted(lambda: ExternalModel(ForecastColumns("nwp"))).endswith(
        "ForecastColumns goes into extra_experts directly"
    )
    assert predicted(lambda: RegressorAdapter(last_target)).endswith(
        "got last_target; use FunctionAdapter(last_target)"
    )
    assert predicted(lambda: RegressorAdapter(OneByOne())).endswith("use RiverAdapter(OneByOne(...))")
    assert predicted(lambda: RegressorAdapter(LinearRegression(), scale=3)).endswith(
        "with fit and predict, got int(...)"
    )
    assert predicted(lambda: RiverAdapter(LinearRegression())).endswith("use RegressorAdapter(LinearRegression(...))")
    assert predicted(lambda: FunctionAdapter(LinearRegression())).endswith(
        "use RegressorAdapter(LinearRegression(...))"
    )
    assert predicted(lambda: FunctionAdapter(7)).endswith("got int(...)")
    assert predicted(lambda: Ensemble([HistogramBoosting()], FixedShare())).endswith("got HistogramBoosting")
