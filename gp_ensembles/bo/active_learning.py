r"""Acquisition functions that learn about the function itself, right for mixtures.

Conditioning on a target changes the weights, so the variance that is left depends on the target, unlike that of one
Gaussian process; and part of the uncertainty is about which expert is right.
"""

import math
from typing import final

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.sampling.base import MCSampler
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.transforms import concatenate_pending_points, t_batch_mode_transform
from torch import Tensor

from gp_ensembles.bo.model import EnsembleModel
from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.numerics.gauss_hermite import gauss_hermite

_NUM_FANTASIES, _NUM_NODES, _CHUNK = 32, 32, 8


@final
class IntegratedVariance(AcquisitionFunction):
    r"""Minus the variance that is expected to be left, averaged over the input space.

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
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = EnsembleModel(X, X.sin(), generator=torch.Generator().manual_seed(0))
        >>> IntegratedVariance(model, X)(X.unsqueeze(-2)).shape
        torch.Size([6])
    """

    def __init__(
        self,
        model: EnsembleModel,
        points: Tensor,
        sampler: MCSampler | None = None,
        X_pending: Tensor | None = None,
    ) -> None:
        super().__init__(model)
        self.ensemble: EnsembleModel = model
        self.sampler = SobolQMCNormalSampler(torch.Size([_NUM_FANTASIES])) if sampler is None else sampler
        self.points: Tensor
        self.register_buffer("points", points)
        self.set_X_pending(X_pending)

    @concatenate_pending_points
    @t_batch_mode_transform()  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        r"""Value at X (\*t, q, D), shape (\*t)."""
        fantasies = self.ensemble.fantasize(X, self.sampler)
        # A few points at a time: the posterior is joint, and only its variances are wanted.
        parts = [_variance_at(fantasies, points) for points in self.points.split(_CHUNK)]  # (S, *t, n, 1) each
        return -torch.cat(parts, dim=-2).mean((-2, -1)).mean(0)


@final
class MixtureEntropy(AcquisitionFunction):
    r"""Entropy of the mixture at one point, in nats: where the model knows least, whatever the reason.

    .. math:: H = -\sum_m w_m \int N(f; \mu_m, k_m) \log \sum_l w_l N(f; \mu_l, k_l)\, df

    by Gauss-Hermite quadrature of each term.

    Args:
        model: The ensemble, with one output and a linear outcome transform.
        observation_noise: Whether the entropy is that of an observation, not of the function.

    Example:
        >>> import torch
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = EnsembleModel(X, X.sin(), generator=torch.Generator().manual_seed(0))
        >>> MixtureEntropy(model)(X.unsqueeze(-2)).shape
        torch.Size([6])
    """

    def __init__(self, model: EnsembleModel, observation_noise: bool = False) -> None:
        super().__init__(model)
        self.ensemble: EnsembleModel = model
        self.observation_noise = observation_noise

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        r"""Value at X (\*t, 1, D), shape (\*t)."""
        return mixture_entropy(_mixture_at(self.ensemble, X, self.observation_noise))


@final
class ExpertInformation(AcquisitionFunction):
    r"""Mutual information between an observation at one point and the expert that is right, in nats.

    .. math:: I = H\Big(\sum_m w_m N_m\Big) - \sum_m w_m H(N_m)

    where experts disagree most about what would be observed: observing there tells kernels apart.

    Args:
        model: The ensemble, with one output and a linear outcome transform.

    Example:
        >>> import torch
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> model = EnsembleModel(X, X.sin(), generator=torch.Generator().manual_seed(0))
        >>> bool((ExpertInformation(model)(X.unsqueeze(-2)) > -1e-6).all())
        True
    """

    def __init__(self, model: EnsembleModel) -> None:
        super().__init__(model)
        self.ensemble: EnsembleModel = model

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        r"""Value at X (\*t, 1, D), shape (\*t)."""
        mixture = _mixture_at(self.ensemble, X, True)
        variance = mixture.component_variance[..., 0, 0]
        own = 0.5 * (math.log(2 * math.pi * math.e) + variance.log())
        return mixture_entropy(mixture) - (mixture.log_weights.exp() * own).sum(-1)


def mixture_entropy(mixture: MixturePosterior) -> Tensor:
    r"""Entropy of a mixture of one point and one output, in nats, shape (\*batch).

    Example:
        >>> import torch
        >>> mean = torch.zeros(1, 1, 1, dtype=torch.float64)
        >>> one = MixturePosterior(mean.new_zeros(1), mean, mean.unsqueeze(0).exp())
        >>> round(mixture_entropy(one).item(), 4)
        1.4189
    """
    mean, variance = mixture.component_mean[..., 0, 0], mixture.component_variance[..., 0, 0]
    nodes, weights = gauss_hermite(_NUM_NODES, mean)
    places = mean + variance.sqrt() * nodes.reshape(-1, *[1] * mean.ndim)  # (K, *batch, M), of each expert's own
    deviation = places.unsqueeze(-1) - mean.unsqueeze(-2)
    densities = -0.5 * (deviation.square() / variance.unsqueeze(-2) + variance.log().unsqueeze(-2))
    log_density = (densities + mixture.log_weights.unsqueeze(-2)).logsumexp(-1) - 0.5 * math.log(2 * math.pi)
    expected = (weights.reshape(-1, *[1] * mean.ndim) * log_density).sum(0)
    return -(mixture.log_weights.exp() * expected).sum(-1)


def _mixture_at(model: EnsembleModel, X: Tensor, observation_noise: bool) -> MixturePosterior:
    posterior = model.posterior(X, observation_noise=observation_noise)
    if not isinstance(posterior, MixturePosterior) or model.num_outputs > 1:
        raise TypeError("an entropy needs a model of one output with a linear outcome transform such as Standardize")
    return posterior


def _variance_at(model: EnsembleModel, points: Tensor) -> Tensor:
    posterior = model.posterior(points)
    if not isinstance(posterior, MixturePosterior):
        raise TypeError("an integrated variance needs a linear outcome transform such as Standardize")
    return posterior.variance
