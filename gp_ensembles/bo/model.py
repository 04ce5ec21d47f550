"""An ensemble as a BoTorch model, to be used in place of `SingleTaskGP(train_X, train_Y)`."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self, cast, final

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.models.utils.assorted import fantasize as fantasize_flag
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.mlls import MarginalLogLikelihood
from gpytorch.models import GP
from torch import Tensor, nn

from gp_ensembles.bo import conditioning
from gp_ensembles.bo.conditioning import CachedPosterior, PredictiveState
from gp_ensembles.bo.data import (
    Observations,
    TrainingData,
    check_domain,
    check_ensemble,
    check_input_transform,
    check_known_noise,
    check_observations,
    check_queries,
    check_training_data,
    check_varies,
    transform_rows,
)
from gp_ensembles.bo.default_ensemble import make_ensemble
from gp_ensembles.bo.fitting import fit_ensemble
from gp_ensembles.bo.posterior import apply_transforms
from gp_ensembles.ensembles.ensemble import Ensemble
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.spec import EnsembleSpec


@final
class EnsembleModel(Model, GP):  # type: ignore[misc]  # a GP, for GPyTorch's marginal likelihoods ask for one
    r"""An ensemble of Gaussian processes, learned online, as a BoTorch model.

    Its posterior is a mixture, :math:`p(f \mid D) = \sum_m w_m N(f; \mu_m, K_m)`, with weights learned from the same
    observations. Conditioning costs O(F²) for each observation, whatever their number; fantasies share one covariance.

    Monte Carlo acquisition functions are exact under the mixture; for others see :mod:`gp_ensembles.bo.views`.
    Observations are learned in the order of their rows.

    Args:
        train_X: Inputs, shape (n, D); about the unit cube, or with an ``input_transform`` that puts them there.
        train_Y: Observations, shape (n, O); several outputs share features and covariance (for unrelated outputs use a
            ``ModelList``).
        train_Yvar: Known noise variances, shape (n, 1); inferred if ``None``.
        ensemble: An ensemble with its hyperparameters, of which only the experts and the rule are used; or a record
            such as :data:`gp_ensembles.ensembles.presets.e_doebe`, which is fitted to the transformed data; by default
            :func:`~gp_ensembles.bo.default_ensemble.kernel_ensemble` with its initial hyperparameters: call
            :meth:`fit`, or BoTorch's ``fit_gpytorch_mll``. (Not after a record: its ensemble is fitted already, and
            fitting again would pull its sampled experts together.)
        outcome_transform: As in ``SingleTaskGP``: ``Standardize`` by default, ``None`` for none.
        input_transform: As in ``SingleTaskGP``.
        generator: Source of random features; torch's global one if ``None``.

    Raises:
        BotorchError: If a shape or dtype is wrong, a value is not finite, or there is only one observation.

    Example:
        >>> import torch
        >>> from botorch.acquisition import qLogExpectedImprovement
        >>> X = torch.rand(12, 2, dtype=torch.float64)
        >>> Y = (X.sum(-1, keepdim=True) - 1).square().neg()
        >>> model = EnsembleModel(X, Y).fit()
        >>> qLogExpectedImprovement(model, best_f=Y.max())(X[:5].unsqueeze(-2)).shape
        torch.Size([5])
    """

    data: TrainingData
    _hyperparameters: tuple[Tensor, ...]

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
        super().__init__()
        check_training_data(train_X, train_Y, train_Yvar)
        check_input_transform(input_transform)
        if isinstance(outcome_transform, _DefaultType):
            outcome_transform = Standardize(m=train_Y.shape[-1])
        # Attributes that are absent where there is no transform, as BoTorch's own models have them.
        for name, transform in (("input_transform", input_transform), ("outcome_transform", outcome_transform)):
            if transform is not None:
                setattr(self, name, transform.to(train_X).train())
        self.data = TrainingData(train_X, train_Y, train_Yvar)
        rows = self._all_rows()  # transforms learn here, and nowhere else
        self.eval()
        self.ensemble = make_ensemble(ensemble, rows.X, rows.Y, generator)
        check_ensemble(self.ensemble, rows.X, rows.Y)
        if train_Yvar is not None:
            check_known_noise(self.ensemble)
        self._num_outputs = train_Y.shape[-1]
        self._is_shared = False  # whether another model has the same ensemble and transforms
        self._cache: CachedPosterior | None = None  # of the data, if learned with the present hyperparameters
        self._fantasies: CachedPosterior | None = None  # instead, where the model has no data of its own
        _clear_cache(self)
        self.register_load_state_dict_post_hook(_clear_cache)  # type: ignore[no-untyped-call]

    @property
    def num_outputs(self) -> int:
        """Number of outputs O."""
        return self._num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of fantasies."""
        return torch.Size() if self._fantasies is None else self._fantasies.predictive.batch_shape

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Inputs as they were given, (n, D), in a tuple."""
        return (self.data.X,)

    @property
    def train_targets(self) -> Tensor:
        """Targets after the outcome transform, (n,), or (O, n) for several outputs as in BoTorch's models."""
        Y = self._all_rows().Y
        return Y.squeeze(-1) if self.num_outputs == 1 else Y.mT

    @property
    def log_weights(self) -> Tensor:
        r"""Log weights of the experts in force for the next observation, shape (\*batch, M)."""
        return self.predictive_state().log_weights

    @property
    def likelihood(self) -> GaussianLikelihood | FixedNoiseGaussianLikelihood:
        """A likelihood with the experts' weighted mean noise, or the known noise; in transformed outcomes."""
        known_noise = self._all_rows().noise
        if known_noise is not None:
            return FixedNoiseGaussianLikelihood(known_noise.squeeze(-1))
        state = self.predictive_state()
        noise = torch.cat([posterior.noise for posterior in state.experts])
        likelihood = GaussianLikelihood().to(noise)
        likelihood.noise = (state.log_weights.exp() * noise).sum(-1).mean()
        return likelihood

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        r"""The mixture over function values at q points jointly, at the next step.

        Args:
            X: Inputs, shape (\*t, q, D); \*t broadcasts with the model's batch shape.
            output_indices: Outputs wanted; all by default.
            observation_noise: Whether to add the noise, or the variance to add, (..., q or 1, O) in transformed
                outcomes.
            posterior_transform: Applied to every expert, so it has to give normal posteriors.

        Returns:
            A ``MixturePosterior``, or a ``TransformedPosterior`` of one where the outcome transform is not linear.

        Raises a BotorchError if X is malformed, a ValueError if it is outside the domain of an expert's features.
        """
        self._enter_evaluation()
        check_queries(X, self.data.X)
        cached = self._posterior_cache()
        inputs = self.transform_inputs(X)
        check_domain(self.ensemble, inputs)
        noise = self._all_rows().default_noise() if observation_noise is True else observation_noise
        mixture = conditioning.predict(cached, inputs, noise)
        return apply_transforms(mixture, X, self._outcome_transform, output_indices, posterior_transform)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **_: Any) -> Self:
        r"""The model after further observations, weights included; this one stays as it is.

        Without a batch dimension they are learned for good, at O(F²) each; with one, the result is a fantasy model.

        Args:
            X: Inputs, shape (\*t, n, D).
            Y: Observations, shape (\*y, n, O); in a batch, the dimensions of X that Y lacks are the same for all.
            noise: Known noise variances in transformed outcomes, (..., n, 1), if the model was built with some.

        Raises a BotorchError if a shape, value or dtype is wrong, or known noise is missing.
        """
        self._enter_evaluation()
        check_observations(X, Y, self.data.X, self.num_outputs)
        if noise is None and self.data.Yvar is not None:
            raise InputDataError("the model was built with known noise; give that of the new observations as noise=")
        if noise is not None:
            check_known_noise(self.ensemble)
        rows = self._rows(X, Y)._replace(noise=noise)
        check_domain(self.ensemble, rows.X)
        before = self._posterior_cache()
        if X.ndim > 2 or Y.ndim > 2 or before.state is None:
            return self._with(self.data, None, conditioning.condition_fantasies(self.ensemble, before, rows))
        data = self.data.extended_by(X, Y, rows, self._outcome_transform)
        return self._with(data, conditioning.learn_more_rows(self.ensemble, before, rows), None)

    def fantasize(self, X: Tensor, sampler: MCSampler, observation_noise: Tensor | None = None, **options: Any) -> Self:
        r"""Condition on draws from the posterior at X (\*t, q, D): the fantasies come first in the batch shape.

        With q = 0 the batch is expanded and nothing learned. Arguments as in BoTorch's models.
        """
        options.pop("propagate_grads", None)
        noise = observation_noise
        if noise is None and self.data.Yvar is not None:
            noise = cast(Tensor, self._all_rows().default_noise())
        num_rows = X.shape[-2]
        each = None if noise is None else noise.expand(*noise.shape[:-2], num_rows, noise.shape[-1])
        if num_rows == 0:
            Y = X.new_empty(*sampler.sample_shape, *X.shape[:-1], self.num_outputs)
        else:
            with fantasize_flag():
                Y = sampler(self.posterior(X, observation_noise=True if noise is None else noise))
        return self.condition_on_observations(X, Y, noise=each, **options)

    def subset_output(self, idcs: list[int]) -> Self:
        """The model of some of the outputs, with the weights learned from all; it has no data of its own."""
        data = TrainingData(self.data.X, self.data.Y[:, idcs], self.data.Yvar)
        other = self._with(data, None, conditioning.select_outputs(self._posterior_cache(), idcs))
        other._num_outputs = len(idcs)
        if self._outcome_transform is not None:
            other.outcome_transform = self._outcome_transform.subset_output(idcs)
        return other

    @classmethod
    def construct_inputs(
        cls, training_data: SupervisedDataset, ensemble: Ensemble | OnlineEnsemble | EnsembleSpec | None = None
    ) -> dict[str, Any]:
        """Arguments of the constructor from a data set, as Ax asks for them."""
        return {**super().construct_inputs(training_data), **({} if ensemble is None else {"ensemble": ensemble})}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False, keep_transforms: bool = True
    ) -> Any:
        """Load hyperparameters and transforms; this model's own data are then always learned anew with them."""
        self._unshare()
        return nn.Module.load_state_dict(self, state_dict, strict, assign)

    def fit(self, *, progress: bool = False) -> Self:
        """Maximize the evidence of all rows, with priors, in place; equal observations are refused with an error."""
        if self._fantasies is not None:
            raise UnsupportedError("this model has no data of its own; fit the model that it came from")
        self._enter_evaluation()
        check_varies(self.data.Y)
        self._unshare()
        fit_ensemble(self.ensemble, self._all_rows(), progress)
        self._cache = None
        return self

    def custom_fit(self, mll: MarginalLogLikelihood, **_: Any) -> MarginalLogLikelihood:
        """What BoTorch's ``fit_gpytorch_mll`` calls: :meth:`fit`, each expert by its own evidence."""
        return mll.eval() if self.fit() else mll

    def predictive_state(self) -> PredictiveState:
        """Posterior of the weights of every expert, and the experts' weights, before the next observation."""
        return self._posterior_cache().predictive

    def _posterior_cache(self) -> CachedPosterior:
        if self._fantasies is not None:
            return self._fantasies
        key = conditioning.cache_key(self._hyperparameters)
        if self._cache is None or not torch.equal(self._cache.key, key):
            self._cache = conditioning.learn_rows(self.ensemble, self._all_rows(), key)
        return self._cache

    def _with(self, data: TrainingData, cache: CachedPosterior | None, fantasies: CachedPosterior | None) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__ = {**self.__dict__, "_modules": {**self._modules, "data": data}}  # all other modules are shared
        other._cache, other._fantasies = cache, fantasies
        self._is_shared = other._is_shared = True
        return other

    def _unshare(self) -> None:
        """Before anything changes in place: copies of shared modules, so that related models stay as they are."""
        if self._is_shared:
            self._modules.update({name: copy.deepcopy(m) for name, m in self._modules.items() if name != "data"})
            self._is_shared = False
            _clear_cache(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}  # it holds functions, which cannot be pickled; it is computed again

    @property
    def _outcome_transform(self) -> OutcomeTransform | None:
        return cast(OutcomeTransform | None, self._modules.get("outcome_transform"))

    def _rows(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Observations:
        inputs = cast(InputTransform | None, self._modules.get("input_transform"))
        return transform_rows(inputs, self._outcome_transform, X, Y, Yvar)

    def _all_rows(self) -> Observations:
        return self._rows(self.data.X, self.data.Y, self.data.Yvar)

    def _enter_evaluation(self) -> None:
        if self.training:  # transforms in training mode would learn from the inputs of predictions
            self.eval()

    def _set_transformed_inputs(self) -> None:
        """Nothing to do: the data are kept as they were given, and transformed when they are learned."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before, after = self.data.X, fn(self.data.X[:0])
        if (after.dtype, after.device) != (
            before.dtype,
            before.device,
        ):  # BoTorch often calls it in vain
            self._unshare()
            self._cache = None
        return cast(Self, super()._apply(fn, recurse))  # type: ignore[no-untyped-call]


def _clear_cache(model: EnsembleModel, *_: object) -> None:
    """After parameters were loaded or replaced: the rows are learned anew with them."""
    model._cache = None
    owners = (m for name, m in model._modules.items() if name != "data" and m is not None)
    model._hyperparameters = tuple(p for m in owners for p in m.parameters())  # walking modules takes long
