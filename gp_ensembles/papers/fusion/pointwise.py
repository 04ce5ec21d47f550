"""Several points of a linear pool whose weights depend on the input: their mean and covariance."""

import torch
from torch import Tensor

from gp_ensembles.bo.posterior import MixturePosterior


def joint_moments(draw_log_weights: Tensor, log_weights: Tensor, mean: Tensor, covariance: Tensor) -> MixturePosterior:
    r"""The normal distribution with the mean and covariance of q points of a pool, each of which takes its own expert.

    .. math:: s \sim v, \qquad z_i \sim w_s(x_i) \text{ independently}, \qquad f(x_i) = f_{s, z_i}(x_i), \qquad
              f_{s,k} \sim N(\mu_{s,k}, K_{s,k})

    Args:
        draw_log_weights: Log weights of the draws, shape (\*batch, S).
        log_weights: Of the experts at each point, shape (\*batch, S, K, q).
        mean: Shape (\*batch, S or 1, K, q).
        covariance: Shape (\*batch, S or 1, K, q, q).
    """
    draws, weights = draw_log_weights.softmax(-1).unsqueeze(-1), log_weights.exp()
    pooled = (weights * mean).sum(-2)  # under every draw, (*batch, S, q)
    center = (draws * pooled).sum(-2, keepdim=True)  # (*batch, 1, q)
    own = covariance.diagonal(dim1=-2, dim2=-1) + (mean - center.unsqueeze(-2)).square()
    variance = (draws * (weights * own).sum(-2)).sum(-2)
    shared = (weights.unsqueeze(-1) * weights.unsqueeze(-2) * covariance).sum(-3)  # both choose one expert
    deviation = pooled - center
    joint = (draws.unsqueeze(-1) * shared).sum(-3) + (draws * deviation).mT @ deviation
    joint = torch.diagonal_scatter(joint, variance, dim1=-2, dim2=-1)
    return MixturePosterior(joint.new_zeros(1), center.unsqueeze(-1), joint[..., None, None, :, :])
