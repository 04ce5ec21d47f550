"""The models of Ajirak et al. (2024): stacking of fixed experts, and experts and weights learned together.

Stacking with weights that are functions of the input: :class:`BHS` (a mixture) and :class:`PBHS` (a log-linear pool).
Gaussian process experts with input-dependent noise: :class:`MoGPE`, :class:`PoGPE`, and the single :class:`HetGP`.
"""

import math
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.papers.fusion.base import FusionModel, PredictiveComponents
from gp_ensembles.papers.fusion.experts import ExpertPredictions
from gp_ensembles.papers.fusion.function_priors import FourierPrior, weight_prior
from gp_ensembles.papers.fusion.gathering import Experts, gather_experts
from gp_ensembles.papers.fusion.pools import (
    append_zero_logit,
    linear_pool_log_prob,
    normal_log_prob,
    pooled_log_prob,
    pooled_normal,
)
from gp_ensembles.papers.rows import check_rows

_FAR = 10.0  # prior standard deviations of the mean within which targets are expected


@final
class BHS(FusionModel):
    r"""Bayesian hierarchical stacking: a linear pool of fixed experts, Eqs. (11) and (12) of Ajirak et al. (2024).

    .. math:: p(y \mid x) = \sum_{k=1}^{K} w_k(x)\, N(y; \mu_k(x), v_k(x)), \qquad
              w(x) = \mathrm{softmax}(f_1(x), \dots, f_{K-1}(x), 0)

    after Yao et al. (2022). The experts must have been trained on other data than X, y, or the weights will favor
    those that overfit. Their variances are those of y: the equations of the paper leave the observation noise out,
    but the density of y needs it. The logit of the last expert is zero, so the prior depends on the experts' order. A
    model with a single expert has no parameter.

    Args:
        X: Inputs on which to learn the weights, shape (N, D).
        y: Targets, shape (N,); rows whose target is NaN are left out.
        experts: The experts, or what they predict of these rows, as :func:`gather_experts` takes them: fitted
            regressors and models, forecasts of the rows, or ``ExpertPredictions`` of shapes (K, N).
        prior: Prior of the logits; :func:`weight_prior` of the inputs if ``None``.

    Raises:
        TypeError: If the prior does not share the dtype and device of the inputs.
        ValueError: If shapes do not fit, a value is not finite, or a variance is not positive.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> generator = torch.Generator().manual_seed(0)
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> mean = torch.cat([X, -X], -1).mT
        >>> experts = ExpertPredictions(mean, 0.8 + 0 * mean, 0.2 + 0 * mean)
        >>> prior = FourierPrior.from_kernel(RBFKernel().double(), 1, 5, generator=generator)
        >>> model = BHS(X, X.squeeze(-1), experts, prior)
        >>> theta = model.draw_prior(3, generator=generator)
        >>> model.log_joint(theta).shape, model.predictive(theta, X, experts).mean.shape
        (torch.Size([3]), torch.Size([8]))
    """

    experts: tuple[object, ...]

    def __init__(self, X: Tensor, y: Tensor, experts: Experts, prior: FourierPrior | None = None) -> None:
        X, y, mean, variance, self.experts = _stacked(experts, X, y)
        self.num_experts: int = len(mean)
        prior = weight_prior(X) if prior is None else prior
        super().__init__(X, y, {"weights": (prior, self.num_experts - 1)})
        # No parameter enters the experts' log densities.
        self._log_density = normal_log_prob(mean, 0.5 * variance.log(), self.y)

    def log_likelihood(self, theta: Tensor) -> Tensor:
        return linear_pool_log_prob(append_zero_logit(self.values(theta)["weights"]), self._log_density)

    def weigh(self, values: Mapping[str, Tensor]) -> Tensor:
        return append_zero_logit(values["weights"]).log_softmax(-2)

    def combine(
        self, X: Tensor, values: Mapping[str, Tensor], log_weights: Tensor, predictions: ExpertPredictions | None
    ) -> PredictiveComponents:
        """The experts as they are, (K, N), under weights (..., K, N)."""
        mean, variance = _checked_predictions(predictions, X, self.num_experts)
        return PredictiveComponents(log_weights, mean, variance)


