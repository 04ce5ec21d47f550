"""Specification of an ensemble as one frozen record, and its fit to the first rows of a stream."""

import copy
from dataclasses import dataclass, fields, replace
from typing import final

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.predictions import EnsemblePredictions
from gp_ensembles.ensembles.bases import Basis, FourierBasis, HilbertBasis, RadialBasis, recurring_columns
from gp_ensembles.ensembles.build import (
    FitSettings,
    assemble,
    check_warm_up,
    conditioned,
    dynamic_group,
    fitted_experts,
    group_size,
    static_group,
)
from gp_ensembles.ensembles.external_models import ExternalModel, ForecastColumns, without_forecasts
from gp_ensembles.ensembles.extra_experts import ExpertRecord, WarmUp, WideFeatures, check_records
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.spec_checks import check_flag
from gp_ensembles.ensembles.targets import RealTarget, Target
from gp_ensembles.experts.adapters import spelled
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    MarkovSwitching,
    MetaLearner,
    ReferenceAveraging,
    sticky_transition,
)
from gp_ensembles.meta_learners.switching import group_transition
from gp_ensembles.numerics.arguments import check_made
from gp_ensembles.numerics.display import call_text, changed, spread_text
from gp_ensembles.numerics.short_length_scales import short_length_scales


@final
@dataclass(frozen=True)
class StickySwitching:
    """Markov switching that stays with an expert with one probability, else moves to any other with equal probability.

    Attributes:
        stay: Probability of staying.

    Example:
        >>> StickySwitching(0.9).build(group_size=2, num_groups=1).transition
        tensor([[0.9000, 0.1000],
                [0.1000, 0.9000]], dtype=torch.float64)
    """

    stay: float = 0.99

    def build(self, group_size: int, num_groups: int) -> MetaLearner:
        """The rule for consecutive groups of experts."""
        return MarkovSwitching(sticky_transition(group_size * num_groups, self.stay))


@final
@dataclass(frozen=True)
class SpeedSwitching:
    """Markov switching only between experts that differ in the speed of their walk (Waxman and Djuric 2024).

    Attributes:
        delta: Probability per step of switching to each of the other speeds.

    Example:
        >>> SpeedSwitching(0.1).build(group_size=1, num_groups=2).transition
        tensor([[0.9000, 0.1000],
                [0.1000, 0.9000]], dtype=torch.float64)
    """

    delta: float = 0.01

    def build(self, group_size: int, num_groups: int) -> MetaLearner:
        """The rule for consecutive groups of experts; experts m of all groups differ in speed only."""
        return MarkovSwitching(group_transition(list(range(group_size)) * num_groups, self.delta))


# Rules that depend on the number of experts and on groups of them that differ in speed only.
GroupedRule = StickySwitching | SpeedSwitching


NAMED: dict[str, "EnsembleSpec"] = {}  # names of records for ``repr``: filled by ``presets``


