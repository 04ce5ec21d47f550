"""Expectations under every expert, weighed: for acquisition functions with a formula for one normal distribution."""

from collections.abc import Callable
from typing import Any, final

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.active_learning import PairwiseMCPosteriorVariance
from botorch.acquisition.analytic import PosteriorStandardDeviation, UpperConfidenceBound
from botorch.acquisition.max_value_entropy_search import MaxValueBase
from botorch.acquisition.monte_carlo import qPosteriorStandardDeviation, qUpperConfidenceBound
from botorch.acquisition.multi_objective.joint_entropy_search import LowerBoundMultiObjectiveEntropySearch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.bo.posterior import as_mixture

# Functions of the posterior's mean, variance or entropy: none of them is the average of the experts'.
_NO_EXPECTATIONS = (
    UpperConfidenceBound,
    qUpperConfidenceBound,
    PosteriorStandardDeviation,
    qPosteriorStandardDeviation,
    PairwiseMCPosteriorVariance,
    MaxValueBase,
    LowerBoundMultiObjectiveEntropySearch,
)


@final
class WeightedAcquisition(AcquisitionFunction):
    r"""An acquisition function that is an expectation over the posterior, exact under the weights.

    .. math:: \alpha(X) = \sum_m w_m\, \alpha_m(X), \qquad \log \alpha(X) = \log \sum_m w_m \exp(\log \alpha_m(X))

    with :math:`\alpha_m` the acquisition value under expert m alone. Right for improvements, probabilities and means;
    not for acquisition functions that are no expectation, such as an upper confidence bound.

    Args:
        model: The ensemble.
        make: Makes the acquisition function from a BoTorch model: that of all experts, as a batch.

    Raises:
        UnsupportedError: If the acquisition function is no expectation, or the model no mixture or one of members.

    Example:
        >>> import torch
        >>> from botorch.acquisition import LogExpectedImprovement
        >>> from gp_ensembles.bo import ExactEnsembleModel
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = ExactEnsembleModel(X, X.sin(), kernels=(2.5, 1.5)).fit()
        >>> acquisition = WeightedAcquisition(
        ...     model, lambda experts: LogExpectedImprovement(experts, best_f=0.8)
        ... )
        >>> acquisition(X.unsqueeze(-2)).shape
        torch.Size([6])
    """

    model: MixtureModel

    def __init__(self, model: MixtureModel, make: Callable[[Model], AcquisitionFunction]) -> None:
        if not isinstance(model, MixtureModel) or model.members is not None:
            raise UnsupportedError(
                f"this {type(model).__name__} has members, or no weights: give it to the acquisition function as it is"
            )
        super().__init__(model)
        self.experts = _Experts(model)
        self.each: AcquisitionFunction = make(self.experts)
        if isinstance(self.each, _NO_EXPECTATIONS):
            raise UnsupportedError(
                f"{type(self.each).__name__} is no expectation over the posterior, so it cannot be averaged over "
                f"experts; give it the model itself, whose mean and variance are those of the mixture"
            )

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Pass pending points on; an UnsupportedError if the function takes none, as BoTorch's analytic ones."""
        self.each.set_X_pending(X_pending)
        self.X_pending = self.each.X_pending

    @t_batch_mode_transform()  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        r"""Value at X (\*t, q, D), shape (\*t)."""
        points = X.unsqueeze(-3).expand(*X.shape[:-2], self.experts.count, *X.shape[-2:])
        values: Tensor = self.each(points)
        log_weights = self.experts.log_weights
        if getattr(self.each, "_log", False):
            return (values + log_weights).logsumexp(-1)
        return (values * log_weights.exp()).sum(-1)


@final
class _Experts(Model):
    """The experts' own normal posteriors as one model, whose batch has every choice of an expert by each output."""

    log_weights: Tensor  # of the last posterior

    def __init__(self, model: MixtureModel) -> None:
        super().__init__()
        self.model = model
        self.count = model.num_experts**model.num_outputs

    @property
    def num_outputs(self) -> int:
        return self.model.num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size([*self.model.batch_shape, self.count])

    def posterior(self, X: Tensor, *arguments: Any, **options: Any) -> GPyTorchPosterior:
        """At X (*t, M or 1, q, D), points that are the same for all of them."""
        points = X if X.ndim == 2 else X[..., 0, :, :]
        self.log_weights, each = as_mixture(self.model.posterior(points, *arguments, **options)).choices()
        return each
