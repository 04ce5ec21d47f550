"""Maxima of functions drawn from a posterior, on the device of the model: BoTorch looks for them on the host."""

from collections.abc import Callable

from botorch.models.deterministic import GenericDeterministicModel
from botorch.utils.sampling import optimize_posterior_samples
from torch import Tensor


def maximize_draws(paths: Callable[[Tensor], Tensor], bounds: Tensor, num_raw: int, num_restarts: int) -> Tensor:
    """The maximum of each draw: the best of some points of a Sobol sequence, then L-BFGS-B.

    Shapes: ``bounds`` (2, D); returns (q, D).
    """
    near = GenericDeterministicModel(lambda X: paths(X.to(bounds)).to(X))
    best, _ = optimize_posterior_samples(near, bounds.cpu(), num_raw, num_restarts)
    return best.detach().to(bounds)
