r"""The posterior of the weights: one square-root filter per expert for any number D of columns.

With :math:`A = \Phi^\top \Phi + (\sigma_n^2/\sigma_\theta^2) I` the weights of column j are
:math:`N(A^{-1} \Phi^\top y^{(j)}, \sigma_n^2 A^{-1})` (Lu et al. 2022, section 6; their algorithm 2 leaves
:math:`\sigma_\theta^2` out of A). The covariance does not depend on the rows, so one
:class:`~gp_ensembles.filters.states.SquareRootState` with noise one carries :math:`A^{-1}` for all columns, and their
means follow from its gain. :class:`~gp_ensembles.filters.states.MultiOutputState` will not do: it keeps the covariance
itself, which float32 loses where the noise is 1e-4 of the rows' mean square, and one for each column once entries are
missing.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters import RandomWalk, predict, update_block
from gp_ensembles.filters.states import SquareRootState, square_root_state
from gp_ensembles.numerics.cholesky import cholesky


class WeightPosterior(NamedTuple):
    r"""Posterior of the weights of M experts for D columns each.

    Attributes:
        factor: A square root of :math:`A^{-1}`, not triangular, shape (M, F, F); the covariance is
            ``factor @ factor.mT`` times the noise.
        mean: Posterior means, shape (M, F, D).
    """

    factor: Tensor
    mean: Tensor


def weight_prior(ratio: Tensor, num_features: int, num_outputs: int) -> WeightPosterior:
    """The posterior before any row. Shapes: ``ratio`` (M,)."""
    state = square_root_state(1 / ratio, num_features)
    return WeightPosterior(state.factor, ratio.new_zeros(*ratio.shape, num_features, num_outputs))


def learn_rows(posterior: WeightPosterior, Phi: Tensor, Y: Tensor) -> WeightPosterior:
    """The posterior after a block of rows; the same whether rows come one at a time or together, to round-off.

    Shapes: ``Phi`` (M, B, F), ``Y`` (M, B, D) or (B, D).
    """
    length = posterior.factor.shape[-1]  # more rows at once would cost more each
    for features, rows in zip(Phi.split(length, dim=-2), Y.split(length, dim=-2), strict=True):
        state, noise = _filter_state(posterior)
        factor = update_block(state, features, torch.zeros_like(features[..., 0]), None, noise)[0].factor
        gain = factor @ (factor.mT @ features.mT)
        posterior = WeightPosterior(factor, posterior.mean + gain @ (rows - features @ posterior.mean))
    return posterior


def walk(posterior: WeightPosterior, ratio: Tensor) -> WeightPosterior:
    """The posterior after the weights have taken a random step, by one Cholesky factorization. Shapes: ``ratio`` (M,).

    Raises:
        NumericalError: If an expert's covariance is not positive definite.
    """
    covariance = posterior.factor @ posterior.factor.mT
    covariance.diagonal(dim1=-2, dim2=-1).add_(ratio.unsqueeze(-1))
    return posterior._replace(factor=cholesky(covariance, "the weights' covariance"))


def predict_rows(
    posterior: WeightPosterior, Phi: Tensor, noise: Tensor, ratio: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean (M, B, D) and variance (M, B) of rows with features Phi (M, B, F); all columns have the same variance.

    Shapes: ``noise`` (M,).
    """
    state, unit = _filter_state(posterior)
    transition = None if ratio is None else RandomWalk(ratio.unsqueeze(-1))
    return Phi @ posterior.mean, noise.unsqueeze(-1) * predict(state, Phi, transition, unit).variance


def _filter_state(posterior: WeightPosterior) -> tuple[SquareRootState, Tensor]:
    """The filter's state and its noise, in units of each expert's noise; its mean is that of targets that are zero."""
    factor = posterior.factor
    return SquareRootState(torch.zeros_like(factor[..., 0]), factor), torch.ones_like(factor[..., 0, 0])
