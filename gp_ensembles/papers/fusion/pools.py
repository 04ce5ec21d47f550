r"""Pools of normal predictions: linear, which is a mixture, and log-linear, which is normal again; constant weights.

:func:`linear_pool` and :func:`fuse` take variances. The functions at the end are in terms of log standard deviations,
with the experts' axis last but one, for samplers. All of them compute with logarithms, so that weights and precisions
may underflow or overflow on the way.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.metrics.regret import best_fixed_mixture
from gp_ensembles.papers.fusion.experts import ExpertPredictions, check_log_weights, check_moments
from gp_ensembles.papers.fusion.gathering import Experts, gather_predictions

_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_SLACK = 1e-6  # relative; what a Gaussian process' variance may exceed its prior's by through round-off


def linear_pool(mean: Tensor, variance: Tensor, log_weights: Tensor) -> Mixture:
    r"""Linear pool :math:`\sum_k w_k N(y; \mu_k, \sigma_k^2)`, Eq. (11) of Ajirak et al. (2024).

    Weights are normalized here, :math:`w = \operatorname{softmax}(\log w)` over the experts.

    Args:
        mean: The experts' means, shape (K, N).
        variance: Their variances, of the same shape. For densities of targets they include the observation noise
            (Eqs. 1 to 3 omit it, Eq. 11 needs it).
        log_weights: Log weights, in nats and up to a constant, shape (K,) or (K, N); minus infinity is weight zero.

    Returns:
        A mixture of K components.

    Raises:
        ValueError: If shapes do not fit, a variance is not positive, a mean or variance is not finite, or all
            weights of a row are zero.

    Example:
        >>> mean = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
        >>> pool = linear_pool(mean, torch.ones_like(mean), torch.tensor([3.0, 3.0], dtype=torch.float64))
        >>> pool.mean, pool.variance
        (tensor([0., 0.], dtype=torch.float64), tensor([2., 1.], dtype=torch.float64))
    """
    check_moments(mean, variance)
    normalized = check_log_weights(log_weights, mean).log_softmax(0)
    return Mixture(normalized.squeeze(-1) if log_weights.ndim == 1 else normalized.expand_as(mean), mean, variance)


def fuse(
    predictions: Experts,
    log_weights: Tensor | float | None = None,
    *,
    space: Literal["f", "y"],
    X: Tensor | None = None,
) -> Mixture:
    r"""Fuse experts' predictions by a product of powers of their densities, to a normal prediction of the target.

    The log-linear pool :math:`\prod_k p_k^{w_k}` with given weights (a generalized product of experts, Cao and Fleet
    2014). The product of the densities of the function f has the noise added afterwards; the pools of Ajirak et al.
    (2024) are of the target y, whose variances contain it. The two differ, so the space has no default.

    Args:
        predictions: What the experts predict; or a list of forecasts and, where X is given, of experts, as
            :func:`gather_predictions` takes them.
        log_weights: Log weights, in nats, a number or shape (K,) or (K, N), as :func:`entropy_weights` or
            :func:`stacking_weights` give them; 1/K each if ``None``. Zero is the product of experts (Hinton 2002),
            which is overconfident.
        space: ``"f"``: fuse the function's moments and add the experts' average noise; ``"y"``: fuse the targets'.
        X: Inputs at which experts predict, shape (N, D); not needed for forecasts.

    Returns:
        The fused prediction of targets, a mixture of one component.

    Raises:
        ValueError: If predictions cannot be fused, the space is unknown, or all weights of a row are zero.

    Example:
        >>> one = torch.ones(2, 1)
        >>> predictions = ExpertPredictions(0 * one, one, 0.5 * one)
        >>> fuse(predictions, 0.0, space="f").variance
        tensor([1.])
        >>> fuse(predictions, 0.0, space="y").variance
        tensor([0.7500])
    """
    if space not in ("f", "y"):
        raise ValueError(f'the space must be "f", the function, or "y", the target with its noise; got {space!r}')
    if not isinstance(predictions, ExpertPredictions):
        predictions = gather_predictions(predictions, X)
    mean, variance = predictions.check().mean, predictions.variance
    if log_weights is None:
        log_weights = -math.log(len(mean))
    if not isinstance(log_weights, Tensor):
        log_weights = mean.new_full(mean.shape[:1], log_weights)
    noise = predictions.noise.expand_as(mean).mean(0)
    if space == "y":
        variance, noise = predictions.target_variance, torch.zeros_like(noise)
    center, log_precision = pooled_normal(check_log_weights(log_weights, mean), mean, 0.5 * variance.log())
    return Mixture(mean.new_zeros(1), center.unsqueeze(0), ((-log_precision).exp() + noise).unsqueeze(0))


def entropy_weights(variance: Tensor, prior_variance: Tensor) -> Tensor:
    r"""Log weights by what experts have learned, :math:`\tfrac12 (\log v_0 - \log v_k)` nats (Cao and Fleet 2014).

    Shapes: ``variance`` (K, N), ``prior_variance`` () or (N,), both of the function or both of the target; returns
    (K, N).

    Raises:
        ValueError: If the prior's variance is not positive, or an expert's exceeds it.
    """
    if not bool((torch.isfinite(prior_variance) & (prior_variance > 0)).all()):
        raise ValueError("the prior's variance must be positive and finite")
    above = variance > prior_variance * (1 + _SLACK)
    if bool(above.any()):
        expert, row = above.nonzero()[0].tolist()
        raise ValueError(
            f"the variance of expert {expert} at row {row}, {float(variance[expert, row]):.6g}, is above the "
            "prior's; both must be in the same space and units"
        )
    return (0.5 * (prior_variance.log() - variance.log())).clamp_min(0).log()


def stacking_weights(log_prob: Tensor, tolerance: float = 1e-9) -> Tensor:
    r"""Log weights that maximize the mean log score of the linear pool (Yao et al. 2018).

    Convex, and solved to a proven gap: for :math:`g_k = \operatorname{mean}_n p_{nk} / \sum_j w_j p_{nj}` the optimum
    has :math:`g_k \le 1`, and :math:`g_k = 1` where :math:`w_k > 0`; no weights are better than those returned by
    more than :math:`\log \max_k g_k` per target.

    Args:
        log_prob: The experts' log densities of held-out or left-out targets, shape (K, N), in nats.
        tolerance: Largest gap to the optimum in nats per target.

    Returns:
        Log weights, shape (K,); minus infinity for experts without weight.

    Raises:
        ValueError: If there is no expert or target, or the tolerance is not positive.
        NumericalError: If a log density is NaN or plus infinity.

    Example:
        >>> log_prob = torch.tensor([[0.8, 0.2, 0.2], [0.2, 0.8, 0.8]], dtype=torch.float64).log()
        >>> stacking_weights(log_prob).exp()
        tensor([0.2222, 0.7778], dtype=torch.float64)
    """
    if log_prob.ndim != 2 or 0 in log_prob.shape:
        raise ValueError(
            f"log densities (K, N) of at least one expert and one target are needed, got {tuple(log_prob.shape)}"
        )
    return best_fixed_mixture(log_prob, tolerance).weights.log()


def normal_log_prob(mean: Tensor, log_scale: Tensor, y: Tensor) -> Tensor:
    """Log densities of normals at y (N,), of the common shape of all."""
    opposite = -log_scale
    error = (y - mean) * opposite.exp()
    return torch.addcmul(opposite, error, error, value=-0.5) - _LOG_ROOT_TWO_PI


def linear_pool_log_prob(logits: Tensor, log_density: Tensor) -> Tensor:
    r"""Log density of a linear pool, :math:`\log \sum_k \mathrm{softmax}(a)_k p_k(y)`, Eq. (11).

    Shapes: ``logits`` (..., K, N); returns (..., N).
    """
    return (logits + log_density).logsumexp(-2) - logits.logsumexp(-2)


def pooled_normal(log_weights: Tensor, mean: Tensor, log_scale: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and log precision of the log-linear pool of normal experts, :math:`\log \sum_k w_k s_k^{-2}`, Eq. (22).

    Shapes: ``log_weights`` (..., K, N); returns (..., N) each.
    """
    log_precisions = log_weights - 2.0 * log_scale
    total = log_precisions.logsumexp(-2)
    return (log_precisions.softmax(-2) * mean).sum(-2), total


def pooled_log_prob(pooled: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    """Log density at y (N,) of normals with these means and log precisions (..., N), shape (..., N)."""
    mean, log_precision = pooled
    half = 0.5 * log_precision
    return half - 0.5 * ((y - mean) * half.exp()).square() - _LOG_ROOT_TWO_PI


def append_zero_logit(logits: Tensor) -> Tensor:
    """Logits of K experts from those of the first K - 1, that of the last being zero, shape (..., K, N)."""
    return torch.nn.functional.pad(logits, (0, 0, 0, 1))
