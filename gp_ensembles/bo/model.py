"""An ensemble as a BoTorch model: what `SingleTaskGP(train_X, train_Y)` is replaced by."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self, cast, final

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import MarginalLogLikelihood
from gpytorch.models import GP
from torch import Tensor, nn

from gp_ensembles.bo import checks
from gp_ensembles.bo.data import Observations, TrainingData, transform_rows
from gp_ensembles.bo.fantasies import draw_targets
from gp_ensembles.bo.fitting import fit_ensemble
from gp_ensembles.bo.inference import Beliefs, predict
from gp_ensembles.bo.knowledge import Knowledge, about, learn_all, learn_more, stamp_of, suppose
from gp_ensembles.bo.recipes import Preset, likelihood_of, make_ensemble
from gp_ensembles.bo.transformed import finished
from gp_ensembles.ensembles.ensemble import Ensemble
from gp_ensembles.ensembles.online import OnlineEnsemble


@final
class EnsembleModel(Model, GP):  # type: ignore[misc]  # a GP, for GPyTorch's marginal likelihoods ask for one
    r"""An ensemble of Gaussian processes, learned online, as a BoTorch model.

    Its posterior is a mixture, :math:`p(f \mid D) = \sum_m w_m N(f; \mu_m, K_m)`, with weights that the observations
    have earned. Conditioning costs O(F²) for each observation, whatever their number; fantasies share one covariance.

    Monte Carlo acquisition functions are exact under the mixture; for others see :mod:`gp_ensembles.bo.views`.
    Observations are learned in the order of their rows.

    Args:
        train_X: Inputs, shape (n, D); about the unit cube, or with an ``input_transform`` that puts them there.
        train_Y: Observations, shape (n, O); several outputs share features and covariance (for unrelated outputs use a
            ``ModelList``).
        train_Yvar: Known noise variances, shape (n, 1); inferred if ``None``.
        ensemble: An ensemble with its hyperparameters, of which only the experts and the rule are used; or a preset
            such as :func:`gp_ensembles.ensembles.presets.e_doebe`, called as ``preset(X, y, generator=generator)`` with
            transformed data; by default a dictionary of kernels, :func:`~gp_ensembles.bo.recipes.kernel_ensemble`,
            with the hyperparameters it starts with: call :meth:`fit`, or BoTorch's ``fit_gpytorch_mll``. (Not after
            a preset: it has fitted already, and fitting again would pull its sampled experts together.)
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
        ensemble: Ensemble | OnlineEnsemble | Preset | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        checks.check_training_data(train_X, train_Y, train_Yvar)
        checks.check_input_transform(input_transform)
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
        checks.check_ensemble(self.ensemble, rows.X, rows.Y)
        self._num_outputs = train_Y.shape[-1]
        self._is_shared = False  # whether another model has the same ensemble and transforms
        self._learned: Knowledge | None = None
        self._supposed: Knowledge | None = None
        _forget(self)
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]

    @property
    def num_outputs(self) -> int:
        """Number of outputs O."""
        return self._num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of fantasies."""
        return torch.Size() if self._supposed is None else self._supposed.beliefs.batch_shape

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
        return self._knowledge().beliefs.log_weights

    @property
    def likelihood(self) -> GaussianLikelihood:
        """A likelihood with the noise that the experts infer, weighed, or the known noise; in transformed outcomes."""
        return likelihood_of(self.beliefs(), self._all_rows().noise)

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
        checks.check_queries(X, self.data.X)
        knowledge = self._knowledge()
        inputs = self.transform_inputs(X)
        checks.check_domain(self.ensemble, inputs)
        noise = self._all_rows().usual_noise() if observation_noise is True else observation_noise
        mixture = predict(knowledge.bound, knowledge.beliefs, inputs, noise)
        return finished(mixture, X, self._outcome_transform, output_indices, posterior_transform)

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
        checks.check_observations(X, Y, self.data.X, self.num_outputs)
        if noise is None and self.data.Yvar is not None:
            raise InputDataError("the model was built with known noise; give that of the new observations as noise=")
        rows = self._rows(X, Y)._replace(noise=noise)
        checks.check_domain(self.ensemble, rows.X)
        before = self._knowledge()
        if X.ndim > 2 or Y.ndim > 2 or before.state is None:
            return self._with(self.data, None, suppose(self.ensemble, before, rows))
        data = self.data.followed_by(X, Y, rows, self._outcome_transform)
        return self._with(data, learn_more(self.ensemble, before, rows), None)

    def fantasize(self, X: Tensor, sampler: MCSampler, observation_noise: Tensor | None = None, **options: Any) -> Self:
        r"""Condition on draws from the posterior at X (\*t, q, D): the fantasies come first in the batch shape.

        With q = 0 the batch is expanded and nothing learned. Arguments as in BoTorch's models.
        """
        options.pop("propagate_grads", None)
        noise = observation_noise
        if noise is None and self.data.Yvar is not None:
            noise = cast(Tensor, self._all_rows().usual_noise())
        Y, noise = draw_targets(self, X, sampler, noise)
        return self.condition_on_observations(X, Y, noise=noise, **options)

    def subset_output(self, idcs: list[int]) -> Self:
        """The model of some of the outputs, with the weights that all have earned; it has no data of its own."""
        data = TrainingData(self.data.X, self.data.Y[:, idcs], self.data.Yvar)
        other = self._with(data, None, about(self._knowledge(), idcs))
        other._num_outputs = len(idcs)
        if self._outcome_transform is not None:
            other.outcome_transform = self._outcome_transform.subset_output(idcs)
        return other

    @classmethod
    def construct_inputs(
        cls, training_data: SupervisedDataset, ensemble: Ensemble | OnlineEnsemble | Preset | None = None
    ) -> dict[str, Any]:
        """Arguments of the constructor from a data set, as Ax asks for them."""
        return {**super().construct_inputs(training_data), **({} if ensemble is None else {"ensemble": ensemble})}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False, keep_transforms: bool = True
    ) -> Any:
        """Load hyperparameters and transforms; this model's own data are then always learned anew with them."""
        self._part()
        return nn.Module.load_state_dict(self, state_dict, strict, assign)

    def fit(self, *, progress: bool = False) -> Self:
        """Maximize the evidence of all rows, with priors, in place; equal observations are refused with an error."""
        if self._supposed is not None:
            raise UnsupportedError("this model has no data of its own; fit the model that it came from")
        self._enter_evaluation()
        checks.check_varies(self.data.Y)
        self._part()
        fit_ensemble(self.ensemble, self._all_rows(), progress)
        self._learned = None
        return self

    def custom_fit(self, mll: MarginalLogLikelihood, **_: Any) -> MarginalLogLikelihood:
        """What BoTorch's ``fit_gpytorch_mll`` calls: :meth:`fit`, each expert by its own evidence."""
        return mll.eval() if self.fit() else mll

    def beliefs(self) -> Beliefs:
        """What is believed about the weights of every expert before the next observation."""
        return self._knowledge().beliefs

    def _knowledge(self) -> Knowledge:
        if self._supposed is not None:
            return self._supposed
        stamp = stamp_of(self._hyperparameters)
        if self._learned is None or not torch.equal(self._learned.stamp, stamp):
            self._learned = learn_all(self.ensemble, self._all_rows(), stamp)
        return self._learned

    def _with(self, data: TrainingData, learned: Knowledge | None, supposed: Knowledge | None) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__ = {**self.__dict__, "_modules": {**self._modules, "data": data}}  # all other modules are shared
        other._learned, other._supposed = learned, supposed
        self._is_shared = other._is_shared = True
        return other

    def _part(self) -> None:
        """Before anything changes in place: modules of its own, so that related models stay as they are."""
        if self._is_shared:
            self._modules.update({name: copy.deepcopy(m) for name, m in self._modules.items() if name != "data"})
            self._is_shared = False
            _forget(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_learned": None}  # functions cannot be saved; what they know is learned again

    @property
    def _outcome_transform(self) -> OutcomeTransform | None:
        return cast(OutcomeTransform | None, self._modules.get("outcome_transform"))

    def _rows(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Observations:
        inputs = cast(InputTransform | None, self._modules.get("input_transform"))
        return transform_rows(inputs, self._outcome_transform, X, Y, Yvar)

    def _all_rows(self) -> Observations:
        return self._rows(self.data.X, self.data.Y, self.data.Yvar)

    def _enter_evaluation(self) -> None:
        if self.training:  # transforms that are trained would learn from what they are asked
            self.eval()

    def _set_transformed_inputs(self) -> None:
        """Nothing to do: the data are kept as they were given, and transformed when they are learned."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before, after = self.data.X, fn(self.data.X[:0])
        if (after.dtype, after.device) != (before.dtype, before.device):  # acquisitions move often, in vain
            self._part()
            self._learned = None
        return cast(Self, super()._apply(fn, recurse))  # type: ignore[no-untyped-call]


def _forget(model: EnsembleModel, *_: object) -> None:
    """Whatever was loaded or replaced, the rows are learned anew with it."""
    model._learned = None
    transforms = (m for name, m in model._modules.items() if name != "data" and m is not None)
    model._hyperparameters = tuple(p for m in transforms for p in m.parameters())  # walking modules takes long
