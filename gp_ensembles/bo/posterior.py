"""Posterior of an ensemble: a weighted mixture of the experts' joint normal distributions, and its sampler."""

from collections.abc import Callable
from typing import cast, final

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.sampling.base import MCSampler
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.settings import min_variance
from linear_operator.operators import BlockDiagLinearOperator, to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.quasirandom import SobolEngine

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.numerics.display import counted, ends, rows_text
from gp_ensembles.numerics.exact_gp import condition

_LEAST_VARIANCES = 1e-30, 1e-200  # in single and double precision


def selected(log_weights: Tensor, uniform: Tensor) -> Tensor:
    """Indices along the last axis (..., M) selected by weight, from numbers (..., n) in the unit interval."""
    cumulative = log_weights.detach().exp().cumsum(-1)
    shape = torch.broadcast_shapes(cumulative.shape[:-1], uniform.shape[:-1])
    last = (cumulative < cumulative[..., -1:]).sum(-1, keepdim=True)  # later weights are zero
    places = torch.searchsorted(cumulative.expand(*shape, -1).contiguous(), uniform.expand(*shape, -1).contiguous())
    return places.minimum(last)


def resampled(log_weights: Tensor, count: int) -> Tensor:
    """Member indices (..., O, count) by weights (..., O, M): systematic resampling, in a different order per output."""
    index = selected(log_weights, torch.arange(0.5, count, dtype=log_weights.dtype, device=log_weights.device) / count)
    order = [torch.arange(count, device="cpu")]
    for output in range(1, index.shape[-2]):
        order.append(torch.randperm(count, generator=torch.Generator().manual_seed(output), device="cpu"))
    return index.gather(-1, torch.stack(order).to(index.device).expand_as(index))


def covariance_factors(covariance: Tensor) -> Tensor:
    """Lower triangular factors of covariances (..., q, q), with jitter relative to their scale where needed."""
    scale = covariance.detach().diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    scale = torch.where(scale > 0, scale, 1.0)
    return cast(Tensor, psd_safe_cholesky(covariance / scale)) * scale.sqrt()


