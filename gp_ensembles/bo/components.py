"""Base of posteriors made of several normal distributions: draws from base samples, and their sampler."""

from abc import ABC, abstractmethod

import torch
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.quasirandom import SobolEngine

from gp_ensembles.numerics.display import counted, ends, rows_text

_MOST_QUANTILES = 1000  # points beyond which no intervals are printed


class ComponentsPosterior(Posterior, ABC):
    """A posterior whose draws select components by some standard normals and scale the others by their factors."""

    component_mean: Tensor
    component_covariance: Tensor

    @property
    @abstractmethod
    def batch_shape(self) -> torch.Size:
        """The t-batch shape."""

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
    def num_experts(self) -> int:
        """Number of experts."""

    @property
    @abstractmethod
    def num_normals(self) -> int:
        """Standard normals of one draw."""

    @property
    @abstractmethod
    def point_shape(self) -> torch.Size:
        """The shape (q, O) of a draw."""

    @abstractmethod
    def draws(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        r"""Draws (\*sample_shape, \*batch, q, O) from standard normals (\*sample_shape, \*batch, num_normals)."""

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

    def __repr__(self) -> str:
        points, outputs = self.batch_shape.numel() * self.point_shape[0], self.point_shape[-1]
        head = (
            f"{type(self).__name__} of shape {tuple(self._extended_shape())}, {counted((self.num_experts, 'expert'))}"
        )
        rows = ends(points)
        with torch.no_grad():
            columns = {"mean": [self.mean], "stddev": [self.variance.sqrt()]}
            if outputs == 1 and points <= _MOST_QUANTILES:
                columns["90% interval"] = [self.quantile(self.component_mean.new_tensor(p)) for p in (0.05, 0.95)]
        return rows_text(head, rows, {name: [_few(one, rows) for one in ends_] for name, ends_ in columns.items()})

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        r"""Draws, shape (\*sample_shape, \*batch, q, O), reparametrized in the moments (not in the weights)."""
        shape = torch.Size() if sample_shape is None else sample_shape
        base = torch.randn(*shape, *self.base_sample_shape, dtype=self.dtype, device=self.device)
        return self.draws(shape, base)

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        r"""Draws from standard normals, a continuous function of the moments of the components selected.

        Shapes: ``base_samples`` (\*sample_shape, \*base_sample_shape); returns (\*sample_shape, \*batch, q, O).

        Raises:
            ValueError: If the base samples have another shape.
        """
        expected = (*sample_shape, *self.base_sample_shape)
        if base_samples.shape != expected:
            raise ValueError(f"base samples must have shape {tuple(expected)}, got {tuple(base_samples.shape)}")
        return self.draws(sample_shape, base_samples)

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008 (BoTorch's contract)
        return torch.Size([*sample_shape, *self.batch_shape, *self.point_shape])


def _few(values: Tensor, rows: list[int]) -> Tensor:
    """Some of the points of values (..., q, O), one number a point where there is one output."""
    few = values.flatten(0, -2)[rows]
    return few.squeeze(-1) if few.shape[-1] == 1 else few


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