@final
class PBHS(FusionModel):
    r"""Stacking by a log-linear pool of fixed experts (P-BHS), Eqs. (22) to (26) of Ajirak et al. (2024).

    .. math:: p(y \mid x) \propto \prod_{k=1}^{K} N(y; \mu_k(x), v_k(x))^{w_k(x)}, \qquad \log w_k(x) = f_k(x) - \log K

    The pool is normal with precision :math:`\sum_k w_k / v_k`. Weights are positive and need not sum to one, so the
    variance of the pool is learned as well. Prior medians of the weights are 1/K; their prior means,
    which the paper gives as 1/K, are :math:`e^{a^2/2} / K`. Far from the data the weights return to the prior.

    Args:
        X: Inputs on which to learn the weights, shape (N, D), not those that the experts were trained on.
        y: Targets, shape (N,); rows whose target is NaN are left out.
        experts: The experts, or what they predict of these rows, as :func:`gather_experts` takes them: fitted
            regressors and models, forecasts of the rows, or ``ExpertPredictions`` of shapes (K, N).
        prior: Prior of the centered log weights; :func:`weight_prior` of the inputs if ``None``.

    Raises:
        TypeError: If the prior does not share the dtype and device of the inputs, or one cannot serve as an expert.
        ValueError: If shapes do not fit, a value is not finite, or a variance is not positive.

    Example:
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> mean = torch.cat([X, -X], -1).mT
        >>> experts = ExpertPredictions(mean, 0.8 + 0 * mean, 0.2 + 0 * mean)
        >>> model = PBHS(X, X.squeeze(-1), experts, FourierPrior(torch.ones_like(X[:3])))
        >>> theta = model.draw_prior(0).new_zeros(1, model.num_parameters)
        >>> model.components(theta, X, experts).variance.unique()  # equal weights 1/2
        tensor([1.], dtype=torch.float64)
    """

    experts: tuple[object, ...]

    def __init__(self, X: Tensor, y: Tensor, experts: Experts, prior: FourierPrior | None = None) -> None:
        X, y, mean, variance, self.experts = _stacked(experts, X, y)
        self.num_experts: int = len(mean)
        prior = weight_prior(X) if prior is None else prior
        super().__init__(X, y, {"weights": (prior, self.num_experts)})
        self._mean, self._log_scale = mean, 0.5 * variance.log()

    def log_likelihood(self, theta: Tensor) -> Tensor:
        log_weights = self.weigh(self.values(theta))
        return pooled_log_prob(pooled_normal(log_weights, self._mean, self._log_scale), self.y)

    def weigh(self, values: Mapping[str, Tensor]) -> Tensor:
        return values["weights"] - math.log(self.num_experts)

    def combine(
        self, X: Tensor, values: Mapping[str, Tensor], log_weights: Tensor, predictions: ExpertPredictions | None
    ) -> PredictiveComponents:
        """The one pooled normal for every vector of parameters, shape (..., 1, N)."""
        mean, variance = _checked_predictions(predictions, X, self.num_experts)
        return _pooled_component(log_weights, mean, 0.5 * variance.log())


@final
class MoGPE(FusionModel):
    r"""Mixture of Gaussian process experts; Ajirak et al. (2024), with the weights of Eq. (19).

    .. math:: p(y \mid x) = \sum_{k=1}^{K} w_k(x)\, N(y; f_k(x), e^{2 s_k(x)}), \qquad
              w(x) = \mathrm{softmax}(g_1(x), \dots, g_{K-1}(x), 0)

    with functions f, s and g of three priors. The posterior has many modes, copies under permutation of the experts
    among them, and no sampler moves between them: combine many chains by stacking, and report quantities that no
    permutation changes. Variances are those of the noise: f is sampled and has no variance itself.

    Args:
        X: Training inputs, shape (N, D).
        y: Training targets, centered, shape (N,).
        num_experts: Number of experts K; one leaves a Gaussian process with input-dependent noise.
        mean_prior: Prior of the experts' means f.
        noise_prior: Prior of their log noise standard deviations s.
        weight_prior: Prior of the logits g.

    Raises:
        TypeError: If a prior does not share the dtype and device of the inputs.
        ValueError: If shapes do not fit, a value is not finite, or there is no expert.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> generator = torch.Generator().manual_seed(0)
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior.from_kernel(RBFKernel().double(), 1, 5, generator=generator)
        >>> model = MoGPE(X, X.squeeze(-1), 3, prior, prior, prior)
        >>> theta = model.draw_prior(4, generator=generator)
        >>> model.num_parameters, model.log_joint(theta).shape, model.predictive(theta, X).component_mean.shape
        (80, torch.Size([4]), torch.Size([12, 8]))
    """

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        num_experts: int,
        mean_prior: FourierPrior,
        noise_prior: FourierPrior,
        weight_prior: FourierPrior,
    ) -> None:
        self.num_experts: int = _checked_count(num_experts)
        functions = {"mean": (mean_prior, num_experts), "log_scale": (noise_prior, num_experts)}
        super().__init__(X, y, functions | {"weights": (weight_prior, num_experts - 1)})
        _warn_of_scale(self.y, self.X, mean_prior)

    def log_likelihood(self, theta: Tensor) -> Tensor:
        values = self.values(theta)
        log_density = normal_log_prob(values["mean"], values["log_scale"], self.y)
        return linear_pool_log_prob(append_zero_logit(values["weights"]), log_density)

    def weigh(self, values: Mapping[str, Tensor]) -> Tensor:
        return append_zero_logit(values["weights"]).log_softmax(-2)

    def combine(
        self, X: Tensor, values: Mapping[str, Tensor], log_weights: Tensor, predictions: ExpertPredictions | None
    ) -> PredictiveComponents:
        """The experts, each (..., K, N)."""
        _no_predictions(predictions)
        return PredictiveComponents(log_weights, values["mean"], (2.0 * values["log_scale"]).exp())


