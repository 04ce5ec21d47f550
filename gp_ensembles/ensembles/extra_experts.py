"""Records of extra experts: their base class, and those with features or kernels of their own.

:class:`WindowGP` is an exact Gaussian process of the last rows, :class:`WideFeatures` has many random features with the
length scales of one, :class:`Refitted` finds lags and hyperparameters afresh as the stream goes on. External models:
:mod:`gp_ensembles.ensembles.external_models`.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, final

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from gp_ensembles.ensembles.bases import scaled_kernel
from gp_ensembles.ensembles.build import FitSettings, NamedExpert
from gp_ensembles.ensembles.price import largest_size, price_of_features
from gp_ensembles.ensembles.spec_checks import check_fields
from gp_ensembles.experts.adapters import ModelAdapter, as_adapter, spelled
from gp_ensembles.experts.empirical_bayes import fit_empirical_bayes, get_vectors, search_starts, set_vectors_
from gp_ensembles.experts.gaussian import GaussianExpert, default_likelihood
from gp_ensembles.experts.refitted import InitialFit, RefittedExpert, lagged_columns, lags_of
from gp_ensembles.experts.window import Refit, WindowExpert
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.batch import take_experts
from gp_ensembles.features.compose import Concatenate, SelectColumns
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.features.linear import LinearFeatures
from gp_ensembles.innovations.bank import InnovationBank, InnovationModel
from gp_ensembles.numerics.gpytorch_types import Likelihood
from gp_ensembles.numerics.lag_selection import carried_forward
from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.spectral import OrthogonalDraws

_MOST_ROWS = 500  # of the exact process of wide features: O(N^3) per step of the optimizer
_FIRST_ROWS = 300  # of first searches of exact processes
_TOLERANCE = 5e-4  # of the last ones: a step that gains less than this share of the evidence per row, or of a nat
_SMOOTHER, _WORTH = 2.5, 0.01  # the other smoothness of a search, and the nats per row that it must be ahead
_FOLLOWED = InnovationBank([InnovationModel(degrees_of_freedom=8, rate=0.05)])
_NUM_FEATURES = 1000
_SIZES = (100, 250, 500, 1000, 2000, 4000)  # among which a price chooses
_HALF = (0.5,)  # starting length scale of exact processes as a share of each column's range
# Two experts of 200 random features predict better than four of 100 from two starting length scales, and vary less
# between draws if frequencies are orthogonal (``benchmarks/README.md``).
_START, _SHORT = 1.0, 0.2  # starting length scales as shares of each column's range
_SPEEDS = (0.0, 1e-2)  # static weights, and the fastest walk of ``auto``
_LINEAR_START = 0.01  # prior variance of the linear part, which must not explain everything
_MOST_LAGS = 7


class WarmUp(NamedTuple):
    """The warm-up rows, and how experts are fitted to them."""

    X: Tensor  # inputs, standardized, shape (N, D)
    y: Tensor  # targets, standardized, shape (N,); NaN where missing
    inputs: Tensor  # inputs of all experts, :attr:`X` followed by past targets, shape (N, D + P)
    fit: FitSettings  # how hyperparameters are found
    generator: torch.Generator | None = None  # source of randomness
    progress: bool = False  # whether to show progress bars
    # Column numbers of the forecasts in the rows of the ensemble, by name
    forecasts: Mapping[str, int] = MappingProxyType({})
    short: Sequence[Tensor] = ()  # further starts: length scales (D,) of a function that varies fast
    class_likelihood: Likelihood | None = None  # of targets that are classes; ``None`` for real numbers

    def seen(self, lags: bool) -> Tensor:
        """Inputs of an expert: all, or those without past targets."""
        return self.inputs if lags else self.X

    def on_all(self, features: FeatureMap) -> FeatureMap:
        """A map of the first columns as one of all inputs."""
        num_seen, num_columns = features.num_inputs, self.inputs.shape[1]
        return features if num_seen == num_columns else SelectColumns(features, range(num_seen), num_columns)

    def fit_exact_gp(self, X: Tensor, y: Tensor, nu: float | None, num_rows: int) -> WindowExpert:
        """An exact process of some of the rows, X (n, D') and y (n,), whose hyperparameters maximize the evidence.

        The search starts at half of each column's range, at a quarter of it times the root of the number of columns,
        as distances of rows grow with it, and at :attr:`short`. Without ``nu`` it is 3/2, or 5/2 if that predicts the
        later half of the rows better where the first searches end, one step ahead, by a hundredth of a nat per row.
        """
        kinds = (1.5, _SMOOTHER) if nu is None else (nu,)
        best, *others = (WindowExpert(scaled_kernel(X, kind, _HALF), X.shape[1], num_rows) for kind in kinds)
        method = self.fit.method
        if method is None:
            return best
        options: Any = {"start_precision": self.fit.start_precision, "progress": self.progress}
        half = best.kernel.base_kernel.lengthscale.detach().flatten()
        first: Any = partial(search_starts, num_rows=_FIRST_ROWS, most_steps=method.max_iterations, **options)
        found = first(best, X, y, [0.5 * len(half) ** 0.5 * half, *self.short])
        for other in others:
            set_vectors_(other, get_vectors(best))
            fit = first(other, X, y, (), before=found)
            if _score(other, X, y) > _score(best, X, y) + _WORTH:
                best, found = other, fit
        last = method._replace(loss_tolerance=max(method.loss_tolerance, _TOLERANCE))
        fit_empirical_bayes(best, X, y, last, before=found, **options)
        return best


@torch.no_grad()
def _score(expert: WindowExpert, X: Tensor, y: Tensor) -> float:
    """Mean log density of the later half of the rows, each predicted from all before, its scale that of past errors."""
    steps = expert.update(expert.init(), X, y)[1]
    models = _FOLLOWED.update_block(_FOLLOWED.init(1, steps.mean), steps.mean, steps.variance, y)[1]
    return float(models.log_prob[..., len(y) // 2 :].mean())


class ExpertRecord(ABC):
    """Record of extra experts to build from warm-up rows, for targets of one real number.

    They have no copies on random walks.

    Attributes:
        for_classes: Whether it is for classes, too: two, or several without an order.
    """

    name: str
    for_classes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        """Fitted experts before any data, and their names, which begin with :attr:`name`.

        Raises:
            NumericalError: If an evidence cannot be computed at the starting hyperparameters.
        """


def _has_too_many(num_columns: int, name: str, num_rows: int) -> bool:
    """Whether an exact Gaussian process has fewer rows than columns, its length scales undetermined; then it warns."""
    if num_columns <= num_rows:
        return False
    warn_caller(
        f"the expert {name!r} is left out: its {num_rows} rows are fewer than its {num_columns} columns, including "
        f"past targets; give it more rows, or leave out columns"
    )
    return True


def check_records(where: str, value: object) -> None:
    """Raise unless a value is a record of an extra expert."""
    if isinstance(value, str):
        hint = f"; for a column of forecasts use ForecastColumns({value!r})"
    elif isinstance(value, type) and issubclass(value, ExpertRecord):
        hint = f"; instantiate it, {value.__name__}(...)"
    else:
        hint = _as_external(value)
    if not isinstance(value, ExpertRecord):
        raise TypeError(f"{where} must be a record such as WindowGP(), got {_given(value)}{hint}")


def check_adapter(value: object) -> None:
    """Raise unless a value is an adapter of an external model."""
    is_record = isinstance(value, ExpertRecord)
    hint = f"; {type(value).__name__} goes into extra_experts directly" if is_record else _as_external(value)
    if not isinstance(value, ModelAdapter):
        wanted = "adapter of ExternalModel must be such as RegressorAdapter(KNeighborsRegressor())"
        raise TypeError(f"{wanted}, got {_given(value)}{hint}")


def _as_external(value: object) -> str:
    """Words on what makes an external model of a value; none if nothing does."""
    adapter = as_adapter(value)
    return "" if adapter is None else f"; use ExternalModel({adapter})"


def _given(value: object) -> str:
    if isinstance(value, str | int | float | None):
        return repr(value)
    return f"the class {value.__name__}" if isinstance(value, type) else spelled(value)


@final
@dataclass(frozen=True)
class WindowGP(ExpertRecord):
    """An exact Gaussian process of the last rows, with an ARD Matern or RBF kernel: best where rows are few or smooth.

    Its hyperparameters are fitted to the last ``num_rows`` of the warm-up rows, at a cost of O(W³) per step of the
    optimizer; afterwards a row costs O(W²). They may be refitted later on.
    With more columns, including past targets, than rows it is omitted, with a warning.

    Attributes:
        num_rows: Least number of rows W in the window, once there have been so many.
        nu: Smoothness 0.5, 1.5 or 2.5 of a Matern kernel; infinity for the RBF kernel; ``None`` for 1.5, or with
            L-BFGS 2.5 where that predicts better, see :meth:`WarmUp.fit_exact_gp`.
        lags: Whether inputs include the past targets of the ensemble, if it has any.
        refit_every: Rows between refits of the hyperparameters to the last rows; the first comes after as many rows as
            the warm-up has, if these are fewer; see :class:`~gp_ensembles.experts.window.Refit`. ``None`` for none.
        name: Name of the experts.

    Raises:
        TypeError: If a field is not a number.
        ValueError: If a number is out of range.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> from gp_ensembles.ensembles.extra_experts import WindowGP
        >>> X = torch.linspace(-1, 1, 60, dtype=torch.float64).unsqueeze(-1)
        >>> y = (5 * X).sin().squeeze(-1)
        >>> spec = replace(oebe, bases=(LinearBasis(),), extra_experts=(WindowGP(),), rank_on_warm_up=True)
        >>> online = spec.fit(X, y)
        >>> online.names[int(online.log_weights.argmax())]
        'window/0'
    """

    num_rows: int = 1000
    nu: float | None = None
    lags: bool = False
    refit_every: int | None = None
    name: str = "window"

    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        """See :meth:`ExpertRecord.build`; one expert, whatever ``fit.num_samples``."""
        X, y = warm_up.seen(self.lags), warm_up.y
        if _has_too_many(X.shape[1], self.name, self.num_rows):
            return []
        seen = (~torch.isnan(y)).nonzero().flatten()[-self.num_rows :]
        expert = warm_up.fit_exact_gp(X[seen], y[seen], self.nu, self.num_rows)
        features = warm_up.on_all(expert.features)
        every, n = self.refit_every, y.shape[0]
        refit = None if every is None else Refit(every, first=n + min(n, every))
        return [(self.name, WindowExpert(expert.kernel, features, self.num_rows, expert.likelihood, refit=refit))]


@final
@dataclass(frozen=True)
class WideFeatures(ExpertRecord):
    r"""Many random Fourier features of an ARD kernel with the length scales of an exact Gaussian process.

    They learn all rows of the stream at constant cost, O(F²) per noise and row. The evidence of so many features would
    cost O(N F²) per step of the optimizer; that of the exact process costs O(N³) with N at most 500 warm-up rows, and
    its length scales and output scale can be used. **Its noise cannot.** The process is
    :math:`f(x) = \phi(x)^\top \theta + r(x)`, and the part that F features miss, :math:`E\,r(x)^2 = a_F`, is lost:
    after N rows the predictive variance of the expert is

    .. math:: \sigma^2 + \sigma^2 \phi(x)^\top \Big(\sum_n \phi(x_n) \phi(x_n)^\top + \tfrac{\sigma^2}{\sigma_\theta^2}
              I\Big)^{-1} \phi(x) \;\to\; \sigma^2,
              \qquad\text{while}\quad E(y - \hat y)^2 \;\to\; \sigma^2 + a_F

    (variance starvation; Wang, Gehring, Kohli and Jegelka 2018). A log score then loses
    :math:`a_F / 2\sigma^2` nats per row, without bound for small noise. The loss depends on the kernel, the number of
    columns and F, so there are a few fixed noises far apart, in squared units of the standardized target, an expert
    with its own draws for each; the rule weighs them, and innovation models correct their scale.

    Attributes:
        num_features: Features F of each expert, twice the number of frequencies; 1 000 by default.
        price: Instead of their number, the most microseconds per row, in blocks and for all noises together. The fit
            takes the largest of 100, 250, 500, 1 000, 2 000 and 4 000 features that meet it on this machine; see
            :meth:`resolved`.
        nu: Smoothness 0.5, 1.5 or 2.5 of a Matern kernel; infinity for the RBF kernel, whose spectrum has no heavy
            tails that would need more features.
        noises: Noise variances, an expert for each.
        lags: Whether inputs include the past targets of the ensemble, if it has any.
        name: Name of the experts.

    Raises:
        TypeError: If a field is not a number.
        ValueError: If a number is out of range, or both a number of features and a price are given.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> X = torch.linspace(-1, 1, 60, dtype=torch.float64).unsqueeze(-1)
        >>> y, wide = (5 * X).sin().squeeze(-1), WideFeatures(num_features=100)
        >>> spec = replace(oebe, bases=(LinearBasis(),), extra_experts=(wide,), rank_on_warm_up=True)
        >>> online = spec.fit(X, y)
        >>> online.names[-len(wide.noises) :]
        ('wide/0', 'wide/1')
    """

    num_features: int | None = None
    price: float | None = None
    nu: float = math.inf
    noises: tuple[float, ...] = (0.003, 0.1)
    lags: bool = False
    name: str = "wide"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_features is not None and self.price is not None:
            raise ValueError(
                f"WideFeatures needs either num_features or a price that sets it, got {self.num_features} and "
                f"{self.price:g}"
            )

    def resolved(self, X: Tensor) -> "WideFeatures":
        """The same with the price replaced by a number of features, measured on this machine.

        Args:
            X: Warm-up inputs, shape (N, D), for their number of columns, dtype and device.

        Raises:
            ValueError: If the price cannot be met.
        """
        if self.price is None:
            return self
        size = largest_size(self.price, _SIZES, lambda size: price_of_features(size, len(self.noises), X), "features")
        return replace(self, num_features=size, price=None)

    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        """See :meth:`ExpertRecord.build`; one expert for each noise, whatever ``fit.num_samples``."""
        warm_up = warm_up._replace(short=())  # which so few features would miss
        X, y = warm_up.seen(self.lags), warm_up.y
        if _has_too_many(X.shape[1], self.name, _MOST_ROWS):
            return []
        num_features = self.resolved(X).num_features or _NUM_FEATURES
        seen = (~torch.isnan(y)).nonzero().flatten()[-_MOST_ROWS:]
        kernel = warm_up.fit_exact_gp(X[seen], y[seen], self.nu, _MOST_ROWS).kernel
        copies = torch.zeros(len(self.noises), dtype=torch.long, device="cpu")
        repeated = take_experts(kernel, kernel.batch_shape, copies)
        features = RandomFourierFeatures.from_kernel(repeated, X.shape[1], num_features, generator=warm_up.generator)
        likelihood = default_likelihood(features)
        likelihood.noise = X.new_tensor(self.noises).unsqueeze(-1)
        return [(self.name, GaussianExpert(warm_up.on_all(features), likelihood))]


@final
@dataclass(frozen=True)
class Refitted(ExpertRecord):
    """Two experts, static and on a random walk, whose lags and hyperparameters are refitted at regular intervals.

    Their features are linear and random Fourier ones of the inputs and of lags that they select themselves. After a
    short warm-up they are soon as good as after a long one, and they follow changes of length scales and of lags. See
    :class:`~gp_ensembles.experts.refitted.RefittedExpert`.

    Attributes:
        num_features: Random features, twice the number of frequencies.
        lags: Whether past targets are among their inputs.
        every: Rows between refits; the first comes after as many rows as the warm-up has, if these are fewer.
        num_rows: Most rows of a fit; twice as many are stored and learned at a refit.
        name: Name of the experts.

    Raises:
        TypeError: If a field is not a number.
        ValueError: If a number is out of range.

    Example:
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import default_rule, oebe
        >>> X = torch.linspace(-1, 1, 300, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(torch.arange(300, dtype=torch.float64).square() / 300)
        >>> spec = replace(oebe, bases=(LinearBasis(),), rule=default_rule())
        >>> spec = replace(spec, extra_experts=(Refitted(num_features=20),))
        >>> online = spec.fit(X[:60], y[:60], generator=torch.Generator().manual_seed(0))
        >>> log_prob = online.observe(X[60:], y[60:]).experts.log_prob.mean(-1)
        >>> online.names[int(log_prob.argmax())]
        'refitted/1'
    """

    num_features: int = 200
    lags: bool = True
    every: int = 1000
    num_rows: int = 1000
    name: str = "refitted"

    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        """See :meth:`ExpertRecord.build`; its two experts are one object."""
        X, y, fit = warm_up.X, warm_up.y, warm_up.fit
        lags = (*(found := lags_of(y, _MOST_LAGS)), *[0] * (_MOST_LAGS - len(found))) if self.lags else ()
        past = carried_forward(y).to(y)
        columns = torch.cat([X, lagged_columns(past, torch.tensor(lags, dtype=torch.int64, device=X.device))], dim=-1)
        model, short = self._models(X, past, len(lags), warm_up.generator)
        seen = (~torch.isnan(y)).nonzero().flatten()[-self.num_rows :]
        start = get_vectors(short)[0]
        if fit.method is not None:
            options: Any = {"start_precision": fit.start_precision, "progress": warm_up.progress}
            fits = [fit_empirical_bayes(one, columns[seen], y[seen], fit.method, **options) for one in (model, short)]
            if bool(fits[1].log_evidence > fits[0].log_evidence):
                model = short
        with torch.no_grad():
            mean_square = model.features(columns).square().sum(-1).mean()
        initial_fit, n, speeds = InitialFit(lags, mean_square, start), y.shape[0], X.new_tensor(_SPEEDS)
        refit = Refit(self.every, first=n + min(n, self.every), num_rows=self.num_rows)
        return [(self.name, RefittedExpert(model, warm_up.inputs.shape[1], initial_fit, speeds, refit))]

    def _models(
        self, X: Tensor, past: Tensor, num_lags: int, generator: torch.Generator | None
    ) -> tuple[GaussianExpert, GaussianExpert]:
        """Linear and random Fourier features of inputs and lags, at long and at short length scales."""
        scales = torch.cat([X, past.unsqueeze(-1).expand(-1, num_lags)], dim=-1)
        kernel, num_columns = scaled_kernel(scales, math.inf, (_START,)), scales.shape[1]
        smooth = RandomFourierFeatures.from_kernel(
            kernel, num_columns, self.num_features, draws=OrthogonalDraws(), generator=generator
        )
        straight = LinearFeatures(num_columns, X.new_full((1,), _LINEAR_START))
        model = GaussianExpert(Concatenate([straight, smooth]))
        short = copy.deepcopy(model)
        for part in short.modules():
            if isinstance(part, RBFKernel):
                part.lengthscale = part.lengthscale * (_SHORT / _START)
        return model, short
