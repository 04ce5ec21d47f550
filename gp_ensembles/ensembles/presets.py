"""The papers' ensembles by name, and the default one, as :class:`~gp_ensembles.ensembles.spec.EnsembleSpec` records.

``dataclasses.replace(e_doebe, bases=(FourierBasis(),), target=BinaryTarget())`` makes another of it.

============ ======================================================================== ============================
name         what it is                                                               source
============ ======================================================================== ============================
``oebe``     static experts on several bases, Bayesian model averaging                Waxman and Djuric (2024)
``doebe``    the weights of every expert walk at random                               the same
``soebe``    static experts, Markov switching                                         the same
``sdoebe``   dynamic experts, Markov switching                                        the same
``e_doebe``  static experts and their dynamic copies exchange weight                  the same, section 4.2
``ie_gp``    a dictionary of eleven RBF kernels, Bayesian model averaging             Lu et al. (2022)
``sie_gp``   the dictionary, Markov switching                                         the same, section 5.1
``die_gp``   the dictionary, dynamic experts                                          the same, section 5.2
``dsie_gp``  the dictionary, dynamic experts and Markov switching                     the same
``auto``     bases, a window of the last rows, wide features and boosted trees        the page "Benchmarks"
``light``    random features only: fastest for one row at a time                      the same
``deep``     more and larger ones of each, at ten times the cost per row              the same
============ ======================================================================== ============================

``forecaster`` is for several rows ahead, see the page "Multi-step forecasts".

Unlike the papers' (``configs/published``), experts learn the warm-up rows, none is removed and predictions never see
their target; those on bases walk at several speeds, near their starts, which gains up to 0.4 nats per row.
"""

from dataclasses import replace

from gp_ensembles.ensembles.bases import (
    FourierBasis,
    HilbertBasis,
    KernelDictionary,
    LinearBasis,
    PolynomialBasis,
    RadialBasis,
    RecurringBasis,
    SplineBasis,
)
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.external_models import Boosting
from gp_ensembles.ensembles.extra_experts import Refitted, WideFeatures, WindowGP
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.spec import NAMED, EnsembleSpec, SpeedSwitching, StickySwitching
from gp_ensembles.ensembles.targets import Target
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.meta_learners import CombinedRules, FixedShare, MetaLearner, SoftBayes

# Real streams drift at very different speeds: each of these was best on some of the tables in benchmarks/README.md.
SPEEDS = (1e-4, 1e-3, 1e-2)
_FAST = (1e-3, 1e-2)  # next to static experts
_FASTEST = (1e-2,)
# Three models of the next error of each expert: a scale of the last twenty errors with moderate tails, a slow narrow
# peak on heavy tails, and a scale of the last three (``benchmarks/README.md``).
INNOVATIONS = (
    InnovationModel(degrees_of_freedom=8, rate=0.05),
    InnovationModel(degrees_of_freedom=4, rate=0.02, width=0.1),
    InnovationModel(degrees_of_freedom=4, rate=0.3),
)
_OPTIMUM_ONLY = FitSettings(num_samples=1)
# Per row 3e-6 nats a step: with the memory of twenty steps the evidence is that of 1e-6 (``benchmarks/README.md``).
_QUICK = FitSettings(LBFGS(loss_tolerance=3e-6), num_samples=1)

oebe: EnsembleSpec = EnsembleSpec("oebe")
doebe: EnsembleSpec = EnsembleSpec("doebe", static=False, random_walk_variances=SPEEDS)
soebe: EnsembleSpec = EnsembleSpec("soebe", rule=StickySwitching())
sdoebe: EnsembleSpec = EnsembleSpec("sdoebe", static=False, random_walk_variances=SPEEDS, rule=StickySwitching())
e_doebe: EnsembleSpec = EnsembleSpec("e_doebe", random_walk_variances=_FAST, rule=SpeedSwitching())

ie_gp: EnsembleSpec = EnsembleSpec("ie_gp", (KernelDictionary(),), fit_settings=_OPTIMUM_ONLY, rank_on_warm_up=True)
sie_gp: EnsembleSpec = replace(ie_gp, name="sie_gp", rule=StickySwitching())
die_gp: EnsembleSpec = replace(ie_gp, name="die_gp", static=False, random_walk_variances=(1e-3,))
dsie_gp: EnsembleSpec = replace(die_gp, name="dsie_gp", rule=StickySwitching())


def default_rule() -> MetaLearner:
    """Fixed share and Soft-Bayes, combined by a fixed share: it follows changes, and mixes if no expert is right."""
    return CombinedRules([FixedShare(0.01), SoftBayes(0.05)], over=FixedShare(0.02))


def _slow_rule() -> MetaLearner:
    """As :func:`default_rule` for unordered rows: the last few rows of a table do not shift the weights."""
    return CombinedRules([FixedShare(0.001), SoftBayes(0.05)], over=FixedShare(0.02))