@final
class PoGPE(FusionModel):
    r"""Product of Gaussian process experts; Ajirak et al. (2024), with the weights of Eq. (30).

    .. math:: p(y \mid x) \propto \prod_{k=1}^{K} N(y; f_k(x), e^{2 s_k(x)})^{w_k(x)}, \qquad
              \log w_k(x) = g_k(x) - \log K

    One normal density for each input, with precision :math:`\sum_k w_k e^{-2 s_k}`; weights are positive and need not
    sum to one. Weights and noises of an expert are only identified through :math:`w_k e^{-2 s_k}`.

    Args:
        X: Training inputs, shape (N, D).
        y: Training targets, centered, shape (N,).
        num_experts: Number of experts K.
        mean_prior: Prior of the experts' means f.
        noise_prior: Prior of their log noise standard deviations s.
        weight_prior: Prior of the centered log weights g.

    Raises:
        TypeError: If a prior does not share the dtype and device of the inputs.
        ValueError: If shapes do not fit, a value is not finite, or there is no expert.

    Example:
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:5]), lengthscale=0.5)
        >>> model = PoGPE(X, X.squeeze(-1), 2, prior, prior, prior)
        >>> components = model.components(model.prior_mean, X)
        >>> components.mean.shape, components.variance.unique()
        (torch.Size([1, 8]), tensor([1.], dtype=torch.float64))
    """

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        num_experts: int,
        mean_prior: FourierPrior,
        noise_prior: FourierPrior,
        weight_prior: FourierPrior,
    ) -> None:
        self.num_experts: int = _checked_count(num_experts)
        functions = {"mean": (mean_prior, num_experts), "log_scale": (noise_prior, num_experts)}
        super().__init__(X, y, functions | {"weights": (weight_prior, num_experts)})
        _warn_of_scale(self.y, self.X, mean_prior)

    def log_likelihood(self, theta: Tensor) -> Tensor:
        values = self.values(theta)
        return pooled_log_prob(pooled_normal(self.weigh(values), values["mean"], values["log_scale"]), self.y)

    def weigh(self, values: Mapping[str, Tensor]) -> Tensor:
        return values["weights"] - math.log(self.num_experts)

    def combine(
        self, X: Tensor, values: Mapping[str, Tensor], log_weights: Tensor, predictions: ExpertPredictions | None
    ) -> PredictiveComponents:
        """The one pooled normal for every vector of parameters, shape (..., 1, N)."""
        _no_predictions(predictions)
        return _pooled_component(log_weights, values["mean"], values["log_scale"])


