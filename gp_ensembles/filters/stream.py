"""The block filter for long streams: the same algebra in place, on memory set aside once.

A block is staged first: its predictions and its gain are computed without touching the state. Only
:func:`commit_` changes the state, and it cannot fail; so several experts stage a block, all are checked, and
then all commit or none does. No gradient flows here: use :mod:`gp_ensembles.filters.block` for that.
"""

import math

import torch
from torch import Tensor

from gp_ensembles.filters.block import condition_block
from gp_ensembles.filters.states import GaussianState, StepPredictions
from gp_ensembles.numerics.cholesky import cholesky


class Workspace:
    r"""Scratch memory of one expert batch for blocks of one length.

    Args:
        moments: The state's tensor, shape (\*batch, F, F + 1); only its shape, dtype and device are used.
        noise: Observation noise variance, shape (\*batch).
        random_walk_variance: As in :func:`gp_ensembles.filters.block.update_block`.
        num_rows: Length B of the blocks.
    """

    def __init__(
        self, moments: Tensor, noise: Tensor, random_walk_variance: Tensor | None, num_rows: int
    ) -> None:
        num_features = moments.shape[-2]
        self.num_rows = num_rows
        self.num_experts = moments.shape[:-2].numel()
        self.joint = moments.new_empty(self.num_experts, num_rows, num_features + 1)
        self.covariance = moments.new_empty(self.num_experts, num_rows, num_rows)
        flat_noise = noise.detach().reshape(self.num_experts, 1)
        self.noise = flat_noise
        self.noise_matrix = torch.diag_embed(flat_noise.expand(-1, num_rows))
        self.walk: Tensor | None = None
        self.drift: Tensor | None = None
        if random_walk_variance is not None:
            walk = random_walk_variance.detach()
            walk = walk.expand(*moments.shape[:-2], walk.shape[-1]).reshape(self.num_experts, 1, -1)
            steps = torch.arange(1, num_rows + 1, dtype=moments.dtype, device=moments.device)
            self.walk = steps.reshape(1, -1, 1) * walk
            self.drift = num_rows * walk.squeeze(1)
        self.whitened = self.joint
        self.staged_drift: Tensor | None = None


def stage(
    moments: Tensor, Phi: Tensor, y: Tensor, workspace: Workspace, has_gaps: bool
) -> StepPredictions:
    r"""Predict a block one step ahead and keep what it teaches in the workspace; the state is not touched.

    Args:
        moments: [Σ | μ], shape (\*batch, F, F + 1), contiguous.
        Phi: Features, shape (\*batch, B, F), with B the workspace's ``num_rows``.
        y: Targets, shape (B,); NaN where missing.
        workspace: Scratch memory; holds the gain until :func:`commit_`.
        has_gaps: Whether a target of the block is missing.

    Returns:
        Predictions made before each target, each (\*batch, B).

    Raises:
        NumericalError: If the predictive covariance of the block is not positive definite.
    """
    batch_shape, num_features = moments.shape[:-2], moments.shape[-2]
    if has_gaps:
        return _stage_with_gaps(moments, Phi, y, workspace)
    state = moments.view(workspace.num_experts, num_features, num_features + 1)
    design = Phi.reshape(workspace.num_experts, workspace.num_rows, num_features)
    joint = torch.bmm(design, state, out=workspace.joint)
    cross = joint[..., :num_features]
    if workspace.walk is not None:
        cross.addcmul_(design, workspace.walk)
    joint[..., num_features] -= y
    # Φ Cᵀ carries min(s, t) Q on and below its diagonal, the only part that the factorisation reads.
    covariance = torch.baddbmm(workspace.noise_matrix, design, cross.mT, out=workspace.covariance)
    if workspace.num_rows == 1:
        variance = covariance[..., 0]
        if not bool((variance > 0).all()):
            cholesky(covariance, "the predictive covariance of the block")
        scale = variance.sqrt()
        whitened = joint.div_(scale.unsqueeze(-1))
    else:
        lower = cholesky(covariance, "the predictive covariance of the block")
        scale = lower.diagonal(dim1=-2, dim2=-1)
        whitened = torch.linalg.solve_triangular(lower, joint, upper=False, out=joint)
    workspace.whitened, workspace.staged_drift = whitened, workspace.drift
    error = whitened[..., num_features]
    mean = torch.addcmul(y, scale, error)
    log_prob = (error.square() * -0.5).sub_(scale.log()).sub_(0.5 * math.log(2 * math.pi))
    if len(batch_shape) == 1:
        return StepPredictions(mean, scale.square(), log_prob)
    shape = (*batch_shape, workspace.num_rows)
    return StepPredictions(mean.reshape(shape), scale.square().reshape(shape), log_prob.reshape(shape))


def commit_(moments: Tensor, workspace: Workspace) -> None:
    """Apply the staged block to the state, in place."""
    num_features = moments.shape[-2]
    state = moments.view(workspace.num_experts, num_features, num_features + 1)
    whitened = workspace.whitened
    state.baddbmm_(whitened[..., :num_features].mT, whitened, alpha=-1.0)
    if workspace.staged_drift is not None:
        state.diagonal(dim1=-2, dim2=-1).add_(workspace.staged_drift)


def _stage_with_gaps(moments: Tensor, Phi: Tensor, y: Tensor, workspace: Workspace) -> StepPredictions:
    """Blocks with missing targets are rare: take the pure path and keep its gain."""
    batch_shape = moments.shape[:-2]
    walk = None
    if workspace.walk is not None:
        walk = workspace.walk[:, 0].reshape(*batch_shape, -1)
    noise = workspace.noise.reshape(batch_shape)
    gain, predictions = condition_block(GaussianState(moments), Phi, y, noise, walk)
    workspace.whitened = gain.whitened.reshape(workspace.joint.shape)
    workspace.staged_drift = workspace.drift
    return predictions


def choose_block_size(num_features: int, num_experts: int) -> int:
    """Rows per block that run fastest on a CPU, from measurements in ``benchmarks/``.

    Long blocks feed the matrix products better, but pay B² F for the triangular solve.

    Example:
        >>> choose_block_size(num_features=100, num_experts=15)
        24
    """
    if num_features >= 300:
        return 32
    return 24 if num_experts > 1 else 48
