"""Constant weights of experts from log densities of held-out targets: stacking and pseudo Bayesian model averaging."""

import torch
from torch import Tensor

from gp_ensembles.metrics.regret import best_fixed_mixture
from gp_ensembles.numerics.draws import generator_device

BLOCK = 2**22  # numbers of the Bayesian bootstrap held at once


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
        >>> import torch
        >>> log_prob = torch.tensor([[0.8, 0.2, 0.2], [0.2, 0.8, 0.8]], dtype=torch.float64).log()
        >>> stacking_weights(log_prob).exp()
        tensor([0.2222, 0.7778], dtype=torch.float64)
    """
    _check_shape(log_prob)
    return best_fixed_mixture(log_prob, tolerance).weights.log()


def pseudo_bma_weights(log_prob: Tensor) -> Tensor:
    r"""Log weights :math:`\log \operatorname{softmax}_k \sum_n \log p_{nk}`, pseudo Bayesian model averaging.

    Shapes: ``log_prob`` (K, N); returns (K,).

    Raises:
        ValueError: If there is no expert or target, a log density is NaN or plus infinity, or every expert has
            minus infinity at some target.
    """
    _check_densities(log_prob)
    return log_prob.sum(1).log_softmax(0)


@torch.no_grad()
def pseudo_bma_plus_weights(
    log_prob: Tensor, num_draws: int = 1000, *, generator: torch.Generator | None = None
) -> Tensor:
    """Log weights of pseudo Bayesian model averaging, averaged over a Bayesian bootstrap (Yao et al. 2018).

    Shapes: ``log_prob`` (K, N); returns (K,).

    Raises:
        ValueError: As in :func:`pseudo_bma_weights`, or if there is no draw.
    """
    _check_densities(log_prob)
    if num_draws < 1:
        raise ValueError(f"the number of draws must be at least one, got {num_draws}")
    num_rows = log_prob.shape[1]
    # An expert with minus infinity at some target has weight zero in every draw.
    alive = ~torch.isneginf(log_prob).any(1)
    values = log_prob[alive].T
    values = values - values.amax(1, keepdim=True)  # does not change the softmax, and keeps sums small
    log_total = values.new_full(values.shape[1:], -torch.inf)
    for first in range(0, num_draws, max(BLOCK // num_rows, 1)):
        size = min(max(BLOCK // num_rows, 1), num_draws - first)
        where = generator_device(generator, values.device)
        shares = values.new_empty(size, num_rows, device=where).exponential_(generator=generator).to(values.device)
        shares = shares / shares.sum(1, keepdim=True)
        drawn = (num_rows * shares @ values).log_softmax(1)
        log_total = torch.logaddexp(log_total, drawn.logsumexp(0))
    result = torch.full_like(log_prob[:, 0], -torch.inf)
    result[alive] = log_total.log_softmax(0)
    return result


def _check_shape(log_prob: Tensor) -> None:
    if log_prob.ndim != 2 or 0 in log_prob.shape:
        raise ValueError(
            f"log densities (K, N) of at least one expert and one target are needed, got {tuple(log_prob.shape)}"
        )


def _check_densities(log_prob: Tensor) -> None:
    _check_shape(log_prob)
    bad = torch.isnan(log_prob) | torch.isposinf(log_prob)
    if bool(bad.any()):
        expert, row = bad.nonzero()[0].tolist()
        raise ValueError(
            f"log densities must be numbers or minus infinity: expert {expert} has {float(log_prob[expert, row])} at "
            f"target {row}; leave out missing targets"
        )
    if bool(torch.isneginf(log_prob).any(1).all()):
        raise ValueError("every expert has log density minus infinity at some target; use stacking_weights instead")