@final
@dataclass(frozen=True)
class EnsembleSpec:
    """Specification of an ensemble; :mod:`gp_ensembles.ensembles.presets` has the papers' and the default one.

    Every map of every basis becomes a static expert, fitted by empirical Bayes, with experts sampled around each
    optimum, and dynamic experts that share its features and hyperparameters and whose weights are on a random walk. All
    experts are conditioned on the warm-up rows.

    Attributes:
        name: Its name in tables and files.
        bases: Records that make the experts' features.
        static: Whether there are static experts of all bases; those that are linear in inputs and past targets are
            always static, too.
        random_walk_variances: The speeds of dynamic experts: the variance that a step of the walk adds to the function,
            on average over the warm-up rows, in squared units of the standardized target. For random Fourier features
            this is the variance of each weight's step, as in the papers.
        weights_walk: Whether ``random_walk_variances`` are those of each weight's step, as in the papers, and not of
            the function's: a basis of many or large features then changes faster than another.
        rule: Weighs the experts; copied for each ensemble.
        fit_settings: How hyperparameters are found.
        target: Kind of target; targets that are not real numbers are not standardized.
        innovations: Models of the experts' errors, each of which turns every expert's prediction into another one.
        lags: Past targets as inputs of more experts; ``None`` for none. Those that predict the previous value and that
            of one season ago are references of the rule, which cannot fall far behind them:
            :class:`~gp_ensembles.meta_learners.ReferenceAveraging`.
        extra_experts: Other experts, such as the exact Gaussian process of the last rows.
        outlier_threshold: Error in standard deviations of the mixture from which a target counts less; ``None`` for
            never.
        rank_on_warm_up: Whether the rule weighs the experts on the warm-up rows, where their one-step log densities sum
            to the evidence of the fit; far better with few rows than equal weights, as in Waxman and Djuric (2024).
        learns_warm_up: Whether the experts learn the warm-up rows; the papers use them for hyperparameters alone.

    Innovations, lags, extra experts and the threshold apply to targets of one real number only, and such extra experts
    as :class:`~gp_ensembles.ensembles.external_models.Boosting` to classes without an order, too.

    Raises:
        TypeError: If a part is not of its kind.
        ValueError: If there is no basis, neither a static expert nor a speed, speeds are not distinct and positive,
            two extra experts share a name, or :class:`StickySwitching` or :class:`SpeedSwitching` has
            innovations, lags or extra experts with it.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis, PolynomialBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> generator = torch.Generator().manual_seed(0)
        >>> X = torch.randn(80, 2, generator=generator, dtype=torch.float64)
        >>> spec = replace(oebe, bases=(LinearBasis(), PolynomialBasis((2,))))
        >>> online = spec.fit(X, X[:, 0] ** 2 - 1, generator=generator)
        >>> predictions = online.observe(X, X[:, 0] ** 2 - 1)
        >>> online.names[int(online.log_weights.argmax())].split("/")[0]
        'poly2'
    """

    name: str = "ensemble"
    bases: tuple[Basis, ...] = (HilbertBasis(), FourierBasis(), RadialBasis())
    static: bool = True
    random_walk_variances: tuple[float, ...] = ()
    rule: MetaLearner | GroupedRule = BayesianModelAveraging()  # noqa: RUF009 (copied before it is used)
    fit_settings: FitSettings = FitSettings()  # noqa: RUF009 (a frozen record)
    target: Target = RealTarget()  # noqa: RUF009 (a frozen record)
    innovations: tuple[InnovationModel, ...] = ()
    lags: TargetLags | None = None
    extra_experts: tuple[ExpertRecord, ...] = ()
    outlier_threshold: float | None = None
    rank_on_warm_up: bool = False
    weights_walk: bool = False
    learns_warm_up: bool = True

    def __repr__(self) -> str:
        """The nearest preset, and the differences to it."""
        own = {field.name: call_text(getattr(self, field.name)) for field in fields(self)}
        nearest, differing = "", list(changed(self))
        for name, spec in NAMED.items():
            other = [field for field, text in own.items() if text != call_text(getattr(spec, field))]
            if len(other) < len(differing):
                nearest, differing = name, other
        if nearest and not differing:
            return nearest
        arguments = [f"{field}={own[field]}" for field in differing]
        return spread_text("replace", [nearest, *arguments]) if nearest else spread_text("EnsembleSpec", arguments)

    def __post_init__(self) -> None:
        if isinstance(self.bases, Basis):
            raise TypeError(f"bases must be a tuple of records, got {self.bases!r} alone; use bases=({self.bases!r},)")
        if not isinstance(self.bases, list | tuple):
            raise TypeError(f"bases must be a tuple of records such as (LinearBasis(),), got {self.bases!r}")
        for number, basis in enumerate(self.bases):
            check_made(f"bases[{number}]", basis, Basis, "LinearBasis()")
        if not self.bases:
            raise ValueError("an ensemble needs bases, got none")
        speeds = list(self.random_walk_variances)
        if not all(speed > 0 for speed in speeds) or len(set(speeds)) < len(speeds):
            raise ValueError(f"random_walk_variances must be distinct positive numbers, got {speeds}")
        if not self.static and not speeds:
            raise ValueError("an ensemble needs random_walk_variances, static=True or both, got neither")
        if not isinstance(self.rule, MetaLearner | GroupedRule):
            raise TypeError(f"rule must be a weight rule such as FixedShare() or StickySwitching(), got {self.rule!r}")
        for flag in ("rank_on_warm_up", "weights_walk", "learns_warm_up"):
            check_flag(self, flag, getattr(self, flag))
        if self.rank_on_warm_up and not self.learns_warm_up:
            raise ValueError("rank_on_warm_up=True requires learns_warm_up=True")
        check_made("fit_settings", self.fit_settings, FitSettings, "FitSettings()")
        check_made("target", self.target, Target, "RealTarget() or BinaryTarget()")
        for field, example in (("innovations", "InnovationModel()"), ("extra_experts", "WindowGP()")):
            given = getattr(self, field)
            if not isinstance(given, list | tuple):
                alone = isinstance(given, InnovationModel | ExpertRecord)
                fix = f"; use {field}=({spelled(given)},)" if alone else ""
                raise TypeError(f"{field} must be a tuple such as ({example},), got {spelled(given)}{fix}")
        for number, model in enumerate(self.innovations):
            check_made(f"innovations[{number}]", model, InnovationModel, "InnovationModel(rate=0.05)")
        if self.lags is not None:
            check_made("lags", self.lags, TargetLags, "TargetLags() or TargetLags(lags=(1, 24))")
        for number, record in enumerate(self.extra_experts):
            check_records(f"extra_experts[{number}]", record)
        if (self.innovations or self.lags is not None or self.extra_experts) and isinstance(self.rule, GroupedRule):
            raise ValueError(
                f"{type(self.rule).__name__} is for experts that differ in speed only; use a rule such as FixedShare() "
                f"with innovations, lags or extra experts"
            )
        has_classes, is_single = self.target.has_classes, self.target.num_outputs is None
        for own in self.extra_experts:
            of_classes = isinstance(own, ExternalModel) and own.adapter.for_classes
            is_foreign = of_classes != has_classes or not (of_classes or (self.target.is_real and is_single))
            if isinstance(own, ExternalModel | ForecastColumns) and is_foreign:
                kind = "classes without an order" if of_classes else "one real number"
                raise ValueError(f"{own.name!r} predicts {kind}, the target is {self.target}; leave it out")
        names = [record.name for record in self.extra_experts]
        if len(set(names)) < len(names):
            raise ValueError(f"extra experts must have distinct names, got {names}; give each another name=")
        object.__setattr__(self, "extra_experts", tuple(self.extra_experts))
        object.__setattr__(self, "innovations", tuple(self.innovations))
        object.__setattr__(self, "bases", tuple(self.bases))
        object.__setattr__(self, "random_walk_variances", tuple(float(speed) for speed in speeds))

    def resolved(self, X: Tensor) -> "EnsembleSpec":
        """The same with prices replaced by sizes, measured on this machine; once saved they no longer depend on it.

        Args:
            X: Warm-up inputs, shape (N, D), for their number of columns, dtype and device.

        Raises:
            ValueError: If a price cannot be met.

        Example:
            >>> import torch
            >>> from gp_ensembles.ensembles.extra_experts import WideFeatures
            >>> spec = EnsembleSpec(extra_experts=(WideFeatures(price=1000.0),))
            >>> spec.resolved(torch.zeros(20, 2, dtype=torch.float64)).extra_experts[0].price is None
            True
        """
        extra_experts = tuple(
            record.resolved(X) if isinstance(record, WideFeatures) else record for record in self.extra_experts
        )
        return self if extra_experts == self.extra_experts else replace(self, extra_experts=extra_experts)

    @property
    def forecast_columns(self) -> tuple[str, ...]:
        """Names of the columns of forecasts, which come after the inputs in the rows of the ensemble."""
        if not self.target.is_real or self.target.num_outputs is not None:
            return ()
        records = [record for record in self.extra_experts if isinstance(record, ForecastColumns)]
        return tuple(dict.fromkeys(name for record in records for name in record.all_columns))

    def fit(
        self, X: Tensor, y: Tensor, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> OnlineEnsemble:
        """Fit an ensemble to warm-up rows and condition it on them.

        Weights are equal, or those of the rule after the warm-up rows (``rank_on_warm_up``).

        Args:
            X: Warm-up inputs, standardized, shape (N, D); the last columns are :attr:`forecast_columns`, if any, in
                the units of the standardized target, NaN where there is no forecast.
            y: Warm-up targets, shape (N,), standardized if they are real numbers; NaN where missing.
            generator: Source of all randomness: frequencies, centers, sampled hyperparameters.
            progress: Show a progress bar.

        Raises:
            ValueError: If X or y is malformed, a column or the target is constant, under ten rows have a target, or a
                lag that was given is as long as the warm-up.
            TypeError: If a dtype is wrong.
            NumericalError: If an expert's evidence cannot be computed where it starts.
        """
        return self.after_warm_up(self.fit_and_predict(X, y, generator=generator, progress=progress)[0])

    def fit_and_predict(
        self, X: Tensor, y: Tensor, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> tuple[OnlineEnsemble, EnsemblePredictions]:
        """As :meth:`fit`, all rows learned, and predictions of them, each made before its target was learned."""
        ensemble = self._assembled(X, y, self.fit_settings, generator, progress)
        return conditioned(ensemble, X, y, keep_weights=self.rank_on_warm_up)

    def after_warm_up(self, online: OnlineEnsemble) -> OnlineEnsemble:
        """An ensemble that has learned the warm-up rows, or one that knows its past targets only."""
        if self.learns_warm_up:
            return online
        start = online.ensemble.init()._replace(history=online.state.history)
        fresh = OnlineEnsemble(online.ensemble, start, online.block_size)
        fresh.is_ranked = online.is_ranked
        return fresh

    def _assembled(
        self, X: Tensor, y: Tensor, settings: FitSettings, generator: torch.Generator | None, progress: bool
    ) -> Ensemble:
        """The ensemble with fitted hyperparameters, before any data."""
        forecasts = self.forecast_columns
        if forecasts:
            X = without_forecasts(X, forecasts)
        check_warm_up(X, y, self.target)
        maps = [named for basis in self.bases for named in basis.build(X, generator=generator)]
        has_layers = self.target.is_real and self.target.num_outputs is None
        lagged = self.lags.build(X, y, maps, generator=generator) if has_layers and self.lags is not None else None
        inputs = X if lagged is None else lagged.inputs
        maps = maps if lagged is None else lagged.maps
        short: tuple[Tensor, ...] = ()
        # Beyond a column that only rises, functions of short scales return to their mean at once: with past targets, or
        # of rates of counts, they are looked for in the other columns.
        columns = recurring_columns(X) if lagged is not None or not self.target.is_real else [*range(X.shape[1])]
        if settings.method is not None and y.ndim == 1 and self.target.is_ordered and columns:
            found = short_length_scales(X[:, columns], y)
            if found is not None:
                short = (torch.full_like(X[0], torch.nan),)
                short[0][columns] = found
        experts = fitted_experts(maps, inputs, y, settings, generator, progress, self.target, short)
        linear = frozenset() if lagged is None else lagged.linear
        static = [named for named in experts if self.static or named[0] in linear]
        groups = [static_group(static)] if static else []
        groups += [dynamic_group(experts, inputs, [speed], self.weights_walk) for speed in self.random_walk_variances]
        rule = copy.deepcopy(self.rule)
        if isinstance(rule, GroupedRule):
            rule = rule.build(group_size(groups[0]), len(groups))
        if lagged is not None:
            copies = 1 + len(self.innovations)
            first = copies * sum(group_size(group) for group in groups)
            rule = ReferenceAveraging(rule, range(first, first + copies * group_size(lagged.plain)))
            groups.append(lagged.plain)
        likelihood = self.target.class_likelihood()
        if has_layers or likelihood is not None:
            places = {name: X.shape[1] + number for number, name in enumerate(forecasts)}
            warm_up = WarmUp(X, y, inputs, settings, generator, progress, places, short, likelihood)
            records = [record for record in self.extra_experts if has_layers or record.for_classes]
            if lagged is None:  # without past targets some may be the same
                records = [one for n, one in enumerate(records) if not any(_is_same(one, old) for old in records[:n])]
            groups += [record.build(warm_up) for record in records]
        return assemble(
            groups,
            rule.to(X.device),
            innovations=self.innovations if has_layers else (),
            memory=None if lagged is None else lagged.memory,
            outlier_threshold=self.outlier_threshold if has_layers else None,
        )


def _is_same(one: ExpertRecord, other: ExpertRecord) -> bool:
    """Whether two records differ in whether they see past targets, and otherwise in no more than the name."""
    pair = (vars(record) for record in (one, other))
    own, others = ({key: value for key, value in known.items() if key != "name"} for known in pair)
    return type(one) is type(other) and own != others and {**own, "lags": None} == {**others, "lags": None}
