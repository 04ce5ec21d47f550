r"""The step of algorithm 2: latent inputs of new rows by damped Newton steps, and the posterior of the weights.

With :math:`A = \Phi^\top \Phi + (\sigma_n^2/\sigma_\theta^2) I` the weights of column j are
:math:`N(A^{-1} \Phi^\top y^{(j)}, \sigma_n^2 A^{-1})` (Lu et al. 2022, section 6; their algorithm 2 leaves
:math:`\sigma_\theta^2` out of A). The covariance does not depend on the rows, so one
:class:`~gp_ensembles.filters.states.SquareRootState` with noise one carries :math:`A^{-1}` for all columns, and their
means follow from its gain. :class:`~gp_ensembles.filters.states.MultiOutputState` will not do: it keeps the covariance
itself, which float32 loses where the noise is 1e-4 of the rows' mean square, and one for each column once entries are
missing.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.features.fourier import fourier_features
from gp_ensembles.filters import update_block
from gp_ensembles.filters.states import SquareRootState, square_root_state
from gp_ensembles.meta_learners import MetaLearner
from gp_ensembles.meta_learners.base import MetaState
from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.numerics.reductions import readable_all

_DAMPING = (1e-3, 1e-9, 1e12)  # of the first step, the least and the most, as shares of the largest curvature
_GROW, _SHRINK = 4.0, 0.2


class WeightPosterior(NamedTuple):
    r"""Posterior of the weights of M experts for D columns each."""

    # a square root of A^{-1}, not triangular, (M, F, F); the covariance is ``factor @ factor.mT`` times the noise
    factor: Tensor
    mean: Tensor  # posterior means, (M, F, D)


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
        factor = posterior.factor
        state, noise = SquareRootState(torch.zeros_like(factor[..., 0]), factor), torch.ones_like(factor[..., 0, 0])
        factor = update_block(state, features, torch.zeros_like(features[..., 0]), None, noise)[0].factor
        gain = factor @ (factor.mT @ features.mT)
        posterior = WeightPosterior(factor, posterior.mean + gain @ (rows - features @ posterior.mean))
    return posterior


def predict_rows(posterior: WeightPosterior, Phi: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (M, B, D) and variance (M, B) of rows with features Phi (M, B, F); all columns have the same variance.

    Shapes: ``noise`` (M,).
    """
    return Phi @ posterior.mean, noise.unsqueeze(-1) * (1 + (Phi @ posterior.factor).square().sum(-1))


class LatentModel(NamedTuple):
    r"""Parameters and weights by which rows are embedded and predicted."""

    omega: Tensor  # angular frequencies, (M, R, d)
    posterior: WeightPosterior  # posterior of the weights
    noise: Tensor  # observation noise variance, (M,)
    latent_variance: float  # prior variance of a latent coordinate
    # variance of the weights' random step before each row over the noise, (M,); ``None`` for weights that do not change
    walk: Tensor | None = None

    def ahead(self, num_steps: int = 1) -> "LatentModel":
        """The model of a future row: after this many random steps of the weights, if any."""
        if self.walk is None:
            return self
        covariance = self.posterior.factor @ self.posterior.factor.mT
        covariance.diagonal(dim1=-2, dim2=-1).add_(num_steps * self.walk.unsqueeze(-1))
        return self._replace(posterior=self.posterior._replace(factor=cholesky(covariance, "the weights' covariance")))


class RowEmbedding(NamedTuple):
    """Embeddings of rows under each expert."""

    point: Tensor  # embeddings, (M, B, d)
    log_prob: Tensor  # log density of what was observed of each row, at its embedding, (M, B)
    log_latent: Tensor  # log prior density of the embedding, (M, B)
    converged: Tensor  # whether the search converged within its iterations, (M, B), boolean


