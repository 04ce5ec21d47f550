"""All methods of the arena by name: what they are, on what kinds of sets they run, what they need."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from studies.arena import boosting, river_models, series
from studies.arena.bands import Band, FollowingBand, RecentBand, ScaleModelBand
from studies.arena.baselines import Lagged, RecursiveLinear, SeasonalNaive
from studies.arena.classes import PreviousLabel
from studies.arena.distributional import OnlineRegression
from studies.arena.learners import Distributional, Learner
from studies.arena.ours import VARIANTS, OurClasses, Ours, Variant, of_classes
from studies.arena.window_gp import WindowGP

NUM_LAGS = 3
NUMBERS, SERIES, CLASSES = ("numbers", "series"), ("series",), ("classes",)


class Pair(NamedTuple):
    """A model of points and a band around them.

    Attributes:
        learner: Name of the model in :data:`LEARNERS`; methods that share it share its run.
        band: Makes the band for a seed.
    """

    learner: str
    band: Callable[[int], Band]


class Whole(NamedTuple):
    """A model that says whole distributions.

    Attributes:
        make: Makes it for a seed.
    """

    make: Callable[[int], Distributional]


class OfClasses(NamedTuple):
    """A model of classes.

    Attributes:
        make: Makes it for a seed and a number of classes.
    """

    make: Callable[[int, int], Learner | OurClasses]


class Contender(NamedTuple):
    """A method.

    Attributes:
        title: What it is.
        kinds: Kinds of sets it runs on.
        family: Whose it is; pictures have a mark for each.
        made_of: What it is made of.
        package: The optional package it needs, if any.
        is_seeded: Whether it depends on the seed.
    """

    title: str
    kinds: tuple[str, ...]
    family: str
    made_of: Pair | Whole | OfClasses
    package: str | None = None
    is_seeded: bool = False


LEARNERS: dict[str, Callable[[int], Learner]] = {
    "previous": lambda _: SeasonalNaive(1),
    "seasonal": lambda _: SeasonalNaive(),
    "linear": lambda _: RecursiveLinear(),
    "linear_lags": lambda _: Lagged(RecursiveLinear(), NUM_LAGS),
    "lightgbm": lambda seed: boosting.Retrained(boosting.lightgbm_train(seed)),
    "lightgbm_lags": lambda seed: Lagged(boosting.Retrained(boosting.lightgbm_train(seed)), NUM_LAGS),
    "hist_boosting": lambda seed: boosting.Retrained(boosting.histogram_train(seed)),
    "river_linear": lambda _: river_models.bayesian_linear(),
    "river_knn": lambda _: river_models.nearest_neighbors(),
    "river_tree": river_models.adaptive_tree,
    "river_forest": river_models.adaptive_forest,
    "river_mondrian": river_models.mondrian_forest,
    "auto_arima": lambda _: series.auto_arima(),
    "auto_ets": lambda _: series.auto_ets(),
}


def _follow(_: int) -> Band:
    return FollowingBand()


def _point(learner: str, title: str, family: str, package: str | None = None, is_seeded: bool = False) -> Contender:
    kinds = SERIES if package == "statsforecast" else NUMBERS
    return Contender(title, kinds, family, Pair(learner, _follow), package, is_seeded)


def _boosted(
    learner: str, title: str, train: Callable[[int], boosting.Train], package: str | None, bands: Sequence[str]
) -> dict[str, Contender]:
    known: dict[str, tuple[str, Callable[[int], Band]]] = {
        "normal": ("normal errors", lambda _: RecentBand(is_normal=True)),
        "t": ("Student's t, conformal quantiles", lambda _: RecentBand()),
        "scale": ("a second model for the scale", lambda seed: ScaleModelBand(train(seed), boosting.PERIOD)),
    }
    return {
        f"{learner}_{name}": Contender(
            f"{title}, {known[name][0]}", NUMBERS, "boosting", Pair(learner, known[name][1]), package, True
        )
        for name in bands
    }


def _ours(variant: Variant) -> Contender:
    return Contender(variant.title, NUMBERS, "ours", Whole(lambda seed: Ours(variant, seed)), None, True)


_RIVER = "river"
METHODS: dict[str, Contender] = {
    **{name: _ours(variant) for name, variant in VARIANTS.items()},
    "previous": _point("previous", "previous value", "baseline"),
    "seasonal": _point("seasonal", "value of a season ago", "baseline"),
    "linear": _point("linear", "recursive linear regression", "baseline"),
    "linear_lags": _point("linear_lags", f"recursive linear regression, {NUM_LAGS} lags", "baseline"),
    **_boosted("lightgbm", "LightGBM", boosting.lightgbm_train, "lightgbm", ("normal", "t", "scale")),
    **_boosted("lightgbm_lags", f"LightGBM, {NUM_LAGS} lags", boosting.lightgbm_train, "lightgbm", ("t", "scale")),
    **_boosted(
        "hist_boosting",
        "scikit-learn's histogram boosting",
        boosting.histogram_train,
        None,
        ("normal", "t", "scale"),
    ),
    "river_linear": _point("river_linear", "river's Bayesian linear regression", _RIVER, _RIVER),
    "river_knn": _point("river_knn", "river's nearest neighbors", _RIVER, _RIVER),
    "river_tree": _point("river_tree", "river's Hoeffding adaptive tree", _RIVER, _RIVER, True),
    "river_forest": _point("river_forest", "river's adaptive random forest", _RIVER, _RIVER, True),
    "river_mondrian": _point("river_mondrian", "river's aggregated Mondrian forest", _RIVER, _RIVER, True),
    "window_gp": Contender("exact GP of the last 2 000 rows", NUMBERS, "GP", Whole(lambda _: WindowGP())),
    "ondil": Contender(
        "ondil's distributional regression", NUMBERS, "ondil", Whole(lambda _: OnlineRegression()), "ondil"
    ),
    "auto_arima": _point("auto_arima", "statsforecast's AutoARIMA", "statsforecast", "statsforecast"),
    "auto_ets": _point("auto_ets", "statsforecast's AutoETS", "statsforecast", "statsforecast"),
    "auto_classes": Contender(
        "our auto for classes",
        CLASSES,
        "ours",
        OfClasses(lambda seed, num: OurClasses(of_classes(num), seed)),
        None,
        True,
    ),
    "previous_label": Contender("previous label", CLASSES, "baseline", OfClasses(lambda _, num: PreviousLabel(num))),
    "lightgbm_classes": Contender(
        "LightGBM for classes",
        CLASSES,
        "boosting",
        OfClasses(lambda seed, num: boosting.RetrainedClassifier(boosting.lightgbm_classes(seed, num))),
        "lightgbm",
        True,
    ),
    "river_forest_classes": Contender(
        "river's adaptive random forest for classes",
        CLASSES,
        _RIVER,
        OfClasses(river_models.forest_of_classes),
        _RIVER,
        True,
    ),
    "river_logistic": Contender(
        "river's logistic regression", CLASSES, _RIVER, OfClasses(lambda _, num: river_models.logistic(num)), _RIVER
    ),
}
