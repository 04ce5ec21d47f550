"""The posterior of an ensemble: a weighted mixture of the experts' joint normal distributions.

Beside the mixture: its quasi-Monte Carlo sampler, which BoTorch's ``get_sampler`` finds.
"""

import math
from collections.abc import Callable

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.sampling.base import MCSampler
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.quasirandom import SobolEngine

from gp_ensembles.numerics import mixtures


class NotGaussianError(UnsupportedError, AttributeError):
    """A BoTorch component asks a mixture for one normal distribution; the message says which view has it."""


class MixturePosterior(Posterior):
    r"""Mixture of M joint normal distributions over q points and O outputs, already marginal over the experts.

    .. math:: p(f) = \sum_m w_m\, N(f;\, \mu_m, K_m)

    Outputs are independent given the expert (and dependent through the weights).

    Args:
        log_weights: Log weights, shape (M,) or (\*batch, M).
        mean: The experts' means, shape (\*batch, M, q, O).
        covariance: Their covariances, one for each output, shape (\*batch, M, O, q, q) or what broadcasts to it.

    Raises:
        ValueError: If the shapes do not fit.

    Example:
        >>> import torch
        >>> one = torch.ones(2, 1, 1, dtype=torch.float64)
        >>> mean = torch.tensor([-1.0, 1.0], dtype=torch.float64).reshape(2, 1, 1)
        >>> posterior = MixturePosterior(torch.tensor([0.5, 0.5]).double().log(), mean, one.unsqueeze(-1))
        >>> posterior.mean.item(), posterior.variance.item()
        (0.0, 2.0)
        >>> posterior.rsample(torch.Size([8])).shape
        torch.Size([8, 1, 1])
    """

    def __init__(self, log_weights: Tensor, mean: Tensor, covariance: Tensor) -> None:
        if mean.ndim < 3 or log_weights.shape[-1:] != mean.shape[-3:-2]:
            raise ValueError(
                f"log_weights (..., M) and mean (..., M, q, O) do not fit: {tuple(log_weights.shape)} and "
                f"{tuple(mean.shape)}"
            )
        num_experts, num_points, num_outputs = mean.shape[-3:]
        batch_shape = torch.broadcast_shapes(mean.shape[:-3], log_weights.shape[:-1], covariance.shape[:-4])
        self.log_weights = log_weights
        self.component_mean = mean.expand(*batch_shape, num_experts, num_points, num_outputs)
        self.component_covariance = covariance.expand(
            *covariance.shape[:-4], num_experts, num_outputs, num_points, num_points
        )

    @property
    def batch_shape(self) -> torch.Size:
        """The t-batch shape."""
        return self.component_mean.shape[:-3]

    @property
    def num_experts(self) -> int:
        """Number of experts M."""
        return self.component_mean.shape[-3]

    @property
    def device(self) -> torch.device:
        """Device of the moments."""
        return self.component_mean.device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the moments."""
        return self.component_mean.dtype

    @property
    def base_sample_shape(self) -> torch.Size:
        r"""(\*batch, 1 + q O): the first normal selects the expert; the others are scaled by its factor."""
        return torch.Size([*self.batch_shape, 1 + self._num_values])

    @property
    def batch_range(self) -> tuple[int, int]:
        """All dimensions of a base sample but the last are t-batch dimensions."""
        return 0, -1

    @property
    def mean(self) -> Tensor:
        r"""Mean of the mixture, shape (\*batch, q, O)."""
        return (self._weights * self.component_mean).sum(-3)

    @property
    def component_variance(self) -> Tensor:
        r"""The experts' variances, shape (\*batch, M, q, O)."""
        variance = self.component_covariance.diagonal(dim1=-2, dim2=-1).mT
        return variance.expand_as(self.component_mean)

    @property
    def variance(self) -> Tensor:
        r"""Variance of the mixture, the experts' disagreement included, shape (\*batch, q, O)."""
        deviation = self.component_mean - self.mean.unsqueeze(-3)
        return (self._weights * (self.component_variance + deviation.square())).sum(-3)

    @property
    def covariance(self) -> Tensor:
        r"""Covariance of the mixture over the q points, one for each output, shape (\*batch, O, q, q)."""
        deviation = (self.component_mean - self.mean.unsqueeze(-3)).mT.unsqueeze(-1)  # (*batch, M, O, q, 1)
        within = self._weights.unsqueeze(-1) * self.component_covariance
        return (within + self._weights.unsqueeze(-1) * (deviation @ deviation.mT)).sum(-4)

    def quantile(self, value: Tensor) -> Tensor:
        r"""Quantiles of each point's own mixture.

        Args:
            value: Probabilities in [0, 1], shape () or (K,).

        Returns:
            Shape (\*batch, q, O), or (K, \*batch, q, O).

        Raises:
            ValueError: If a probability is not in [0, 1].
        """
        level = torch.as_tensor(value, dtype=self.dtype, device=self.device)
        columns = self._columns()
        flat: Tensor = mixtures.icdf(*columns, level.unsqueeze(-1).expand(*level.shape, columns[1].shape[1]))
        return flat.reshape(*level.shape, *self._point_shape)

    def cdf(self, value: Tensor) -> Tensor:
        r"""Probability that each point's value is at most ``value``, (..., \*batch, q, O); of the same shape."""
        return self._each(mixtures.cdf, value)

    def density(self, value: Tensor) -> Tensor:
        r"""Density of each point's value, (..., \*batch, q, O); of the same shape."""
        return self._each(mixtures.log_prob, value).exp()

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Log density of all points and outputs jointly; value (..., \*batch, q, O), result (..., \*batch)."""
        factors = self._factors()
        deviation = (value.unsqueeze(-3) - self.component_mean).mT.unsqueeze(-1)  # (..., M, O, q, 1)
        factors = factors.expand(*deviation.shape[:-2], *factors.shape[-2:])
        white = torch.linalg.solve_triangular(factors, deviation, upper=False).squeeze(-1)
        half_log_determinant = factors.diagonal(dim1=-2, dim2=-1).log()
        density = -0.5 * (white.square() + math.log(2 * math.pi)) - half_log_determinant
        joint: Tensor = density.sum((-2, -1)) + self.log_weights
        return joint.logsumexp(-1)

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        r"""Draws, shape (\*sample_shape, \*batch, q, O), reparametrized in the moments (not in the weights)."""
        shape = torch.Size() if sample_shape is None else sample_shape
        base = torch.randn(*shape, *self.base_sample_shape, dtype=self.dtype, device=self.device)
        return self.rsample_from_base_samples(shape, base)

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        r"""Draws from standard normals.

        The first normal selects the expert through the cumulative weights, so that a low-discrepancy sequence hits each
        expert in proportion; a draw is continuous in the moments of the expert selected.

        Args:
            sample_shape: Shape of the sample.
            base_samples: Standard normals, shape (\*sample_shape, \*batch, 1 + q O).

        Returns:
            Draws, shape (\*sample_shape, \*batch, q, O).

        Raises:
            ValueError: If the base samples have another shape.
        """
        expected = (*sample_shape, *self.base_sample_shape)
        if base_samples.shape != expected:
            raise ValueError(f"base samples must have shape {tuple(expected)}, got {tuple(base_samples.shape)}")
        num_draws = sample_shape.numel()
        selected = self._select_experts(base_samples[..., 0]).reshape(num_draws, -1)
        normals = base_samples[..., 1:].reshape(num_draws, *self._point_shape)
        factors = self._factors()
        if bool((selected == selected[:, :1]).all()):  # one expert for the whole t-batch: each does its own draws only
            order = selected[:, 0].argsort(stable=True)
            experts, counts = selected[order, 0].unique_consecutive(return_counts=True)
            parts = zip(experts.tolist(), normals[order].split(counts.tolist()), strict=True)
            draws = torch.cat([self._draws_of(expert, factors, part) for expert, part in parts])[order.argsort()]
        else:
            draws = normals
            experts_of_draws = selected.reshape(num_draws, *self.batch_shape, 1, 1)
            for expert in torch.unique(selected).tolist():
                draws = torch.where(experts_of_draws == expert, self._draws_of(expert, factors, normals), draws)
        return draws.reshape(self._extended_shape(sample_shape))

    def _draws_of(self, expert: int, factors: Tensor, normals: Tensor) -> Tensor:
        """Draws of one expert from normals (..., q, O)."""
        factor = factors[..., expert, :, :, :]  # (*batch, O, q, q)
        spread = torch.einsum("...oij,...jo->...io", factor, normals)
        return self.component_mean[..., expert, :, :] + spread

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008 (BoTorch's contract)
        return torch.Size([*sample_shape, *self._point_shape])

    def select_outputs(self, outputs: list[int]) -> "MixturePosterior":
        """The posterior of some of the outputs."""
        covariance = self.component_covariance[..., outputs, :, :]
        return MixturePosterior(self.log_weights, self.component_mean[..., outputs], covariance)

    def map_components(self, transform: Callable[[GPyTorchPosterior], Posterior]) -> Posterior:
        r"""Transform each expert's normal posterior and mix the results; mean and variance stay exact.

        Args:
            transform: A function of a normal posterior of batch shape (\*batch, M).

        Returns:
            A :class:`MixturePosterior` if the transform gives a normal posterior; if it gives a
            ``TransformedPosterior`` of a normal one, as nonlinear outcome transforms do, that of the mixture.

        Raises:
            UnsupportedError: If the transform gives anything else.
        """
        changed = transform(self.components())
        if isinstance(changed, GPyTorchPosterior):
            return MixturePosterior(self.log_weights, changed.mean, output_covariances(changed))
        if not isinstance(changed, TransformedPosterior) or not isinstance(changed._posterior, GPyTorchPosterior):
            raise UnsupportedError(
                f"a transform that gives a {type(changed).__name__} is not supported; apply it to samples instead"
            )
        normal, weights = changed._posterior, self._weights
        base = MixturePosterior(self.log_weights, normal.mean, output_covariances(normal))

        def mean(*_: Tensor) -> Tensor:
            return (weights * changed.mean).sum(-3)

        def variance(*_: Tensor) -> Tensor:
            deviation = changed.mean - mean().unsqueeze(-3)
            return (weights * (changed.variance + deviation.square())).sum(-3)

        return TransformedPosterior(base, changed._sample_transform, mean, variance)

    def alone(self) -> GPyTorchPosterior:
        """The posterior of a mixture of one component, without the components' dimension."""
        covariance = self.component_covariance.squeeze(-4)
        return _normal_posterior(
            self.component_mean.squeeze(-3), covariance.expand(*self.batch_shape, *covariance.shape[-3:])
        )

    def components(self) -> GPyTorchPosterior:
        r"""The experts' normal posteriors, as one of batch shape (\*batch, M)."""
        return _normal_posterior(
            self.component_mean,
            self.component_covariance.expand(*self.batch_shape, *self.component_covariance.shape[-4:]),
        )

    def moment_matched(self) -> GPyTorchPosterior:
        """The normal distribution over all points and outputs with the mixture's mean and covariance."""
        deviation = (self.component_mean - self.mean.unsqueeze(-3)).mT.flatten(-2)  # (*batch, M, O q)
        weights = self.log_weights.exp().unsqueeze(-1)
        between = (weights * deviation).mT @ deviation
        within = (weights[..., None, None] * self.component_covariance).sum(-4)
        if self.component_mean.shape[-1] == 1:
            covariance = within.squeeze(-3) + between
            return GPyTorchPosterior(MultivariateNormal(self.mean.squeeze(-1), to_linear_operator(covariance)))
        covariance = BlockDiagLinearOperator(to_linear_operator(within), block_dim=-3).to_dense() + between
        distribution = MultitaskMultivariateNormal(self.mean, to_linear_operator(covariance), interleaved=False)
        return GPyTorchPosterior(distribution)

    @property
    def distribution(self) -> MultivariateNormal:
        """Always an error: a mixture has no single MultivariateNormal.

        Raises:
            NotGaussianError: Always; the message says which view to use.
        """
        raise NotGaussianError(
            "a mixture has no single MultivariateNormal; use GaussianView(model), EquallyWeightedView(model, K) or "
            "WeightedAcquisition (docs/acquisition_functions.md)"
        )

    mvn = covariance_matrix = distribution  # other names that BoTorch asks for

    @property
    def _weights(self) -> Tensor:
        return self.log_weights.exp()[..., None, None]

    @property
    def _num_values(self) -> int:
        return self.component_mean.shape[-1] * self.component_mean.shape[-2]

    @property
    def _point_shape(self) -> tuple[int, ...]:
        return (*self.batch_shape, *self.component_mean.shape[-2:])

    def _factors(self) -> Tensor:
        """Lower triangular factors of the experts' covariances, (..., M, O, q, q)."""
        scale = self.component_covariance.detach().diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        scale = torch.where(scale > 0, scale, 1.0)  # jitter, where there has to be some, is relative to the variances
        factors: Tensor = psd_safe_cholesky(self.component_covariance / scale)
        return factors * scale.sqrt()

    def _select_experts(self, normals: Tensor) -> Tensor:
        """The expert that each standard normal selects, integers of the same shape."""
        uniform = torch.special.ndtr(normals).unsqueeze(-1)
        cumulative = self.log_weights.detach().exp().cumsum(-1)
        selected = torch.searchsorted(cumulative.expand(*uniform.shape[:-1], -1).contiguous(), uniform.contiguous())
        positive = self.log_weights.exp() > 0  # round-off must not select an expert of weight zero beyond the last
        last = (positive * torch.arange(self.num_experts, device=positive.device)).amax(-1)
        return selected.squeeze(-1).minimum(last)

    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights, means and variances of each point's own mixture, (M, points) each."""
        mean, variance = self.component_mean, self.component_variance
        weights = self.log_weights[..., None, None].expand_as(mean)
        columns = (values.movedim(-3, 0).flatten(1) for values in (weights, mean, variance))
        log_weights, mean, variance = columns
        return log_weights, mean, variance

    def _each(self, function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], value: Tensor) -> Tensor:
        columns = self._columns()
        value = value.expand(torch.broadcast_shapes(value.shape, self._point_shape))
        flat = value.flatten(value.ndim - len(self._point_shape))
        return function(*columns, flat).reshape(value.shape)


