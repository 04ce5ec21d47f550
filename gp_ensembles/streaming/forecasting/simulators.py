r"""Simulators of sample paths: one-step predictions of experts that learn the targets drawn on each path.

:class:`IndependentSimulator` draws from one-step predictions alone, given the path's own past targets among the inputs.
:class:`SharedSimulator` has experts whose rows are the same on all paths: one joint normal distribution of H targets
for each, factored once. With features :math:`\Phi` (H, F) of the future rows, posterior :math:`N(\mu, \Sigma)` and a
walk Q, the targets have mean :math:`\Phi \mu` and covariance

.. math:: \Phi \Sigma \Phi^\top + \min(s, t) \circ \Phi Q \Phi^\top + \sigma^2 I = L L^\top

and :math:`y_t = \phi_t^\top \mu + \sum_{s \le t} L_{ts}\, e_s / L_{ss}` with one-step errors e: whatever the law of
the errors, this is the filter that learns the path's own targets one after the other.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.features.base import BoundFeatures
from gp_ensembles.filters.states import FilterState, StudentTPredictions


class Ahead(NamedTuple):
    """Predictions of the next target of L paths, each by the expert of the path.

    Attributes:
        mean: Means, shape (L,).
        variance: Variances, noise included, shape (L,).
        degrees_of_freedom: Of Student-t predictions, shape (L,); ``None`` for normal ones.
    """

    mean: Tensor
    variance: Tensor
    degrees_of_freedom: Tensor | None = None


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
        """See :meth:`Simulator.predict`."""
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
        """See :meth:`Simulator.predict`."""
        mean = self._mean[step] if self._scale is None else self._mean[step] * self._scale[step]
        return Ahead(mean, self._factor[step, step].square())

    def learn(self, step: int, y: Tensor, errors: Tensor) -> None:
        """See :meth:`Simulator.learn`."""
        standard = errors / self._factor[step, step]
        if self._scale is not None:
            standard = standard / self._scale[step]
        self._mean[step + 1 :].addcmul_(self._factor[step + 1 :, step], standard)
