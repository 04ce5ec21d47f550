"""Stacking of fixed experts with weights that are functions of the input: BHS and P-BHS."""

import math
from typing import final

import torch
from torch import Tensor

from gp_ensembles.fusion.experts import ExpertPredictions
from gp_ensembles.fusion.model import Components, Functions, FusionModel, pooled_component
from gp_ensembles.fusion.model_checks import checked_predictions
from gp_ensembles.fusion.normal_pools import (
    linear_log_prob,
    log_linear_pool_of,
    normal_log_prob,
    pooled_log_prob,
    with_reference,
)
from gp_ensembles.fusion.roles import Role


@final
class BHS(FusionModel):
    r"""Bayesian hierarchical stacking: a linear pool of fixed experts, Eqs (11) and (12) of Ajirak et al. (2024).

    .. math:: p(y \mid x) = \sum_{k=1}^{K} w_k(x)\, N(y; \mu_k(x), v_k(x)), \qquad
              w(x) = \mathrm{softmax}(f_1(x), \dots, f_{K-1}(x), 0)

    after Yao et al. (2022). The experts must have been trained on other data than X, y, or the weights will trust
    those that overfit. Their variances are those of y: the equations of the paper leave the observation noise out,
    but the density of y needs it. The logit of the last expert is zero, so the prior knows the experts' order. A
    single expert leaves no parameter.

    Args:
        X: Inputs on which to learn the weights, shape (N, D).
        y: Targets, shape (N,).
        predictions: The experts' predictions at X, of shapes (K, N). Where means and variances of y are known, but
            not the share of the noise in them, it is zero: ``ExpertPredictions(mean, variance, 0 * variance)``.
        role: Prior of the logits.

    Raises:
        TypeError: If the role does not share the dtype and device of the inputs.
        ValueError: If shapes do not fit, a value is not finite, or a variance is not positive.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> generator = torch.Generator().manual_seed(0)
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> mean = torch.cat([X, -X], -1).mT
        >>> experts = ExpertPredictions(mean, 0.8 + 0 * mean, 0.2 + 0 * mean)
        >>> role = FourierRole.from_kernel(RBFKernel().double(), 1, 5, generator=generator)
        >>> model = BHS(X, X.squeeze(-1), experts, role)
        >>> theta = model.draw_prior(3, generator=generator)
        >>> model.log_joint(theta).shape, model.predictive(theta, X, experts).mean.shape
        (torch.Size([3]), torch.Size([8]))
    """

    def __init__(self, X: Tensor, y: Tensor, predictions: ExpertPredictions, role: Role) -> None:
        mean, variance = checked_predictions(predictions, X)
        self.num_experts = mean.shape[0]
        super().__init__(X, y, {"weights": Functions(role, self.num_experts - 1)})
        # No parameter enters the experts' log densities.
        self._log_density = normal_log_prob(mean, 0.5 * variance.log(), self.y).detach()

    def pointwise(self, theta: Tensor) -> Tensor:
        """Log density of the pool at each training target, shape (..., N)."""
        return linear_log_prob(self._logits(theta, self.values(theta)), self._log_density)

    def log_weights(self, theta: Tensor, X: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Log weights at inputs X (N, D), shape (..., K, N); they sum to one."""
        return self._logits(theta, self.values_at(theta, X, generator=generator), X.shape[0]).log_softmax(-2)

    def components(
        self,
        theta: Tensor,
        X: Tensor,
        predictions: ExpertPredictions | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Components:
        """The experts as they are, (K, N), under weights (..., K, N)."""
        mean, variance = checked_predictions(predictions, X, self.num_experts)
        return Components(self.log_weights(theta, X, generator=generator), mean, variance)

    def _logits(self, theta: Tensor, values: dict[str, Tensor], num_rows: int | None = None) -> Tensor:
        if "weights" in values:
            return with_reference(values["weights"])
        rows = self.X.shape[0] if num_rows is None else num_rows
        return theta.new_zeros(*theta.shape[:-1], 1, rows)


@final
class PBHS(FusionModel):
    r"""Stacking by a log-linear pool of fixed experts (P-BHS), Eqs (22) to (26) of Ajirak et al. (2024).

    .. math:: p(y \mid x) \propto \prod_{k=1}^{K} N(y; \mu_k(x), v_k(x))^{w_k(x)}, \qquad \log w_k(x) = f_k(x) - \log K

    The pool is normal with precision :math:`\sum_k w_k / v_k`. Weights are positive and need not sum to one, so the
    pool also learns how far to trust its own variance. Prior medians of the weights are 1/K; their prior means, which
    the paper says to be 1/K, are :math:`e^{a^2/2} / K`. Far from the data the weights go back to the prior.

    Args:
        X: Inputs on which to learn the weights, shape (N, D), not those that the experts were trained on.
        y: Targets, shape (N,).
        predictions: The experts' predictions at X, of shapes (K, N). Where means and variances of y are known, but
            not the share of the noise in them, it is zero: ``ExpertPredictions(mean, variance, 0 * variance)``.
        role: Prior of the centered log weights.

    Raises:
        TypeError: If the role does not share the dtype and device of the inputs.
        ValueError: If shapes do not fit, a value is not finite, or a variance is not positive.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> mean = torch.cat([X, -X], -1).mT
        >>> experts = ExpertPredictions(mean, 0.8 + 0 * mean, 0.2 + 0 * mean)
        >>> model = PBHS(X, X.squeeze(-1), experts, FourierRole(torch.ones_like(X[:3])))
        >>> theta = model.draw_prior(0).new_zeros(1, model.num_parameters)
        >>> model.components(theta, X, experts).variance.unique()  # equal weights 1/2
        tensor([1.], dtype=torch.float64)
    """

    def __init__(self, X: Tensor, y: Tensor, predictions: ExpertPredictions, role: Role) -> None:
        mean, variance = checked_predictions(predictions, X)
        self.num_experts = mean.shape[0]
        super().__init__(X, y, {"weights": Functions(role, self.num_experts)})
        self._mean, self._log_scale = mean.detach(), 0.5 * variance.detach().log()

    def pointwise(self, theta: Tensor) -> Tensor:
        """Log density of the pool at each training target, shape (..., N)."""
        log_weights = self.values(theta)["weights"] - math.log(self.num_experts)
        return pooled_log_prob(log_linear_pool_of(log_weights, self._mean, self._log_scale), self.y)

    def log_weights(self, theta: Tensor, X: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Log weights at inputs X (N, D), shape (..., K, N); they need not sum to one."""
        return self.values_at(theta, X, generator=generator)["weights"] - math.log(self.num_experts)

    def components(
        self,
        theta: Tensor,
        X: Tensor,
        predictions: ExpertPredictions | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Components:
        """The one pooled normal for every vector of parameters, shape (..., 1, N)."""
        mean, variance = checked_predictions(predictions, X, self.num_experts)
        log_weights = self.log_weights(theta, X, generator=generator)
        return pooled_component(log_weights, mean, 0.5 * variance.log())
