"""An ensemble as a BoTorch model, to be used in place of `SingleTaskGP(train_X, train_Y)`."""

from typing import Any, Self, final

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.mlls import MarginalLogLikelihood
from torch import Tensor

from gp_ensembles.bo import conditioning
from gp_ensembles.bo.conditioning import LearnedEnsemble
from gp_ensembles.bo.data import (
    Observations,
    check_domain,
    check_ensemble,
    check_known_noise,
    check_training_data,
    check_varies,
    normal_likelihood,
    unit_scale,
    warn_of_noise,
)
from gp_ensembles.bo.default_ensemble import make_ensemble
from gp_ensembles.bo.fitting import fit_experts, fit_in_turn, log_evidences
from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.bo.posterior import MixtureOutcomeTransform, MixturePosterior
from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.features.batch import take_experts
from gp_ensembles.numerics.display import block_text
from gp_ensembles.numerics.gpytorch_types import Kernel


@final
class EnsembleModel(MixtureModel):
    r"""An ensemble of Gaussian processes, learned online, as a BoTorch model.

    Its posterior is a mixture, :math:`p(f \mid D) = \sum_m w_m N(f; \mu_m, K_m)`, with weights learned from the same
    observations. Conditioning costs O(F²) for each observation, whatever their number; fantasies share one covariance.

    Monte Carlo acquisition functions are exact under the mixture; for others see :mod:`gp_ensembles.bo.views`.
    Observations are learned in the order of their rows.

    Args:
        train_X: Inputs, shape (n, D).
        train_Y: Observations, shape (n, O); several outputs share features and covariance (for unrelated outputs use a
            ``ModelList``). Rows that are NaN are left out.
        train_Yvar: Known noise variances, shape (n, 1); inferred if ``None``.
        ensemble: An ensemble with its hyperparameters, of which only the experts and the rule are used; or a record
            such as :data:`gp_ensembles.ensembles.presets.e_doebe`, which is fitted to the transformed data; by default
            :func:`~gp_ensembles.bo.default_ensemble.kernel_ensemble` with its initial hyperparameters: call
            :meth:`fit`, or BoTorch's ``fit_gpytorch_mll``. (Not after a record: its ensemble is fitted already, and
            fitting again would pull its sampled experts together.)
        outcome_transform: As in ``SingleTaskGP``: ``Standardize`` by default, ``None`` for none.
        input_transform: As in ``SingleTaskGP``; one with parameters, such as ``Warp``, is learned by :meth:`fit`. It
            has to put inputs about the unit cube. If ``None``, that is done by the range of each column of these rows
            (columns that fill a tenth or more of the unit interval stay), unless the ensemble has hyperparameters.
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

    _hyperparameters: tuple[Tensor, ...] | None
    _cache: LearnedEnsemble | None  # of the data, with the hyperparameters of its key
    _given: LearnedEnsemble | None = None  # instead of it, where the model has no data of its own
    _fantasies: tuple[Observations, LearnedEnsemble] | None  # the imagined rows, and the posterior after them
    _computed = ("_hyperparameters", "_cache", "_fantasies")

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
        if isinstance(outcome_transform, _DefaultType):
            outcome_transform = Standardize(m=train_Y.shape[-1])
        outcomes = MixtureOutcomeTransform(outcome_transform)
        if input_transform is None and not isinstance(ensemble, Ensemble | OnlineEnsemble):
            input_transform = unit_scale(data.X)
        super().__init__(data, input_transform, outcomes)
        rows = self._first_rows()
        self.ensemble: Ensemble = make_ensemble(ensemble, rows.X, rows.Y, generator)
        check_ensemble(self.ensemble, rows.X, rows.Y)
        if train_Yvar is not None:
            check_known_noise(self.ensemble)

    def __repr__(self) -> str:
        return block_text(self._sizes(), repr(self.ensemble).split("\n  "))

    @property
    def num_experts(self) -> int:
        return self.ensemble.num_experts

    @property
    def log_weights(self) -> Tensor:
        r"""Log weights of the experts for the next observation, shape (\*batch, M)."""
        return self.predictive_state().log_weights

    @property
    def covar_module(self) -> Kernel:
        """The kernel of the heaviest expert that has one, for those who read length scales, as TuRBO does.

        It is the kernel that the expert's features approximate, with one of several experts' hyperparameters: no kernel
        has the mixture's covariance.

        Raises:
            AttributeError: If no expert has features of a kernel.
        """
        heaviest = self.log_weights.detach().flatten(0, -2).mean(0) if self.batch_shape else self.log_weights.detach()
        places = [(number, entry) for number, e in enumerate(self.ensemble.experts) for entry in range(e.num_experts)]
        for place in heaviest.argsort(descending=True, stable=True).tolist():
            number, entry = places[place]
            expert = self.ensemble.experts[number]
            kernel = next((part for part in expert.features.modules() if isinstance(part, Kernel)), None)
            if kernel is not None:
                index = torch.tensor([entry], dtype=torch.int64, device="cpu")
                return take_experts(kernel, expert.batch_shape, index) if expert.batch_shape else kernel
        raise AttributeError("no expert of this ensemble has a kernel; its features are of another kind")

    @property
    def likelihood(self) -> GaussianLikelihood | FixedNoiseGaussianLikelihood:
        """A likelihood with the experts' weighted mean noise, or the known noise; in transformed outcomes."""
        state = self.predictive_state()
        noise = torch.cat([posterior.noise for posterior in state.experts])
        return normal_likelihood((state.log_weights.exp() * noise).sum(-1).mean(), self.rows().noise)

    def log_weights_at(self, X: Tensor) -> Tensor:
        """See :attr:`log_weights`: they are the same for all inputs."""
        return self.log_weights

    def predict(self, X: Tensor, noise: bool | Tensor) -> MixturePosterior:
        """See :meth:`MixtureModel.predict`; a ValueError if X is outside the domain of an expert's features."""
        check_domain(self.ensemble, X)
        return conditioning.predict(self.predictive_state(), X, noise)

    def learned(self, rows: Observations, data: Observations) -> Self:
        """The ensemble after further rows, (n, D) and (n, O), at O(F²) each."""
        self._check_rows(rows)
        other = self._sibling()
        before = self.predictive_state()
        other.data, other._cache = data, conditioning.learn_rows(self.ensemble, rows, before.key, before)
        return other

    def prepare(self, rows: Observations) -> None:
        """Check rows, and learn those of data: copies share what was learned."""
        self._check_rows(rows)
        self.predictive_state()

    def selected(self, outputs: list[int]) -> Self:
        """The model of some of the outputs, with the weights learned from all; it has no data of its own."""
        other = self._sibling()
        other.data = self.data._replace(Y=self.data.Y[:, outputs])
        other._given = conditioning.select_outputs(self.predictive_state(), outputs)
        if self.batch_shape:  # the batch goes on, without the rows
            X, Y = (part.new_empty(*self.batch_shape, 0, part.shape[-1]) for part in (other.data.X, other.data.Y))
            other._rows_imagined = Observations(X, Y, None)
        other._is_imaginary = True
        if self._outcome_transform is not None:
            other.outcome_transform = self._outcome_transform.subset_output(outputs)
        return other

    def fit(self, *, progress: bool = False) -> Self:
        """Maximize the evidence of all rows, with priors, in place; equal observations are refused with an error.

        Experts are fitted each by its own evidence, and parameters of the input transform in turn by that of them all.
        """
        if self._is_imaginary:
            raise UnsupportedError("this model has no data; fit the model that it was derived from")
        self._enter_evaluation()
        check_varies(self.data.Y)
        self._unshare()
        fit_in_turn(
            self._input_transform,
            lambda: fit_experts(self.ensemble, self.rows().map(Tensor.detach), progress),
            lambda: log_evidences(self.ensemble, self.rows()),
        )
        self._forget()
        if self.data.noise is None and self.num_outputs == 1:
            warn_of_noise(self.likelihood.noise, self.rows().Y)
        return self

    def custom_fit(self, mll: MarginalLogLikelihood, **_: Any) -> MarginalLogLikelihood:
        """What BoTorch's ``fit_gpytorch_mll`` calls: :meth:`fit`, each expert by its own evidence."""
        return mll.eval() if self.fit() else mll

    def predictive_state(self) -> LearnedEnsemble:
        """Posterior of the weights of every expert, and the experts' weights, before the next observation."""
        rows = self._rows_imagined
        if rows is None:
            return self._learned()
        if self._fantasies is None or self._fantasies[0] is not rows:
            self._fantasies = rows, conditioning.condition_fantasies(self.ensemble, self._learned(), rows)
        return self._fantasies[1]

    def _learned(self) -> LearnedEnsemble:
        """What is known without imagined rows."""
        if self._given is not None:
            return self._given
        if self._hyperparameters is None:  # walking modules takes long
            owners = (part for name, part in self._modules.items() if part is not None)
            self._hyperparameters = tuple(p for owner in owners for p in owner.parameters())
        parts = [p.detach().reshape(-1) for p in self._hyperparameters]
        key = torch.cat(parts) if parts else self.data.X.new_empty(0)
        if self._cache is None or not torch.equal(self._cache.key, key):
            self._cache = conditioning.learn_rows(self.ensemble, self.rows(), key)
        return self._cache

    def _check_rows(self, rows: Observations) -> None:
        if rows.noise is not None:
            check_known_noise(self.ensemble)
        check_domain(self.ensemble, rows.X)
