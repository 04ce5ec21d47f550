"""One name per operation: the type of the state chooses the algebra."""

from torch import Tensor

from gp_ensembles.filters import block, square_root
from gp_ensembles.filters.states import GaussianState, LinearState, StepPredictions
from gp_ensembles.filters.walks import walk_rows


def update_block(
    state: LinearState,
    Phi: Tensor,
    y: Tensor,
    noise: Tensor,
    random_walk_variance: Tensor | None = None,
    steps: Tensor | None = None,
) -> tuple[LinearState, StepPredictions]:
    """Predict and learn a block; see :func:`gp_ensembles.filters.block.update_block`."""
    if isinstance(state, GaussianState):
        return block.update_block(state, Phi, y, noise, random_walk_variance, steps)
    return square_root.update_block(state, Phi, y, noise, random_walk_variance, steps)


def predict(
    state: LinearState, Phi: Tensor, noise: Tensor, random_walk_variance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Predict one step ahead; see :func:`gp_ensembles.filters.block.predict`."""
    if isinstance(state, GaussianState):
        return block.predict(state, Phi, noise, random_walk_variance)
    return square_root.predict(state, Phi, noise, random_walk_variance)


def predict_joint(
    state: LinearState, Phi: Tensor, noise: Tensor, random_walk_variance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Joint prediction of several targets at the next step.

    Args:
        state: Posterior of the weights.
        Phi: Features, shape (..., \*batch, N, F).
        noise: Observation noise variance, shape (\*batch).
        random_walk_variance: As in :func:`update_block`; one step of it precedes the prediction.

    Returns:
        Mean (..., \*batch, N) and covariance (..., \*batch, N, N), noise included.

    Example:
        >>> import torch
        >>> from gp_ensembles.filters.states import gaussian_state
        >>> one = torch.ones((), dtype=torch.float64)
        >>> predict_joint(gaussian_state(one, 1), torch.ones(2, 1, dtype=torch.float64), one)[1]
        tensor([[2., 1.],
                [1., 2.]], dtype=torch.float64)
    """
    covariance = Phi @ state.covariance @ Phi.mT
    if random_walk_variance is not None:
        covariance = covariance + walk_rows(Phi, random_walk_variance, noise) @ Phi.mT
    covariance.diagonal(dim1=-2, dim2=-1).add_(noise.unsqueeze(-1))
    return (Phi @ state.mean.unsqueeze(-1)).squeeze(-1), covariance
