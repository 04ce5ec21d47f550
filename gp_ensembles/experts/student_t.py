"""Bayesian linear regression on features with an unknown noise variance: Student-t predictions."""

import math

import torch
from gpytorch.constraints import GreaterThan
from torch import Tensor, nn

from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.evidence import whitened_statistics
from gp_ensembles.experts.gaussian import check_single_output
from gp_ensembles.features.base import BoundFeatures, FeatureMap, log_scale
from gp_ensembles.features.batch import take_experts
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import FilterState, StudentTPredictions, StudentTState
from gp_ensembles.filters.student_t import NoiseDiscount, student_t_state
from gp_ensembles.filters.transitions import Transition, exact_tensor
from gp_ensembles.filters.update import predict, update_block
from gp_ensembles.numerics.cholesky import NumericalError


class InverseGammaNoise(nn.Module):
    r"""Trainable prior of a noise variance, :math:`\sigma^2 \sim IG(a_0, b_0)` with mean :math:`b_0 / (a_0 - 1)`.

    Args:
        like: A tensor of the experts' batch shape, dtype and device.
        concentration: :math:`a_0 > 1` (so that predictive variances exist), half the equivalent number of rows.
        rate: :math:`b_0 > 0`, in squared units of the target.

    Raises:
        ValueError: If the concentration is not above one or the rate is not positive.
    """

    raw_concentration: Tensor
    raw_rate: Tensor

    def __init__(self, like: Tensor, concentration: float = 3.0, rate: float = 1.0) -> None:
        super().__init__()
        if not concentration > 1 or not rate > 0:
            raise ValueError(
                f"the concentration must exceed 1 and the rate must exceed 0 for a finite predictive variance, got "
                f"{concentration} and {rate}"
            )
        self.concentration_constraint = GreaterThan(1.0, transform=torch.exp, inv_transform=torch.log)
        self.rate_constraint = log_scale()
        start = self.concentration_constraint.inverse_transform(torch.full_like(like.detach(), concentration))
        self.register_parameter("raw_concentration", nn.Parameter(start))
        start = self.rate_constraint.inverse_transform(torch.full_like(like.detach(), rate))
        self.register_parameter("raw_rate", nn.Parameter(start))

    @property
    def concentration(self) -> Tensor:
        r"""a, shape (\*batch)."""
        value: Tensor = self.concentration_constraint.transform(self.raw_concentration)
        return value

    @property
    def rate(self) -> Tensor:
        r"""b, shape (\*batch)."""
        value: Tensor = self.rate_constraint.transform(self.raw_rate)
        return value

    def take(self, index: Tensor) -> "InverseGammaNoise":
        """Independent copies for some experts of the flattened batch: batch shape (S,) for ``index`` (S,)."""
        taken = InverseGammaNoise(self.raw_rate.reshape(-1)[index])
        for name, value in self.named_parameters():
            parameter = nn.Parameter(value.detach().reshape(-1)[index].clone(), value.requires_grad)
            setattr(taken, name, parameter)
        return taken


class BoundStudentT(BoundExpert):
    """A Student-t expert's hyperparameters."""

    def __init__(
        self, features: BoundFeatures, prior: StudentTState, transition: Transition | None, discount: Tensor | None
    ) -> None:
        super().__init__(features, prior.moments[..., 0, 0], transition)
        self.prior = prior
        self.discount = discount
        self._noise_discount = None if discount is None else NoiseDiscount(discount, prior.concentration, prior.rate)

    def update_block(
        self, state: FilterState, Phi: Tensor, y: Tensor | Rows
    ) -> tuple[StudentTState, StudentTPredictions]:
        assert isinstance(state, StudentTState)
        return update_block(state, Phi, y, self.transition, self._noise_discount, prior_variance=self.prior_variance)

    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> StudentTPredictions:
        assert isinstance(state, StudentTState)
        return predict(
            state, Phi, self.transition, self._noise_discount, prior_variance=self.prior_variance, steps=steps
        )

    def take(self, index: Tensor) -> "BoundStudentT":
        batch_shape = self.prior.rate.shape
        fields = (field.reshape(-1, *field.shape[len(batch_shape) :])[index] for field in self.prior)
        transition = None if self.transition is None else self.transition.take(batch_shape, index)
        discount = None if self.discount is None else self.discount.expand(batch_shape).reshape(-1)[index]
        return BoundStudentT(self.features, StudentTState(*fields), transition, discount)


