r"""Linear models of features that see a path's own past targets: the exact filter of each path, without its covariance.

Before step t the weights of a path have covariance :math:`\Sigma_t = \Sigma + t Q - \sum_{s<t} g_s g_s^\top` with
:math:`g_s = \Sigma_s \phi_s / L_{ss}`, so one needs the product with the next features only:

.. math:: L_{ts} = g_s^\top \phi_t, \qquad L_{tt}^2 = \phi_t^\top \Sigma_t \phi_t + \sigma^2, \qquad
          m_t = \phi_t^\top \mu + \sum_{s<t} L_{ts}\, e_s / L_{ss}

at a cost of O(F² + t F) per step and path; the result is that of the filter that learns the path.
"""

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.experts.refitted import BoundRefitted
from gp_ensembles.features.base import BoundFeatures
from gp_ensembles.filters.block import joint_moments
from gp_ensembles.filters.schedule import is_full
from gp_ensembles.filters.states import GaussianState, RefittedState
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.streaming.forecasting.simulators import Ahead, Simulator

_WHAT = "the joint covariance of the future rows"


class LinearModel(NamedTuple):
    r"""One linear expert over H steps, double precision, in the coordinates of a schedule.

    Attributes:
        moments: [covariance | mean] of the weights, shape (F, F + 1).
        noise: Noise variance, a scalar.
        walk: Q, its diagonal (F,) or (1,), or the matrix (F, F); ``None`` for static weights.
        steps: Steps of the walk before each row, shape (H,).
        row_scale: :math:`\alpha` of a :class:`~gp_ensembles.filters.schedule.Schedule`, shape (H,); ``None`` for one.
        target_scale: :math:`\rho`, shape (H,); ``None`` for one.
    """

    moments: Tensor
    noise: Tensor
    walk: Tensor | None
    steps: Tensor
    row_scale: Tensor | None = None
    target_scale: Tensor | None = None


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
    """Means (H,) and lower Cholesky factor (H, H) of the covariance of the targets of future rows Phi (H, F).

    Raises:
        NumericalError: If the covariance is not positive definite.
    """
    design = Phi if model.row_scale is None else Phi * model.row_scale.unsqueeze(-1)
    _, mean, covariance, _ = joint_moments(GaussianState(model.moments), design, model.noise, model.walk, model.steps)
    return mean, cholesky(covariance + torch.diag_embed(model.noise.expand_as(mean)), _WHAT)


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
        """See :meth:`Simulator.predict`."""
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
        """See :meth:`Simulator.learn`."""
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


class OwnLags:
    """Features of a refitted expert's rows along L paths, with lags of each path's own targets."""

    def __init__(self, expert: BoundRefitted, state: RefittedState, features: BoundFeatures, num_paths: int) -> None:
        self._expert, self._state, self._features = expert, state, features
        self._past = expert.remembered(state).unsqueeze(-1).repeat(1, num_paths)

    def __call__(self, X: Tensor) -> Tensor:
        """Features of the next rows (L, D + P) of all paths, shape (L, F): experts of the object have the same."""
        Phi = self._expert.features_at(self._state, self._features(X), self._past)
        return Phi.reshape(-1, *Phi.shape[-2:])[0]

    def remember(self, y: Tensor) -> None:
        """Remember the targets (L,) drawn."""
        self._past = torch.cat([self._past[1:], y.unsqueeze(0)])
