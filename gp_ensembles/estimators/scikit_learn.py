"""Online ensembles with scikit-learn's interface: a regressor and a classifier."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data
from torch import Tensor

from gp_ensembles.distributions import LatentMixture
from gp_ensembles.ensembles.presets import auto, auto_for
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget, LevelTarget, RealTarget, Target
from gp_ensembles.estimators.inputs import Array, Columns, as_array, as_tensor, checked_inputs, encoded_names, fit_frame
from gp_ensembles.estimators.targets import checked_targets, filled, is_sorted
from gp_ensembles.numerics.arguments import check_made
from gp_ensembles.numerics.copies import without_copies
from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.checks import IllegalRowError
from gp_ensembles.streaming.config import Impute, OnBadRow
from gp_ensembles.streaming.forecasting.forecast import Forecast
from gp_ensembles.streaming.joint import joint_covariance
from gp_ensembles.streaming.predictions import StreamDistribution

_ANY = False  # missing and infinite inputs are handled by the pipeline


class _OnlineEstimator(ABC, BaseEstimator):
    """Common base of regressor and classifier: settings, and the fitted attributes."""

    columns_: Columns | None
    model_: OnlineModel

    def __init__(
        self,
        spec: EnsembleSpec | None = None,
        warmup: int = 1000,
        random_state: int | np.random.RandomState | None = None,
        on_bad_row: OnBadRow = "missing",
    ) -> None:
        self.spec = spec
        self.warmup = warmup
        self.random_state = random_state
        self.on_bad_row = on_bad_row

    @abstractmethod
    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything, fit to the first rows, and learn all."""

    @property
    def expert_weights_(self) -> dict[str, float]:
        """Weights for the next target, by expert; empty during the warm-up."""
        check_is_fitted(self)
        return self.model_.weights

    def __sklearn_is_fitted__(self) -> bool:
        return "model_" in self.__dict__

    def _rows(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return as_tensor(checked_inputs(self, X, self.columns_, reset=False))

    def _any_rows(self, X: Any) -> Tensor:
        """Rows to predict, independently of each other."""
        rows = self._rows(X)
        _warn_of_past_targets(self.model_, rows.shape[0])
        return rows

    def _predicted(self, X: Any) -> StreamDistribution:
        rows = self._any_rows(X)  # first: it rejects an estimator that is not fitted
        return self.model_.predict(rows)

    def _model_of(self, spec: EnsembleSpec, num_warmup: int, columns: Columns | None) -> OnlineModel:
        seed = _seed(self.random_state)
        impute: Impute = "mean" if self.spec is None else "found"  # unordered rows have no last value
        config = StreamConfig(spec, warmup=num_warmup, seed=seed, on_bad_row=self.on_bad_row, impute=impute)
        return OnlineModel(config, encoded_names(self, columns))


class OnlineRegressor(RegressorMixin, _OnlineEstimator):
    """Online ensemble of Bayesian basis expansions with scikit-learn's interface.

    Rows are learned in the given order; a ``fit`` without ``spec`` shuffles rows that are sorted by a single target,
    as tables often are, and leaves out exact copies of rows, each with a warning. The first ``warmup`` rows set scales
    and hyperparameters; the rest, and every later ``partial_fit``, are learned at constant cost per row. Results are in
    the units of the data. A missing input (NaN) is imputed (without ``spec``, by its mean), and a column that is
    constant in the warm-up rows is used once it changes. Frames of pandas and polars may contain dates, categories and
    booleans, encoded as in the warm-up rows (see the page "Tables"). Several targets (N, O) share features and
    covariance.

    Args:
        spec: Specification of the ensemble; if ``None``, :func:`~gp_ensembles.ensembles.presets.auto_for` real numbers
            with ``one_step=False``, as any row may be predicted. For one-step-ahead prediction of a stream, use
            :data:`~gp_ensembles.ensembles.presets.auto`; if past targets are among its inputs, predictions of
            several rows give a warning. Its target is real numbers or counts; for classes see
            :class:`OnlineClassifier`.
        warmup: Rows for scales and hyperparameters. With only ``partial_fit``, rows are stored until that many have
            arrived; until then predictions are the running mean and variance of the targets.
        random_state: Seed, random state or ``None``, as in scikit-learn; also for shuffling sorted rows.
        on_bad_row: Handling of unusable numbers, such as overflow codes, as in
            :class:`~gp_ensembles.streaming.StreamConfig`; ``model_.anomaly_counts`` counts them.

    Example:
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(80, 2))
        >>> y = 3 * X[:, 0] + 10 + 0.1 * rng.normal(size=80)
        >>> model = OnlineRegressor(replace(oebe, bases=(LinearBasis(),)))
        >>> mean, std = (model.fit(X[:60], y[:60]).partial_fit(X[60:], y[60:]).predict(X[:3], return_std=True))
        >>> bool(np.abs(mean - y[:3]).max() < 0.5), bool((std > 0.05).all())
        (True, True)
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything, fit to the first rows, and learn all.

        Args:
            X: Inputs in the order of time, shape (N, D).
            y: Targets, shape (N,), or (N, O) for several outputs; NaN where one was not observed.

        Raises:
            ValueError: If the data are malformed, or fewer than ten rows.
        """
        with _unchanged_by_errors(self):
            y, gaps = filled(y)
            rows, y = _checked_rows(self, X, y, y_numeric=True, multi_output=True)
            y = checked_targets(np.where(gaps, np.nan, y) if gaps is not None else y)
            rows, order = _ordered(self, X, rows, as_tensor(y), has_labels=False)
            model = self._new_model(_num_outputs(y), _warm_up(self.warmup, len(order)), self.columns_)
            self.model_ = _fitted(model, as_tensor(rows), as_tensor(y), order)
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn more rows; targets are NaN where missing.

        Args:
            X: Inputs in the order of time, shape (N, D).
            y: Targets, shape (N,), or (N, O) for several outputs.

        Raises:
            ValueError: If the data are malformed; nothing is learned then.
        """
        first = not self.__sklearn_is_fitted__()
        columns = fit_frame(X, np.arange(_num_rows(X))) if first else self.columns_
        X = checked_inputs(self, X, columns, reset=first)
        y = checked_targets(y)
        model = self._new_model(_num_outputs(y), self.warmup, columns) if first else self.model_
        model.observe(as_tensor(X), as_tensor(y))
        self.model_, self.columns_ = model, columns
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Array | tuple[Array, Array]:
        """Means of the predictive mixtures.

        Args:
            X: Inputs, shape (N, D).
            return_std: Whether to also return standard deviations, noise included, in the shape of the means.
            return_cov: Whether to also return the joint covariance of the rows, noise included, shape (N, N), or
                (N, N, O) for several outputs.

        Returns:
            Means, shape (N,) or (N, O), and the requested standard deviations or covariance.

        Raises:
            ValueError: If both are requested, or X is malformed.
            TypeError: If the covariance is requested and targets are not real numbers.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov cannot both be true; the diagonal of the covariance is std²")
        rows = self._any_rows(X)
        distribution = self.model_.predict(rows)
        mean = as_array(distribution.mean)
        if return_cov:
            return mean, as_array(joint_covariance(self.model_, rows))
        return (mean, as_array(distribution.stddev)) if return_std else mean

    def predict_distribution(self, X: Any) -> StreamDistribution:
        """The full predictive distribution of each row of X (N, D), noise included: densities, quantiles, draws."""
        return self._predicted(X)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[Array, Array]:
        """Lower and upper ends of intervals, (N,) or (N, O) each.

        For a single target, the 90 % interval adapts to the targets outside of it, so that 90 % lie within it
        in the long run; the ends of all others are quantiles of the predictive distributions.

        Args:
            X: Inputs, shape (N, D).
            coverage: Target coverage of the interval.

        Raises:
            ValueError: If the coverage is not between 0 and 1.
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be above 0 and below 1, got {coverage}; 0.9 is 90 %")
        rows = self._any_rows(X)
        if coverage in self.model_.config.coverages:
            lower, upper = self.model_.predict_interval(rows, coverage)
        else:
            distribution = self.model_.predict(rows)
            lower, upper = (distribution.quantile(level) for level in ((1 - coverage) / 2, (1 + coverage) / 2))
        return as_array(lower), as_array(upper)

    def predict_quantiles(self, X: Any, quantiles: Any) -> Array:
        """Quantiles of the predictive distributions; for adaptive intervals see :meth:`predict_interval`.

        Args:
            X: Inputs, shape (N, D).
            quantiles: Probabilities, shape (K,).

        Returns:
            Quantiles, shape (K, N), or (K, N, O) for several outputs.
        """
        distribution = self._predicted(X)
        levels = torch.as_tensor(np.asarray(quantiles, dtype=np.float64))
        levels = levels.reshape(-1, *[1] * distribution.mean.ndim).to(distribution.mean)
        return as_array(distribution.quantile(levels))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int | np.random.RandomState | None = None) -> Array:
        """Independent draws from the predictive mixture of each row, shape (N, n_samples); (N, O, n_samples)."""
        distribution = self._predicted(X)
        generator = torch.Generator(distribution.mean.device).manual_seed(_seed(random_state))
        return as_array(distribution.sample(n_samples, generator=generator).movedim(0, -1))

    def forecast(
        self, X: Any, num_paths: int = 500, random_state: int | np.random.RandomState | None = None
    ) -> Forecast:
        """Draw joint sample paths of the targets of the next H rows, without learning.

        By default rows are treated as unordered, and no dynamics are learned: for forecasts use
        ``spec=PRESETS["forecaster"]``, see the page "Multi-step forecasts".

        Args:
            X: Future rows, shape (H, D), NaN where an input is unknown; or H, if all are.
            num_paths: Number of sample paths.
            random_state: Seed or source of randomness.

        Returns:
            Paths, mean and quantiles, as tensors.

        Raises:
            ValueError: If a row is invalid, H is larger than the number of rows learned, or X is H and the rows'
                dates are unknown.
            TypeError: If there are several outputs.
        """
        check_is_fitted(self)
        dates = [column.name for column in self.columns_ or () if column.kind == "date"]
        if isinstance(X, Integral) and dates:
            raise ValueError(f"the inputs contain dates; give a frame of the {X} future rows, with {', '.join(dates)}")
        rows = int(X) if isinstance(X, Integral) else self._rows(X)
        generator = torch.Generator().manual_seed(_seed(random_state))
        return self.model_.forecast(rows, num_paths=num_paths, generator=generator)

    def log_prob(self, X: Any, y: Any) -> Array:
        """Log predictive densities of targets (N,) or (N, O), in the same shape, in nats; NaN where y is NaN."""
        distribution = self._predicted(X)
        targets = as_tensor(checked_targets(y))
        if targets.shape != distribution.mean.shape:
            raise ValueError(f"y must have shape {tuple(distribution.mean.shape)}, got {tuple(targets.shape)}")
        return as_array(distribution.log_prob(targets.to(distribution.mean)))

    def __sklearn_tags__(self) -> Tags:
        """scikit-learn's tags: several targets are supported if noise is Gaussian."""
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        target = auto.target if self.spec is None else getattr(self.spec, "target", None)  # fit rejects an invalid spec
        tags.target_tags.multi_output = isinstance(target, RealTarget)
        return tags

    def _new_model(self, num_outputs: int | None, num_warmup: int, columns: Columns | None) -> OnlineModel:
        spec = auto_for(RealTarget(), one_step=False) if self.spec is None else self.spec
        check_made("spec", spec, EnsembleSpec, "gpe.auto or gpe.e_doebe")
        if spec.target.num_labels is not None:
            raise TypeError(f"OnlineRegressor predicts numbers, but spec.target is {spec.target}; use OnlineClassifier")
        if num_outputs is not None:
            if not isinstance(spec.target, RealTarget):
                raise TypeError(f"several targets need spec.target=RealTarget(), got {spec.target}")
            spec = replace(spec, target=RealTarget(num_outputs))
        return self._model_of(spec, num_warmup, columns)


class OnlineClassifier(ClassifierMixin, _OnlineEstimator):
    r"""Online ensemble of Bayesian classifiers with scikit-learn's interface.

    Like :class:`OnlineRegressor`, for labels of any kind. Two classes are separated by logistic regression, more by
    softmax regression, unless ``spec`` has another link (probit, ordered levels).

    Args:
        spec: Specification of the ensemble; if ``None``, :func:`~gp_ensembles.ensembles.presets.auto_for` the classes
            with ``one_step=False``. A target that is not for classes is replaced.
        warmup: Rows for scales and hyperparameters. With only ``partial_fit``, rows are stored until that many have
            arrived; until then probabilities are the frequencies of the labels so far.
        random_state: Seed, random state or ``None``, as in scikit-learn.
        on_bad_row: As in :class:`OnlineRegressor`.

    Attributes:
        classes\_: The labels, sorted, shape (C,).

    Example:
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> X = np.random.default_rng(0).normal(size=(80, 2))
        >>> y = np.where(X[:, 0] > 0, "up", "down")
        >>> model = OnlineClassifier(replace(oebe, bases=(LinearBasis(),))).fit(X[:60], y[:60])
        >>> model.classes_.tolist(), float(model.score(X[60:], y[60:])) > 0.8
        (['down', 'up'], True)
    """

    classes_: NDArray[Any]

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything, fit to the first rows, and learn all.

        Args:
            X: Inputs in the order of time, shape (N, D).
            y: Labels, shape (N,).

        Raises:
            ValueError: If the data are malformed, have fewer than ten rows, or only one class.
        """
        with _unchanged_by_errors(self):
            rows, y = _checked_rows(self, X, y)
            check_classification_targets(y)
            self.classes_ = np.unique(y)
            codes = _codes(y, self.classes_)
            rows, order = _ordered(self, X, rows, codes, has_labels=True)
            model = self._new_model(self.classes_, _warm_up(self.warmup, len(order)), self.columns_)
            self.model_ = _fitted(model, as_tensor(rows), codes, order)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn more rows.

        Args:
            X: Inputs in the order of time, shape (N, D).
            y: Labels, shape (N,).
            classes: All possible labels, shape (C,); required in the first call.

        Raises:
            ValueError: If the data are malformed, a label is not among the classes, or the first call has no
                classes; nothing is learned then.
        """
        first = not self.__sklearn_is_fitted__()
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit")
        labels = np.unique(column_or_1d(classes)) if first else self.classes_
        if classes is not None and not np.array_equal(np.unique(column_or_1d(classes)), labels):
            raise ValueError(f"classes differ from those of the first call to partial_fit, {labels.tolist()}")
        columns = fit_frame(X, np.arange(_num_rows(X))) if first else self.columns_
        X, y = check_X_y(checked_inputs(self, X, columns, reset=first), y, ensure_all_finite=_ANY)
        check_classification_targets(y)
        codes = _codes(y, labels)
        model = self._new_model(labels, self.warmup, columns) if first else self.model_
        model.observe(as_tensor(X), codes)
        self.classes_, self.model_, self.columns_ = labels, model, columns
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes, in the order of ``classes_``, shape (N, C)."""
        distribution = self._predicted(X)
        assert isinstance(distribution, LatentMixture)
        return as_array(distribution.class_probabilities)

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of the probabilities of the classes, shape (N, C)."""
        result: Array = np.log(self.predict_proba(X))
        return result

    def predict(self, X: Any) -> Array:
        """The most probable class of each row, shape (N,)."""
        probabilities = self.predict_proba(X)
        result: Array = self.classes_[probabilities.argmax(-1)]
        return result

    def __sklearn_tags__(self) -> Tags:
        """scikit-learn's tags: ordered levels do not fit unordered classes."""
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.classifier_tags.poor_score = isinstance(getattr(self.spec, "target", None), LevelTarget)
        return tags

    def _new_model(self, classes: Array, num_warmup: int, columns: Columns | None) -> OnlineModel:
        if len(classes) < 2:
            raise ValueError(f"a classifier needs labels of at least two classes, got one class: {classes.tolist()}")
        if self.spec is not None:
            check_made("spec", self.spec, EnsembleSpec, "gpe.auto or gpe.e_doebe")
        given = None if self.spec is None else self.spec.target
        target = class_target(len(classes), given)
        spec = auto_for(target, one_step=False) if self.spec is None else replace(self.spec, target=target)
        return self._model_of(spec, num_warmup, columns)


@contextmanager
def _unchanged_by_errors(estimator: _OnlineEstimator) -> Iterator[None]:
    before = dict(estimator.__dict__)
    try:
        yield
    except BaseException:
        estimator.__dict__.clear()
        estimator.__dict__.update(before)
        raise


def _checked_rows(estimator: _OnlineEstimator, X: Any, y: Any, **checks: bool) -> tuple[Array, Array]:
    """Rows of a first fit with scikit-learn's checks; the encoding of a frame's columns is stored."""
    estimator.columns_ = columns = fit_frame(X, np.arange(_warm_up(estimator.warmup, _num_rows(X))))
    found: tuple[Array, Array]
    if columns is None:
        found = validate_data(estimator, X, y, dtype=np.float64, ensure_min_samples=2, ensure_all_finite=_ANY, **checks)
    else:
        X = checked_inputs(estimator, X, columns, reset=True)
        found = check_X_y(X, y, ensure_all_finite=_ANY, **checks)
    return found


def _ordered(est: _OnlineEstimator, X: Any, rows: Array, y: Tensor, *, has_labels: bool) -> tuple[Array, Array]:
    """The learning order, shuffled if sorted and without copies, and the rows, a frame encoded by its first ones."""
    if est.spec is not None:
        return rows, np.arange(len(y))
    order = without_copies(as_tensor(rows), y).numpy()
    if is_sorted(as_tensor(rows)[order], y[order], has_labels=has_labels):
        order = check_random_state(est.random_state).permutation(order)
    elif len(order) == len(y):
        return rows, order
    est.columns_ = columns = fit_frame(X, order[: _warm_up(est.warmup, len(order))])
    return rows if columns is None else checked_inputs(est, X, columns, reset=True), order


def _fitted(model: OnlineModel, X: Tensor, y: Tensor, order: Array) -> OnlineModel:
    """The model after rows in an order; its warm-up ends with them at the latest. Errors number rows as given."""
    try:
        model.observe(X[order], y[order])
        return model if model.is_fitted else model.fit(X[order], y[order])
    except IllegalRowError as error:
        wrong, first_row, names = error.args
        raise IllegalRowError(wrong._replace(row=int(order[first_row + wrong.row - 1])), 1, names) from None


def _warn_of_past_targets(model: OnlineModel, num_rows: int) -> None:
    """Warn if several rows would all be predicted from the last learned targets."""
    memory = None if model.online is None else model.online.ensemble.layers.memory
    if memory is not None and num_rows > 1:
        warn_caller(
            f"each of {num_rows} rows is predicted as if it were next, from the targets up to {memory.lags[-1]} rows "
            f"before it; if rows are unordered, omit spec or use replace(spec, lags=None); for the next "
            f"rows of a series, call forecast, or predict and learn one row at a time"
        )


def _num_rows(X: Any) -> int:
    """Number of rows of X; one if unknown, as X is then rejected elsewhere."""
    shape = getattr(X, "shape", None)
    return shape[0] if shape else 1


def _warm_up(warmup: Any, num_rows: int) -> int:
    """Number of warm-up rows for a fit to ``num_rows`` rows."""
    if not isinstance(warmup, Integral):
        raise TypeError(f"warmup must be an integer, got {warmup!r}")
    return min(int(warmup), num_rows)


def _seed(random_state: int | np.random.RandomState | None) -> int:
    return int(check_random_state(random_state).randint(2**31 - 1))


def _num_outputs(y: Array) -> int | None:
    return None if y.ndim == 1 else y.shape[1]


def _codes(y: Array, classes: Array) -> Tensor:
    """Indices (N,) of labels among the sorted classes."""
    places = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    unknown = classes[places] != y
    if unknown.any():
        raise ValueError(f"the label {str(y[unknown][0])!r} is not among the classes {classes.tolist()}")
    return torch.from_numpy(places.astype(np.float64))


def class_target(num_classes: int, given: Target | None) -> Target:
    """The kind of target for this many classes, with the link and update of a given target if they apply."""
    if isinstance(given, LevelTarget):
        return LevelTarget(num_classes, given.latent_update)
    if isinstance(given, BinaryTarget) and num_classes == 2:
        return given
    latent_update = given.latent_update if isinstance(given, BinaryTarget | ClassTarget) else None
    if num_classes == 2 and not isinstance(given, ClassTarget):
        return BinaryTarget(latent_update=latent_update)
    return ClassTarget(num_classes, latent_update)