@final
class MixturePosterior(Posterior):
    r"""Mixtures of M joint normal distributions over q points, one for each of O independent outputs.

    .. math:: p(f) = \prod_o \sum_m w_{om}\, N(f_o;\, \mu_{om}, K_{om})

    BoTorch's formulas for one normal distribution use :attr:`distribution`, with the mixture's mean
    and covariance; draws, quantiles and densities are those of the mixture.

    Args:
        log_weights: Log weights, shape (M,) or (\*batch, M) for one output; (O, M) or (\*batch, O, M) for several.
        mean: The experts' means, shape (\*batch, M, q, O).
        covariance: Their covariances, one per output, shape (\*batch, M, O, q, q) or broadcastable to it.

    Raises:
        ValueError: If the shapes do not fit.

    Example:
        >>> import torch
        >>> one = torch.ones(2, 1, 1, dtype=torch.float64)
        >>> mean = torch.tensor([-1.0, 1.0], dtype=torch.float64).reshape(2, 1, 1)
        >>> posterior = MixturePosterior(
        ...     torch.tensor([0.5, 0.5]).double().log(), mean, one.unsqueeze(-1)
        ... )
        >>> posterior.mean.item(), posterior.variance.item()
        (0.0, 2.0)
        >>> posterior.rsample(torch.Size([8])).shape
        torch.Size([8, 1, 1])
    """

    def __init__(self, log_weights: Tensor, mean: Tensor, covariance: Tensor) -> None:
        own = log_weights.unsqueeze(-2) if mean.shape[-1] == 1 else log_weights  # (..., O, M)
        if mean.ndim < 3 or own.shape[-2:] != (mean.shape[-1], mean.shape[-3]):
            raise ValueError(
                f"shapes of log_weights, (..., M) or (..., O, M), and mean, (..., M, q, O), do not match: "
                f"{tuple(log_weights.shape)} and {tuple(mean.shape)}"
            )
        self.num_experts, num_points, num_outputs = mean.shape[-3:]
        self.point_shape = mean.shape[-2:]
        self.batch_shape = torch.broadcast_shapes(mean.shape[:-3], own.shape[:-2], covariance.shape[:-4])
        self.log_weights, self.own_log_weights = log_weights, own
        self.component_mean = mean.expand(*self.batch_shape, -1, -1, -1)
        self.component_covariance = covariance.expand(
            *covariance.shape[:-4], self.num_experts, num_outputs, num_points, num_points
        )

    def __repr__(self) -> str:
        return _moments_text(self, f", {counted((self.num_experts, 'expert'))}")

    @property
    def device(self) -> torch.device:
        """Device of the moments."""
        return self.component_mean.device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the moments."""
        return self.component_mean.dtype

    @property
    def mean(self) -> Tensor:
        r"""Mean of the mixture, shape (\*batch, q, O)."""
        return (self._weights * self.component_mean).sum(-3)

    @property
    def component_variance(self) -> Tensor:
        r"""The experts' variances, shape (\*batch, M, q, O)."""
        return self.component_covariance.diagonal(dim1=-2, dim2=-1).mT.expand_as(self.component_mean)

    @property
    def variance(self) -> Tensor:
        r"""Variance of the mixture, the experts' disagreement included, shape (\*batch, q, O)."""
        deviation = self.component_mean - self.mean.unsqueeze(-3)
        return (self._weights * (self.component_variance + deviation.square())).sum(-3)

    @property
    def covariance(self) -> Tensor:
        r"""Covariance of the mixture over the q points, one per output, shape (\*batch, O, q, q)."""
        deviation = (self.component_mean - self.mean.unsqueeze(-3)).mT.unsqueeze(-1)  # (*batch, M, O, q, 1)
        return (self._weights.mT.unsqueeze(-1) * (self.component_covariance + deviation @ deviation.mT)).sum(-4)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance matrix of :attr:`distribution`."""
        return cast(Tensor, self.distribution.covariance_matrix)

    @property
    def distribution(self) -> MultivariateNormal:
        """The normal distribution over all points and outputs with the same mean and covariance."""
        return _normal_posterior(self.mean, self.covariance).distribution

    mvn = distribution  # BoTorch uses both names

    @property
    def marginals(self) -> Mixture:
        r"""The marginal mixture of each point: one row per element of (\*batch, q, O)."""
        parts = (self._weights.log().expand_as(self.component_mean), self.component_mean, self.component_variance)
        return Mixture(*(values.movedim(-3, 0).flatten(1) for values in parts))

    def quantile(self, value: Tensor) -> Tensor:
        r"""Quantiles of each point's marginal mixture, (\*batch, q, O) or (K, \*batch, q, O), at levels () or (K,).

        Raises:
            ValueError: If a level is not in [0, 1].
        """
        level = torch.as_tensor(value, dtype=self.dtype, device=self.device)
        marginals = self.marginals
        flat = marginals.quantile(level.unsqueeze(-1).expand(*level.shape, marginals.component_mean.shape[1]))
        return flat.reshape(*level.shape, *self._extended_shape())

    def density(self, value: Tensor) -> Tensor:
        r"""Marginal density of each point's value (..., \*batch, q, O), in the same shape."""
        shape = self._extended_shape()
        value = value.expand(torch.broadcast_shapes(value.shape, shape))
        return self.marginals.log_prob(value.flatten(value.ndim - len(shape))).exp().reshape(value.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Joint log density of all points and outputs; value (..., \*batch, q, O), result (..., \*batch)."""
        factors = covariance_factors(self.component_covariance)
        errors = (value.unsqueeze(-3) - self.component_mean).mT  # (..., M, O, q)
        learned = condition(factors.expand(*errors.shape, errors.shape[-1]), errors)
        return (learned.log_density.mT + self.own_log_weights).logsumexp(-1).sum(-1)

    @property
    def base_sample_shape(self) -> torch.Size:
        r"""(\*batch, O + q O): one standard normal per output that selects its expert, then those of the points."""
        num_points, num_outputs = self.point_shape
        return torch.Size([*self.batch_shape, num_outputs + num_points * num_outputs])

    @property
    def batch_range(self) -> tuple[int, int]:
        """All dimensions of a base sample except the last are t-batch dimensions."""
        return 0, -1

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        r"""Draws, shape (\*sample_shape, \*batch, q, O), reparametrized with respect to moments (not weights)."""
        shape = torch.Size() if sample_shape is None else sample_shape
        base = torch.randn(*shape, *self.base_sample_shape, dtype=self.dtype, device=self.device)
        return self.rsample_from_base_samples(shape, base)

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        r"""Draws (\*sample_shape, \*batch, q, O) from standard normals (\*sample_shape, \*base_sample_shape)."""
        expected = (*sample_shape, *self.base_sample_shape)
        if base_samples.shape != expected:
            raise ValueError(f"base samples must have shape {tuple(expected)}, got {tuple(base_samples.shape)}")
        num_points, num_outputs = self.point_shape
        choices, normals = base_samples.split([num_outputs, num_points * num_outputs], -1)
        which = selected(self.own_log_weights, torch.special.ndtr(choices).unsqueeze(-1)).mT  # (..., 1, O)
        normals = normals.unflatten(-1, (num_points, num_outputs))
        draws: Tensor = normals
        factors = covariance_factors(self.component_covariance)
        for expert in which.unique().tolist():
            scaled = torch.einsum("...oij,...jo->...io", factors[..., expert, :, :, :], normals)
            draws = torch.where(which == expert, self.component_mean[..., expert, :, :] + scaled, draws)
        return draws

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008 (BoTorch's contract)
        return torch.Size([*sample_shape, *self.batch_shape, *self.point_shape])

    def conditioned(self, Y: Tensor, noise: Tensor) -> "MixturePosterior":
        r"""The mixture at the last points, given noisy values at the first q, by Bayes' rule; weights are updated, too.

        For an exact Gaussian process this conditions on all rows; for a sparse one the rows become additional knots,
        with the old knots' posterior as the prior. Values are (\*y, q, O), variances (..., M or 1, O or 1, q or 1).
        """
        q = Y.shape[-2]
        mean, covariance = self.component_mean.mT, self.component_covariance  # (*b, M, O, q + n), (.., M, O, ., .)
        factor = covariance_factors(covariance[..., :q, :q] + torch.diag_embed(noise.expand(*noise.shape[:-1], q)))
        gain = torch.linalg.solve_triangular(factor, covariance[..., :q, q:], upper=False)
        errors = Y.mT.unsqueeze(-3) - mean[..., :q]  # (*y, M, O, q)
        batch = torch.broadcast_shapes(factor.shape[:-2], errors.shape[:-1])
        learned = condition(factor.expand(*batch, q, q), errors.expand(*batch, q))
        after = mean[..., q:] + learned.mean(gain)
        each = learned.log_density
        log_weights = (self.log_weights + (each.squeeze(-1) if each.shape[-1] == 1 else each.mT)).log_softmax(-1)
        return MixturePosterior(log_weights, after.mT, covariance[..., q:, q:] - gain.mT @ gain)

    def with_noise(self, noise: Tensor) -> "MixturePosterior":
        """The mixture with variances added, (..., M or 1, O or 1, q or 1)."""
        added = torch.diag_embed(noise.expand(*noise.shape[:-1], self.point_shape[0]))
        return MixturePosterior(self.log_weights, self.component_mean, self.component_covariance + added)

    def equal(self) -> GaussianMixturePosterior:
        """Equally weighted components as BoTorch's ``GaussianMixturePosterior``."""
        return GaussianMixturePosterior(_normal_posterior(self.component_mean, self._wide).distribution)

    def map_components(self, transform: Callable[[Posterior], Posterior]) -> Posterior:
        r"""Transform each expert's normal posterior, with batch shape (M, \*batch), and mix the results.

        For nonlinear outcome transforms, a ``TransformedPosterior`` of the mixture, with exact mean and variance.

        Raises:
            UnsupportedError: If the transform returns neither a normal nor a transformed posterior.
        """
        changed = transform(_normal_posterior(self.component_mean.movedim(-3, 0), self._wide.movedim(-4, 0)))
        if isinstance(changed, GPyTorchPosterior):
            return _mixed(self.log_weights, changed)
        if not isinstance(changed, TransformedPosterior) or not isinstance(changed._posterior, GPyTorchPosterior):
            raise UnsupportedError(
                f"a transform that returns a {type(changed).__name__} is not supported; apply it to samples instead"
            )
        weights = self._weights.expand(*self.batch_shape, *self._weights.shape[-3:]).movedim(-3, 0)

        def mean(*_: Tensor) -> Tensor:
            return (weights * changed.mean).sum(0)

        def variance(*_: Tensor) -> Tensor:
            return (weights * (changed.variance + (changed.mean - mean()).square())).sum(0)

        return TransformedPosterior(
            _mixed(self.log_weights, changed._posterior), changed._sample_transform, mean, variance
        )

    def alone(self) -> GPyTorchPosterior:
        """The posterior of a one-component mixture, without the component dimension."""
        return _normal_posterior(self.component_mean.squeeze(-3), self._wide.squeeze(-4))

    @property
    def _weights(self) -> Tensor:
        """Shape (..., M, 1, O)."""
        return self.own_log_weights.exp().mT.unsqueeze(-2)

    @property
    def _wide(self) -> Tensor:
        """The covariances, expanded over the t-batch."""
        return self.component_covariance.expand(*self.batch_shape, *self.component_covariance.shape[-4:])


@final
class NormalPosterior(GPyTorchPosterior):
    """BoTorch's normal posterior with a readable repr and variances on any scale.

    GPyTorch's minimum variance of 1e-10 is too large for targets around 1e-6.
    """

    @property
    def variance(self) -> Tensor:
        """Variances, shape (..., q, O)."""
        with min_variance(*_LEAST_VARIANCES):
            return super().variance

    def __repr__(self) -> str:
        return _moments_text(self)


def printable(posterior: Posterior) -> Posterior:
    """A plain normal posterior as a :class:`NormalPosterior`; done last, as BoTorch's transforms reject subclasses."""
    return NormalPosterior(posterior.distribution) if type(posterior) is GPyTorchPosterior else posterior


def _moments_text(posterior: MixturePosterior | NormalPosterior, more: str = "") -> str:
    """Text with class, shape, and moments at the first and last points."""
    moments, shape = {"mean": posterior.mean, "stddev": posterior.variance.sqrt()}, posterior.mean.shape
    rows = ends(shape[:-1].numel())
    shown = {name: [part.flatten(0, -2)[rows].squeeze(-1)] for name, part in moments.items()}
    return rows_text(f"{type(posterior).__name__} of shape {tuple(shape)}{more}", rows, shown)


@GetSampler.register(MixturePosterior)  # type: ignore[untyped-decorator]
def _sampler(posterior: MixturePosterior, sample_shape: torch.Size, *, seed: int | None = None) -> MCSampler:
    """Sobol normals up to the largest dimension of torch's engine, independent normals beyond."""
    few = posterior.base_sample_shape[-1] <= SobolEngine.MAXDIM
    return (SobolQMCNormalSampler if few else IIDNormalSampler)(sample_shape, seed=seed)


def _mixed(log_weights: Tensor, each: GPyTorchPosterior) -> MixturePosterior:
    """The mixture of normal posteriors along the first dimension."""
    return MixturePosterior(log_weights, each.mean.movedim(0, -3), output_covariances(each).movedim(0, -4))


def _normal_posterior(mean: Tensor, covariance: Tensor) -> GPyTorchPosterior:
    r"""BoTorch's posterior of independent outputs, from means (\*batch, q, O), covariances (\*batch, O, q, q)."""
    operator = to_linear_operator(covariance)
    if mean.shape[-1] == 1:
        return GPyTorchPosterior(MultivariateNormal(mean.squeeze(-1), operator.squeeze(-3)))
    blocks = BlockDiagLinearOperator(operator, block_dim=-3)
    return GPyTorchPosterior(MultitaskMultivariateNormal(mean, blocks, interleaved=False))


def output_covariances(posterior: GPyTorchPosterior) -> Tensor:
    r"""The covariance of each output, shape (\*batch, O, q, q); covariances between outputs are ignored."""
    normal = posterior.distribution
    if not isinstance(normal, MultitaskMultivariateNormal):
        return cast(Tensor, normal.covariance_matrix).unsqueeze(-3)
    sizes = normal.event_shape if normal._interleaved else normal.event_shape[::-1]
    blocks = normal.covariance_matrix.unflatten(-1, sizes).unflatten(-3, sizes)
    output = -3 if normal._interleaved else -4
    return cast(Tensor, blocks.diagonal(dim1=output, dim2=output + 2)).movedim(-1, -3)