def embedding_derivatives(model: LatentModel, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Log density of rows and of their latent inputs, its gradient and its Hessian in X, in closed form.

    .. math:: \sum_{j \text{ seen}} \log N(y_j; \hat\theta_j^\top \phi(x), \phi(x)^\top \Sigma \phi(x) + \sigma_n^2)
              + \log N(x; 0, \sigma_x^2 I)

    Shapes: ``X`` (M, B, d), ``Y`` (B, D). Returns: value (M, B), gradient (M, B, d) and Hessian (M, B, d, d).
    """
    omega, (factor, mean) = model.omega, model.posterior
    Phi = fourier_features(omega, X)
    stack = _with_jacobian(omega, Phi)
    flat = stack.flatten(-3, -2)
    white = (flat @ factor).unflatten(-2, stack.shape[-3:-1])
    outputs = (flat @ mean).unflatten(-2, stack.shape[-3:-1])
    seen = ~torch.isnan(Y)
    if not readable_all(seen):
        Y, outputs = Y.nan_to_num(), outputs * seen.unsqueeze(-2)
    w, error = white[..., 0, :], Y - outputs[..., 0, :]
    slopes, moved = white[..., 1:, :], outputs[..., 1:, :]  # derivatives of w and of the means by x
    noise, n = model.noise.unsqueeze(-1), seen.sum(-1).to(Y)
    s = 1 + w.square().sum(-1)
    inverse = 1 / s
    ratio = inverse * error.square().sum(-1) / noise  # p / s
    value = -0.5 * (n * (s * noise * (2 * math.pi)).log() + ratio) + _log_latent(X, model.latent_variance)

    # Half the derivatives of s by x, and minus half of those of p.
    s_x = (slopes @ w.unsqueeze(-1)).squeeze(-1)
    p_x = (moved @ error.unsqueeze(-1)).squeeze(-1) / noise.unsqueeze(-1)
    by_s, by_p = ((n - ratio) * inverse).unsqueeze(-1), inverse.unsqueeze(-1)
    gradient = by_p * p_x - by_s * s_x - X / model.latent_variance

    noisy = by_p / noise.unsqueeze(-1)
    by_feature = by_s * (w @ factor.mT) - noisy * (error @ mean.mT)
    mixed = ((n - 2 * ratio) * inverse.square()).unsqueeze(-1) * s_x - (2 * by_p.square()) * p_x
    cross = mixed.unsqueeze(-1) * s_x.unsqueeze(-2)
    squares = by_s.unsqueeze(-1) * (slopes @ slopes.mT) + noisy.unsqueeze(-1) * (moved @ moved.mT)
    hessian = cross + cross.mT - squares - _curvature(omega, Phi, by_feature)
    hessian.diagonal(dim1=-2, dim2=-1).sub_(1 / model.latent_variance)
    return value, gradient, hessian


def embed_rows(
    model: LatentModel, start: Tensor, Y: Tensor, *, max_iterations: int = 60, tolerance: float = 1e-9
) -> RowEmbedding:
    """Maximize the posterior density of rows' latent inputs from given points, for all experts and rows at once.

    Shapes: ``start`` (M, B, d), ``Y`` (B, D).
    """
    derivatives = embedding_derivatives(model, start, Y)
    value = derivatives[0]
    here = _Search(start, *derivatives, value.new_full(value.shape, _DAMPING[0]), ~value.isfinite())
    whole, rows, left = here, torch.arange(len(Y), device=Y.device), Y
    for _ in range(max_iterations):
        here, trial = _step(here, tolerance)
        going = ~here.done.all(0)
        count = int(going.sum())
        if count == 0:
            break
        if 2 * count <= len(rows):  # go on with the rows whose searches have not ended
            whole = whole.put(rows, here)
            here, trial, rows, left = here.of(going), trial[:, going], rows[going], left[going]
        here = here.improved(trial, embedding_derivatives(model, trial, left))
    found = whole.put(rows, here) if len(rows) < len(Y) else here
    return row_embedding(model, found.point, found.value, found.done)


def row_embedding(model: LatentModel, point: Tensor, value: Tensor, converged: Tensor) -> RowEmbedding:
    """Embeddings (M, B, d) whose log density (M, B) is that of the row plus that of its place."""
    latent = _log_latent(point, model.latent_variance)
    return RowEmbedding(point, value - latent, latent, converged)


def search_block(
    model: LatentModel, start: Tensor, rows: Tensor, first: int = 0, *, max_iterations: int = 60
) -> RowEmbedding:
    """Latent inputs of rows (B, D), numbered from ``first``, under each expert, the best of K starts (M, B, K, d)."""
    num_starts = start.shape[2]
    each = rows.repeat_interleave(num_starts, 0)
    found = embed_rows(model, start.flatten(1, 2), each, max_iterations=max_iterations)
    if num_starts > 1:
        found = _best_of(found, num_starts)
    bad = ~found.log_prob.isfinite()
    if bool(bad.any()):
        row, expert = bad.mT.nonzero()[0].tolist()
        density = float(found.log_prob[expert, row])
        raise NumericalError(
            f"row {first + row} has a log density of {density} under expert {expert}; check the row's size, or use "
            f"float64"
        )
    return found


def likeliest(found: RowEmbedding, log_weights: Tensor) -> Tensor:
    """The expert with the largest weight times density of the row and of its embedding, shape (B,)."""
    return (log_weights + found.log_prob + found.log_latent).argmax(0)


def online_step(
    model: LatentModel,
    learner: MetaLearner,
    meta: MetaState,
    start: Tensor,
    rows: Tensor,
    first: int = 0,
    *,
    max_iterations: int = 60,
) -> tuple[WeightPosterior, MetaState, RowEmbedding, Tensor, Tensor, Tensor]:
    """Embed a block of rows against one posterior, weigh the experts row by row, then learn the block.

    Shapes: ``start`` (M, B, K, d), ``rows`` (B, D). Returns: the posterior and the state of the weight rule after the
    block, embeddings, log weights before each row (M, B), the expert reported for each (B,), and the rows with gaps
    filled by that expert (B, D).
    """
    model = model.ahead(len(rows))
    found = search_block(model, start, rows, first, max_iterations=max_iterations)
    meta, output = learner.update_block(meta, found.log_prob)
    expert = likeliest(found, output.log_weights)
    Phi = fourier_features(model.omega, found.point)
    filled = torch.where(torch.isnan(rows), Phi @ model.posterior.mean, rows)
    kept = filled.movedim(0, 1)[torch.arange(len(rows), device=rows.device), expert]
    # What was filled in is as uncertain as the row was: taken for certain, it would be right from then on.
    variance = 1 + (Phi @ model.posterior.factor).square().sum(-1)
    share = torch.where(torch.isnan(rows).any(-1), variance.rsqrt(), 1.0).unsqueeze(-1)
    posterior = learn_rows(model.posterior, Phi * share, filled * share)
    return posterior, meta, found, output.log_weights, expert, kept


class _Search(NamedTuple):
    """Points (M, B, d) with value, gradient and Hessian, damping (M, B), and which searches have ended."""

    point: Tensor
    value: Tensor
    gradient: Tensor
    hessian: Tensor
    damping: Tensor
    done: Tensor

    def of(self, rows: Tensor) -> "_Search":
        """Those of some rows (boolean, shape (B,))."""
        return _Search(*(part[:, rows] for part in self))

    def put(self, rows: Tensor, others: "_Search") -> "_Search":
        """With those of some rows (numbers) replaced."""
        return _Search(*(part.index_copy(1, rows, other) for part, other in zip(self, others, strict=True)))

    def improved(self, trial: Tensor, derivatives: tuple[Tensor, Tensor, Tensor]) -> "_Search":
        """Trial points accepted where they are better; the damping is updated."""
        value, gradient, hessian = derivatives
        better = (value > self.value) & ~self.done
        vectors = better.unsqueeze(-1)
        return _Search(
            torch.where(vectors, trial, self.point),
            torch.where(better, value, self.value),
            torch.where(vectors, gradient, self.gradient),
            torch.where(vectors.unsqueeze(-1), hessian, self.hessian),
            torch.where(better, self.damping * _SHRINK, self.damping * _GROW).clamp(*_DAMPING[1:]),
            self.done,
        )


def _step(here: _Search, tolerance: float) -> tuple[_Search, Tensor]:
    """Which searches have ended, and the trial points of the others."""
    round_off = 4 * torch.finfo(here.value.dtype).eps
    curvature, axes = _decompose(here.hessian)
    slope = (axes.mT @ here.gradient.unsqueeze(-1)).squeeze(-1)
    predicted = 0.5 * (slope.square() / curvature).sum(-1)
    done = here.done | (predicted < tolerance + round_off * here.value.abs()) | (here.damping >= _DAMPING[2])
    damped = curvature + here.damping.unsqueeze(-1) * curvature.amax(-1, keepdim=True)
    step = (axes @ (slope / damped).unsqueeze(-1)).squeeze(-1)
    return here._replace(done=done), torch.where(done.unsqueeze(-1), here.point, here.point + step)


def _best_of(found: RowEmbedding, num_starts: int) -> RowEmbedding:
    """The best of the searches for each row, which stand one after the other, shape (M, B * K) to (M, B)."""
    value = (found.log_prob + found.log_latent).unflatten(1, (-1, num_starts))
    best = value.nan_to_num(nan=-torch.inf).argmax(-1)
    best = best + num_starts * torch.arange(best.shape[1], device=best.device)
    point = found.point.gather(1, best.unsqueeze(-1).expand(*best.shape, found.point.shape[-1]))
    return RowEmbedding(point, *(part.gather(1, best) for part in found[1:]))


def _decompose(hessian: Tensor) -> tuple[Tensor, Tensor]:
    """Curvatures in absolute value, none below a small share of the largest, and their axes."""
    finite = hessian.isfinite().all(-1).all(-1)
    sound = torch.where(finite[..., None, None], hessian, 0.0)  # a failed search shows in its value
    values, axes = torch.linalg.eigh(sound)
    values = values.abs()
    floor = values.amax(-1, keepdim=True) * 1e-8 + torch.finfo(values.dtype).tiny
    return torch.maximum(values, floor), axes


def _log_latent(X: Tensor, spread: float) -> Tensor:
    return -0.5 * (X.square().sum(-1) / spread + X.shape[-1] * math.log(2 * math.pi * spread))


def _with_jacobian(omega: Tensor, Phi: Tensor) -> Tensor:
    """Features (M, B, 2 R) and their derivatives by the inputs, shape (M, B, 1 + d, 2 R)."""
    sines, cosines = Phi.unsqueeze(-2).chunk(2, dim=-1)
    directions = omega.mT.unsqueeze(-3)  # (M, 1, d, R)
    derivatives = torch.cat([cosines * directions, sines * -directions], dim=-1)
    return torch.cat([Phi.unsqueeze(-2), derivatives], dim=-2)


def _curvature(omega: Tensor, Phi: Tensor, gradient: Tensor) -> Tensor:
    """The features' second derivatives, weighed with a gradient (M, B, 2 R): shape (M, B, d, d)."""
    sines, cosines = (-gradient * Phi).chunk(2, dim=-1)
    directions = omega.unsqueeze(-3)  # (M, 1, R, d)
    curvature: Tensor = (directions * (sines + cosines).unsqueeze(-1)).mT @ directions
    return curvature