@final
class HetGP(FusionModel):
    r"""One Gaussian process with input-dependent noise (het-RFF-GP), the single-expert baseline of the paper.

    .. math:: p(y \mid x) = N(y; f(x), e^{2 s(x)})

    Args:
        X: Training inputs, shape (N, D).
        y: Training targets, centered, shape (N,).
        mean_prior: Prior of the mean f.
        noise_prior: Prior of the log noise standard deviation s.

    Raises:
        TypeError: If a prior does not share the dtype and device of the inputs.
        ValueError: If shapes do not fit, or a value is not finite.

    Example:
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:5]))
        >>> HetGP(X, X.squeeze(-1), prior, prior).num_parameters
        20
    """

    def __init__(self, X: Tensor, y: Tensor, mean_prior: FourierPrior, noise_prior: FourierPrior) -> None:
        self.num_experts = 1
        super().__init__(X, y, {"mean": (mean_prior, 1), "log_scale": (noise_prior, 1)})
        _warn_of_scale(self.y, self.X, mean_prior)

    def log_likelihood(self, theta: Tensor) -> Tensor:
        values = self.values(theta)
        return normal_log_prob(values["mean"], values["log_scale"], self.y).squeeze(-2)

    def weigh(self, values: Mapping[str, Tensor]) -> Tensor:
        """Zeros, shape (..., 1, N): the one expert has all the weight."""
        return torch.zeros_like(values["mean"])

    def combine(
        self, X: Tensor, values: Mapping[str, Tensor], log_weights: Tensor, predictions: ExpertPredictions | None
    ) -> PredictiveComponents:
        """The one normal for every vector of parameters, shape (..., 1, N)."""
        _no_predictions(predictions)
        return PredictiveComponents(log_weights, values["mean"], (2.0 * values["log_scale"]).exp())


def _stacked(experts: Experts, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[object, ...]]:
    """Rows that have a target, means and variances of targets by K experts, each (K, N), and the experts themselves."""
    y, seen = check_rows(X, y)
    if not bool(seen.all()):
        X, y, experts = X[seen], y[seen], _at_rows(experts, seen)
    predictions, known = gather_experts(experts, X.detach(), y.detach())
    mean, variance = _checked_predictions(predictions, X)
    return X, y, mean.detach(), variance.detach(), known


def _at_rows(experts: Experts, seen: Tensor) -> Experts:
    """The experts, what is predicted of all rows for some of them only."""
    if isinstance(experts, ExpertPredictions):
        return ExpertPredictions(*(part[..., seen] if part.shape[-1] == len(seen) else part for part in experts))
    return [_at_rows(one, seen) if isinstance(one, ExpertPredictions) else one for one in experts]


def _checked_count(num_experts: int) -> int:
    if num_experts < 1:
        raise ValueError(f"num_experts must be at least 1, got {num_experts}")
    return num_experts


def _pooled_component(log_weights: Tensor, mean: Tensor, log_scale: Tensor) -> PredictiveComponents:
    """The log-linear pool as the one component of a predictive density, shape (..., 1, N).

    Shapes: ``log_weights`` (..., K, N).
    """
    center, log_precision = (part.unsqueeze(-2) for part in pooled_normal(log_weights, mean, log_scale))
    return PredictiveComponents(torch.zeros_like(center), center, (-log_precision).exp())


def _checked_predictions(
    predictions: ExpertPredictions | None, X: Tensor, num_experts: int | None = None
) -> tuple[Tensor, Tensor]:
    """Means and variances of y, noise included, by K experts at inputs X (N, D), each (K, N)."""
    if predictions is None:
        raise ValueError("this model stacks fixed experts: give their predictions at these inputs (predict_experts)")
    mean, variance, _ = predictions.check()
    experts = "K" if num_experts is None else str(num_experts)
    fits = mean.ndim == 2 and mean.shape[1:] == X.shape[:1]
    if not fits or (num_experts is not None and mean.shape[0] != num_experts):
        raise ValueError(
            f"predictions must be ({experts}, {X.shape[0]}), experts first, one column for each input, got "
            f"{tuple(mean.shape)}"
        )
    if any(part.dtype != X.dtype or part.device != X.device for part in predictions):
        raise ValueError(
            f"predictions must be {X.dtype} on {X.device} as the inputs, got {mean.dtype} on {mean.device}"
        )
    return mean, predictions.target_variance.expand_as(variance)


def _no_predictions(predictions: ExpertPredictions | None) -> None:
    """Refuse predictions of experts for a model that learns its own."""
    if predictions is not None:
        raise ValueError("this model learns its experts; predictions of fixed ones are for stacking (BHS, PBHS)")


@torch.no_grad()
def _warn_of_scale(y: Tensor, X: Tensor, prior: FourierPrior) -> None:
    """Warn of targets far outside the prior of the mean function. Shapes: ``y`` (N,), ``X`` (N, D)."""
    stddev = float(prior.basis(X).square().sum(0).mean().sqrt())
    size = float(y.square().mean().sqrt())
    if size > _FAR * stddev:
        warn_caller(
            f"targets of size {size:.2g} lie far outside a prior of standard deviation {stddev:.2g}: standardize them, "
            "or give the prior of the mean a larger amplitude"
        )
