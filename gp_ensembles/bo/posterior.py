"""The posterior of an ensemble: a weighted mixture of the experts' joint normal distributions, and its sampler."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

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
from linear_operator.operators import BlockDiagLinearOperator, to_linear_operator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.quasirandom import SobolEngine

from gp_ensembles.numerics import mixtures
from gp_ensembles.numerics.display import counted, ends, rows_text
from gp_ensembles.numerics.exact_gp import condition

_MOST_QUANTILES = 1000  # points beyond which no intervals are printed
_MOST_CHOICES = 1024  # components of several outputs together


class ComponentsPosterior(Posterior, ABC):
    """A posterior whose draws select components by some standard normals and scale the others by their factors."""

    component_mean: Tensor  # of three dimensions behind the t-batch, *batch
    component_covariance: Tensor
    num_experts: int
    point_shape: torch.Size  # (q, O) of a draw
    num_normals: int  # of one draw

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        r"""Means, shape (\*batch, q, O)."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        r"""Variances, shape (\*batch, q, O)."""

    @property
    @abstractmethod
    def distribution(self) -> MultivariateNormal:
        """The normal distribution over all points and outputs with the same mean and covariance."""

    @property
    def mvn(self) -> MultivariateNormal:
        """Another name of :attr:`distribution`, by which BoTorch asks for it."""
        return self.distribution

    @abstractmethod
    def map_components(self, transform: Callable[[Posterior], Posterior]) -> Posterior:
        """The posterior with every component's normal posterior transformed."""

    @abstractmethod
    def draws(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        r"""Draws (\*sample_shape, \*batch, q, O) from standard normals (\*sample_shape, \*batch, num_normals)."""

    @property
    def covariance_matrix(self) -> Tensor:
        """That of :attr:`distribution`."""
        covariance: Tensor = self.distribution.covariance_matrix
        return covariance

    @property
    def batch_shape(self) -> torch.Size:
        """The t-batch shape."""
        return self.component_mean.shape[:-3]

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
        r"""(\*batch, num_normals)."""
        return torch.Size([*self.batch_shape, self.num_normals])

    @property
    def batch_range(self) -> tuple[int, int]:
        """All dimensions of a base sample but the last are t-batch dimensions."""
        return 0, -1

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        r"""Draws, shape (\*sample_shape, \*batch, q, O), reparametrized in the moments (not in the weights)."""
        shape = torch.Size() if sample_shape is None else sample_shape
        base = torch.randn(*shape, *self.base_sample_shape, dtype=self.dtype, device=self.device)
        return self.draws(shape, base)

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        r"""Draws from standard normals, a continuous function of the moments of the components selected.

        Shapes: ``base_samples`` (\*sample_shape, \*base_sample_shape); returns (\*sample_shape, \*batch, q, O).
        """
        expected = (*sample_shape, *self.base_sample_shape)
        if base_samples.shape != expected:
            raise ValueError(f"base samples must have shape {tuple(expected)}, got {tuple(base_samples.shape)}")
        return self.draws(sample_shape, base_samples)

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008 (BoTorch's contract)
        return torch.Size([*sample_shape, *self.batch_shape, *self.point_shape])


def selected(log_weights: Tensor, uniform: Tensor) -> Tensor:
    """The place along the last axis (..., M) that each number (..., n) of the unit interval selects by weights."""
    cumulative = log_weights.detach().exp().cumsum(-1)
    shape = torch.broadcast_shapes(cumulative.shape[:-1], uniform.shape[:-1])
    last = (cumulative < cumulative[..., -1:]).sum(-1, keepdim=True)  # beyond it weights are zero
    places = torch.searchsorted(cumulative.expand(*shape, -1).contiguous(), uniform.expand(*shape, -1).contiguous())
    return places.minimum(last)


def resampled(log_weights: Tensor, count: int, *, independent_outputs: bool = False) -> Tensor:
    """Places of so many members along the last axis (..., M): systematic resampling at the midpoints, (..., count).

    Outputs (..., O, M) with weights of their own choose in another order each.
    """
    levels = torch.arange(0.5, count, dtype=log_weights.dtype, device=log_weights.device) / count
    index = selected(log_weights, levels)
    if not independent_outputs:
        return index
    others = [
        torch.randperm(count, generator=torch.Generator().manual_seed(output), device="cpu")
        for output in range(1, index.shape[-2])
    ]
    order = torch.stack([torch.arange(count, device="cpu"), *others]).to(index.device)
    return index.gather(-1, order.expand_as(index))


def covariance_factors(covariance: Tensor) -> Tensor:
    """Lower triangular factors of covariances (..., q, q), with jitter relative to them where there has to be some."""
    scale = covariance.detach().diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    scale = torch.where(scale > 0, scale, 1.0)
    factors: Tensor = psd_safe_cholesky(covariance / scale)
    return factors * scale.sqrt()


@GetSampler.register(ComponentsPosterior)  # type: ignore[untyped-decorator]
def _sampler(posterior: ComponentsPosterior, sample_shape: torch.Size, *, seed: int | None = None) -> MCSampler:
    """Sobol normals up to the largest dimension that torch's engine has, independent normals beyond."""
    few = posterior.num_normals <= SobolEngine.MAXDIM
    return (SobolQMCNormalSampler if few else IIDNormalSampler)(sample_shape, seed=seed)


class MixturePosterior(ComponentsPosterior):
    r"""Mixture of M joint normal distributions over q points and O outputs, already marginal over the experts.

    .. math:: p(f) = \sum_m w_m\, N(f;\, \mu_m, K_m)

    Outputs are independent given the expert; they share the expert, and so depend on each other, unless each has
    weights of its own. Who asks for one normal distribution, as BoTorch's formulas do, gets :attr:`distribution`, with
    the mixture's mean and covariance; draws, quantiles and densities are the mixture's.

    Args:
        log_weights: Log weights, shape (M,) or (\*batch, M); (O, M) or (\*batch, O, M) if each output has its own.
        mean: The experts' means, shape (\*batch, M, q, O).
        covariance: Their covariances, one for each output, shape (\*batch, M, O, q, q) or what broadcasts to it.
        independent_outputs: Whether each output has weights of its own.

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

    def __init__(
        self, log_weights: Tensor, mean: Tensor, covariance: Tensor, *, independent_outputs: bool = False
    ) -> None:
        own = log_weights.shape[-2:] if independent_outputs else log_weights.shape[-1:]
        if mean.ndim < 3 or own != (mean.shape[:-4:-2] if independent_outputs else mean.shape[-3:-2]):
            raise ValueError(
                f"log_weights (..., M), or (..., O, M) of independent outputs, and mean (..., M, q, O) do not fit: "
                f"{tuple(log_weights.shape)} and {tuple(mean.shape)}"
            )
        num_experts, num_points, num_outputs = mean.shape[-3:]
        batch_shape = torch.broadcast_shapes(mean.shape[:-3], log_weights.shape[: -len(own)], covariance.shape[:-4])
        wide = covariance.expand(*covariance.shape[:-4], num_experts, num_outputs, num_points, num_points)
        self.log_weights = log_weights
        self.component_mean = mean.expand(*batch_shape, -1, -1, -1)
        self.component_covariance = wide
        self.independent_outputs = independent_outputs
        self.num_experts = num_experts
        self.point_shape = mean.shape[-2:]
        # The first select experts, their factors scale the others.
        self.num_normals = (num_outputs if independent_outputs else 1) + num_points * num_outputs

    def __repr__(self) -> str:
        points, outputs = self.batch_shape.numel() * self.point_shape[0], self.point_shape[-1]
        kind, experts = type(self).__name__, counted((self.num_experts, "expert"))
        rows = ends(points)
        with torch.no_grad():
            columns = {"mean": [self.mean], "stddev": [self.variance.sqrt()]}
            if outputs == 1 and points <= _MOST_QUANTILES:
                columns["90% interval"] = [self.quantile(self.component_mean.new_tensor(p)) for p in (0.05, 0.95)]
        shown = {name: [_few(one, rows) for one in numbers] for name, numbers in columns.items()}
        return rows_text(f"{kind} of shape {tuple(self._extended_shape())}, {experts}", rows, shown)

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
        return (self._weights.mT.unsqueeze(-1) * (self.component_covariance + deviation @ deviation.mT)).sum(-4)

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
        return flat.reshape(*level.shape, *self._extended_shape())

    def cdf(self, value: Tensor) -> Tensor:
        r"""Probability that each point's value is at most ``value``, (..., \*batch, q, O); of the same shape."""
        return self._each(mixtures.cdf, value)

    def density(self, value: Tensor) -> Tensor:
        r"""Density of each point's value, (..., \*batch, q, O); of the same shape."""
        return self._each(mixtures.log_prob, value).exp()

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Log density of all points and outputs jointly; value (..., \*batch, q, O), result (..., \*batch)."""
        factors = covariance_factors(self.component_covariance)
        errors = (value.unsqueeze(-3) - self.component_mean).mT  # (..., M, O, q)
        learned = condition(factors.expand(*errors.shape, errors.shape[-1]), errors)
        if self.independent_outputs:
            return (learned.log_density.mT + self.log_weights).logsumexp(-1).sum(-1)
        joint: Tensor = learned.log_density.sum(-1) + self.log_weights
        return joint.logsumexp(-1)

    def draws(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        num_points, num_outputs = self.point_shape
        choices, normals = base_samples.split(
            [self.num_normals - num_points * num_outputs, num_points * num_outputs], -1
        )
        normals = normals.reshape(-1, *self.batch_shape, num_points, num_outputs)
        factors = covariance_factors(self.component_covariance)
        if not self.independent_outputs:
            return self._selected_draws(self.log_weights, choices, normals, self.component_mean, factors, sample_shape)
        parts = [
            self._selected_draws(
                self.log_weights[..., o, :],
                choices[..., [o]],
                normals[..., [o]],
                self.component_mean[..., [o]],
                factors[..., [o], :, :],
                sample_shape,
            )
            for o in range(num_outputs)
        ]
        return torch.cat(parts, dim=-1)

    def _selected_draws(
        self,
        log_weights: Tensor,
        choices: Tensor,
        normals: Tensor,
        means: Tensor,
        factors: Tensor,
        sample_shape: torch.Size,
    ) -> Tensor:
        """Draws of outputs that share their expert, from normals (N, *batch, q, O)."""
        which = selected(log_weights, torch.special.ndtr(choices)).reshape(normals.shape[0], -1)

        def draws_of(expert: int, own: Tensor) -> Tensor:  # from normals (..., q, O)
            return means[..., expert, :, :] + torch.einsum("...oij,...jo->...io", factors[..., expert, :, :, :], own)

        if bool((which == which[:, :1]).all()):  # one expert for the whole t-batch: each does its own draws only
            order = which[:, 0].argsort(stable=True)
            experts, counts = which[order, 0].unique_consecutive(return_counts=True)
            parts = zip(experts.tolist(), normals[order].split(counts.tolist()), strict=True)
            draws = torch.cat([draws_of(expert, part) for expert, part in parts])[order.argsort()]
        else:
            draws, which = normals, which.reshape(-1, *self.batch_shape, 1, 1)
            for expert in which.unique().tolist():
                draws = torch.where(which == expert, draws_of(expert, normals), draws)
        return draws.reshape(*sample_shape, *draws.shape[1:])

    def select_outputs(self, outputs: list[int]) -> "MixturePosterior":
        """The posterior of some of the outputs."""
        log_weights = self.log_weights[..., outputs, :] if self.independent_outputs else self.log_weights
        mean, covariance = self.component_mean[..., outputs], self.component_covariance[..., outputs, :, :]
        return MixturePosterior(log_weights, mean, covariance, independent_outputs=self.independent_outputs)

    def joined(self) -> "MixturePosterior":
        """The same distribution with experts that all outputs share: one for each choice of an expert by each output.

        Raises:
            UnsupportedError: If there are more than about a thousand choices.
        """
        if not self.independent_outputs:
            return self
        each, num_outputs = torch.arange(self.num_experts, device=self.device), self.point_shape[-1]
        if self.num_experts**num_outputs > _MOST_CHOICES:
            raise UnsupportedError(
                f"{num_outputs} outputs with {self.num_experts} experts each have too many choices for a formula; "
                f"give an objective of samples instead of a posterior_transform"
            )
        choices = list(torch.cartesian_prod(*[each] * num_outputs).reshape(-1, num_outputs).unbind(-1))
        own = list(enumerate(choices))
        log_weights = torch.stack([self.log_weights[..., o, of] for o, of in own]).sum(0)
        mean = torch.stack([self.component_mean[..., of, :, o] for o, of in own], dim=-1)
        covariance = torch.stack([self.component_covariance[..., of, o, :, :] for o, of in own], dim=-3)
        return MixturePosterior(log_weights, mean, covariance)

    def members(self, count: int) -> GaussianMixturePosterior:
        r"""As many normal posteriors of equal weight, (\*batch, count, q, O), which keep each weight to one over it."""
        num_outputs = self.point_shape[-1]
        index = resampled(self.log_weights, count, independent_outputs=self.independent_outputs)
        index = index if self.independent_outputs else index.unsqueeze(-2)
        index = index.expand(*self.batch_shape, num_outputs, count)
        mean, covariance = self.component_mean.movedim(-1, -3), self._wide.transpose(-4, -3)
        mean = mean.gather(-2, index.unsqueeze(-1).expand(*index.shape, mean.shape[-1]))
        covariance = covariance.gather(-3, index[..., None, None].expand(*index.shape, *covariance.shape[-2:]))
        return GaussianMixturePosterior(
            _normal_posterior(mean.movedim(-3, -1), covariance.transpose(-4, -3)).distribution
        )

    def map_components(self, transform: Callable[[Posterior], Posterior]) -> Posterior:
        r"""Transform each expert's normal posterior and mix the results; mean and variance stay exact.

        Args:
            transform: A function of a normal posterior of batch shape (M, \*batch).

        Returns:
            A :class:`MixturePosterior` if the transform gives a normal posterior; if it gives a
            ``TransformedPosterior`` of a normal one, as nonlinear outcome transforms do, that of the mixture.

        Raises:
            UnsupportedError: If the transform gives anything else.
        """
        changed = transform(_normal_posterior(self.component_mean.movedim(-3, 0), self._wide.movedim(-4, 0)))
        if isinstance(changed, GPyTorchPosterior):
            return self._with_moments_of(changed)
        if not isinstance(changed, TransformedPosterior) or not isinstance(changed._posterior, GPyTorchPosterior):
            raise UnsupportedError(
                f"a transform that gives a {type(changed).__name__} is not supported; apply it to samples instead"
            )
        weights = self._weights.expand(*self.batch_shape, *self._weights.shape[-3:]).movedim(-3, 0)

        def mean(*_: Tensor) -> Tensor:
            return (weights * changed.mean).sum(0)

        def variance(*_: Tensor) -> Tensor:
            return (weights * (changed.variance + (changed.mean - mean()).square())).sum(0)

        return TransformedPosterior(
            self._with_moments_of(changed._posterior), changed._sample_transform, mean, variance
        )

    def alone(self) -> GPyTorchPosterior:
        """The posterior of a mixture of one component, without the components' dimension."""
        return _normal_posterior(self.component_mean.squeeze(-3), self._wide.squeeze(-4))

    def components(self) -> GPyTorchPosterior:
        r"""The experts' normal posteriors, as one of batch shape (\*batch, M)."""
        return _normal_posterior(self.component_mean, self._wide)

    @property
    def distribution(self) -> MultivariateNormal:
        """The normal distribution over all points and outputs with the same mean and covariance."""
        if self.independent_outputs or self.point_shape[-1] == 1:
            return _normal_posterior(self.mean, self.covariance).distribution
        deviation = (self.component_mean - self.mean.unsqueeze(-3)).mT.flatten(-2)  # (*batch, M, O q)
        weights = self.log_weights.exp().unsqueeze(-1)
        within = (weights[..., None, None] * self.component_covariance).sum(-4)
        blocks = BlockDiagLinearOperator(to_linear_operator(within), block_dim=-3).to_dense()
        covariance = to_linear_operator(blocks + (weights * deviation).mT @ deviation)
        return MultitaskMultivariateNormal(self.mean, covariance, interleaved=False)

    def _with_moments_of(self, each: GPyTorchPosterior) -> "MixturePosterior":
        """The mixture, with the same weights, of normal posteriors along the first dimension."""
        mean, covariance = each.mean.movedim(0, -3), output_covariances(each).movedim(0, -4)
        return MixturePosterior(self.log_weights, mean, covariance, independent_outputs=self.independent_outputs)

    @property
    def _log_weights(self) -> Tensor:
        r"""Shape (\*batch, M, 1, 1), or (\*batch, M, 1, O) if outputs have their own."""
        own = self.log_weights
        return own.mT.unsqueeze(-2) if self.independent_outputs else own[..., None, None]

    @property
    def _weights(self) -> Tensor:
        return self._log_weights.exp()

    @property
    def _wide(self) -> Tensor:
        """The covariances of every member of the t-batch."""
        return self.component_covariance.expand(*self.batch_shape, *self.component_covariance.shape[-4:])

    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights, means and variances of each point's own mixture, (M, points) each."""
        mean, variance = self.component_mean, self.component_variance
        weights = self._log_weights.expand_as(mean)
        weights, mean, variance = (values.movedim(-3, 0).flatten(1) for values in (weights, mean, variance))
        return weights, mean, variance

    def _each(self, function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], value: Tensor) -> Tensor:
        columns = self._columns()
        value = value.expand(torch.broadcast_shapes(value.shape, self._extended_shape()))
        flat = value.flatten(value.ndim - len(self._extended_shape()))
        return function(*columns, flat).reshape(value.shape)


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


def _few(values: Tensor, rows: list[int]) -> Tensor:
    """Some of the points of values (..., q, O), one number a point where there is one output."""
    few = values.flatten(0, -2)[rows]
    return few.squeeze(-1) if few.shape[-1] == 1 else few


def as_mixture(posterior: Any) -> MixturePosterior:
    """A posterior as a mixture; a normal one is a mixture of one component."""
    if isinstance(posterior, MixturePosterior):
        return posterior
    if isinstance(posterior, GPyTorchPosterior) and posterior.mean.shape[-1] == 1:
        covariance = posterior.distribution.covariance_matrix[..., None, None, :, :]
        return MixturePosterior(posterior.mean.new_zeros(1), posterior.mean.unsqueeze(-3), covariance)
    raise UnsupportedError(
        f"this needs a mixture of normal distributions, and the posterior is a {type(posterior).__name__}: take a "
        f"linear outcome transform such as Standardize, and one point at a time where weights depend on the input"
    )
