r"""The posterior of the weights: one square-root filter per expert, whatever the number D of columns.

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

from gp_ensembles.filters import RandomWalk, SquareRootState, predict, square_root_state, update_block
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
    r"""The posterior before any row.

    Args:
        ratio: :math:`\sigma_n^2/\sigma_\theta^2` of each expert, shape (M,).
        num_features: Number of features F.
        num_outputs: Number of columns D.

    Example:
        >>> import torch
        >>> weight_prior(torch.tensor([4.0]), 1, 2)
        WeightPosterior(factor=tensor([[[0.5000]]]), mean=tensor([[[0., 0.]]]))
    """
    state = square_root_state(1 / ratio, num_features)
    return WeightPosterior(state.factor, ratio.new_zeros(*ratio.shape, num_features, num_outputs))


def learn_rows(posterior: WeightPosterior, Phi: Tensor, Y: Tensor) -> WeightPosterior:
    r"""The posterior after a block of rows; the same whether rows come one at a time or together, to round-off.

    The filter learns the covariance :math:`A_+^{-1}` after the rows; with it every column moves by
    :math:`A_+^{-1} \Phi^\top (y^{(j)} - \Phi \hat\theta_j)`. The price is O(F^2 + F D) a row.

    Args:
        posterior: The posterior before them.
        Phi: Their features, shape (M, B, F).
        Y: The rows as each expert sees them, shape (M, B, D) or (B, D). An entry equal to its own prediction (imputed)
            moves no mean, but the covariance is shared and shrinks for all columns.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> posterior = learn_rows(weight_prior(one[0, 0], 1, 1), one, 3 * one)
        >>> round(posterior.mean.item(), 6), round(posterior.factor.item() ** 2, 6)
        (1.5, 0.5)
    """
    length = posterior.factor.shape[-1]  # more rows at once would cost more each
    for features, rows in zip(Phi.split(length, dim=-2), Y.split(length, dim=-2), strict=True):
        state, noise = _filter_state(posterior)
        factor = update_block(state, features, torch.zeros_like(features[..., 0]), None, noise)[0].factor
        gain = factor @ (factor.mT @ features.mT)
        posterior = WeightPosterior(factor, posterior.mean + gain @ (rows - features @ posterior.mean))
    return posterior


def walk(posterior: WeightPosterior, ratio: Tensor) -> WeightPosterior:
    r"""The posterior after the weights have taken a random step, by one Cholesky factorization.

    All steps of a block precede its first row, because its rows are embedded together; a filter would take one before
    each row. Its square root of the wider covariance is an orthogonal decomposition, at three times the price.

    Args:
        posterior: The posterior before it.
        ratio: Variance of the step over the noise, :math:`\sigma_{rw}^2/\sigma_n^2`, shape (M,).

    Raises:
        NumericalError: If an expert's covariance is not positive definite.

    Example:
        >>> import torch
        >>> before = weight_prior(torch.tensor([4.0]), 1, 1)  # variance over noise: 1/4
        >>> round(walk(before, torch.tensor([0.75])).factor.item() ** 2, 6)
        1.0
    """
    covariance = posterior.factor @ posterior.factor.mT
    covariance.diagonal(dim1=-2, dim2=-1).add_(ratio.unsqueeze(-1))
    return posterior._replace(factor=cholesky(covariance, "the weights' covariance"))


def predict_rows(
    posterior: WeightPosterior, Phi: Tensor, noise: Tensor, ratio: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Mean (M, B, D) and variance (M, B) of rows with features Phi (M, B, F); all columns have the same variance.

    Args:
        posterior: The posterior before them.
        Phi: Features, shape (M, B, F).
        noise: Observation noise variance, shape (M,).
        ratio: A random step precedes each row, as in :func:`walk`; ``None`` for weights that do not change.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> mean, variance = predict_rows(weight_prior(one[0, 0], 1, 2), one, one[0, 0])
        >>> mean.shape, variance.item()
        (torch.Size([1, 1, 2]), 2.0)
    """
    state, unit = _filter_state(posterior)
    transition = None if ratio is None else RandomWalk(ratio.unsqueeze(-1))
    return Phi @ posterior.mean, noise.unsqueeze(-1) * predict(state, Phi, transition, unit).variance


def _filter_state(posterior: WeightPosterior) -> tuple[SquareRootState, Tensor]:
    """The filter's state and its noise, in units of each expert's noise; its mean is that of targets that are zero."""
    factor = posterior.factor
    return SquareRootState(torch.zeros_like(factor[..., 0]), factor), torch.ones_like(factor[..., 0, 0])
