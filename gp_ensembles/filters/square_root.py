r"""The block filter in square-root form: for tiny noise and single precision.

The state keeps A with :math:`\Sigma = A A^\top`, which cannot lose positive definiteness. A block of static
weights is the Andrews update; where the noise drowns in round-off (:math:`\sigma^2 < 10 B \epsilon \max K_{tt}`)
the array form (one QR decomposition) takes over. Under a random walk :math:`\Sigma_B^- = \Sigma + B Q = R R^\top`
comes from a QR decomposition and :math:`\Sigma_B = R (I - P^\top P) R^\top` with :math:`P = W R^{-\top}` from the
same Andrews identity; below the same threshold the rows are taken one at a time in array form.
"""

import math

import torch
from torch import Tensor

from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.states import SquareRootState, StepPredictions, concatenate_steps
from gp_ensembles.filters.transitions import count_steps, total_walk, walk_rows, walk_variance
from gp_ensembles.numerics.cholesky import cholesky

_WHAT = "the predictive covariance of the block"


def update_square_root(
    state: SquareRootState,
    Phi: Tensor,
    rows: Tensor | Rows,
    noise: Tensor,
    random_walk_variance: Tensor | None = None,
    steps: Tensor | None = None,
) -> tuple[SquareRootState, StepPredictions]:
    """Predict and learn a block of targets; arguments as in :func:`update_covariance` of the block filter."""
    rows = as_rows(rows)
    if random_walk_variance is None:
        return _update_static(state, Phi, rows, noise)
    steps = count_steps(Phi) if steps is None else steps
    if _noise_drowns(state.factor, Phi, noise, random_walk_variance, steps):
        return _update_row_by_row(state, Phi, rows, noise, random_walk_variance, steps)
    return _update_walking(state, Phi, rows, noise, random_walk_variance, steps)


