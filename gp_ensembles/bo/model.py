"""An online ensemble as a BoTorch model, for thousands of rows and drifting objectives."""

import copy
from dataclasses import replace
from typing import Any, NamedTuple, Self, final

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import MarginalLogLikelihood
from torch import Tensor

from gp_ensembles.bo.data import (
    Observations,
    check_input_transform,
    check_training_data,
    normal_likelihood,
    unit_scale,
    warn_of_noise,
)
from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.engine.ensemble import Ensemble, evaluate
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.state import EnsembleState
from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.build import MIN_ROWS
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.experts.gaussian import BoundGaussian, GaussianExpert
from gp_ensembles.filters.states import GaussianState, SquareRootState
from gp_ensembles.filters.transitions import step_ahead
from gp_ensembles.numerics.arguments import check_made
from gp_ensembles.numerics.display import block_text

_BLOCK = 64  # rows learned at once: the cost of a block grows with its square, that of a call does not
_RANDOM_FEATURES = replace(oebe, bases=(FourierBasis(),))


class _Learned(NamedTuple):
    """Everything that a model has learned from its rows."""

    key: list[Tensor]  # the parameters used in learning
    state: EnsembleState
    # Per expert object, just before the next row: means (E, F) and covariances (E, F, F) of weights, noise (E,)
    experts: tuple[tuple[Tensor, Tensor, Tensor], ...]
    log_weights: Tensor  # for the next row, (M,)


