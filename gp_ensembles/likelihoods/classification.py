"""Classes: two with the logistic link, several with the softmax, ordered levels with the probit or logistic link."""

import math
from abc import ABC, abstractmethod

import torch
from gpytorch.constraints import Interval
from gpytorch.likelihoods import Likelihood, _OneDimensionalLikelihood
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical

from gp_ensembles.likelihoods.response import latent_dim, log_normal_cdf


class LogisticLikelihood(_OneDimensionalLikelihood):
    r"""Labels 0 and 1 with log odds that are the latent value (logistic regression).

    .. math:: p(y = 1 \mid z) = 1 / (1 + e^{-z})

    GPyTorch's ``BernoulliLikelihood`` has the probit link instead. There are no parameters.

    Example:
        >>> LogisticLikelihood()(torch.tensor([0.0, 2.0])).probs
        tensor([0.5000, 0.8808])
    """

    latent_dim = 1

    def forward(self, function_samples: Tensor, *inputs: object) -> Bernoulli:
        r"""Distributions of labels given latent values, any shape."""
        return _LogitBernoulli(logits=function_samples, validate_args=False)


class MulticlassLikelihood(Likelihood):
    r"""Classes 0 to C - 1 with the softmax of the latent vector as probabilities.

    .. math:: p(y = c \mid z) = e^{z_c} / \sum_d e^{z_d}

    GPyTorch's ``SoftmaxLikelihood`` mixes latent features by a trained matrix first, draws it at random, and takes
    latent values whose last two axes have the same length for their transpose. Here latent value c is that of class c,
    on the last axis always, and there are no parameters. A constant added to all latent values changes nothing.

    Args:
        num_classes: Number of classes C, at least two.

    Raises:
        ValueError: If there are fewer than two classes.

    Example:
        >>> MulticlassLikelihood(3)(torch.tensor([[0.0, 0.0, 2.0]])).probs
        tensor([[0.1065, 0.1065, 0.7870]])
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"a classification needs at least two classes, got {num_classes}")
        self.num_classes = num_classes

    @property
    def latent_dim(self) -> int:
        """Length of the latent vector: the number of classes."""
        return self.num_classes

    def forward(self, function_samples: Tensor, *inputs: object) -> Categorical:
        r"""Distributions of classes given latent vectors, shape (..., N, C).

        Raises:
            ValueError: If the last axis is not that of the classes.
        """
        if function_samples.shape[-1:] != torch.Size([self.num_classes]):
            raise ValueError(
                f"latent values must have shape (..., {self.num_classes}), one for each class on the last axis, got "
                f"{tuple(function_samples.shape)}"
            )
        return Categorical(logits=function_samples, validate_args=False)


@latent_dim.register(MulticlassLikelihood)
def _(likelihood: MulticlassLikelihood) -> int:
    return likelihood.latent_dim


class OrdinalLink(ABC):
    """A symmetric standard distribution of the noise on the latent value."""

    @abstractmethod
    def log_cdf(self, z: Tensor) -> Tensor:
        """Logarithm of the distribution function, exact in both tails; at -z that of its complement."""

    @abstractmethod
    def log_difference(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Logarithm of the probability between two values, lower < upper, exact in both tails."""

    @abstractmethod
    def widen(self, scale: Tensor, variance: Tensor) -> Tensor:
        """Scale of the noise once a normal error of that variance is added to it; all broadcast."""


class Probit(OrdinalLink):
    r"""Standard normal noise; the sum of it and a normal error is normal, so predictions are exact.

    Example:
        >>> Probit().log_cdf(torch.tensor(-10.0))
        tensor(-53.2313)
    """

    def log_cdf(self, z: Tensor) -> Tensor:
        r"""Logarithm of :math:`\Phi(z)`."""
        return log_normal_cdf(z)

    def log_difference(self, lower: Tensor, upper: Tensor) -> Tensor:
        r"""Logarithm of :math:`\Phi(b) - \Phi(a)`, by the difference in the lower tail of a and b or their mirror."""
        mirrored = lower + upper > 0
        near, far = torch.where(mirrored, -lower, upper), torch.where(mirrored, -upper, lower)
        log_near, log_far = log_normal_cdf(torch.stack([near, far])).unbind()
        return log_near + _log1mexp(log_far - log_near)

    def widen(self, scale: Tensor, variance: Tensor) -> Tensor:
        r"""Exactly :math:`\sqrt{c^2 + s}`."""
        return (scale.square() + variance).sqrt()


class Logit(OrdinalLink):
    r"""Standard logistic noise (proportional odds, McCullagh 1980).

    Example:
        >>> Logit().log_cdf(torch.tensor(-40.0))
        tensor(-40.)
    """

    def log_cdf(self, z: Tensor) -> Tensor:
        """Logarithm of the logistic function."""
        return torch.nn.functional.logsigmoid(z)

    def log_difference(self, lower: Tensor, upper: Tensor) -> Tensor:
        r"""By :math:`\sigma(b) - \sigma(a) = \sigma(b)\, \sigma(-a)\, (1 - e^{a - b})`, where nothing cancels."""
        ends = torch.nn.functional.logsigmoid(upper) + torch.nn.functional.logsigmoid(-lower)
        return ends + _log1mexp(lower - upper)

    def widen(self, scale: Tensor, variance: Tensor) -> Tensor:
        r"""By the probit approximation, :math:`\sqrt{c^2 + \pi s / 8}` (MacKay 1992)."""
        return (scale.square() + math.pi / 8 * variance).sqrt()


class OrdinalCategorical(Categorical):
    """A categorical distribution of ordered levels 0, 1, ..., whose number has a mean and a variance."""

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
            cut points have the same effect.

    Raises:
        ValueError: If there are fewer than two levels.

    Example:
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
        self.is_scaled: bool = scale_constraint is not None
        # Created in the default dtype on the default device, as all of GPyTorch's likelihoods; .to moves it.
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


class _LogitBernoulli(Bernoulli):
    """A Bernoulli distribution whose log probability has derivatives of a third of the operations."""

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid((2 * value - 1) * self.logits)


def _log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0; the branch not taken is fed a harmless value, for the sake of derivatives."""
    close = x > -math.log(2)
    harmless = torch.full_like(x, -1.0)
    return torch.where(
        close,
        (-torch.expm1(torch.where(close, x, harmless))).log(),
        torch.log1p(-torch.where(close, harmless, x).exp()),
    )
