r"""Experts whose rows are the same on all paths: one joint normal distribution of H targets for each, factored once.

With features :math:`\Phi` (H, F) of the rows to come, posterior :math:`N(\mu, \Sigma)` and a walk Q, the targets have
mean :math:`\Phi \mu` and covariance

.. math:: \Phi \Sigma \Phi^\top + \min(s, t) \circ \Phi Q \Phi^\top + \sigma^2 I = L L^\top

and :math:`y_t = \phi_t^\top \mu + \sum_{s \le t} L_{ts}\, e_s / L_{ss}` with one-step errors e: whatever law the
errors have, this is the filter that learns the path's own targets one after the other.
"""

from typing import final

from torch import Tensor

from gp_ensembles.streaming.forecasting.simulator import Ahead, Simulator


@final
class SharedSimulator(Simulator):
    """Paths by factors of joint covariances.

    Shapes: ``batches`` (L,), ``mean`` (L, H), ``factor`` (L, H, H), ``target_scale`` (L, H).
    """

    def __init__(self, batches: Tensor, mean: Tensor, factor: Tensor, target_scale: Tensor | None = None) -> None:
        super().__init__(batches, sees_targets=False)
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
