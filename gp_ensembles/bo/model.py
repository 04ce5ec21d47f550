"""An ensemble as a BoTorch model: what `SingleTaskGP(train_X, train_Y)` is replaced by."""

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
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import MarginalLogLikelihood
from gpytorch.models import GP
from torch import Tensor, nn

from gp_ensembles.bo import checks
from gp_ensembles.bo.data import Observations, TrainingData, transform_rows
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
            with the hyperparameters it starts with: call :meth:`fit`, or BoTorch's ``fit_gpytorch_mll``.
        outcome_transform: As in ``SingleTaskGP``: ``Standardize`` by default, ``None`` for none.
        input_transform: As in ``SingleTaskGP``.
        generator: Source of random features; torch's global one if ``None``.

    Raises:
        BotorchTensorDimensionError: If a shape is wrong.
        InputDataError: If a value is not finite, there is only one observation, or dtypes differ.

    Example:
        >>> import torch
        >>> from botorch.acquisition import qLogExpectedImprovement
        >>> generator = torch.Generator().manual_seed(0)
        >>> X = torch.rand(12, 2, generator=generator, dtype=torch.float64)
        >>> Y = (X.sum(-1, keepdim=True) - 1).square().neg()
        >>> model = EnsembleModel(X, Y, generator=generator).fit()
        >>> acquisition = qLogExpectedImprovement(model, best_f=Y.max())
        >>> acquisition(X[:5].unsqueeze(-2)).shape
        torch.Size([5])
    """

    data: TrainingData

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
        self._hyperparameters = tuple(self.ensemble.parameters())  # walking the modules takes longer than predicting
        self._num_outputs = train_Y.shape[-1]
        self._learned: Knowledge | None = None
        self._supposed: Knowledge | None = None

    @property
    def num_outputs(self) -> int:
        """Number of outputs O."""
        return self._num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of fantasies; empty for a model of data."""
        return torch.Size() if self._supposed is None else self._supposed.beliefs.batch_shape

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Inputs as they were given, (n, D), in a tuple as BoTorch's models have them."""
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
            A :class:`~gp_ensembles.bo.posterior.MixturePosterior`, or a ``TransformedPosterior`` of one where the
            outcome transform is not linear.

        Raises:
            BotorchTensorDimensionError: If X has the wrong shape.
            InputDataError: If X is not finite, or of another dtype or device.
            ValueError: If X is outside the domain of an expert's features (a Hilbert-space basis has one).
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

        Raises:
            BotorchTensorDimensionError: If a shape is wrong.
            InputDataError: If a value is not finite or of another dtype, or known noise is missing.
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
        Yvar = noise
        if self._outcome_transform is not None and noise is not None:
            Yvar = self._outcome_transform.untransform(rows.Y, noise)[1]
        data = self.data.followed_by(X.detach(), Y.detach(), Yvar)
        return self._with(data, learn_more(self.ensemble, before, rows), None)

    def fantasize(self, X: Tensor, sampler: MCSampler, observation_noise: Tensor | None = None, **options: Any) -> Self:
        r"""Condition on draws from the posterior at X (\*t, q, D): the fantasies come first in the batch shape.

        Args:
            X: Inputs; with q = 0 the batch is expanded and nothing learned.
            sampler: Draws the observations, noise included.
            observation_noise: Noise variance to use instead of the inferred one, (..., q or 1, O), in transformed
                outcomes.
            options: Handed to :meth:`condition_on_observations`.
        """
        options.pop("propagate_grads", None)
        if observation_noise is None and self.data.Yvar is not None:
            observation_noise = cast(Tensor, self._all_rows().usual_noise())
        if X.shape[-2] == 0:
            Y = X.new_empty(*sampler.sample_shape, *X.shape[:-2], 0, self.num_outputs)
        else:
            asked = True if observation_noise is None else observation_noise
            with fantasize_flag():
                Y = sampler(self.posterior(X, observation_noise=asked))
        noise = observation_noise
        if noise is not None:
            noise = noise.expand(*noise.shape[:-2], X.shape[-2], noise.shape[-1])
        return self.condition_on_observations(X, Y, noise=noise, **options)

    def subset_output(self, idcs: list[int]) -> Self:
        """The model of some of the outputs, with the weights that all have earned; it has no data of its own."""
        other = self._with(self.data, None, about(self._knowledge(), idcs))
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

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load hyperparameters and transforms; this model's own data are then learned anew with them."""
        result = nn.Module.load_state_dict(self, state_dict, strict, assign)
        self._learned = None
        return result

    def fit(self, *, progress: bool = False) -> Self:
        """Maximise the evidence of all rows over each expert's hyperparameters, with their priors; in place.

        Raises InputDataError if all observations of an output are equal, UnsupportedError for a fantasy model.
        """
        if self._supposed is not None:
            raise UnsupportedError("this model has no data of its own; fit the model that it came from")
        self._enter_evaluation()
        checks.check_varies(self.data.Y)
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
        known = self._learned
        if known is None or not torch.equal(known.stamp, stamp_of(self._hyperparameters)):
            known = self._learned = learn_all(self.ensemble, self._all_rows())
        return known

    def _with(self, data: TrainingData, learned: Knowledge | None, supposed: Knowledge | None) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__ = {**self.__dict__, "_modules": {**self._modules, "data": data}}  # all other modules are shared
        other._learned, other._supposed = learned, supposed
        return other

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
        before = self.data.X
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if (self.data.X.dtype, self.data.X.device) != (before.dtype, before.device):  # acquisitions move often, in vain
            self._learned = None
        return self
