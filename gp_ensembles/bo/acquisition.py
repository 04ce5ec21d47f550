r"""Acquisition functions that are right for mixtures: weighted expectations, and integrated variances.

BoTorch's own are used through :class:`WeightedAcquisition` or directly: see "Which acquisition function takes what".
The variance after an observation needs its own: conditioning on a target changes the weights, so that, unlike for one
Gaussian process, it depends on the target.
"""

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
from botorch.sampling.base import MCSampler
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.transforms import concatenate_pending_points, t_batch_mode_transform
from torch import Tensor

from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.bo.posterior import as_mixture

_NUM_FANTASIES, _CHUNK = 32, 8
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

    Example:
        >>> import torch
        >>> from botorch.acquisition import LogExpectedImprovement
        >>> from gp_ensembles.bo.model import EnsembleModel
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = EnsembleModel(X, X.sin(), generator=torch.Generator().manual_seed(0))
        >>> acquisition = WeightedAcquisition(
        ...     model, lambda experts: LogExpectedImprovement(experts, best_f=0.8)
        ... )
        >>> acquisition(X.unsqueeze(-2)).shape
        torch.Size([6])
    """

    model: MixtureModel

    def __init__(self, model: MixtureModel, make: Callable[[Model], AcquisitionFunction]) -> None:
        super().__init__(model)
        self.experts = _Experts(model)
        self.each: AcquisitionFunction = make(self.experts)
        if isinstance(self.each, _NO_EXPECTATIONS):
            raise UnsupportedError(
                f"{type(self.each).__name__} is no expectation over the posterior, so it cannot be averaged over "
                f"experts; give it the model itself, whose mean and variance are those of the mixture"
            )

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Pass pending points on to the acquisition function.

        Raises:
            UnsupportedError: If it takes none, as BoTorch's analytic ones.
        """
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
        mixture = as_mixture(self.model.posterior(points, *arguments, **options)).joined()
        self.log_weights = mixture.log_weights
        return mixture.components()


@final
class IntegratedVariance(AcquisitionFunction):
    r"""Minus the expected posterior variance after an observation, averaged over the input space.

    .. math:: \alpha(X) = -\frac1N \sum_i E_{y \mid X}\big[ \mathrm{Var}(f(z_i) \mid y) \big]

    with the expectation over fantasies of the mixture; weights move with them. (BoTorch's
    ``qNegIntegratedPosteriorVariance`` takes one fantasy, as the variance of one Gaussian process allows.)

    Args:
        model: The ensemble, with one output.
        points: Points z to average over, shape (N, D).
        sampler: Draws the fantasies; 32 of a Sobol sequence by default.
        X_pending: Points that are being observed, shape (n, D).

    Example:
        >>> import torch
        >>> from gp_ensembles.bo.model import EnsembleModel
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = EnsembleModel(X, X.sin(), generator=torch.Generator().manual_seed(0))
        >>> IntegratedVariance(model, X)(X.unsqueeze(-2)).shape
        torch.Size([6])
    """

    model: MixtureModel
    points: Tensor

    def __init__(
        self, model: MixtureModel, points: Tensor, sampler: MCSampler | None = None, X_pending: Tensor | None = None
    ) -> None:
        super().__init__(model)
        self.sampler: MCSampler = SobolQMCNormalSampler(torch.Size([_NUM_FANTASIES])) if sampler is None else sampler
        self.register_buffer("points", points)
        self.set_X_pending(X_pending)

    @concatenate_pending_points
    @t_batch_mode_transform()  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        r"""Value at X (\*t, q, D), shape (\*t)."""
        fantasies = self.model.fantasize(X, self.sampler)
        # A few points at a time, (S, *t, n, 1) each: the posterior is joint, and only its variances are wanted.
        parts = [as_mixture(fantasies.posterior(points)).variance for points in self.points.split(_CHUNK)]
        return -torch.cat(parts, dim=-2).mean((-2, -1)).mean(0)
