r"""Simulators of sample paths: one-step predictions of experts that learn the targets drawn on each path.

:class:`IndependentSimulator` draws from one-step predictions alone, given the path's own past targets among the inputs.
:class:`SharedSimulator` has experts whose rows are the same on all paths: one joint normal distribution of H targets
for each, factored once. With features :math:`\Phi` (H, F) of the future rows, posterior :math:`N(\mu, \Sigma)` and a
walk Q, the targets have mean :math:`\Phi \mu` and covariance

.. math:: \Phi \Sigma \Phi^\top + \min(s, t) \circ \Phi Q \Phi^\top + \sigma^2 I = L L^\top

and :math:`y_t = \phi_t^\top \mu + \sum_{s \le t} L_{ts}\, e_s / L_{ss}` with one-step errors e: whatever the law of
the errors, this is the filter that learns the path's own targets one after the other.

:class:`LinearSimulator` has linear experts on features that see a path's own past targets: the same filter of each
path, without its covariance. Before step t the weights of a path have covariance
:math:`\Sigma_t = \Sigma + t Q - \sum_{s<t} g_s g_s^\top` with :math:`g_s = \Sigma_s \phi_s / L_{ss}`, so one needs the
product with the next features only:

.. math:: L_{ts} = g_s^\top \phi_t, \qquad L_{tt}^2 = \phi_t^\top \Sigma_t \phi_t + \sigma^2, \qquad
          m_t = \phi_t^\top \mu + \sum_{s<t} L_{ts}\, e_s / L_{ss}

at a cost of O(F² + t F) per step and path.

:class:`WindowSimulator` has exact Gaussian processes of the last rows that see past targets. Means are exact: each path
has its own rows. How variances shrink, and how a path's errors move its later means, depends on its rows, too, at O(n²)
for n rows of the window; it is taken from the path of means, once for all paths. Without past targets among the inputs
that is the exact joint law.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.engine.memory import TargetMemory
from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.features.base import BoundFeatures
from gp_ensembles.filters.block import joint_moments
from gp_ensembles.filters.states import FilterState, GaussianState, StudentTPredictions
from gp_ensembles.filters.transitions import Transition, is_full
from gp_ensembles.numerics.cholesky import cholesky

JOINT = "the joint covariance of the future rows"  # in messages about it


class PathRows:
    """Rows of S paths as the experts see them, from past targets (L,) and future inputs (H, D)."""

    def __init__(self, memory: TargetMemory | None, history: Tensor | None, inputs: Tensor, num_paths: int) -> None:
        self._inputs, self._num_paths = inputs, num_paths
        self._latest: tuple[int, Tensor] | None = None
        self._known: Tensor | None = None
        self._reach: tuple[Tensor, Tensor] | None = None
        if memory is not None and history is not None:
            past = history.unsqueeze(-1).expand(-1, num_paths)
            self._known = torch.cat([past, past.new_empty(inputs.shape[0], num_paths)])
            self._reach = memory.reach()
            self._first = history.shape[0]
            self._lagged = self._first - torch.tensor(memory.lags, dtype=torch.int64, device=inputs.device)

    def new_column(self) -> Tensor:
        """Room for a number of each path."""
        return self._inputs.new_empty(self._num_paths, dtype=torch.float64)

    def at(self, step: int, paths: Tensor) -> Tensor:
        """Rows of some paths at a step, shape (L, D + P)."""
        if self._latest is None or self._latest[0] != step:
            rows = self._inputs[step].expand(self._num_paths, -1)
            if self._known is not None:
                rows = torch.cat([rows, self._known[self._lagged + step].mT], dim=-1)
            self._latest = step, rows
        return self._latest[1][paths]

    def learn(self, step: int, y: Tensor) -> None:
        """Remember targets (S,) of a step."""
        if self._known is not None:
            self._known[self._first + step] = y

    def within_reach(self, y: Tensor) -> Tensor:
        """Targets clipped to the range that is ever remembered: some linear recursions grow without bound."""
        return y if self._reach is None else y.clamp(*self._reach)

    @classmethod
    def along_means(
        cls, memory: TargetMemory | None, history: Tensor | None, inputs: Tensor, mean: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Rows (H, D + P) of the path whose targets are their means, a function of the row (1, D + P)."""
        path, only = cls(memory, history, inputs, 1), torch.zeros(1, dtype=torch.int64, device=inputs.device)
        rows = []
        for step in range(inputs.shape[0]):
            rows.append(path.at(step, only))
            path.learn(step, path.within_reach(mean(rows[-1])))
        return torch.cat(rows)


class Ahead(NamedTuple):
    """Predictions of the next target of L paths, each by the expert of the path."""

    mean: Tensor  # means, shape (L,)
    variance: Tensor  # variances, noise included, shape (L,)
    degrees_of_freedom: Tensor | None = None  # of Student-t predictions, shape (L,); ``None`` for normal ones


