"""Ordered levels: a latent value with noise, cut into levels."""

import torch
from gpytorch.constraints import Interval
from gpytorch.likelihoods import _OneDimensionalLikelihood
from torch import Tensor, nn
from torch.distributions import Categorical

from gp_ensembles.likelihoods.links import OrdinalLink
from gp_ensembles.likelihoods.support import check_support


class OrdinalCategorical(Categorical):
    """A categorical distribution of ordered levels 0, 1, ..., whose number has a mean and a variance.

    Example:
        >>> import torch
        >>> OrdinalCategorical(probs=torch.tensor([0.25, 0.5, 0.25])).mean
        tensor(1.)
    """

    @property
    def mean(self) -> Tensor:
        """Mean level."""
        return (self.probs * self._levels()).sum(-1)

    @property
    def variance(self) -> Tensor:
        """Variance of the level."""
        return (self.probs * (self._levels() - self.mean.unsqueeze(-1)).square()).sum(-1)

    def _levels(self) -> Tensor:
        return torch.arange(self.logits.shape[-1], device=self.logits.device).to(self.logits.dtype)


class OrdinalLikelihood(_OneDimensionalLikelihood):
    r"""Levels 0 to J - 1 of a latent value with noise, cut at J - 1 increasing points.

    .. math:: p(y \le j \mid z) = F\big( (c_{j+1} - z) / \tau \big), \qquad c_1 < \dots < c_{J-1}

    with F the distribution function of the link (McCullagh 1980; Chu and Ghahramani 2005). The first cut point and the
    logarithms of the gaps between the others are the trainable ``raw_cut_points``, so any value of them is legal. A
    latent value that is far out keeps a finite log density. With two levels and the cut point at zero, where it starts,
    this is probit or logistic regression.

    Args:
        num_levels: Number of levels J, at least two.
        link: :class:`Probit` or :class:`Logit`, or another distribution of the noise.
        batch_shape: Shape of the batch of experts, each with its own parameters.
        scale_constraint: Constraint of the trainable scale :math:`\tau` of the noise, such as GPyTorch's
            ``Positive()``. By default the scale is one and not trained: the prior variance of the latent value and the
            cut points say the same.

    Raises:
        ValueError: If there are fewer than two levels.

    Example:
        >>> import torch
        >>> from gp_ensembles.likelihoods import Logit
        >>> likelihood = OrdinalLikelihood(3, Logit())
        >>> likelihood.cut_points
        tensor([-0.5000,  0.5000], grad_fn=...)
        >>> likelihood(torch.tensor([0.0])).probs
        tensor([[0.3775, 0.2449, 0.3775]], grad_fn=...)
    """

    latent_dim = 1
    raw_cut_points: Tensor
    raw_scale: Tensor

    def __init__(
        self,
        num_levels: int,
        link: OrdinalLink,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008 - as in GPyTorch; it cannot be changed
        scale_constraint: Interval | None = None,
    ) -> None:
        super().__init__()
        if num_levels < 2:
            raise ValueError(f"an ordinal scale needs at least two levels, got {num_levels}")
        self.num_levels = num_levels
        self.link = link
        self.is_scaled = scale_constraint is not None
        # Born in the default dtype on the default device, as all of GPyTorch's likelihoods; .to moves it.
        raw = torch.zeros(
            *batch_shape, num_levels - 1, dtype=torch.get_default_dtype(), device=torch.get_default_device()
        )
        raw[..., 0] = 1 - 0.5 * num_levels  # cut points one apart, symmetric about zero
        self.register_parameter("raw_cut_points", nn.Parameter(raw))
        if scale_constraint is not None:
            self.register_parameter("raw_scale", nn.Parameter(torch.zeros_like(raw[..., :1])))
            self.register_constraint("raw_scale", scale_constraint)
            self.scale = torch.ones_like(raw[..., :1])

    @property
    def cut_points(self) -> Tensor:
        r"""The cut points, increasing, shape (\*batch, J - 1)."""
        first, gaps = self.raw_cut_points[..., :1], self.raw_cut_points[..., 1:].exp()
        return torch.cat([first, first + gaps.cumsum(-1)], dim=-1)

    @cut_points.setter
    def cut_points(self, value: Tensor) -> None:
        """Set the cut points.

        Raises:
            ValueError: If they are not finite and increasing, or are too many or few.
        """
        if value.shape[-1:] != self.raw_cut_points.shape[-1:]:
            raise ValueError(
                f"{self.num_levels} levels need {self.num_levels - 1} cut points on the last axis, got shape "
                f"{tuple(value.shape)}"
            )
        gaps = value.diff(dim=-1)
        if not bool(torch.isfinite(value).all()) or not bool((gaps > 0).all()):
            raise ValueError(f"cut points must be finite and increasing, got {value.tolist()}")
        self.initialize(raw_cut_points=torch.cat([value[..., :1], gaps.log()], dim=-1))

    @property
    def scale(self) -> Tensor:
        r"""Scale of the noise, shape (\*batch, 1), or (1,) where it is not trained."""
        if not self.is_scaled:
            return self.raw_cut_points.new_ones(1)
        scale: Tensor = self.raw_scale_constraint.transform(self.raw_scale)
        return scale

    @scale.setter
    def scale(self, value: Tensor) -> None:
        """Set the scale.

        Raises:
            ValueError: If the scale is not trained.
        """
        if not self.is_scaled:
            raise ValueError("the scale is fixed at one; build the likelihood with a scale_constraint to change it")
        self.initialize(raw_scale=self.raw_scale_constraint.inverse_transform(value))

    def forward(self, function_samples: Tensor, *inputs: object) -> OrdinalCategorical:
        r"""Distributions of levels given latent values, shape (..., \*batch, N)."""
        return self.smoothed(function_samples, torch.zeros_like(function_samples))

    def smoothed(self, mean: Tensor, variance: Tensor) -> OrdinalCategorical:
        r"""Distributions of levels given normal latent values: exact for :class:`Probit`.

        Args:
            mean: Means of the latent values, shape (..., \*batch, N).
            variance: Variances of the latent values, of the same shape.
        """
        scale = self.link.widen(self.scale, variance).unsqueeze(-1)
        z = (self.cut_points.unsqueeze(-2) - mean.unsqueeze(-1)) / scale
        logits = self.link.log_cdf(torch.cat([z[..., :1], -z[..., -1:]], dim=-1))  # of the first level and the last
        if self.num_levels > 2:
            between = self.link.log_difference(z[..., :-1], z[..., 1:])
            logits = torch.cat([logits[..., :1], between, logits[..., 1:]], dim=-1)
        return OrdinalCategorical(logits=logits, validate_args=False)

    def check_targets(self, y: Tensor) -> None:
        """Raise a ValueError that names value and row unless each target (N,) is a level or NaN (missing)."""
        check_support(self, y)
