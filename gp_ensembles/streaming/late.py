"""Delayed targets: rows are predicted when they arrive, and learned in order when their targets arrive."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions import Mixture, WithPointMass
from gp_ensembles.files.structure import from_plain, to_plain
from gp_ensembles.streaming.checks import refuse
from gp_ensembles.streaming.content import STREAMS
from gp_ensembles.streaming.model import OnlineModel
from gp_ensembles.streaming.predictions import StreamDistribution

_PATHS = 500
_MOST_STEPS = 1000  # ahead


class Scored(NamedTuple):
    """A target with the prediction that was made before it arrived.

    Attributes:
        identity: The row's identity.
        y: The target; NaN if it will never arrive, or cannot be learned (``StreamConfig.on_bad_row``).
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


_LATE = STREAMS.with_kinds(_Waiting)


class LateTargets:
    """A model whose targets are delayed, in any order within a window.

    Each row is predicted when it arrives, by :meth:`predict`, under a unique identity. Its target is given to
    :meth:`observe` when it arrives, and scored by that prediction. Rows are learned in order: a target is kept until
    those before it have arrived or were dropped, which count as missing; a row is dropped when ``window`` rows are
    pending. So the model is, whatever the order of arrival, that of a stream in order with gaps where targets never
    arrived. While rows are pending, the next one is several steps ahead of the last learned row: a number is forecast
    (:meth:`OnlineModel.forecast`) given the inputs of the pending rows; classes are predicted as for the next row.

    Args:
        model: The model; it is changed in place.
        window: Maximum number of pending rows.
        patience: A pending row is dropped when this many later rows have targets: targets seldom arrive in another
            order, and later rows cannot be learned before it. ``None`` for never.

    Attributes:
        num_given_up: Rows that were learned without a target, as it did not arrive in time or never will.

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
        """Whether the target of a row has yet to arrive."""
        return identity in self._rows and self._rows[identity].y is None

    @property
    def num_waiting(self) -> int:
        """Rows that were predicted and not yet learned."""
        return len(self._rows)

    @property
    def waiting(self) -> tuple[Hashable, ...]:
        """Identities of the rows whose targets have not arrived, in their order."""
        return tuple(identity for identity, row in self._rows.items() if row.y is None)

    def predict(self, identity: Hashable, X: Tensor, *, steps: float = 1.0) -> StreamDistribution:
        """Predict the next row and keep it until its target arrives.

        Args:
            identity: Its name, number or time, unique among the pending rows.
            X: Its inputs, in their units, shape (D,); NaN where missing.
            steps: Time since the row before, in usual steps.

        Returns:
            Its distribution, of N = 1 rows.

        Raises:
            ValueError: If a row of this identity is pending, or the row is not legal; then nothing changes.
        """
        if identity in self._rows:
            raise ValueError(f"a row {identity!r} is already pending; give each row a unique id")
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
        """Take the target of a predicted row, and learn all rows that can be learned in order.

        Args:
            identity: The row's identity.
            y: Its target; NaN if it will never arrive.

        Returns:
            The target with its prediction.

        Raises:
            ValueError: If no such row is pending, or the target is not legal; then nothing changes.
            NumericalError: If an expert fails; the target has not been taken then.
        """
        row = self._rows.get(identity)
        if row is None or row.y is not None:
            why = f"it was never predicted, is learned, or is more than {self.window} rows old"
            why = why if row is None else "its target arrived before"
            raise ValueError(f"no row {identity!r} is pending: {why}")
        target = self._cleaned(row.X, torch.tensor([float(y)], dtype=torch.float64, device="cpu"))
        row.y = float(y)
        try:
            self._learn(self._num_ready(give_up=self._num_hopeless()))
        except BaseException:
            if identity in self._rows:
                row.y = None
            raise
        return Scored(identity, float(target), row.predicted, float(row.predicted.log_prob(target)[0]))

    def content(self) -> dict[str, Any]:
        """The pending rows as plain containers and tensors, which :meth:`restore` reads back; without the model.

        Raises:
            TypeError: If an identity cannot be in a file, as a number or a text can.
        """
        return to_plain({name: value for name, value in vars(self).items() if name != "model"}, _LATE)

    @classmethod
    def restore(cls, model: OnlineModel, content: Mapping[str, Any]) -> "LateTargets":
        """The pending rows that :meth:`content` described, with the model as it was then."""
        late = cls(model)
        vars(late).update(from_plain(content, _LATE, model.device))
        for row in late._rows.values():
            row.X = row.X.cpu()
        return late

    def _ahead(self, row: Tensor, steps: float) -> StreamDistribution:
        """The distribution of a row after those that are pending."""
        X = self._with_rows_between(row, steps)
        generator = torch.Generator().manual_seed(self.model.num_rows + len(self._rows))  # the same after a restart
        forecast = self.model.forecast(X, num_paths=_PATHS, generator=generator)
        draws, first = forecast.paths[:, -1], forecast.first
        if not isinstance(first, WithPointMass):
            return smoothed_draws(draws)
        others = draws[draws != first.at[0]]
        share = (1 - first.at.new_full((1, 1), (len(others) + 0.5) / (len(draws) + 1))).log()
        return WithPointMass(smoothed_draws(others if len(others) else draws), first.at, share)

    def _with_rows_between(self, row: Tensor, steps: float) -> Tensor:
        """The pending rows and one after them, with rows of unknown inputs in gaps of time."""
        parts, most = list[Tensor](), min(self.model.num_rows, _MOST_STEPS)
        for X, passed in (*((waiting.X, waiting.steps) for waiting in self._rows.values()), (row, steps)):
            num_between = max(0, min(round(passed) - 1, most - 1))
            parts += [row.new_full((num_between, row.shape[1]), torch.nan), X]
        return torch.cat(parts)[-most:]

    def _num_hopeless(self) -> int:
        """Rows that have no target though ``patience`` later rows have."""
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
        """How many rows at the front can be learned if the first ``give_up`` without a target count as missing."""
        num_ready = 0
        for row in self._rows.values():
            if row.y is None:
                if give_up == 0:
                    break
                give_up -= 1
            num_ready += 1
        return num_ready

    def _learn(self, num_ready: int) -> None:
        """Learn this many rows at the front."""
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

    def _cleaned(self, X: Tensor, y: Tensor) -> Tensor:
        """The target of a row as it will be learned; raises if it cannot be."""
        rows = self.model.cleaned(X, y)
        refuse(rows.refused, self.model.num_rows + 1, self.model.feature_names)
        return rows.y


def smoothed_draws(draws: Tensor) -> Mixture:
    """A kernel density of draws (S,) with their mean and variance."""
    variance, mean = torch.var_mean(draws, correction=0)
    lower, upper = torch.quantile(draws, draws.new_tensor([0.25, 0.75])).unbind()
    deviation = variance.sqrt()
    spread = torch.minimum(deviation, (upper - lower) / 1.349)
    # Draws that are half the same have no interquartile range; draws that are all the same have no density.
    spread = torch.where(spread > 0, spread, deviation).clamp_min(torch.finfo(draws.dtype).tiny ** 0.5)
    bandwidth = 0.9 * spread * draws.shape[0] ** -0.2
    within = (variance - bandwidth.square()).clamp_min(0.0) / variance.clamp_min(torch.finfo(draws.dtype).tiny)
    centers = mean + within.sqrt() * (draws - mean)
    log_weights = torch.zeros_like(draws).log_softmax(0)
    return Mixture(log_weights, centers.unsqueeze(-1), bandwidth.square().expand_as(draws).unsqueeze(-1))