class Simulator(ABC):
    """Some experts along L sample paths, numbers (L,): predict a target, learn the one drawn, and so on for H steps."""

    def __init__(self, paths: Tensor, sees_targets: bool) -> None:
        self.paths = paths
        self.sees_targets = sees_targets

    @abstractmethod
    def predict(self, step: int, X: Tensor | None) -> Ahead:
        """Predict the next target of each path from rows X (L, D + P)."""

    @abstractmethod
    def learn(self, step: int, y: Tensor, errors: Tensor) -> None:
        """Learn the targets drawn, (L,), and their distances from the means."""


@final
class IndependentSimulator(Simulator):
    """Paths of any expert object from its one-step predictions in the current state; ``members`` (L,) are experts."""

    def __init__(
        self, paths: Tensor, expert: BoundExpert, state: FilterState, members: Tensor, features: BoundFeatures
    ) -> None:
        super().__init__(paths, sees_targets=True)
        self._expert, self._state, self._members, self._features = expert, state, members, features
        self._last: Ahead | None = None

    def predict(self, step: int, X: Tensor | None) -> Ahead:
        assert X is not None
        predicted = self._expert.predict(self._state, self._features(X))
        place = self._members, torch.arange(X.shape[0], device=X.device)
        mean, variance = (part.double().reshape(-1, X.shape[0])[place] for part in (predicted.mean, predicted.variance))
        df = None
        if isinstance(predicted, StudentTPredictions):
            df = predicted.degrees_of_freedom.double().reshape(-1, X.shape[0])[place]
        if self._last is not None:
            silent = torch.isnan(mean)
            mean = torch.where(silent, self._last.mean, mean)
            variance = torch.where(silent, self._last.variance, variance)
        self._last = Ahead(mean, variance, df)
        return self._last

    def learn(self, step: int, y: Tensor, errors: Tensor) -> None:
        """Learn nothing: the state stays."""


@final
class SharedSimulator(Simulator):
    """Paths from Cholesky factors (L, H, H) of joint covariances, with means and target scales (L, H)."""

    def __init__(self, paths: Tensor, mean: Tensor, factor: Tensor, target_scale: Tensor | None = None) -> None:
        super().__init__(paths, sees_targets=False)
        self._mean = mean.mT.clone()  # (H, L): a step is a row
        self._factor = factor.permute(1, 2, 0).contiguous()
        self._scale = None if target_scale is None else target_scale.mT

    def predict(self, step: int, X: Tensor | None) -> Ahead:
        mean = self._mean[step] if self._scale is None else self._mean[step] * self._scale[step]
        return Ahead(mean, self._factor[step, step].square())

    def learn(self, step: int, y: Tensor, errors: Tensor) -> None:
        standard = errors / self._factor[step, step]
        if self._scale is not None:
            standard = standard / self._scale[step]
        self._mean[step + 1 :].addcmul_(self._factor[step + 1 :, step], standard)


class LinearModel(NamedTuple):
    """One linear expert over H steps, double precision, in the coordinates of a schedule."""

    moments: Tensor  # [covariance | mean] of the weights, shape (F, F + 1)
    noise: Tensor  # noise variance, a scalar
    walk: Tensor | None  # Q, its diagonal (F,) or (1,), or the matrix (F, F); ``None`` for static weights
    steps: Tensor  # steps of the walk before each row, shape (H,)
    row_scale: Tensor | None = None  # α of a Schedule, shape (H,); ``None`` for one
    target_scale: Tensor | None = None  # ρ, shape (H,); ``None`` for one


def linear_models(
    moments: Tensor, noise: Tensor, transition: Transition | None, prior_variance: Tensor, num_steps: int
) -> list[LinearModel] | None:
    r"""The experts of one object, flattened; ``None`` if so many steps do not keep their digits in one schedule.

    Shapes: ``moments`` (\*batch, F, F + 1), ``noise`` (\*batch), ``prior_variance`` (\*batch).
    """
    shape, size = noise.shape, moments.shape[-2:]
    count = shape.numel()
    moments, noise = moments.double().reshape(count, *size), noise.double().reshape(count)
    steps = torch.arange(1, num_steps + 1, dtype=torch.float64, device=noise.device).expand(count, -1)
    if transition is None:
        return [LinearModel(moments[m], noise[m], None, steps[m]) for m in range(count)]
    if transition.max_rows is not None and transition.max_rows < num_steps:
        return None
    schedule = transition.schedule(num_steps, prior_variance.double())

    def flat(value: Tensor | None, own: int) -> list[Tensor | None]:
        if value is None:
            return [None] * count
        return list(value.double().expand(*shape, *value.shape[-own:]).reshape(count, *value.shape[-own:]))

    walk = schedule.walk
    walks = flat(walk, 1 if walk is None or not is_full(walk, prior_variance) else 2)
    counts = steps if schedule.steps is None else schedule.steps.double().expand(*shape, -1).reshape(count, -1)
    rows, targets = flat(schedule.row_scale, 1), flat(schedule.target_scale, 1)
    return [LinearModel(moments[m], noise[m], walks[m], counts[m], rows[m], targets[m]) for m in range(count)]


