"""Maxima of functions drawn from a posterior, on the device of the model: BoTorch looks for them on the host."""

from collections.abc import Callable

from botorch.models.deterministic import GenericDeterministicModel
from botorch.utils.sampling import optimize_posterior_samples
from torch import Tensor


def maximize_draws(paths: Callable[[Tensor], Tensor], bounds: Tensor, num_raw: int, num_restarts: int) -> Tensor:
    """The maximum of each draw: the best of some points of a Sobol sequence, then L-BFGS-B.

    Args:
        paths: The draws, (q, N, D) to (q, N, 1), where ``bounds`` are.
        bounds: Lower and upper bounds, shape (2, D).
        num_raw: Points of the sequence.
        num_restarts: Points that L-BFGS-B starts from.

    Returns:
        Points, shape (q, D).

    Example:
        >>> import torch
        >>> bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> with torch.random.fork_rng():
        ...     maximize_draws(lambda X: -(X - 0.25).square().expand(1, -1, -1), bounds, 16, 2).round(decimals=4)
        tensor([[0.2500]], dtype=torch.float64)
    """
    near = GenericDeterministicModel(lambda X: paths(X.to(bounds)).to(X))
    best, _ = optimize_posterior_samples(near, bounds.cpu(), num_raw, num_restarts)
    return best.detach().to(bounds)
