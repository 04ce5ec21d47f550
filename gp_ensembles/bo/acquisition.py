r"""Acquisition functions that are right for mixtures: weighted expectations, and active learning.

BoTorch's own are used through :class:`WeightedAcquisition`, through a view (:mod:`gp_ensembles.bo.views`) or directly;
the page "Which acquisition function takes which view" says which. Active learning needs its own: conditioning on a
target changes the weights, so that, unlike for one Gaussian process, the posterior variance depends on the target; and
part of the uncertainty is which expert is right.
"""

import math
from collections.abc import Callable
from typing import final

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.active_learning import PairwiseMCPosteriorVariance
from botorch.acquisition.analytic import PosteriorStandardDeviation, UpperConfidenceBound
from botorch.acquisition.max_value_entropy_search import MaxValueBase
from botorch.acquisition.monte_carlo import qPosteriorStandardDeviation, qUpperConfidenceBound
from botorch.acquisition.multi_objective.joint_entropy_search import LowerBoundMultiObjectiveEntropySearch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.sampling.base import MCSampler
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.transforms import concatenate_pending_points, t_batch_mode_transform
from torch import Tensor

from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.bo.posterior import MixturePosterior, as_mixture
from gp_ensembles.bo.views import ExpertsView
from gp_ensembles.numerics.gauss_hermite import gauss_hermite

_NUM_FANTASIES, _NUM_NODES, _CHUNK = 32, 32, 8
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
        make: Makes the acquisition function from a BoTorch model, an :class:`~gp_ensembles.bo.views.ExpertsView`.

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
        self.each: AcquisitionFunction = make(ExpertsView(model))
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
        log_weights = self.model.log_weights_at(X)
        points = X.unsqueeze(-3).expand(*X.shape[:-2], self.model.num_experts, *X.shape[-2:])
        values: Tensor = self.each(points)
        if getattr(self.each, "_log", False):
            return (values + log_weights).logsumexp(-1)
        return (values * log_weights.exp()).sum(-1)


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


@final
class MixtureEntropy(AcquisitionFunction):
    r"""Entropy of the mixture at one point, in nats: uncertainty sampling, for the function and the experts together.

    .. math:: H = -\sum_m w_m \int N(f; \mu_m, k_m) \log \sum_l w_l N(f; \mu_l, k_l)\, df

    by Gauss-Hermite quadrature of each term.

    Args:
        model: The ensemble, with one output and a linear outcome transform.
        observation_noise: Whether the entropy is that of an observation, not of the function.

    Example:
        >>> import torch
        >>> from gp_ensembles.bo.model import EnsembleModel
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = EnsembleModel(X, X.sin(), generator=torch.Generator().manual_seed(0))
        >>> MixtureEntropy(model)(X.unsqueeze(-2)).shape
        torch.Size([6])
    """

    def __init__(self, model: MixtureModel, observation_noise: bool = False) -> None:
        super().__init__(model)
        self.observation_noise = observation_noise

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        r"""Value at X (\*t, 1, D), shape (\*t)."""
        return _mixture_entropy(_mixture_at(self.model, X, self.observation_noise))


@final
class ExpertInformation(AcquisitionFunction):
    r"""Mutual information between an observation at one point and the index of the right expert, in nats.

    .. math:: I = H\Big(\sum_m w_m N_m\Big) - \sum_m w_m H(N_m)

    large where the experts' predictions differ most: an observation there tells kernels apart.

    Args:
        model: The ensemble, with one output and a linear outcome transform.

    Example:
        >>> import torch
        >>> from gp_ensembles.bo.model import EnsembleModel
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = EnsembleModel(X, X.sin(), generator=torch.Generator().manual_seed(0))
        >>> bool((ExpertInformation(model)(X.unsqueeze(-2)) > -1e-6).all())
        True
    """

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        r"""Value at X (\*t, 1, D), shape (\*t)."""
        mixture = _mixture_at(self.model, X, True)
        variance = mixture.component_variance[..., 0, 0]
        own = 0.5 * (math.log(2 * math.pi * math.e) + variance.log())
        return _mixture_entropy(mixture) - (mixture.log_weights.exp() * own).sum(-1)


def _mixture_entropy(mixture: MixturePosterior) -> Tensor:
    r"""Entropy of a mixture of one point and one output, in nats, shape (\*batch)."""
    mean, variance = mixture.component_mean[..., 0, 0], mixture.component_variance[..., 0, 0]
    nodes, weights = gauss_hermite(_NUM_NODES, mean)
    points = mean + variance.sqrt() * nodes.reshape(-1, *[1] * mean.ndim)  # (K, *batch, M), each expert's own nodes
    deviation = points.unsqueeze(-1) - mean.unsqueeze(-2)
    densities = -0.5 * (deviation.square() / variance.unsqueeze(-2) + variance.log().unsqueeze(-2))
    log_density = (densities + mixture.log_weights.unsqueeze(-2)).logsumexp(-1) - 0.5 * math.log(2 * math.pi)
    expected = (weights.reshape(-1, *[1] * mean.ndim) * log_density).sum(0)
    return -(mixture.log_weights.exp() * expected).sum(-1)


def _mixture_at(model: Model, X: Tensor, observation_noise: bool) -> MixturePosterior:
    if model.num_outputs > 1:
        raise TypeError(f"an entropy needs a model of one output, and this one has {model.num_outputs}")
    return as_mixture(model.posterior(X, observation_noise=observation_noise))
