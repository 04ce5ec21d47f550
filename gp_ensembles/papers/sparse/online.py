"""Fitted models as experts of an online ensemble, with their prior means and the variance not explained by knots."""

from collections.abc import Sequence
from copy import deepcopy
from typing import final

import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.gaussian import BoundGaussian, GaussianExpert
from gp_ensembles.experts.window import WindowExpert
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.covariance import bind_covariance
from gp_ensembles.features.inducing import InducingPointFeatures
from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.states import FilterState, Predictions, SquareRootState, StepPredictions
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.meta_learners.base import MetaLearner
from gp_ensembles.numerics.gpytorch_types import Mean
from gp_ensembles.papers.sparse.base import SparseModel
from gp_ensembles.papers.sparse.collapsed import KnotsPosterior
from gp_ensembles.papers.sparse.initialization import greedy_variance_rows
from gp_ensembles.papers.sparse.regression import ExactGP, SparseGP
from gp_ensembles.papers.sparse.strategies import Selection

Fitted = SparseModel | Selection
WINDOW, LEAST_WINDOW = 2000, 200  # maximum and minimum number of rows of a window
KNOTS = 1000  # knots of an exact model with more rows than a window


def inducing_features(model: SparseModel) -> InducingPointFeatures:
    """A feature map from the knots of a model, which are fixed; knots and hyperparameters are copied."""
    return InducingPointFeatures(deepcopy(model.covar_module), model.knots.detach(), model.nugget)


def start_online(
    models: Fitted | Sequence[Fitted], rule: MetaLearner, names: Sequence[str] | None = None
) -> OnlineEnsemble:
    r"""An online ensemble with experts that continue from fitted models.

    A :class:`SparseGP` continues as a Bayesian regression on its knots' features with the model's posterior, and the
    prior variance not explained by the knots is added to the noise of each row: before the first row, predictions are
    those of the model (of its ``VFE`` or ``FITC`` form, with the full conditional variance). An :class:`ExactGP` of up
    to 2000 rows continues exactly, as a :class:`~gp_ensembles.experts.WindowExpert` with space for as many new rows,
    which drops the older half when it is full; a larger one continues with 1000 of its rows as knots.
    Prior means are kept as fitted. Online experts have no transforms and one noise variance for
    all rows: other models raise a ValueError.

    Args:
        models: Fitted models, or results of :func:`select_knots`, on the same columns, with any
            kernels, means and numbers of knots. They are copied. The tails of a selection are dropped: experts are
            normal.
        rule: Weight rule of the experts, from ``gp_ensembles.meta_learners``.
        names: One name per expert; numbers by default.

    Returns:
        The ensemble, with M experts in the order of the models.

    Raises:
        ValueError: If there is no model, they do not match, or one has an input or outcome transform or was
            given the noise of its rows (``train_Yvar``).

    Example:
        >>> from gp_ensembles.meta_learners import FixedShare
        >>> from gp_ensembles.papers.sparse import GreedyBlocks, select_knots
        >>> X = torch.linspace(0, 1, 80, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(6.0 * X.squeeze(-1))
        >>> found = select_knots(X[:50], y[:50], strategy=GreedyBlocks(max_knots=10))
        >>> online = start_online(found, FixedShare(0.01))
        >>> torch.allclose(online.predict(X).mean, found.model.posterior(X).mean.squeeze(-1).detach())
        True
        >>> online.observe(X[50:], y[50:]).mean.shape
        torch.Size([30])
    """
    given = [models] if isinstance(models, SparseModel | Selection) else list(models)
    if not given:
        raise ValueError("models must contain at least one model")
    listed: list[SparseModel] = [one.model if isinstance(one, Selection) else one for one in given]
    for number, model in enumerate(listed):
        _check_plain(model, number)
    with torch.no_grad():
        parts = [_expert(model) for model in listed]
        ensemble = Ensemble([expert for expert, _ in parts], rule, names)
        return OnlineEnsemble(ensemble, ensemble.init()._replace(experts=tuple(state for _, state in parts)))


def _check_plain(model: SparseModel, number: int) -> None:
    """Raise if a model has what online experts do not support: transforms, or a noise variance per row."""
    for name, rows in (("input_transform", "inputs"), ("outcome_transform", "targets")):
        if getattr(model, name, None) is not None:
            raise ValueError(
                f"model {number} has an {name}, but online experts have none: transform the {rows} first, fit the "
                f"model to these without {name}=, and give the ensemble {rows} transformed in the same way"
            )
    if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        raise ValueError(
            f"model {number} was given the noise variances of its rows (train_Yvar), but online rows have "
            f"none: fit it with a likelihood whose noise is inferred"
        )


def _expert(model: SparseModel) -> tuple[Expert, FilterState]:
    """An expert and its state."""
    if isinstance(model, ExactGP):
        if model.num_knots <= WINDOW:
            return _window_expert(model)
        model = _thinned(model)
    inner = GaussianExpert(inducing_features(model), deepcopy(model.likelihood))
    return FittedExpert(inner, deepcopy(model.mean_module)), weights_posterior(model)


def _window_expert(model: ExactGP) -> tuple[Expert, FilterState]:
    kernel, likelihood, mean = deepcopy((model.covar_module, model.likelihood, model.mean_module))
    num_inputs = model.train_X.shape[-1]
    room = max(num_inputs, min(WINDOW, max(LEAST_WINDOW, len(model.train_y))))
    expert = WindowExpert(kernel, num_inputs, room, likelihood, mean)
    state, _ = expert.update(expert.init(), model.train_X, model.train_y)
    return expert, state


