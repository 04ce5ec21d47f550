"""The posterior of an ensemble: a weighted mixture of the experts' joint normal distributions, and its sampler."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.outcome import ChainedOutcomeTransform, OutcomeTransform
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

    @abstractmethod
    def moment_matched(self) -> GPyTorchPosterior:
        """The normal distribution over all points and outputs with the same mean and covariance."""

    @abstractmethod
    def draws(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        r"""Draws (\*sample_shape, \*batch, q, O) from standard normals (\*sample_shape, \*batch, num_normals)."""

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


def selected(log_weights: Tensor, normals: Tensor) -> Tensor:
    """The place along the last axis (..., M) that each standard normal (..., n) selects, by cumulative weights."""
    cumulative = log_weights.detach().exp().cumsum(-1)
    uniform = torch.special.ndtr(normals)
    shape = torch.broadcast_shapes(cumulative.shape[:-1], uniform.shape[:-1])
    last = (cumulative < cumulative[..., -1:]).sum(-1, keepdim=True)  # beyond it weights are zero
    places = torch.searchsorted(cumulative.expand(*shape, -1).contiguous(), uniform.expand(*shape, -1).contiguous())
    return places.minimum(last)


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


class NotGaussianError(UnsupportedError, AttributeError):
    """A BoTorch component asks a mixture for one normal distribution; the message says which view has it."""


class MixturePosterior(ComponentsPosterior):
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
        >>> posterior = MixturePosterior(
        ...     torch.tensor([0.5, 0.5]).double().log(), mean, one.unsqueeze(-1)
        ... )
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
        wide = covariance.expand(*covariance.shape[:-4], num_experts, num_outputs, num_points, num_points)
        self.log_weights = log_weights
        self.component_mean = mean.expand(*batch_shape, -1, -1, -1)
        self.component_covariance = wide
        self.num_experts = num_experts
        self.point_shape = mean.shape[-2:]
        self.num_normals = 1 + num_points * num_outputs  # the first selects the expert, its factor scales the others

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
        joint: Tensor = learned.log_density.sum(-1) + self.log_weights
        return joint.logsumexp(-1)

    def draws(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        num_draws = sample_shape.numel()
        which = selected(self.log_weights, base_samples[..., :1]).reshape(num_draws, -1)
        normals = base_samples[..., 1:].reshape(num_draws, *self.batch_shape, *self.point_shape)
        factors = covariance_factors(self.component_covariance)

        def draws_of(expert: int, own: Tensor) -> Tensor:  # from normals (..., q, O)
            spread = torch.einsum("...oij,...jo->...io", factors[..., expert, :, :, :], own)
            return self.component_mean[..., expert, :, :] + spread

        if bool((which == which[:, :1]).all()):  # one expert for the whole t-batch: each does its own draws only
            order = which[:, 0].argsort(stable=True)
            experts, counts = which[order, 0].unique_consecutive(return_counts=True)
            parts = zip(experts.tolist(), normals[order].split(counts.tolist()), strict=True)
            draws = torch.cat([draws_of(expert, part) for expert, part in parts])[order.argsort()]
        else:
            draws, which = normals, which.reshape(num_draws, *self.batch_shape, 1, 1)
            for expert in which.unique().tolist():
                draws = torch.where(which == expert, draws_of(expert, normals), draws)
        return draws.reshape(self._extended_shape(sample_shape))

    def select_outputs(self, outputs: list[int]) -> "MixturePosterior":
        """The posterior of some of the outputs."""
        covariance = self.component_covariance[..., outputs, :, :]
        return MixturePosterior(self.log_weights, self.component_mean[..., outputs], covariance)

    def map_components(self, transform: Callable[[GPyTorchPosterior], Posterior]) -> Posterior:
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

    def moment_matched(self) -> GPyTorchPosterior:
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
            "WeightedAcquisition (docs/how_to/acquisition_functions.md)"
        )

    mvn = covariance_matrix = distribution  # other names that BoTorch asks for

    def _with_moments_of(self, each: GPyTorchPosterior) -> "MixturePosterior":
        """The mixture, with the same weights, of normal posteriors along the first dimension."""
        return MixturePosterior(self.log_weights, each.mean.movedim(0, -3), output_covariances(each).movedim(0, -4))

    @property
    def _weights(self) -> Tensor:
        return self.log_weights.exp()[..., None, None]

    @property
    def _wide(self) -> Tensor:
        """The covariances of every member of the t-batch."""
        return self.component_covariance.expand(*self.batch_shape, *self.component_covariance.shape[-4:])

    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights, means and variances of each point's own mixture, (M, points) each."""
        mean, variance = self.component_mean, self.component_variance
        weights = self.log_weights[..., None, None].expand_as(mean)
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


@final
class MixtureOutcomeTransform(ChainedOutcomeTransform):
    """An outcome transform, or none, of a mixture: it acts on every component, so moments and draws stay exact."""

    def __init__(self, transform: OutcomeTransform | None = None) -> None:
        super().__init__(**({} if transform is None else {"transform": transform}))

    @property
    def _is_linear(self) -> bool:
        """No: of linear transforms BoTorch's ``ModelListGP`` concludes that posteriors are normal."""
        return False

    def untransform_posterior(self, posterior: Posterior, X: Tensor | None = None) -> Posterior:
        """The posterior in the units of the data; that of a mixture component by component."""
        each = super().untransform_posterior
        if len(self) and isinstance(posterior, MixturePosterior):
            return posterior.map_components(lambda normal: each(normal, X=X))
        return each(posterior, X=X)


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


def normal_like(posterior: Any) -> GPyTorchPosterior:
    """The normal distribution with a posterior's mean and covariance."""
    if isinstance(posterior, GPyTorchPosterior):
        return posterior
    mixture = posterior if isinstance(posterior, ComponentsPosterior) else as_mixture(posterior)
    return mixture.moment_matched()
