"""An ensemble of latent variable models as a scikit-learn transformer."""

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from gp_ensembles.estimators.inputs import Array, as_array, as_tensor
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.gplvm import IEGPLVM, LatentSettings, ie_gplvm
from gp_ensembles.streaming.columns import constant_columns

_PATIENCE = 10  # warm-ups of rows that are kept in the hope of complete ones


class EnsembleGPLVM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Online ensemble of Gaussian-process latent variable models with scikit-learn's interface.

    Rows are taken in the order of time, NaN where an entry was not observed. The first ``warmup`` complete rows are
    embedded together; the rest, and every row of a later ``partial_fit``, is embedded as it comes and learned.
    Coordinates are those of the latent space of one expert, so that all can be compared and mapped back: the one under
    which the rows of ``fit``, or of the start of a stream, are the most probable. Later rows may make another one the
    better; :meth:`choose_expert` changes over to it.

    Entries should be in one unit, or scaled alike (``StandardScaler``) before. Columns that are constant in the warm-up
    rows are left out; they are restored with their values.

    Args:
        n_components: Number of coordinates d.
        warmup: Complete rows to start from; ``fit`` makes do with fewer.
        block_size: Rows embedded at once between two updates; 1 is the algorithm, more is faster.
        num_frequencies: Random frequencies of each expert; it has twice as many features.
        preset: Makes the model, such as ``functools.partial(ie_gplvm, stay=0.99)``; called as ``preset(num_columns,
            n_components, num_frequencies, settings=settings, generator=generator)``. By default
            :func:`~gp_ensembles.papers.gplvm.ie_gplvm`.
        settings: :class:`~gp_ensembles.papers.gplvm.records.LatentSettings`: iterations, neighbors, rows kept; the
            defaults if ``None``.
        random_state: Seed, random state or ``None``, as in scikit-learn.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> t = rng.uniform(-1, 1, size=(60, 1))
        >>> X = np.hstack([t, np.sin(3 * t), t**2]) + 0.01 * rng.normal(size=(60, 3))
        >>> model = EnsembleGPLVM(n_components=1, warmup=30, random_state=0).fit(X[:50])
        >>> places = model.partial_fit_transform(X[50:])
        >>> bool(np.abs(model.inverse_transform(places) - X[50:]).max() < 0.1)
        True
    """

    def __init__(
        self,
        n_components: int = 2,
        warmup: int = 200,
        block_size: int = 1,
        num_frequencies: int = 50,
        preset: Callable[..., IEGPLVM] | None = None,
        settings: LatentSettings | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.warmup = warmup
        self.block_size = block_size
        self.num_frequencies = num_frequencies
        self.preset = preset
        self.settings = settings
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Start over: embed the first complete rows together, then learn the others one by one.

        Args:
            X: Rows in the order of time, shape (N, D), NaN where not observed.
            y: Ignored.

        Raises:
            ValueError: If the rows are malformed, too few are complete, or fewer columns vary than coordinates are
                asked for.
        """
        self._check_parameters()
        before = dict(self.__dict__)
        try:
            rows = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", ensure_min_samples=2)
            self._started: _Started | None = self._start(as_tensor(rows))[0]
            self._waiting: Tensor | None = None
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn more rows, or keep them until enough complete ones have arrived; arguments as of :meth:`fit`."""
        self.partial_fit_transform(X)
        return self

    def partial_fit_transform(self, X: Any) -> Array:
        """Learn more rows and return where each was placed on arrival; a rejected call changes nothing.

        Args:
            X: Rows in the order of time, shape (N, D), NaN where not observed.

        Returns:
            Coordinates, shape (N, d); NaN for rows that are kept until there are enough to start from.

        Raises:
            ValueError: If the rows are malformed, one has no observed entry, or those to start from are insufficient.
        """
        self._check_parameters()
        first = "_waiting" not in self.__dict__
        rows = as_tensor(validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=first))
        if not first and self._started is not None:
            found = self._started.model.update(self._started.columns(rows), self.block_size)
            return as_array(found.by_expert[self._started.expert])
        _check_observed(rows)
        waiting = rows if first or self._waiting is None else torch.cat([self._waiting, rows])
        num_complete = int((~waiting.isnan().any(-1)).sum())
        if num_complete < self.warmup:
            if len(waiting) >= _PATIENCE * self.warmup:
                raise ValueError(
                    f"of {len(waiting)} rows only {num_complete} are complete, and {self.warmup} are needed to start; "
                    f"{_gaps(waiting)}, so leave columns out or set a smaller warmup"
                )
            self._started, self._waiting = None, waiting
            return as_array(torch.full_like(rows[:, :1], torch.nan).repeat(1, self.n_components))
        self._started, places = self._start(waiting)
        self._waiting = None
        return places[-len(rows) :]

    def transform(self, X: Any) -> Array:
        """Coordinates of rows, each embedded on its own, learning nothing; shape (N, d)."""
        rows, started = self._ready(X)
        return as_array(started.model.transform(started.columns(rows)).by_expert[started.expert])

    def inverse_transform(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Rows at coordinates, in the units of the data.

        Args:
            X: Coordinates, shape (N, d).
            return_std: Whether to return the standard deviations too, noise included; those of columns that were left
                out are zero.

        Returns:
            Means, shape (N, D), and standard deviations, shape (N, D), if asked for.

        Raises:
            ValueError: If the shape is wrong or a coordinate is not finite.
        """
        started = self._fitted()
        places = as_tensor(np.asarray(X, dtype=np.float64)).to(started.model.omega)
        expert = torch.full(places.shape[:1], started.expert, dtype=torch.int64, device=places.device)
        found = started.model.inverse_transform(places, expert)
        mean = as_array(started.whole(found.mean))
        return (mean, as_array(started.whole(found.variance.sqrt(), constant=0.0))) if return_std else mean

    def impute(self, X: Any) -> Array:
        """The rows with every NaN filled from the rest of its row, shape (N, D)."""
        rows, started = self._ready(X)
        return as_array(torch.where(rows.isnan(), started.whole(started.model.impute(started.columns(rows))), rows))

    def choose_expert(self) -> Self:
        """From now on use the space of the expert under which all rows so far are the most probable.

        Coordinates from before lie in another space then; ``expert_`` is that expert.
        """
        started = self._fitted()
        self._started = started._replace(expert=started.model.best_expert)
        return self

    @property
    def expert_(self) -> int:
        """The expert in whose latent space coordinates lie."""
        return self._fitted().expert

    @property
    def expert_weights_(self) -> Array:
        """Weights of the experts for the next row, shape (M,)."""
        return as_array(self._fitted().model.log_weights.exp())

    def __sklearn_tags__(self) -> Tags:
        """The tags of scikit-learn: gaps are welcome."""
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return self.__dict__.get("_started") is not None

    @property
    def _n_features_out(self) -> int:
        return self.n_components

    def _start(self, rows: Tensor) -> "tuple[_Started, Array]":
        """A model that has started from the first complete rows and learned the others, and where all lay."""
        _check_observed(rows)
        at = (~rows.isnan().any(-1)).nonzero().flatten()[: self.warmup]
        if len(at) <= self.n_components:
            raise ValueError(
                f"{len(at)} rows of {len(rows)} are complete, too few to start from: n_components={self.n_components} "
                f"need at least {self.n_components + 1} (n_samples={len(rows)}); {_gaps(rows)}"
            )
        constant = set(constant_columns(rows[at]))
        kept = [column for column in range(rows.shape[1]) if column not in constant]
        if len(kept) < self.n_components:
            raise ValueError(
                f"n_components={self.n_components} coordinates need as many columns that vary, got n_features="
                f"{rows.shape[1]}, of which {len(kept)} vary in the {len(at)} rows to start from"
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        preset = ie_gplvm if self.preset is None else self.preset
        generator = torch.Generator().manual_seed(seed)
        model = preset(len(kept), self.n_components, self.num_frequencies, settings=self.settings, generator=generator)
        started = _Started(model, torch.tensor(kept, dtype=torch.int64, device="cpu"), rows[at[0]], 0)
        _check_observed(rows[:, kept], " besides constant columns")
        later = torch.ones_like(rows[:, 0], dtype=torch.bool)
        later[at] = False
        first = model.start(started.columns(rows[at]))
        try:
            rest = model.update(started.columns(rows[later]), self.block_size)
        except NumericalError as error:
            raise NumericalError(f"{error} (counted without the {len(at)} rows to start from)") from error
        places = rows.new_empty(len(rows), self.n_components)
        places[at] = first.by_expert[model.best_expert].to(places)
        places[later] = rest.by_expert[model.best_expert].to(places)
        return started._replace(expert=model.best_expert), as_array(places)

    def _check_parameters(self) -> None:
        for name in ("n_components", "warmup", "block_size", "num_frequencies"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")

    def _fitted(self) -> "_Started":
        waiting = self.__dict__.get("_waiting")
        if waiting is not None:
            complete = int((~waiting.isnan().any(-1)).sum())
            raise NotFittedError(
                f"{complete} of the {self.warmup} complete rows to start from have arrived; learn more with partial_fit"
            )
        check_is_fitted(self)
        assert self._started is not None
        return self._started

    def _ready(self, X: Any) -> "tuple[Tensor, _Started]":
        started = self._fitted()
        return as_tensor(validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)), started


class _Started(NamedTuple):
    """A model with the columns it sees, shape (K,), what the others were, shape (D,), and whose space is used."""

    model: IEGPLVM
    kept: Tensor
    constant: Tensor
    expert: int

    def columns(self, rows: Tensor) -> Tensor:
        """What the model sees of rows (N, D)."""
        return rows[:, self.kept].to(self.model.omega)

    def whole(self, rows: Tensor, constant: float | None = None) -> Tensor:
        """Rows (N, D) from what the model sees; the other columns are as they were, or a given number."""
        values = self.constant if constant is None else torch.full_like(self.constant, constant)
        result = values.repeat(len(rows), 1)
        result[:, self.kept] = rows.to(result)
        return result


def _check_observed(rows: Tensor, where: str = "") -> None:
    empty = rows.isnan().all(-1)
    if bool(empty.any()):
        raise ValueError(f"row {int(empty.int().argmax())} of X has no observed entry{where}; drop it")


def _gaps(rows: Tensor) -> str:
    """Which column is missing most."""
    share = rows.isnan().double().mean(0)
    return f"column {int(share.argmax())} is missing in {float(share.max()):.0%} of them"