def predict_square_root(
    state: SquareRootState, Phi: Tensor, noise: Tensor, random_walk_variance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As :func:`gp_ensembles.filters.block.predict_covariance`, with variances as squared norms."""
    variance = (Phi @ state.factor).square().sum(-1) + noise.unsqueeze(-1)
    if random_walk_variance is not None:
        variance = variance + walk_variance(Phi, random_walk_variance, noise)
    return (Phi @ state.mean.unsqueeze(-1)).squeeze(-1), variance


def _update_static(
    state: SquareRootState, Phi: Tensor, rows: Rows, noise: Tensor
) -> tuple[SquareRootState, StepPredictions]:
    mean = (Phi @ state.mean.unsqueeze(-1)).squeeze(-1)
    noises = noise.unsqueeze(-1).expand(mean.shape)
    root = _roots(rows, mean, noise)
    design = Phi @ state.factor
    learned = design * root.unsqueeze(-1)
    if _noise_drowns(state.factor, Phi, noise, None, None):
        lower, weights, factor = condition_array(state.factor, learned, noises)
    else:
        lower = cholesky(learned @ learned.mT + torch.diag_embed(noises), _WHAT)
        weights = torch.linalg.solve_triangular(lower, learned @ state.factor.mT, upper=False)
        factor = condition_andrews(state.factor, learned, lower, noises)
    residual = torch.where(root > 0, rows.y - mean, 0.0) * root
    error = torch.linalg.solve_triangular(lower, residual.unsqueeze(-1), upper=False)
    predictions = _predictions(mean, design @ learned.mT, design.square().sum(-1) + noises, lower, error, root, rows)
    return SquareRootState(state.mean + (weights.mT @ error).squeeze(-1), factor), predictions


def _update_walking(
    state: SquareRootState, Phi: Tensor, rows: Rows, noise: Tensor, walk: Tensor, steps: Tensor
) -> tuple[SquareRootState, StepPredictions]:
    mean = (Phi @ state.mean.unsqueeze(-1)).squeeze(-1)
    noises = noise.unsqueeze(-1).expand(mean.shape)
    root = _roots(rows, mean, noise)
    design = Phi @ state.factor
    walked = walk_rows(Phi, walk, noise)
    both = torch.minimum(steps.unsqueeze(-2), steps.unsqueeze(-1))
    covariance = design @ design.mT + both * (walked @ Phi.mT)
    masked = covariance * root.unsqueeze(-1) * root.unsqueeze(-2)
    lower = cholesky(masked + torch.diag_embed(noises), _WHAT)
    cross = (design @ state.factor.mT + steps.unsqueeze(-1) * walked) * root.unsqueeze(-1)
    weights = torch.linalg.solve_triangular(lower, cross, upper=False)
    residual = torch.where(root > 0, rows.y - mean, 0.0) * root
    error = torch.linalg.solve_triangular(lower, residual.unsqueeze(-1), upper=False)

    ahead = _add_walk(state.factor, total_walk(walk, steps[..., -1], noise))  # R R' = Σ + B Q, lower triangular
    share = torch.linalg.solve_triangular(ahead, weights.mT, upper=False).mT  # P
    # I - P P' = L⁻¹ cov(y | θ_B) L⁻ᵀ = T T'; then R (I - P' (I + T)⁻¹ P) is a square root (Andrews).
    inner = share @ share.mT
    identity = torch.diag_embed(inner.new_ones(inner.shape[:-1]))
    inner = cholesky(identity - inner, "the covariance of the block given the weights after it")
    right = torch.linalg.solve_triangular(identity + inner, share, upper=False)
    factor = ahead - weights.mT @ right
    variance = covariance.diagonal(dim1=-2, dim2=-1) + noises
    predictions = _predictions(mean, covariance * root.unsqueeze(-2), variance, lower, error, root, rows)
    return SquareRootState(state.mean + (weights.mT @ error).squeeze(-1), factor), predictions


def _update_row_by_row(
    state: SquareRootState, Phi: Tensor, rows: Rows, noise: Tensor, walk: Tensor, steps: Tensor
) -> tuple[SquareRootState, StepPredictions]:
    parts: list[StepPredictions] = []
    walked = torch.zeros_like(steps[..., 0])
    for t in range(Phi.shape[-2]):
        ahead = SquareRootState(state.mean, _add_walk(state.factor, total_walk(walk, steps[..., t] - walked, noise)))
        walked = steps[..., t]
        here = slice(t, t + 1)
        state, row = _update_static(ahead, Phi[..., here, :], rows.part(here), noise)
        parts.append(row)
    return state, concatenate_steps(parts)


def _add_walk(factor: Tensor, drift: Tensor) -> Tensor:
    return add_covariance(factor, drift) if drift.ndim == factor.ndim else add_diagonal(factor, drift)


def _predictions(
    mean: Tensor, covariance: Tensor, variance: Tensor, lower: Tensor, error: Tensor, root: Tensor, rows: Rows
) -> StepPredictions:
    """One-step-ahead predictions of every row, those included that are missing or count in part."""
    past = torch.linalg.solve_triangular(lower, covariance.mT, upper=False)
    past = torch.triu(past, diagonal=1)
    conditional = (variance if rows.extra is None else variance + rows.extra) - past.square().sum(-2)
    conditional = torch.where(root == 1, lower.diagonal(dim1=-2, dim2=-1).square(), conditional)
    predicted = mean + torch.triu(past * error, diagonal=1).sum(-2)  # an infinite error is of later rows only
    square = error.squeeze(-1).square() if rows.is_plain else (rows.y - predicted).square() / conditional
    log_prob = -0.5 * (square + conditional.log() + math.log(2 * math.pi))
    return StepPredictions(predicted, conditional, torch.where(root > 0, log_prob, torch.nan))


def _noise_drowns(factor: Tensor, Phi: Tensor, noise: Tensor, walk: Tensor | None, steps: Tensor | None) -> bool:
    """Whether the noise of any expert is lost in the round-off of the block's covariance."""
    variance = (Phi @ factor).square().sum(-1)
    if walk is not None and steps is not None:
        variance = variance + steps[..., -1:] * walk_variance(Phi, walk, noise)
    floor = 10 * Phi.shape[-2] * torch.finfo(Phi.dtype).eps * variance.amax(-1)
    try:
        return bool((noise < floor).any())
    except RuntimeError:  # values cannot be read inside vmap or on the meta device: the safe form is right
        return True


def _roots(rows: Rows, like: Tensor, noise: Tensor) -> Tensor:
    """Root of what counts of each row for each expert, zero where its target is missing."""
    seen, roots = (~torch.isnan(rows.y)).to(like.dtype).expand_as(like), rows.root_weights(noise)
    return seen if roots is None else seen * roots


def lower_factor(columns: Tensor) -> Tensor:
    r"""Lower triangular L with L Lᵀ = M Mᵀ and a positive diagonal, by an orthogonal decomposition.

    Shapes: ``columns`` (\*batch, n, k); returns (\*batch, n, n).
    """
    mode = "reduced" if columns.requires_grad else "r"  # only the derivative needs the orthogonal part
    upper: Tensor = torch.linalg.qr(columns.mT, mode=mode).R
    sign = torch.where(upper.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(upper.dtype)
    return (upper * sign.unsqueeze(-1)).mT


def add_diagonal(factor: Tensor, diagonal: Tensor) -> Tensor:
    r"""A square root of A Aᵀ + diag(d).

    Shapes: ``factor`` (\*batch, n, n), ``diagonal`` (\*batch, 1) or (\*batch, n).
    """
    root = torch.diag_embed(diagonal.sqrt().expand(factor.shape[:-1]))
    return lower_factor(torch.cat([factor, root], dim=-1))


def add_covariance(factor: Tensor, covariance: Tensor) -> Tensor:
    r"""A square root of A Aᵀ + C, for a positive semidefinite C that may be singular.

    Shapes: ``factor`` (\*batch, n, n), ``covariance`` (\*batch, n, n).
    """
    values, axes = torch.linalg.eigh(covariance)
    # A semidefinite matrix has eigenvalues that are zero up to round-off, of either sign.
    return lower_factor(torch.cat([factor, axes * values.clamp_min(0.0).sqrt().unsqueeze(-2)], dim=-1))


def condition_array(factor: Tensor, design: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Condition N(0, A Aᵀ) on y = Φ θ + noise by one orthogonal decomposition (the array form).

    .. math::
        \begin{bmatrix} \sigma I & \Phi A \\ 0 & A \end{bmatrix} \Theta =
        \begin{bmatrix} L & 0 \\ W^\top & A_+ \end{bmatrix}

    Shapes: ``factor`` (\*batch, F, F), ``design`` (\*batch, B, F), ``noise`` (\*batch, B). Returns: l (\*batch, B,
    B), W (\*batch, B, F) and A₊ (\*batch, F, F).
    """
    num_rows = design.shape[-2]
    top = torch.cat([torch.diag_embed(noise.sqrt()), design], dim=-1)
    bottom = torch.cat([factor.new_zeros(*factor.shape[:-1], num_rows), factor], dim=-1)
    lower = lower_factor(torch.cat([top, bottom], dim=-2))
    return (lower[..., :num_rows, :num_rows], lower[..., num_rows:, :num_rows].mT, lower[..., num_rows:, num_rows:])


def condition_andrews(factor: Tensor, design: Tensor, lower: Tensor, noise: Tensor) -> Tensor:
    r"""A square root of the covariance after conditioning on a block of targets (Andrews 1968).

    Shapes: ``factor`` (\*batch, F, F), ``design`` (\*batch, B, F), ``lower`` (\*batch, B, B), ``noise`` (\*batch,
    B).
    """
    shifted = lower + torch.diag_embed(noise.sqrt())
    right: Tensor = torch.linalg.solve_triangular(shifted, design, upper=False)
    weights: Tensor = torch.linalg.solve_triangular(lower, design @ factor.mT, upper=False)
    downdated: Tensor = factor - weights.mT @ right
    return downdated