def _thinned(model: ExactGP) -> SparseGP:
    """A sparse version of an exact model, with the rows of the largest remaining prior variance as knots."""
    rows = greedy_variance_rows(model.knots, KNOTS, model.covar_module)
    parts = deepcopy((model.covar_module, model.likelihood, model.mean_module))
    return SparseGP(model.train_X, model.train_y, model.knots[rows], *parts)


def weights_posterior(model: SparseModel) -> SquareRootState:
    r"""The posterior of the weights of :func:`inducing_features` given the model's rows.

    .. math:: \theta \sim N\big(\sqrt{v}\, L_B^{-\top} c,\; v\, (L_B L_B^\top)^{-1}\big)
    """
    with torch.no_grad():
        knots, seen = model.knots_posterior(), model.kernel_diagonal(model.knots)
        if not isinstance(knots, KnotsPosterior):
            raise ValueError("an exact model has no knot weights; use start_online, which continues from its rows")
        identity = torch.diag_embed(torch.ones_like(seen))
        factor = torch.linalg.solve_triangular(knots.factor, identity, upper=False).mT
        scale = seen.mean(-1).sqrt()
        return SquareRootState(scale * (factor @ knots.mean), scale * factor)


@final
class FittedFeatures(FeatureMap):
    r"""The features of an expert, followed by two columns: root of the unexplained variance, and the prior mean.

    .. math:: \big(\phi(x),\; \sqrt{k(x, x) - v\,\phi(x)^\top \phi(x)},\; m(x)\big)
    """

    def __init__(self, inner: InducingPointFeatures, mean: Mean) -> None:
        super().__init__(inner.num_inputs, inner.num_features + 2, inner.batch_shape, inner.domain)
        self.inner = inner
        self.mean = mean

    @property
    def prior_variance(self) -> Tensor:
        """Prior variance of the expert's weights, shape ()."""
        return self.inner.prior_variance

    def bind(self) -> BoundFeatures:
        inner, mean, variance = self.inner.bind(), self.mean, self.inner.prior_variance
        diagonal = bind_covariance(self.inner.kernel).diagonal

        def features(X: Tensor) -> Tensor:
            Phi = inner(X)
            spread = (diagonal(X) - variance * Phi.square().sum(-1)).clamp_min(0.0).sqrt()
            return torch.cat([Phi, spread.unsqueeze(-1), mean(X).unsqueeze(-1)], dim=-1)

        return features


@final
class BoundFitted(BoundExpert):
    """A fitted expert's hyperparameters. Shapes: ``prior_variance`` (S,)."""

    def __init__(self, features: BoundFeatures, inner: BoundGaussian, prior_variance: Tensor) -> None:
        super().__init__(features, prior_variance, inner.transition)
        self._inner = inner

    def update_block(self, state: FilterState, Phi: Tensor, y: Tensor | Rows) -> tuple[FilterState, Predictions]:
        rows = as_rows(y)
        if Phi.ndim == 2:
            return self._update_one(state, Phi, rows)
        parts = [self._update_one(_entry(state, index), Phi[index], rows) for index in range(Phi.shape[0])]
        states, steps = zip(*parts, strict=True)
        stacked = type(state)(*(torch.stack(fields) for fields in zip(*states, strict=True)))
        return stacked, StepPredictions(*(torch.stack(fields) for fields in zip(*steps, strict=True)))

    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> Predictions:
        if Phi.ndim == 2:
            return self._predict_one(state, Phi, steps)
        parts = [self._predict_one(_entry(state, index), Phi[index], steps) for index in range(Phi.shape[0])]
        return StepPredictions(*(torch.stack(fields) for fields in zip(*parts, strict=True)))

    def take(self, index: Tensor) -> "BoundFitted":
        """Copies of the single expert."""
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
    """Rows of the expert, their additional noise, and their prior means."""
    return Phi[..., :-2], Phi[..., -2].square(), Phi[..., -1]


def _entry(state: FilterState, index: int) -> FilterState:
    return type(state)(*(field[index] for field in state))


@final
class FittedExpert(Expert):
    r"""An expert that continues from a fitted model, with its prior mean and the variance its knots leave unexplained.

    .. math:: y_t = m(x_t) + \phi(x_t)^\top \theta + \varepsilon_t, \quad
              \varepsilon_t \sim N(0,\; \sigma^2 + k(x_t, x_t) - v\,\phi(x_t)^\top \phi(x_t))
    """

    def __init__(self, inner: GaussianExpert, mean: Mean) -> None:
        assert isinstance(inner.features, InducingPointFeatures)
        super().__init__(FittedFeatures(inner.features, mean), None)
        self.inner = inner
        self.mean = mean

    def init(self) -> FilterState:
        """State before any data: the prior, not the fitted posterior."""
        return self.inner.init()

    def bind(self) -> BoundFitted:
        return BoundFitted(self.features.bind(), self.inner.bind(), self.features.prior_variance)

    def check_targets(self, y: Tensor) -> None:
        """Raise unless targets have shape (B,) and none is infinite; see :meth:`Expert.check_targets`."""
        self.inner.check_targets(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """Sum over sequential one-step predictions; see :meth:`Expert.log_evidence`."""
        _, steps = self.update(self.init(), X, y)
        return steps.log_prob.sum(-1)

    def take(self, index: Tensor) -> "FittedExpert":
        """Not supported: the expert has no batch."""
        raise ValueError("an expert that continues from a fitted model has no batch; create one expert per model")

    def with_transition(self, transition: Transition | None) -> "FittedExpert":
        return FittedExpert(self.inner.with_transition(transition), self.mean)