def joint_law(model: LinearModel, Phi: Tensor) -> tuple[Tensor, Tensor]:
    """Means (H,) and lower Cholesky factor (H, H) of the covariance of the targets of future rows Phi (H, F)."""
    design = Phi if model.row_scale is None else Phi * model.row_scale.unsqueeze(-1)
    _, mean, covariance, _ = joint_moments(GaussianState(model.moments), design, model.noise, model.walk, model.steps)
    return mean, cholesky(covariance + torch.diag_embed(model.noise.expand_as(mean)), JOINT)


@final
class LinearSimulator(Simulator):
    """Paths, numbers (L,), of linear experts on features that see past targets."""

    def __init__(
        self,
        paths: Tensor,
        models: list[LinearModel],
        counts: list[int],
        features: Callable[[Tensor], Tensor],
        num_steps: int,
        remember: Callable[[Tensor], None] | None = None,
    ) -> None:
        super().__init__(paths, sees_targets=True)
        self._remember = remember
        self._models, self._counts, self._features = models, counts, features
        first = models[0].moments
        self._noise = torch.cat([m.noise.expand(n) for m, n in zip(models, counts, strict=True)])
        self._gains = first.new_empty(paths.shape[0], num_steps, first.shape[0])
        self._standard = first.new_empty(paths.shape[0], num_steps)
        self._deviation = self._noise
        self._rows = self._each([m.row_scale for m in models])
        self._targets = self._each([m.target_scale for m in models])

    def predict(self, step: int, X: Tensor | None) -> Ahead:
        assert X is not None
        Phi = self._features(X)
        if self._rows is not None:
            Phi = Phi * self._rows[:, step : step + 1]
        parts = zip(Phi.split(self._counts), self._models, strict=True)
        product = torch.cat([_ahead(rows, model, step) for rows, model in parts])
        spread, mean = product[:, :-1], product[:, -1]
        if step:
            before = self._gains[:, :step]
            loadings = torch.bmm(before, Phi.unsqueeze(-1)).squeeze(-1)
            mean = mean + (loadings * self._standard[:, :step]).sum(-1)
            spread = spread - torch.bmm(loadings.unsqueeze(1), before).squeeze(1)
        variance = (spread * Phi).sum(-1).clamp_min(0.0) + self._noise
        self._deviation = variance.sqrt()
        self._gains[:, step] = spread / self._deviation.unsqueeze(-1)
        return Ahead(mean if self._targets is None else mean * self._targets[:, step], variance)

    def learn(self, step: int, y: Tensor, errors: Tensor) -> None:
        if self._remember is not None:
            self._remember(y)
        standard = errors / self._deviation
        self._standard[:, step] = standard if self._targets is None else standard / self._targets[:, step]

    def _each(self, values: list[Tensor | None]) -> Tensor | None:
        """Values of each path's expert, (L, H); ``None`` if none has any."""
        if all(value is None for value in values):
            return None
        one = self._standard.new_ones(self._standard.shape[1])
        rows = [(one if value is None else value).expand(n, -1) for value, n in zip(values, self._counts, strict=True)]
        return torch.cat(rows)


def _ahead(Phi: Tensor, model: LinearModel, step: int) -> Tensor:
    r"""Features (L, F) times [covariance | mean] with the walk up to a step, shape (L, F + 1)."""
    product = Phi @ model.moments
    if model.walk is not None:
        walked = Phi @ model.walk if is_full(model.walk, model.noise) else Phi * model.walk
        product[:, :-1] += model.steps[step] * walked
    return product


@final
class WindowSimulator(Simulator):
    """Paths of windows that see past targets.

    Shapes: ``means``, those of all windows (M, L) at rows (L, D + P); experts ``members`` (L,); Cholesky factors
    ``factor`` (L, H, H).
    """

    def __init__(self, paths: Tensor, means: Callable[[Tensor], Tensor], members: Tensor, factor: Tensor) -> None:
        super().__init__(paths, sees_targets=True)
        self._means, self._members = means, members
        self._moved = SharedSimulator(paths, factor.new_zeros(factor.shape[:2]), factor)

    def predict(self, step: int, X: Tensor | None) -> Ahead:
        assert X is not None
        moved, variance, _ = self._moved.predict(step, None)
        own = self._means(X)[self._members, torch.arange(X.shape[0], device=X.device)]
        return Ahead(own + moved, variance)

    def learn(self, step: int, y: Tensor, errors: Tensor) -> None:
        self._moved.learn(step, y, errors)
