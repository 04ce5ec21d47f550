"""Targets that come late: rows are predicted when they come, and learned in their order when their targets arrive."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.streaming.checks import illegal_target, too_large
from gp_ensembles.streaming.model import OnlineModel
from gp_ensembles.streaming.predictions import StreamDistribution
from gp_ensembles.streaming.serialization import predictions_from_plain, predictions_to_plain, smoothed_draws

_PATHS = 500
_MOST_STEPS = 1000  # ahead


class Scored(NamedTuple):
    """A target beside what was said of it before it came.

    Attributes:
        identity: The row's identity.
        y: The target; NaN where it was given up.
        predicted: The distribution of the row when it was predicted, of N = 1 rows.
        log_prob: Log density or probability of the target under it, in nats; NaN where it was given up.
    """

    identity: Hashable
    y: float
    predicted: StreamDistribution
    log_prob: float


@dataclass
class _Waiting:
    """A row that was predicted and not yet learned."""

    X: Tensor
    steps: float
    predicted: StreamDistribution
    y: float | None = None


class LateTargets:
    """A model whose targets come late, in any order within a window.

    Each row is predicted when it comes, by :meth:`predict`, under an identity of its own. Its target is told by
    :meth:`observe` when it arrives, and scored by what was said of the row then. Rows are learned in their order: a
    target waits until those before it have arrived or were given up, which they are when ``window`` rows wait, and
    count as missing then. So the model is, whatever the order of arrival, that of a stream in order with gaps where
    targets never came. While rows wait, the next one is several steps ahead of what was learned: a number is forecast
    then (:meth:`OnlineModel.forecast`), inputs of the waiting rows included; classes are told as for the next row.

    Args:
        model: The model; it is changed in place.
        window: Most rows that wait for their targets.
        patience: A row is given up when so many rows behind it have their targets, and it has not: they seldom come in
            another order, and meanwhile those behind it cannot be learned. ``None`` for never.

    Attributes:
        num_given_up: Rows that were learned without a target, as it did not come in time or will never come.

    Example:
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> from gp_ensembles.streaming import OnlineModel, StreamConfig
        >>> X = torch.linspace(0, 9, 60, dtype=torch.float64).unsqueeze(-1)
        >>> model = OnlineModel(
        ...     StreamConfig(replace(oebe, bases=(LinearBasis(),)), warmup=58)
        ... )
        >>> _ = model.observe(X[:58], 5 * X[:58, 0])
        >>> late = LateTargets(model)
        >>> _ = late.predict("monday", X[58])
        >>> late.observe("monday", 45.0).identity, model.num_rows, late.num_waiting
        ('monday', 59, 0)
    """

    num_given_up: int

    def __init__(self, model: OnlineModel, window: int = 1000, patience: int | None = None) -> None:
        if window < 1:
            raise ValueError(f"window must be at least one row, got {window}")
        if patience is not None and patience < 1:
            raise ValueError(f"patience must be at least one row, got {patience}")
        self.model = model
        self.window = window
        self.patience = patience
        self.num_given_up = 0
        self._rows: dict[Hashable, _Waiting] = {}

    def __contains__(self, identity: Hashable) -> bool:
        """Whether a row of this identity was predicted and is not learned yet."""
        return identity in self._rows

    def is_waiting(self, identity: Hashable) -> bool:
        """Whether the target of a row has yet to come."""
        return identity in self._rows and self._rows[identity].y is None

    @property
    def num_waiting(self) -> int:
        """Rows that were predicted and not yet learned."""
        return len(self._rows)

    @property
    def waiting(self) -> tuple[Hashable, ...]:
        """Identities of the rows whose targets have not come, in their order."""
        return tuple(identity for identity, row in self._rows.items() if row.y is None)

    def predict(self, identity: Hashable, X: Tensor, *, steps: float = 1.0) -> StreamDistribution:
        """Predict the next row and remember it until its target comes.

        Args:
            identity: Its name, number or time: whatever tells it apart from others that wait.
            X: Its inputs, in their units, shape (D,); NaN where missing.
            steps: Time since the row before, in usual steps.

        Returns:
            Its distribution, of N = 1 rows.

        Raises:
            ValueError: If a row of this identity waits already, or the row is not legal; nothing is remembered then.
        """
        if identity in self._rows:
            raise ValueError(f"a row {identity!r} waits for its target already; give each row an id of its own")
        row = X.reshape(1, -1).detach().to("cpu", torch.float64)
        time = None if steps == 1 else row.new_full((1,), steps)
        predicted = self.model.predict(row, time)  # refuses what is not legal before anything is changed
        if len(self._rows) >= self.window:
            oldest = islice(self._rows.values(), len(self._rows) - self.window + 1)
            self._learn(self._num_ready(give_up=sum(waiting.y is None for waiting in oldest)))
            predicted = self.model.predict(row, time)
        if self._rows and self.model.is_fitted and self.model.config.ensemble.target.is_real:
            predicted = self._ahead(row, steps)
        self._rows[identity] = _Waiting(row, float(steps), predicted)
        return predicted

    def observe(self, identity: Hashable, y: float) -> Scored:
        """Take the target of a row that was predicted, and learn all rows that are no longer waiting for others.

        Args:
            identity: The row's identity.
            y: Its target; NaN if it is known that it will never come.

        Returns:
            The target beside what was said of it.

        Raises:
            ValueError: If no such row waits for its target, or the target is not legal; nothing changes then.
            NumericalError: If an expert fails; the target has not been taken then.
        """
        row = self._rows.get(identity)
        if row is None or row.y is not None:
            why = (
                "its target came before"
                if row is not None
                else f"it was never predicted, is learned, or is more \
than {self.window} rows old"
            )
            raise ValueError(f"no row {identity!r} waits for a target: {why}")
        target = torch.tensor([float(y)], dtype=torch.float64, device="cpu")
        self._refuse(row.X, target)
        row.y = float(y)
        try:
            self._learn(self._num_ready(give_up=self._num_hopeless()))
        except BaseException:
            if identity in self._rows:
                row.y = None
            raise
        return Scored(identity, row.y, row.predicted, float(row.predicted.log_prob(target.to(self.model.device))[0]))

    def content(self) -> dict[str, Any]:
        """The rows that wait as plain containers and tensors, which :meth:`restore` reads back; the model is not in it.

        Raises:
            TypeError: If an identity is neither text nor a number.
        """
        rows = []
        for identity, row in self._rows.items():
            if not isinstance(identity, str | int | float):
                raise TypeError(f"only text and numbers can be ids in a file, got {identity!r}")
            rows.append([identity, row.X.clone(), row.steps, predictions_to_plain(row.predicted), row.y])
        return {"window": self.window, "patience": self.patience, "num_given_up": self.num_given_up, "rows": rows}

    @classmethod
    def restore(cls, model: OnlineModel, content: Mapping[str, Any]) -> "LateTargets":
        """What :meth:`content` described, around the model as it was then."""
        late = cls(model, content["window"], content["patience"])
        late.num_given_up = content["num_given_up"]
        for identity, X, steps, predicted, y in content["rows"]:
            late._rows[identity] = _Waiting(X, steps, predictions_from_plain(predicted, model.device), y)
        return late

    def _ahead(self, row: Tensor, steps: float) -> StreamDistribution:
        """The distribution of a row behind those that wait."""
        X = self._with_rows_between(row, steps)
        generator = torch.Generator().manual_seed(self.model.num_rows + len(self._rows))  # the same after a restart
        forecast = self.model.forecast(X, num_paths=_PATHS, generator=generator)
        return smoothed_draws(forecast.paths[:, -1])

    def _with_rows_between(self, row: Tensor, steps: float) -> Tensor:
        """The rows that wait and one behind them, with rows of unknown inputs where steps were left out in time."""
        parts, most = list[Tensor](), min(self.model.num_rows, _MOST_STEPS)
        for X, passed in (*((waiting.X, waiting.steps) for waiting in self._rows.values()), (row, steps)):
            num_between = max(0, min(round(passed) - 1, most - 1))
            parts += [row.new_full((num_between, row.shape[1]), torch.nan), X]
        return torch.cat(parts)[-most:]

    def _num_hopeless(self) -> int:
        """Rows that have no target though ``patience`` rows behind them have."""
        if self.patience is None:
            return 0
        num_reported, num_hopeless = 0, 0
        for waiting in reversed(self._rows.values()):
            if waiting.y is not None:
                num_reported += 1
            elif num_reported >= self.patience:
                num_hopeless += 1
        return num_hopeless

    def _num_ready(self, give_up: int = 0) -> int:
        """How many rows at the front can be learned, where so many count as missing if their targets have not come."""
        num_ready = 0
        for row in self._rows.values():
            if row.y is None:
                if give_up == 0:
                    break
                give_up -= 1
            num_ready += 1
        return num_ready

    def _learn(self, num_ready: int) -> None:
        """Learn so many rows at the front."""
        if num_ready == 0:
            return
        ready = list(self._rows)[:num_ready]
        rows = [self._rows[identity] for identity in ready]
        y = [torch.nan if row.y is None else row.y for row in rows]
        X = torch.cat([row.X for row in rows])
        steps = torch.tensor([row.steps for row in rows], dtype=X.dtype, device=X.device)
        self.model.observe(
            X, torch.tensor(y, dtype=X.dtype, device=X.device), None if bool((steps == 1).all()) else steps
        )
        for identity in ready:
            del self._rows[identity]
        self.num_given_up += sum(value != value for value in y)

    def _refuse(self, X: Tensor, y: Tensor) -> None:
        """Raise if a row cannot be learned as it is."""
        model = self.model
        if model.is_fitted:
            wrong = model.first_illegal(X.to(model.device), y.to(model.device))
        else:
            wrong = illegal_target(model.config.ensemble.target, y) or too_large(X, y)
        if wrong is not None:
            raise ValueError(wrong.message(model.num_rows + 1, model.feature_names or ()))
