"""A fitted sparse or exact Gaussian process as an expert: its prior mean, and the variance that its knots leave out."""

from typing import final

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.gaussian import BoundGaussian, GaussianExpert
from gp_ensembles.experts.window import BoundWindow, WindowExpert
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.covariance import bind_covariance
from gp_ensembles.features.inducing import InducingPointFeatures
from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.states import FilterState, Predictions, StepPredictions
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.numerics.gpytorch_types import Mean


@final
class FittedFeatures(FeatureMap):
    r"""The features of an expert, then two columns: what the knots leave out, and the prior mean.

    .. math:: \big(\phi(x),\; \sqrt{k(x, x) - v\,\phi(x)^\top \phi(x)},\; m(x)\big)
    """

    def __init__(self, inner: FeatureMap, mean: Mean) -> None:
        super().__init__(inner.num_inputs, inner.num_features + 2, inner.batch_shape, inner.domain)
        self.inner = inner
        self.mean = mean

    @property
    def prior_variance(self) -> Tensor:
        """That of the expert's weights, shape ()."""
        return self.inner.prior_variance

    def bind(self) -> BoundFeatures:
        """Read the hyperparameters once and return the map as a plain function of tensors."""
        inner, mean = self.inner.bind(), self.mean
        if isinstance(self.inner, InducingPointFeatures):
            diagonal, variance = bind_covariance(self.inner.kernel).diagonal, self.inner.prior_variance
        else:
            diagonal, variance = None, self.inner.prior_variance

        def features(X: Tensor) -> Tensor:
            Phi = inner(X)
            offset = mean(X)
            if diagonal is None:
                spread = torch.zeros_like(offset)
            else:
                spread = (diagonal(X) - variance * Phi.square().sum(-1)).clamp_min(0.0).sqrt()
            return torch.cat([Phi, spread.unsqueeze(-1), offset.unsqueeze(-1)], dim=-1)

        return features


@final
class BoundFitted(BoundExpert):
    """A fitted expert's numbers. Shapes: ``prior_variance`` (S,)."""

    def __init__(self, features: BoundFeatures, inner: BoundGaussian | BoundWindow, prior_variance: Tensor) -> None:
        super().__init__(features, prior_variance, inner.transition)
        self._inner = inner

    def update_block(self, state: FilterState, Phi: Tensor, y: Tensor | Rows) -> tuple[FilterState, Predictions]:
        """See :meth:`BoundExpert.update_block`."""
        rows = as_rows(y)
        if Phi.ndim == 2:
            return self._update_one(state, Phi, rows)
        parts = [self._update_one(_entry(state, index), Phi[index], rows) for index in range(Phi.shape[0])]
        states, steps = zip(*parts, strict=True)
        stacked = type(state)(*(torch.stack(fields) for fields in zip(*states, strict=True)))
        return stacked, StepPredictions(*(torch.stack(fields) for fields in zip(*steps, strict=True)))

    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> Predictions:
        """See :meth:`BoundExpert.predict`."""
        if Phi.ndim == 2:
            return self._predict_one(state, Phi, steps)
        parts = [self._predict_one(_entry(state, index), Phi[index], steps) for index in range(Phi.shape[0])]
        return StepPredictions(*(torch.stack(fields) for fields in zip(*parts, strict=True)))

    def take(self, index: Tensor) -> "BoundFitted":
        """Copies of the one expert."""
        return BoundFitted(self.features, self._inner, self.prior_variance.reshape(-1)[index])

    def _update_one(self, state: FilterState, Phi: Tensor, rows: Rows) -> tuple[FilterState, StepPredictions]:
        inner, extra, offset = _split(Phi)
        weighted = rows._replace(y=rows.y - offset, extra=extra if rows.extra is None else extra + rows.extra)
        after, steps = self._inner.update_block(state, inner, weighted)
        return after, steps._replace(mean=steps.mean + offset)

    def _predict_one(self, state: FilterState, Phi: Tensor, steps: Tensor | None) -> StepPredictions:
        inner, extra, offset = _split(Phi)
        found = self._inner.predict(state, inner, steps)
        return found._replace(mean=found.mean + offset, variance=found.variance + extra)


def _split(Phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of the expert, their further noise, and their prior means."""
    return Phi[..., :-2], Phi[..., -2].square(), Phi[..., -1]


def _entry(state: FilterState, index: int) -> FilterState:
    return type(state)(*(field[index] for field in state))


@final
class FittedExpert(Expert):
    r"""An expert that continues from a fitted model, with the model's prior mean and the variance off its knots.

    .. math:: y_t = m(x_t) + \phi(x_t)^\top \theta + \varepsilon_t, \quad
              \varepsilon_t \sim N(0,\; \sigma^2 + k(x_t, x_t) - v\,\phi(x_t)^\top \phi(x_t))
    """

    def __init__(self, inner: GaussianExpert | WindowExpert, mean: Mean) -> None:
        super().__init__(FittedFeatures(inner.features, mean), None)
        self.inner = inner
        self.mean = mean
        self.traits = inner.traits

    def init(self) -> FilterState:
        """State before any data: the prior, not the fitted posterior."""
        return self.inner.init()

    def bind(self) -> BoundFitted:
        """Read the hyperparameters once."""
        return BoundFitted(self.features.bind(), self.inner.bind(), self.features.prior_variance)

    def check_targets(self, y: Tensor) -> None:
        """Raise unless targets have shape (B,) and none is infinite; see :meth:`Expert.check_targets`."""
        self.inner.check_targets(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """By the predictions of one row after the other; see :meth:`Expert.log_evidence`."""
        _, steps = self.update(self.init(), X, y)
        return steps.log_prob.sum(-1)

    def take(self, index: Tensor) -> "FittedExpert":
        """Not possible: the expert has no batch.

        Raises:
            ValueError: Always.
        """
        raise ValueError("an expert that continues from a fitted model has no batch; make an expert of each model")

    def with_transition(self, transition: Transition | None) -> "FittedExpert":
        """See :meth:`Expert.with_transition`; a window expert takes none."""
        return FittedExpert(self.inner.with_transition(transition), self.mean)
