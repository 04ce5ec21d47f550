"""Record of lagged targets as inputs: the choice of lags, and the experts that use them."""

from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple, final

import torch
from gpytorch.constraints import Positive
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gp_ensembles.engine.memory import TargetMemory, find_season
from gp_ensembles.ensembles.bases import Basis, FourierBasis, LinearBasis
from gp_ensembles.ensembles.spec_checks import check_count, check_flag
from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.changing_trend import fit_trends
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.experts.structural import fit_structural
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.compose import SelectColumns
from gp_ensembles.features.linear import ConstantFeatures, LinearFeatures
from gp_ensembles.filters.transitions import RandomWalk
from gp_ensembles.numerics.arguments import check_made
from gp_ensembles.numerics.display import call_text
from gp_ensembles.numerics.lag_selection import find_lags

_LEAST_NOISE = 1e-6  # of the value a season ago, in squared units of standardized targets
_NORMAL_MEDIAN = 0.455  # median of the square of a standard normal number
_LEVEL_NOISE = 1e-2  # noise of the level in steps of its walk: nearly all of a change stays


class Lagged(NamedTuple):
    """Result of :class:`TargetLags` on the warm-up rows."""

    memory: TargetMemory  # the columns of past targets
    inputs: Tensor  # warm-up inputs with these columns behind them, shape (N, D + P)
    # Feature maps by name, on D + P columns: those of the inputs only, then those of the lags
    maps: list[tuple[str, FeatureMap]]
    linear: frozenset[str]  # names of the maps that are linear in inputs and lags: static, too, in every ensemble
    # By name, experts for the previous value, for the value one season ago, if there is a season, and for level,
    # trend and season
    plain: list[tuple[str, Expert]]