class StudentTExpert(Expert):
    r"""A batch of Bayesian basis expansions that learn their noise variance online, exactly.

    .. math::
        y_t = \phi(x_t)^\top \theta_t + \varepsilon_t, \quad \varepsilon_t \sim N(0, \sigma^2), \quad
        \theta_0 \mid \sigma^2 \sim N(0, \sigma^2 \sigma_\theta^2 I), \quad \sigma^2 \sim IG(a_0, b_0)

    Variances of weights are in units of the noise variance: the feature map's ``prior_variance`` is the signal
    to noise ratio, and a random walk is relative, too. Predictions are Student-t with 2a degrees of freedom.

    Args:
        features: Feature map; its ``prior_variance`` is :math:`\sigma_\theta^2`.
        noise: Prior of the noise variance, with the feature map's batch shape; by default a weak prior with mean 0.5.
        transition: How the weights change before every row; ``None`` for static weights.
        noise_discount: :math:`\delta` in (0, 1]: the posterior of the noise reverts to its prior with a memory
            of :math:`1 / (1 - \delta)` rows, so that predictions track changing noise; ``None`` for constant
            noise.

    Raises:
        ValueError: If a batch shape does not match or the discount is not in (0, 1].

    Example:
        >>> import torch
        >>> from gp_ensembles.features import LinearFeatures
        >>> generator = torch.Generator().manual_seed(0)
        >>> X = torch.randn(400, 1, generator=generator, dtype=torch.float64)
        >>> y = 2 * X.squeeze(-1) + 0.3 * torch.randn(400, generator=generator, dtype=torch.float64)
        >>> expert = StudentTExpert(LinearFeatures(1, torch.tensor(9.0, dtype=torch.float64)))
        >>> state, _ = expert.update(expert.init(), X, y)
        >>> # the true noise variance is 0.09
        >>> round((state.rate / (state.concentration - 1)).item(), 1)
        0.1
    """

    noise_discount: Tensor | None

    def __init__(
        self,
        features: FeatureMap,
        noise: InverseGammaNoise | None = None,
        transition: Transition | None = None,
        noise_discount: Tensor | float | None = None,
    ) -> None:
        super().__init__(features, transition)
        self.noise: InverseGammaNoise = InverseGammaNoise(features.prior_variance) if noise is None else noise
        if self.noise.raw_rate.shape != features.batch_shape:
            raise ValueError(
                f"the noise has batch shape {tuple(self.noise.raw_rate.shape)}, but the feature map has "
                f"{tuple(features.batch_shape)}; build it like features.prior_variance"
            )
        discount = None if noise_discount is None else exact_tensor(noise_discount).to(features.prior_variance)
        if discount is not None and not bool(((discount > 0) & (discount <= 1)).all()):
            raise ValueError(f"noise_discount must lie in (0, 1], got {discount.tolist()}; 0.99 remembers 100 rows")
        self.register_buffer("noise_discount", None if discount is None else discount.detach().clone())

    def init(self) -> StudentTState:
        noise = self.noise
        return student_t_state(
            self.features.prior_variance, self.features.num_features, noise.concentration, noise.rate
        )

    def bind(self) -> BoundStudentT:
        return BoundStudentT(self.features.bind(), self.init(), self.transition, self.noise_discount)

    def check_targets(self, y: Tensor) -> None:
        check_single_output(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        r"""Exact, with the noise variance integrated out; see :meth:`Expert.log_evidence`.

        .. math:: \log p(y) = \log \frac{\Gamma(a + N / 2)}{\Gamma(a)} - \frac N2 \log 2 \pi b - \tfrac12 \log |K|
                  - \Big(a + \frac N2\Big) \log\Big(1 + \frac{y^\top K^{-1} y}{2 b}\Big)
        """
        Phi = self.features.bind()(X)
        ratio = self.features.prior_variance
        try:
            quadratic, half_log_determinant = whitened_statistics(Phi, y, ratio)
        except NumericalError:
            return ratio * torch.nan
        a, b, half = self.noise.concentration, self.noise.rate, 0.5 * y.shape[0]
        normalizer = torch.lgamma(a + half) - torch.lgamma(a) - half * (math.log(2 * math.pi) + b.log())
        return normalizer - half_log_determinant - (a + half) * torch.log1p(quadratic / (2 * b))

    def take(self, index: Tensor) -> "StudentTExpert":
        discount = self.noise_discount
        return StudentTExpert(
            take_experts(self.features, self.batch_shape, index),
            self.noise.take(index),
            None if self.transition is None else self.transition.take(self.batch_shape, index),
            None if discount is None else discount.expand(self.batch_shape).reshape(-1)[index],
        )

    def with_transition(self, transition: Transition | None) -> "StudentTExpert":
        return StudentTExpert(self.features, self.noise, transition, self.noise_discount)
