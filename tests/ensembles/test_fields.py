"""Fields of records: each name means the same in every record, and is refused with record, field and what is legal."""

import math
from dataclasses import fields, is_dataclass

import pytest
from sklearn.linear_model import LinearRegression

from gp_ensembles.ensembles import bases, targets
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.external_models import Boosting, ExternalModel, ForecastColumns
from gp_ensembles.ensembles.extra_experts import Refitted, WideFeatures, WindowGP
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.records import TABLE
from gp_ensembles.experts.adapters import RegressorAdapter
from gp_ensembles.experts.empirical_bayes import GaussianPerturbation
from gp_ensembles.filters.sites import LaplaceUpdate
from tests.refusals import refused

NAN, INF = math.nan, math.inf
COUNT = "must be a whole number", (2.0, "2", True, (2,)), "must be at least 1", (0, -3)
FEW = "must be a whole number", (2.0, "3", True), "must be at least 2", (1, 0)
NUMBER = "must be a number", ("0.9", True), "must be positive and finite", (0.0, -1.0, NAN, INF)
SHARE = "must be a number", ("0.9", True), "must be positive and at most 1", (0.0, 1.5, NAN)
FLAG = "must be True or False", (1, "yes"), "", ()
# field -> what is said of another type, such values, what is said of numbers out of range, such values
BAD = {
    "num_features": ("must be a whole number", (2.0, "2", True), "must be an even number of at least 2", (0, -3, 7)),
    **dict.fromkeys(("num_frequencies", "num_centers", "num_intervals", "num_trees", "num_rows"), COUNT),
    **dict.fromkeys(("every", "refit_every", "num_outputs", "num_samples", "most", "longest"), COUNT),
    **dict.fromkeys(("num_classes", "num_levels"), FEW),
    **dict.fromkeys(("learning_rate", "noise_discount"), SHARE),
    **dict.fromkeys(("threshold", "price", "prior_precision"), NUMBER),
    **dict.fromkeys(("train_centers", "is_probit", "changing_trend", "best_start"), FLAG),
    "nu": ("must be a number", ("1.5", True, (1.5,)), "must be 0.5, 1.5 or 2.5", (3.5, 0.0, -0.5, NAN, -INF)),
    "starts": (
        *("must be a tuple of numbers such as", (0.5, [0.5], ("0.5",), (None,), (True,), "0.5")),
        *("must be positive numbers, at least one", ((), (-1.0,), (0.5, 0.0), (INF,), (NAN,))),
    ),
    "noises": (
        *("must be a tuple of numbers such as", (0.1, [0.1])),
        *("must be distinct positive numbers, at least one", ((), (0.0,), (0.1, 0.1), (INF,))),
    ),
    "orders": (
        *("must be a tuple of whole numbers", (2, [2], (2.0,), (True,))),
        *("must be distinct whole numbers of at least 1", ((), (0,), (2, -1), (2, 3, 2))),
    ),
    "name": ("must be a string", (3,), "must not be blank and must not contain '/'", ("", "  ", "a/b")),
    "families": (
        *("must be a tuple of names such as", ("poisson", ["poisson"], (1,))),
        *("must be distinct ones of poisson, negative binomial", ((), ("poisson", "poisson"), ("normal",))),
    ),
    "latent_update": (r"must be an object such as LaplaceUpdate\(\)", (3, "", LaplaceUpdate), "", ()),
}
FLAGS_OF_LAGS = (WindowGP, WideFeatures, Refitted, Boosting, ExternalModel)
ARGUMENTS = {
    bases.RecurringBasis: {"basis": bases.LinearBasis()},
    targets.ClassTarget: {"num_classes": 3},
    targets.LevelTarget: {"num_levels": 3},
    ForecastColumns: {"columns": "nwp"},
    ExternalModel: {"adapter": RegressorAdapter(LinearRegression())},
}
# Fields that are checked otherwise, each by a test of its own; names of specs and of rules are any.
OTHERWISE = "lags bases basis columns deviation levels adapter method start_precision perturbation variance"
OTHERWISE += " share rate df tails autoregressive gradient stay delta"
RECORDS = [
    kind for kind in (*TABLE.values(), ExternalModel) if is_dataclass(kind) and kind.__module__.count("ensembles.") > 1
]


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_every_field_is_refused_by_name(kind):
    legal = ARGUMENTS.get(kind, {})
    kind(**legal)
    for field in fields(kind):
        of_kind, others, of_range, beyond = (
            FLAG if field.name == "lags" and kind in FLAGS_OF_LAGS else BAD.get(field.name, ("", (), "", ()))
        )
        assert others or field.name in OTHERWISE.split(), f"{field.name} of {kind.__name__} has no line in the table"
        for error, words, values in ((TypeError, of_kind, others), (ValueError, of_range, beyond)):
            for value in values:
                with pytest.raises(error, match=f"{field.name} of {kind.__name__} {words}"):
                    kind(**{**legal, field.name: value})
        if field.default is None:
            kind(**{**legal, field.name: None})


def test_sizes_have_a_limit():
    with pytest.raises(ValueError, match="num_centers of RadialBasis must be at most 100000, got 100001"):
        bases.RadialBasis(100_001)


def test_records_within_records():
    refused(TypeError, "perturbation must be an object such as", lambda: FitSettings(perturbation=1e-3))
    with pytest.raises(ValueError, match="variance of GaussianPerturbation must be"):
        FitSettings(perturbation=GaussianPerturbation(-1.0))
    refused(TypeError, "adapter of ExternalModel", lambda: ExternalModel(LinearRegression()))
    refused(TypeError, "basis must be an object such as", lambda: bases.RecurringBasis(3))
    with pytest.raises(ValueError, match="either num_features or a price that sets it, got 500 and 30"):
        WideFeatures(num_features=500, price=30.0)
    refused(TypeError, r"bases\[0\] must be an object such as", lambda: TargetLags(bases=(3,)))