@final
@dataclass(frozen=True)
class TargetLags:
    """Experts with past targets as inputs, for streams whose rows are equally spaced in time.

    They are at every speed of the ensemble, and static if its bases are. One is linear in the lagged targets only,
    others have bases of the inputs and the lagged targets together; of these a linear one is always static, too. One
    more predicts the previous value, as the level of a random walk (Durbin and Koopman 2012, section 2) whose steps
    have the mean square of the warm-up's. Nothing is added if past targets do not predict the next one. If the
    autocorrelation of the warm-up has a peak, one more regresses on the value at that lag, see
    :func:`~gp_ensembles.engine.memory.find_season`: a season may be longer than the longest lag. One or more are basic
    structural models, :class:`~gp_ensembles.experts.structural.StructuralExpert`.

    Attributes:
        lags: Distinct and ascending; selected on the warm-up rows by forward selection on the partial correlation if
            ``None``, see :func:`~gp_ensembles.numerics.lag_selection.find_lags`.
        most: Largest number of lags to select.
        longest: Longest lag to consider, at most half of the warm-up rows, or a fifth if no lag is found there.
        bases: Bases of the inputs and the lagged targets together.
        changing_trend: Whether to add structural experts, with a season and without, whose trend changes, for forecasts
            of several rows; see :func:`~gp_ensembles.experts.changing_trend.fit_trends`.

    Raises:
        TypeError: If a lag is not a whole number, a basis is not a :class:`Basis`, or ``changing_trend`` is not True or
            False.
        ValueError: If lags are not positive, distinct and ascending, or a number is not positive.

    Example:
        >>> TargetLags(lags=(1, 24, 168)).lags
        (1, 24, 168)
    """

    lags: tuple[int, ...] | None = None
    most: int = 6
    longest: int = 200
    bases: tuple[Basis, ...] = (LinearBasis(), FourierBasis())
    changing_trend: bool = False

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        check_count(self, "most", self.most)
        check_count(self, "longest", self.longest)
        for number, basis in enumerate(self.bases):
            check_made(f"bases[{number}]", basis, Basis, "LinearBasis()")
        object.__setattr__(self, "bases", tuple(self.bases))
        check_flag(self, "changing_trend", self.changing_trend)
        if self.lags is None:
            return
        given: object = self.lags
        if not isinstance(given, list | tuple) or not all(_is_whole(lag) for lag in given):
            raise TypeError(f"lags must be whole numbers such as (1, 24), got {given!r}")
        lags = tuple(int(lag) for lag in given)
        if not lags or list(lags) != sorted(set(lags)) or lags[0] < 1:
            raise ValueError(f"lags must be positive, distinct and ascending, such as (1, 24), got {self.lags!r}")
        object.__setattr__(self, "lags", lags)

    @torch.no_grad()
    def build(
        self, X: Tensor, y: Tensor, maps: list[tuple[str, FeatureMap]], *, generator: torch.Generator | None = None
    ) -> Lagged | None:
        """Columns of past targets and the experts that use them; ``None`` if no lag is found.

        Args:
            X: Warm-up inputs, standardized, shape (N, D).
            y: Warm-up targets, standardized, shape (N,); NaN where missing.
            maps: Feature maps of the inputs only.
            generator: Source of randomness of the bases.

        Raises:
            ValueError: If a lag that was given is as long as the warm-up.
        """
        lags = find_lags(y, self.most, self.longest) if self.lags is None else self.lags
        if not lags:
            return None
        season = find_season(y) if self.lags is None else None
        memory = TargetMemory(sorted({*lags, *([] if season is None else [season])}), y)
        columns = memory.columns(memory.init(y), y)[1]
        num_inputs, num_all = X.shape[1], X.shape[1] + columns.shape[1]
        inputs = torch.cat([X, columns], dim=-1)
        own, past = list(range(num_inputs)), [num_inputs + memory.lags.index(lag) for lag in lags]
        lagged = SelectColumns(LinearFeatures.from_data(inputs[:, past]), past, num_all)
        seeing = [(name, SelectColumns(features, own, num_all)) for name, features in maps]
        seen = own + past
        both = [pair for basis in self.bases for pair in basis.build(inputs[:, seen], generator=generator)]
        linear = frozenset(f"{name} with lags" for name, features in both if type(features) is LinearFeatures)
        if len(seen) < num_all:
            both = [(name, SelectColumns(features, seen, num_all)) for name, features in both]
        named = [(f"{name} with lags", features) for name, features in both]
        plain = [("previous value", _level(y, num_all))]
        if season is not None:
            column = num_inputs + memory.lags.index(season)
            before, later = inputs[season:, column], y[season:]
            plain.append(("value a season ago", _seasonal(before, later, column, num_all)))
        if self.changing_trend:
            plain += fit_trends(y, season, num_all)
        elif season is not None:
            plain.append(("trend and season", fit_structural(y, season, num_all)))
        return Lagged(memory, inputs, [*seeing, ("lags", lagged), *named], linear, plain)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _level(y: Tensor, num_inputs: int) -> Expert:
    seen = y[~torch.isnan(y)]
    step = (seen[1:] - seen[:-1]).square().mean()
    features = ConstantFeatures(num_inputs, torch.ones_like(step))
    likelihood = GaussianLikelihood(noise_constraint=Positive()).to(features.prior_variance)
    likelihood.noise = (_LEVEL_NOISE * step).reshape(1)
    return GaussianExpert(features, likelihood.requires_grad_(False), RandomWalk(step))


def _seasonal(before: Tensor, y: Tensor, column: int, num_inputs: int) -> Expert:
    """A regression on the value one season ago, shape (N,), whose noise is that of normal differences of their median.

    Where all but a few values recur, their mean square would hide it: innovation models follow scales within limits.
    """
    difference = (y - before)[~torch.isnan(y)]
    features = LinearFeatures(1, torch.ones_like(difference[0]), bias=False)
    likelihood = GaussianLikelihood(noise_constraint=Positive()).to(features.prior_variance)
    likelihood.noise = (difference.square().median() / _NORMAL_MEDIAN).clamp_min(_LEAST_NOISE).reshape(1)
    selected = SelectColumns(features, [column], num_inputs).requires_grad_(False)
    return GaussianExpert(selected, likelihood.requires_grad_(False))
