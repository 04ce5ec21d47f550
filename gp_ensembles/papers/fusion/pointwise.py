"""A mixture whose weights depend on the input: at every point its own expert, functions of an expert joint."""

from collections.abc import Callable

import torch
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor

from gp_ensembles.bo.posterior import ComponentsPosterior, covariance_factors, selected


class PointwisePosterior(ComponentsPosterior):
    r"""Joint distribution of q points under a linear pool whose weights depend on the input, of one output.

    .. math:: s \sim v, \qquad z_i \sim w_s(x_i) \text{ independently}, \qquad f(x_i) = f_{s, z_i}(x_i), \qquad
              f_{s,k} \sim N(\mu_{s,k}, K_{s,k})

    Shapes: ``draw_log_weights`` (S,) or (\*batch, S), ``log_weights`` (\*batch, S, K, q), ``mean`` (\*batch, S or
    1, K, q), ``covariance`` (\*batch, S or 1, K, q, q).
    """

    def __init__(self, draw_log_weights: Tensor, log_weights: Tensor, mean: Tensor, covariance: Tensor) -> None:
        num_experts, num_points = mean.shape[-2:]
        lead = torch.broadcast_shapes(
            draw_log_weights.shape, log_weights.shape[:-2], mean.shape[:-2], covariance.shape[:-3]
        )
        self.draw_log_weights: Tensor = draw_log_weights.log_softmax(-1).expand(lead)
        self.log_weights: Tensor = log_weights.expand(*lead, num_experts, num_points)
        self.component_mean = mean.expand(*lead, -1, -1)
        self.component_covariance = covariance
        self.num_experts = num_experts
        self.point_shape = torch.Size([num_points, 1])
        self.num_normals = 1 + num_points + num_experts * num_points  # they choose the draw, experts, and functions

    @property
    def mean(self) -> Tensor:
        return (self._draws * self._pooled_mean).sum(-2).unsqueeze(-1)

    @property
    def variance(self) -> Tensor:
        own = self.component_covariance.diagonal(dim1=-2, dim2=-1)
        deviation = self.component_mean - self.mean.squeeze(-1)[..., None, None, :]
        spread = (self.log_weights.exp() * (own + deviation.square())).sum(-2)
        return (self._draws * spread).sum(-2).unsqueeze(-1)

    @property
    def covariance(self) -> Tensor:
        r"""Covariance of the q points, shape (\*batch, q, q)."""
        weights = self.log_weights.exp()
        shared = weights.unsqueeze(-1) * weights.unsqueeze(-2) * self.component_covariance  # both choose one expert
        deviation = self._pooled_mean - self.mean.mT  # (*batch, S, q)
        draws = self._draws
        between = (draws * deviation).mT @ deviation
        covariance = (draws.unsqueeze(-1) * shared.sum(-3)).sum(-3) + between
        own = self.variance.squeeze(-1)
        return covariance + torch.diag_embed(own - covariance.diagonal(dim1=-2, dim2=-1))

    def map_components(self, transform: Callable[[Posterior], Posterior]) -> Posterior:
        lead = self.component_mean.shape[:-1]
        covariance = self.component_covariance.expand(*lead, *self.component_covariance.shape[-2:])
        each = transform(GPyTorchPosterior(MultivariateNormal(self.component_mean, to_linear_operator(covariance))))
        if not isinstance(each, GPyTorchPosterior):
            return transform(self)
        mean, covariance = each.mean.squeeze(-1), each.distribution.covariance_matrix
        return PointwisePosterior(self.draw_log_weights, self.log_weights, mean, covariance)

    def draws(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        num_experts, num_points = self.component_mean.shape[-2:]
        which, choices, normals = base_samples.split([1, num_points, num_experts * num_points], dim=-1)
        normals = normals.unflatten(-1, (num_experts, num_points))
        draw = selected(self.draw_log_weights, torch.special.ndtr(which))  # (..., 1)
        log_weights, mean = (
            _taken(part, draw.squeeze(-1), sample_shape) for part in (self.log_weights, self.component_mean)
        )  # (..., K, q)
        factor = covariance_factors(self.component_covariance)
        shared = factor.shape[-4] == 1
        factor = factor.squeeze(-4) if shared else _taken(factor, draw.squeeze(-1), sample_shape)
        values = mean + (factor @ normals.unsqueeze(-1)).squeeze(-1)
        expert = selected(log_weights.mT, torch.special.ndtr(choices).unsqueeze(-1)).mT  # (..., 1, q)
        draws: Tensor = values.gather(-2, expert).mT
        return draws

    @property
    def distribution(self) -> MultivariateNormal:
        return MultivariateNormal(self.mean.squeeze(-1), to_linear_operator(self.covariance))

    @property
    def _draws(self) -> Tensor:
        return self.draw_log_weights.exp().unsqueeze(-1)

    @property
    def _pooled_mean(self) -> Tensor:
        """The pool's mean under every draw, shape (*batch, S, q)."""
        return (self.log_weights.exp() * self.component_mean).sum(-2)


def _taken(values: Tensor, draw: Tensor, sample_shape: torch.Size) -> Tensor:
    r"""Values (\*batch, S, ...) of the draws (\*sample, \*batch) that were selected, (\*sample, \*batch, ...)."""
    axis = draw.ndim - len(sample_shape)  # of the draws
    wide = values.expand(*sample_shape, *draw.shape[len(sample_shape) :], *values.shape[axis:])
    tail = wide.shape[draw.ndim + 1 :]
    places = draw.reshape(*draw.shape, 1, *[1] * len(tail)).expand(*draw.shape, 1, *tail)
    return wide.gather(draw.ndim, places).squeeze(draw.ndim)
