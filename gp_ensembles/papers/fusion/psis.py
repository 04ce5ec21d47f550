"""Leave-one-out log densities from posterior draws by Pareto-smoothed importance sampling (PSIS-LOO)."""

from typing import NamedTuple

from torch import Tensor

from gp_ensembles.numerics.pareto import smooth_weights


class PSISLOO(NamedTuple):
    """Leave-one-out log densities of observations, and their reliability.

    Args:
        log_prob: Log predictive densities, shape (..., N).
        pareto_k: Shapes of the tails of the weights, shape (..., N): above 0.7 a density is unreliable.
    """

    log_prob: Tensor
    pareto_k: Tensor


def psis_loo(log_likelihood: Tensor, *, efficiency: float = 1.0) -> PSISLOO:
    r"""Leave-one-out log densities :math:`\log p(y_n \mid y_{-n})` from draws given all observations.

    Importance sampling with ratios :math:`1/p(y_n \mid \theta_s)`, smoothed (Vehtari, Gelman and Gabry, 2017, Eq. 10).

    Args:
        log_likelihood: Of every observation under every draw, shape (..., S, N); leading axes are done one by one, so
            (C, S, N) gives chains of their own and ``flatten(0, 1)`` before pools them.
        efficiency: Effective over actual number of draws; 1 for independent draws.

    Returns:
        Log densities and Pareto k, shape (..., N).

    Raises:
        ValueError: If a log likelihood is not finite.

    Example:
        >>> import torch
        >>> y = torch.tensor([0.0, 1.0], dtype=torch.float64)
        >>> theta = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> psis_loo(-0.5 * (y - 0.5 - 0.7 * theta).square()).log_prob.shape
        torch.Size([2])
    """
    if not bool(log_likelihood.isfinite().all()):
        raise ValueError("log likelihoods must be finite: drop the draws for which they are not")
    log_weights, pareto_k = smooth_weights(-log_likelihood, efficiency=efficiency)
    return PSISLOO((log_weights + log_likelihood).logsumexp(-2), pareto_k)
