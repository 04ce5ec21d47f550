"""Normal distributions of several points and outputs, to and from BoTorch's form."""

from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, to_linear_operator
from torch import Tensor


def normal_posterior(mean: Tensor, covariance: Tensor) -> GPyTorchPosterior:
    r"""Independent outputs as a BoTorch posterior.

    Args:
        mean: Shape (\*batch, q, O).
        covariance: One for each output, shape (\*batch, O, q, q).

    Example:
        >>> import torch
        >>> eye = torch.diag_embed(torch.ones(2, 3))
        >>> normal_posterior(torch.zeros(3, 2), eye).variance.shape
        torch.Size([3, 2])
    """
    operator = to_linear_operator(covariance)
    if mean.shape[-1] == 1:
        return GPyTorchPosterior(MultivariateNormal(mean.squeeze(-1), operator.squeeze(-3)))
    blocks = BlockDiagLinearOperator(operator, block_dim=-3)
    return GPyTorchPosterior(MultitaskMultivariateNormal(mean, blocks, interleaved=False))


def covariances_of(posterior: GPyTorchPosterior) -> Tensor:
    r"""The covariance of each output, shape (\*batch, O, q, q), whatever links the outputs."""
    num_points, num_outputs = posterior.mean.shape[-2:]
    covariance: Tensor = posterior.distribution.covariance_matrix
    if num_outputs == 1:
        return covariance.unsqueeze(-3)
    interleaved = posterior.distribution._interleaved
    sizes = (num_points, num_outputs) if interleaved else (num_outputs, num_points)
    blocks = covariance.unflatten(-1, sizes).unflatten(-3, sizes)
    if interleaved:
        blocks = blocks.transpose(-4, -3).transpose(-2, -1)
    diagonal: Tensor = blocks.diagonal(dim1=-4, dim2=-2)
    return diagonal.movedim(-1, -3)
