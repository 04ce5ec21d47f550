"""Experts and weights learned together, with noise that depends on the input: MoGPE, PoGPE and the single GP."""

import math
from typing import final

import torch
from torch import Tensor

from gp_ensembles.fusion.experts import ExpertPredictions
from gp_ensembles.fusion.model import Components, Functions, FusionModel, pooled_component
from gp_ensembles.fusion.model_checks import no_predictions, warn_of_scale
from gp_ensembles.fusion.normal_pools import (
    linear_log_prob,
    log_linear_pool_of,
    normal_log_prob,
    pooled_log_prob,
    with_reference,
)
from gp_ensembles.fusion.roles import Role


@final
class MoGPE(FusionModel):
    r"""Mixture of Gaussian process experts; Ajirak et al. (2024), with the weights of Eq. (19).

    .. math:: p(y \mid x) = \sum_{k=1}^{K} w_k(x)\, N(y; f_k(x), e^{2 s_k(x)}), \qquad
              w(x) = \mathrm{softmax}(g_1(x), \dots, g_{K-1}(x), 0)

    with functions f, s and g of three roles. The posterior has many modes, copies under permutation of the experts
    among them, and no sampler moves between them: combine many chains by stacking, and report what no permutation
    changes. Variances come from the noise functions: there is no variance of f to add, as f is sampled.

    Args:
        X: Training inputs, shape (N, D).
        y: Training targets, centered, shape (N,).
        num_experts: Number of experts K; one leaves a Gaussian process with input-dependent noise.
        mean_role: Prior of the experts' means f.
        noise_role: Prior of their log noise standard deviations s.
        weight_role: Prior of the logits g.

    Raises:
        TypeError: If a role does not share the dtype and device of the inputs.
        ValueError: If shapes do not fit, a value is not finite, or there is no expert.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> generator = torch.Generator().manual_seed(0)
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> role = FourierRole.from_kernel(RBFKernel().double(), 1, 5, generator=generator)
        >>> model = MoGPE(X, X.squeeze(-1), 3, role, role, role)
        >>> theta = model.draw_prior(4, generator=generator)
        >>> model.num_parameters, model.log_joint(theta).shape, model.predictive(theta, X).component_mean.shape
        (80, torch.Size([4]), torch.Size([12, 8]))
    """

    def __init__(
        self, X: Tensor, y: Tensor, num_experts: int, mean_role: Role, noise_role: Role, weight_role: Role
    ) -> None:
        self.num_experts = _checked_count(num_experts)
        functions = {
            "mean": Functions(mean_role, num_experts),
            "log_scale": Functions(noise_role, num_experts),
            "weights": Functions(weight_role, num_experts - 1),
        }
        super().__init__(X, y, functions)
        warn_of_scale(self.y, self.X, mean_role)

    def pointwise(self, theta: Tensor) -> Tensor:
        """Log density of the mixture at each training target, shape (..., N)."""
        values = self.values(theta)
        log_density = normal_log_prob(values["mean"], values["log_scale"], self.y)
        return linear_log_prob(_mixture_logits(values), log_density)

    def log_weights(self, theta: Tensor, X: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Log weights at inputs X (N, D), shape (..., K, N); they sum to one."""
        return _mixture_logits(self.values_at(theta, X, generator=generator)).log_softmax(-2)

    def components(
        self,
        theta: Tensor,
        X: Tensor,
        predictions: ExpertPredictions | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Components:
        """The experts, each (..., K, N)."""
        no_predictions(predictions)
        values = self.values_at(theta, X, generator=generator)
        log_weights = _mixture_logits(values).log_softmax(-2)
        return Components(log_weights, values["mean"], (2.0 * values["log_scale"]).exp())


@final
class PoGPE(FusionModel):
    r"""Product of Gaussian process experts; Ajirak et al. (2024), with the weights of Eq. (30).

    .. math:: p(y \mid x) \propto \prod_{k=1}^{K} N(y; f_k(x), e^{2 s_k(x)})^{w_k(x)}, \qquad
              \log w_k(x) = g_k(x) - \log K

    One normal density for each input, with precision :math:`\sum_k w_k e^{-2 s_k}`; weights are positive and need not
    sum to one. Weights and noises of an expert are only seen through :math:`w_k e^{-2 s_k}`.

    Args:
        X: Training inputs, shape (N, D).
        y: Training targets, centered, shape (N,).
        num_experts: Number of experts K.
        mean_role: Prior of the experts' means f.
        noise_role: Prior of their log noise standard deviations s.
        weight_role: Prior of the centered log weights g.

    Raises:
        TypeError: If a role does not share the dtype and device of the inputs.
        ValueError: If shapes do not fit, a value is not finite, or there is no expert.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> role = FourierRole(torch.ones_like(X[:5]), lengthscale=0.5)
        >>> model = PoGPE(X, X.squeeze(-1), 2, role, role, role)
        >>> components = model.components(model.prior_mean, X)
        >>> components.mean.shape, components.variance.unique()
        (torch.Size([1, 8]), tensor([1.], dtype=torch.float64))
    """

    def __init__(
        self, X: Tensor, y: Tensor, num_experts: int, mean_role: Role, noise_role: Role, weight_role: Role
    ) -> None:
        self.num_experts = _checked_count(num_experts)
        functions = {
            "mean": Functions(mean_role, num_experts),
            "log_scale": Functions(noise_role, num_experts),
            "weights": Functions(weight_role, num_experts),
        }
        super().__init__(X, y, functions)
        warn_of_scale(self.y, self.X, mean_role)

    def pointwise(self, theta: Tensor) -> Tensor:
        """Log density of the pool at each training target, shape (..., N)."""
        values = self.values(theta)
        log_weights = values["weights"] - math.log(self.num_experts)
        return pooled_log_prob(log_linear_pool_of(log_weights, values["mean"], values["log_scale"]), self.y)

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
        no_predictions(predictions)
        values = self.values_at(theta, X, generator=generator)
        log_weights = values["weights"] - math.log(self.num_experts)
        return pooled_component(log_weights, values["mean"], values["log_scale"])


@final
class HetGP(FusionModel):
    r"""One Gaussian process with input-dependent noise (het-RFF-GP), the single-expert baseline of the paper.

    .. math:: p(y \mid x) = N(y; f(x), e^{2 s(x)})

    Args:
        X: Training inputs, shape (N, D).
        y: Training targets, centered, shape (N,).
        mean_role: Prior of the mean f.
        noise_role: Prior of the log noise standard deviation s.

    Raises:
        TypeError: If a role does not share the dtype and device of the inputs.
        ValueError: If shapes do not fit, or a value is not finite.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> role = FourierRole(torch.ones_like(X[:5]))
        >>> HetGP(X, X.squeeze(-1), role, role).num_parameters
        20
    """

    def __init__(self, X: Tensor, y: Tensor, mean_role: Role, noise_role: Role) -> None:
        self.num_experts = 1
        super().__init__(X, y, {"mean": Functions(mean_role, 1), "log_scale": Functions(noise_role, 1)})
        warn_of_scale(self.y, self.X, mean_role)

    def pointwise(self, theta: Tensor) -> Tensor:
        """Log density of each training target, shape (..., N)."""
        values = self.values(theta)
        return normal_log_prob(values["mean"], values["log_scale"], self.y).squeeze(-2)

    def log_weights(self, theta: Tensor, X: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Zeros, shape (..., 1, N): the one expert has all the weight."""
        return theta.new_zeros(*theta.shape[:-1], 1, X.shape[0])

    def components(
        self,
        theta: Tensor,
        X: Tensor,
        predictions: ExpertPredictions | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Components:
        """The one normal for every vector of parameters, shape (..., 1, N)."""
        no_predictions(predictions)
        values = self.values_at(theta, X, generator=generator)
        mean = values["mean"]
        return Components(torch.zeros_like(mean), mean, (2.0 * values["log_scale"]).exp())


def _mixture_logits(values: dict[str, Tensor]) -> Tensor:
    """Logits of all K experts; the last, or only, one's are zero."""
    if "weights" not in values:
        return torch.zeros_like(values["mean"])
    return with_reference(values["weights"])


def _checked_count(num_experts: int) -> int:
    if num_experts < 1:
        raise ValueError(f"num_experts must be at least 1, got {num_experts}")
    return num_experts
