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

    Shapes: ``log_likelihood`` (..., S, N); returns (..., N).

    Raises:
        ValueError: If a log likelihood is not finite.
    """
    if not bool(log_likelihood.isfinite().all()):
        raise ValueError("log likelihoods must be finite: drop the draws for which they are not")
    log_weights, pareto_k = smooth_weights(-log_likelihood, efficiency=efficiency)
    return PSISLOO((log_weights + log_likelihood).logsumexp(-2), pareto_k)