# One start each: with a window and boosted trees, others gained 0.004 nats per row for half of the experts' time.
_ONE_START = (0.7,)
_FOURIER = FourierBasis(starts=_ONE_START, name="rff")
_WIDE_NOISES = (0.003, 0.03)
_ONE_NOISE = (0.01,)
# On eighteen tables (benchmarks/choose_parts.py) rows of the window gain most for their cost, then small leaves of the
# trees; a second noise of the wide features, or more of them, gain little.
auto: EnsembleSpec = EnsembleSpec(
    "auto",
    (HilbertBasis(starts=_ONE_START, name="hsgp"), _FOURIER),
    static=False,
    random_walk_variances=_FASTEST,
    rule=default_rule(),
    fit_settings=_QUICK,
    innovations=INNOVATIONS,
    lags=TargetLags(bases=(LinearBasis(), _FOURIER)),
    extra_experts=(WindowGP(num_rows=1250, lags=True), WideFeatures(num_features=500, noises=_ONE_NOISE), Boosting()),
    outlier_threshold=8.0,
    rank_on_warm_up=True,
)
_ALL = (HilbertBasis(), FourierBasis(), RadialBasis(), PolynomialBasis((2, 3, 4)), LinearBasis(), SplineBasis())
# Few objects and small covariances: for single rows each object costs as much as a hundred features, and covariances
# that do not fit into the second-level cache cost most.
light: EnsembleSpec = replace(
    auto,
    name="light",
    bases=(FourierBasis(),),
    static=True,
    lags=TargetLags(bases=(_FOURIER,)),
    extra_experts=(WideFeatures(num_features=250, noises=_ONE_NOISE),),
)
deep: EnsembleSpec = replace(
    auto,
    name="deep",
    bases=(HilbertBasis(), FourierBasis(), RadialBasis()),
    static=True,
    random_walk_variances=_FAST,
    lags=TargetLags(),
    extra_experts=(
        WindowGP(num_rows=2000, lags=True, refit_every=1000),
        WindowGP(num_rows=1000, refit_every=1000, name="window of inputs"),
        WideFeatures(num_features=2000, noises=_WIDE_NOISES),
        Boosting(num_trees=300, learning_rate=0.05, every=500),
        Boosting(num_trees=300, learning_rate=0.05, every=500, lags=False, name="boosting of inputs"),
        Refitted(),
    ),
)
# Several rows ahead: linear in time, so that predictions do not return to the mean as time goes on; local features of
# recurring columns only (benchmarks/README.md).
_RECURRING = (LinearBasis(), RecurringBasis(_FOURIER))
forecaster: EnsembleSpec = replace(
    light, name="forecaster", bases=_RECURRING, lags=TargetLags(bases=_RECURRING, changing_trend=True), extra_experts=()
)
# Likelihoods that are not Gaussian cost more per row: of all bases only those that won most often, and of classes fewer
# next to boosted trees (benchmarks/classes.py).
_FEW = (FourierBasis(), RadialBasis(), LinearBasis())
_FOR_CLASSES = (FourierBasis(starts=(2.0, 0.5), name="rff"), LinearBasis())
# Counts have experts of three families each: of the slowest basis one start, which hardly costs a thing.
_FOR_COUNTS = (FourierBasis(), RadialBasis(starts=_ONE_START, name="radial"), LinearBasis())
# If errors are independent: a slow scale with heavy tails, and a narrow peak on them.
_TAILS = (
    InnovationModel(degrees_of_freedom=4, rate=0.02, autoregressive=False),
    InnovationModel(degrees_of_freedom=4, rate=0.02, width=0.1, autoregressive=False),
)


def auto_for(target: Target, *, one_step: bool = True) -> EnsembleSpec:
    """The default ensemble for a kind of target: extra experts for one real number and classes, bases for all.

    Args:
        target: The kind of target.
        one_step: Whether each prediction is of the next row, one step later. If not, as for a table that is predicted
            with a model of another, targets are not predicted from previous ones: there are no lags, innovation models
            only for the scale and the tails of errors, a rule that shifts weights more slowly, and the exact Gaussian
            process of the last thousand rows. Classes without an order then have the slow rule, too.

    Classes and levels have static experts and the fastest walk: on eleven streams the two slower ones were no better,
    on counts they were. Classes have boosted trees, too. The page "Benchmarks" has the alternatives that were tried.

    Example:
        >>> from gp_ensembles.ensembles.targets import CountTarget, RealTarget
        >>> len(auto_for(CountTarget()).bases), auto_for(RealTarget()) == auto
        (3, True)
    """
    if target.is_real and not one_step:
        return replace(
            auto,
            target=target,
            bases=_ALL,
            static=True,
            random_walk_variances=SPEEDS,
            rule=_slow_rule(),
            innovations=_TAILS,
            lags=None,
            extra_experts=(WindowGP(),),
        )
    others = replace(auto, target=target, static=True)
    if target.is_real and target.num_outputs is not None:
        return replace(others, bases=_ALL, random_walk_variances=SPEEDS)
    if target.is_real:
        return replace(auto, target=target)
    if target.num_labels is None:
        return replace(others, bases=_FOR_COUNTS, random_walk_variances=SPEEDS)
    if not target.has_classes:
        return replace(others, bases=_FEW, random_walk_variances=_FASTEST)
    rule = default_rule() if one_step else _slow_rule()
    fit, trees = replace(_QUICK, best_start=True), Boosting(every=1000)
    return replace(others, bases=_FOR_CLASSES, rule=rule, fit_settings=fit, extra_experts=(trees,))


PRESETS = {
    spec.name: spec
    for spec in (light, auto, deep, forecaster, oebe, doebe, soebe, sdoebe, e_doebe, ie_gp, sie_gp, die_gp, dsie_gp)
}
NAMED.update({f"presets.{name}" if name == "forecaster" else f"gpe.{name}": spec for name, spec in PRESETS.items()})