@GetSampler.register(MixturePosterior)  # type: ignore[untyped-decorator]
def _mixture_sampler(posterior: MixturePosterior, sample_shape: torch.Size, *, seed: int | None = None) -> MCSampler:
    """Sobol normals up to the largest dimension that torch's engine has, independent normals beyond.

    Example:
        >>> import torch
        >>> from botorch.sampling.get_sampler import get_sampler
        >>> one = torch.ones(1, 2, 1)
        >>> posterior = MixturePosterior(torch.zeros(1), one, torch.diag_embed(one.mT))
        >>> get_sampler(posterior, torch.Size([16]), seed=0)(posterior).shape
        torch.Size([16, 2, 1])
    """
    few = posterior.base_sample_shape[-1] <= SobolEngine.MAXDIM
    return (SobolQMCNormalSampler if few else IIDNormalSampler)(sample_shape, seed=seed)


def _normal_posterior(mean: Tensor, covariance: Tensor) -> GPyTorchPosterior:
    r"""Independent normal outputs in BoTorch's form, from means (\*batch, q, O) and covariances (\*batch, O, q, q)."""
    operator = to_linear_operator(covariance)
    if mean.shape[-1] == 1:
        return GPyTorchPosterior(MultivariateNormal(mean.squeeze(-1), operator.squeeze(-3)))
    blocks = BlockDiagLinearOperator(operator, block_dim=-3)
    return GPyTorchPosterior(MultitaskMultivariateNormal(mean, blocks, interleaved=False))


def output_covariances(posterior: GPyTorchPosterior) -> Tensor:
    r"""The covariance of each output, shape (\*batch, O, q, q); covariances between outputs are left out."""
    num_points, num_outputs = posterior.mean.shape[-2:]
    covariance: Tensor = posterior.distribution.covariance_matrix
    if num_outputs == 1:
        return covariance.unsqueeze(-3)
    interleaved = posterior.distribution._interleaved
    sizes = (num_points, num_outputs) if interleaved else (num_outputs, num_points)
    blocks = covariance.unflatten(-1, sizes).unflatten(-3, sizes)
    if interleaved:
        blocks = blocks.transpose(-4, -3).transpose(-2, -1)
    diagonal: Tensor = blocks.diagonal(dim1=-4, dim2=-2)
    return diagonal.movedim(-1, -3)
