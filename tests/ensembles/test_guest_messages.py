"""What is said to those who give a model itself where a guest or a record is needed: how it is wrapped."""

from dataclasses import replace

import pytest
from sklearn.linear_model import LinearRegression

from gp_ensembles.engine import Ensemble
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.guests import Boosting, ForecastColumns, GuestModel
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.experts.boosting import HistogramBoosting
from gp_ensembles.experts.guest_models import FunctionGuest, RegressorGuest, RiverGuest
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


def said(make):
    with pytest.raises(TypeError) as caught:
        make()
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "mend"),
    [
        (LinearRegression(), "use GuestModel(RegressorGuest(LinearRegression(...)))"),
        (LinearRegression, "use GuestModel(RegressorGuest(LinearRegression()))"),
        (RegressorGuest(LinearRegression()), "use GuestModel(RegressorGuest(...))"),
        (HistogramBoosting(), "use GuestModel(HistogramBoosting(...))"),
        (HistogramBoosting, "use GuestModel(HistogramBoosting())"),
        (OneByOne(), "use GuestModel(RiverGuest(OneByOne(...)))"),
        (last_target, "use GuestModel(FunctionGuest(last_target))"),
        (lambda X, rows: X[:, 0], "use GuestModel(FunctionGuest(function))"),
        (Boosting, "call it, Boosting(...)"),
        ("nwp", "for a column of forecasts use ForecastColumns('nwp')"),
        (3, "got 3"),
    ],
)
def test_what_stands_in_further_bare_is_told_its_wrapper(given, mend):
    message = said(lambda: replace(SPEC, further=(Boosting(), given)))
    assert message.startswith("further[1] must be a record such as WindowGP(), got ")
    assert message.endswith(mend)


def test_a_record_alone_is_told_to_be_one_of_a_tuple():
    assert said(lambda: replace(SPEC, further=Boosting())).endswith("use further=(Boosting(...),)")
    assert said(lambda: replace(SPEC, further=LinearRegression())).endswith("got LinearRegression(...)")


def test_the_right_wrapper_of_a_model_is_named():
    assert said(lambda: GuestModel(LinearRegression())).endswith(
        "use GuestModel(RegressorGuest(LinearRegression(...)))"
    )
    assert said(lambda: GuestModel(ForecastColumns("nwp"))).endswith("ForecastColumns stands in further by itself")
    assert said(lambda: RegressorGuest(last_target)).endswith("got last_target; use FunctionGuest(last_target)")
    assert said(lambda: RegressorGuest(OneByOne())).endswith("use RiverGuest(OneByOne(...))")
    assert said(lambda: RegressorGuest(LinearRegression(), scale=3)).endswith("with fit and predict, got int(...)")
    assert said(lambda: RiverGuest(LinearRegression())).endswith("use RegressorGuest(LinearRegression(...))")
    assert said(lambda: FunctionGuest(LinearRegression())).endswith("use RegressorGuest(LinearRegression(...))")
    assert said(lambda: FunctionGuest(7)).endswith("got int(...)")
    assert said(lambda: Ensemble([HistogramBoosting()], FixedShare())).endswith("got HistogramBoosting")