@final
class EnsembleModel(MixtureModel):
    r"""An online ensemble of Gaussian processes with finite features, as a BoTorch model of one output.

    Its posterior is a mixture with weights learned from the same rows, in order, at O(F²) per row: for more than
    about a thousand rows, and for drifting objectives. Fantasies condition its joint predictions of the next step.

    Args:
        train_X: Inputs, shape (n, D).
        train_Y: Observations, shape (n, 1). Rows that are NaN are left out.
        train_Yvar: ``None``: the noise is inferred.
        ensemble: An ensemble whose experts and weight rule are used; or a record such as
            :data:`gp_ensembles.ensembles.presets.e_doebe`, fitted here to the transformed data; static experts in
            random features if ``None``.
        outcome_transform: As in :class:`ExactEnsembleModel`.
        input_transform: The same, without trainable parameters; for an ensemble object, ``None`` means no scaling.
        generator: Source of random features; torch's global one if ``None``.

    Raises:
        BotorchError: If a shape or dtype is wrong, a value is not finite, or there is no observation; for a record also
            if there are fewer than ten observations, or all are equal.
        TypeError: If the ensemble is no ensemble, has another dtype, or has experts that are not Gaussian.
        ValueError: If the ensemble expects other inputs.

    Example:
        >>> import torch
        >>> X = torch.rand(12, 2, dtype=torch.float64)
        >>> model = EnsembleModel(X, (X.sum(-1, keepdim=True) - 1).square().neg())
        >>> model.posterior(X[:5].unsqueeze(-2)).mean.shape
        torch.Size([5, 1, 1])
    """

    _cache: _Learned | None

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        ensemble: Ensemble | OnlineEnsemble | EnsembleSpec | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        data = check_training_data(train_X, train_Y, train_Yvar)
        if data.X.ndim > 2 or data.Y.shape[-1] > 1 or train_Yvar is not None:
            raise UnsupportedError("EnsembleModel takes one data set and output, no train_Yvar; use ExactEnsembleModel")
        check_input_transform(input_transform)
        outcomes = Standardize(m=1) if isinstance(outcome_transform, _DefaultType) else outcome_transform
        ensemble = _RANDOM_FEATURES if ensemble is None else ensemble
        is_scaled = input_transform is None and isinstance(ensemble, EnsembleSpec)
        super().__init__(data, input_transform, outcomes, unit_scale(data.X) if is_scaled else None)
        X, Y, _ = self._first_rows()
        if isinstance(ensemble, EnsembleSpec):
            if len(Y) < MIN_ROWS or bool((Y[:1] == Y).all()):
                words = f"a record needs at least {MIN_ROWS} rows with observations that are not all equal"
                raise InputDataError(f"{words}; for these {len(Y)} use ExactEnsembleModel")
            ensemble = ensemble.fit(X, Y.squeeze(-1), generator=generator)
        ensemble = ensemble.ensemble if isinstance(ensemble, OnlineEnsemble) else ensemble
        check_made("ensemble", ensemble, Ensemble, "gp_ensembles.e_doebe")
        ensemble.check_inputs(X)
        for expert in ensemble.experts:
            if not isinstance(expert, GaussianExpert):
                raise TypeError(f"a BoTorch model needs GaussianExperts of one output, got {type(expert).__name__}")
        own = copy.deepcopy(ensemble)
        self.ensemble = Ensemble(own.experts, own.meta_learner, own.expert_names)
        if is_scaled:
            warn_of_noise(self.likelihood.noise.squeeze(-1), Y.squeeze(-1))

    def __repr__(self) -> str:
        return block_text(self._sizes(), repr(self.ensemble).split("\n  "))

    @property
    def num_experts(self) -> int:
        return self.ensemble.num_experts

    @property
    def log_weights(self) -> Tensor:
        r"""Log weights of the experts for the next observation, shape (\*batch, M)."""
        if self._fantasies is None:
            return self._learned().log_weights
        return self.predict(self.rows().X[:1], False).log_weights.expand(*self.batch_shape, -1)

    @property
    def likelihood(self) -> GaussianLikelihood:
        """A likelihood with the experts' weighted mean noise, in transformed outcomes."""
        return normal_likelihood((self._learned().log_weights.exp() * self._noise).sum(-1), None)

    def joint(self, X: Tensor) -> MixturePosterior:
        r"""The mixture over the function at transformed points (\*t, q, D), before any fantasies."""
        flat = X.reshape(-1, X.shape[-1])
        for features in self.ensemble.bounded_features():
            features.check_inputs(flat)
        learned, means, covariances = self._learned(), [], []
        with torch.no_grad():
            bound = self.ensemble.bind()
        for (mean, covariance, noise), found in zip(learned.experts, evaluate(bound, flat), strict=True):
            rows = found.reshape(len(noise), -1, found.shape[-1])  # all points of the batch in one product
            apart = (len(noise), *X.shape[:-1], found.shape[-1])
            Phi, cross = rows.reshape(apart), (rows @ covariance).reshape(apart)
            means.append((rows @ mean.unsqueeze(-1)).reshape(*apart[:-1], 1).movedim(0, -3))
            covariances.append((cross @ Phi.mT).movedim(0, -3).unsqueeze(-3))
        return MixturePosterior(learned.log_weights, torch.cat(means, dim=-3), torch.cat(covariances, dim=-4))

    def predict(self, X: Tensor, noise: bool | Tensor) -> MixturePosterior:
        return self.after(self._fantasies, self._noise.unsqueeze(-1), X, noise)

    def learned(self, rows: Observations, data: Observations) -> Self:
        other = self._sibling()
        other.data, other._cache = data, self._after(rows, self._learned().state)
        return other

    def fit(self) -> Self:
        """Return the model unchanged: the ensemble already has its hyperparameters."""
        return self

    def custom_fit(self, mll: MarginalLogLikelihood, **_: Any) -> MarginalLogLikelihood:
        """Called by BoTorch's ``fit_gpytorch_mll``; nothing is left to fit."""
        return mll.eval()

    @property
    def _noise(self) -> Tensor:
        return torch.cat([noise for _, _, noise in self._learned().experts])

    def _learned(self) -> _Learned:
        """The learned state without fantasies."""
        found = self._cache
        if found is None or not all(map(torch.equal, found.key, self.parameters())):
            self._cache = found = self._after(self.rows(), self.ensemble.init())
        return found

    @torch.no_grad()
    def _after(self, rows: Observations, state: EnsembleState) -> _Learned:
        """The learned state after rows, (n, D) and (n, 1), in order, weights included."""
        for start in range(0, len(rows.Y), _BLOCK):
            block = slice(start, start + _BLOCK)
            state, _ = self.ensemble.update(state, rows.X[block], rows.Y[block, 0])
        experts = []
        for one, own in zip(self.ensemble.bind(), state.experts, strict=True):
            flat = one.take(torch.arange(one.prior_variance.numel(), device=rows.X.device))
            assert isinstance(flat, BoundGaussian)
            assert isinstance(own, GaussianState | SquareRootState)
            mean = own.mean.reshape(-1, own.mean.shape[-1])
            covariance = own.covariance.reshape(-1, *own.covariance.shape[-2:])
            factor, covariance, _ = step_ahead(mean, covariance, flat.transition, flat.prior_variance)
            experts.append((mean * factor, covariance, flat.noise))
        key = [p.detach().clone() for p in self.parameters()]
        return _Learned(key, state, tuple(experts), self.ensemble.meta_learner.log_weights(state.meta))
