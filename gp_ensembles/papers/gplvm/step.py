"""A block of rows embedded, weighed and learned: state in, state out."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.features.fourier import fourier_features
from gp_ensembles.meta_learners import MetaLearner
from gp_ensembles.meta_learners.base import MetaState
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.gplvm.embed import LatentModel, RowEmbedding, best_of, embed_rows
from gp_ensembles.papers.gplvm.posterior import WeightPosterior, learn_rows, walk
from gp_ensembles.papers.gplvm.records import LatentSettings, likeliest


class LatentExperts(NamedTuple):
    """Parameters of the experts, fixed after the start.

    Attributes:
        omega: Angular frequencies, shape (M, R, d).
        noise: Observation noise variance, shape (M,).
        walk: Variance of the weights' random step before each row over the noise, shape (M,); ``None`` for weights that
            do not change.
    """

    omega: Tensor
    noise: Tensor
    walk: Tensor | None


class LatentState(NamedTuple):
    """State along the stream.

    Attributes:
        posterior: Posterior of the weights.
        meta: State of the weight rule.
        log_joint: Log joint density of all rows so far and of their latent inputs, shape (M,).
    """

    posterior: WeightPosterior
    meta: MetaState
    log_joint: Tensor


class EmbeddedBlock(NamedTuple):
    """A block of B rows after :func:`online_step`.

    Attributes:
        state: The state after it.
        found: Embeddings under each expert.
        log_weights: Log weights before each row, shape (M, B).
        expert: The expert reported for each row, shape (B,).
        rows: The rows, gaps filled by that expert, shape (B, D).
    """

    state: LatentState
    found: RowEmbedding
    log_weights: Tensor
    expert: Tensor
    rows: Tensor


def walked(posterior: WeightPosterior, experts: LatentExperts, num_steps: int = 1) -> WeightPosterior:
    """The posterior for a future row: after so many random steps of the weights, if they walk at all.

    Raises:
        NumericalError: If an expert's covariance is not positive definite.
    """
    return posterior if experts.walk is None else walk(posterior, num_steps * experts.walk)


def search_block(
    posterior: WeightPosterior,
    experts: LatentExperts,
    settings: LatentSettings,
    start: Tensor,
    rows: Tensor,
    first: int = 0,
) -> RowEmbedding:
    """Latent inputs of rows (B, D), the first of which has the number ``first``, under each expert.

    Raises:
        NumericalError: If a density is not a number; the row is named.
    """
    model = LatentModel(experts.omega, posterior, experts.noise, settings.latent_variance)
    num_starts = start.shape[2]
    each = rows.repeat_interleave(num_starts, 0)
    found = embed_rows(model, start.flatten(1, 2), each, max_iterations=settings.row_iterations)
    if num_starts > 1:
        found = best_of(found, num_starts)
    bad = ~found.log_prob.isfinite()
    if bool(bad.any()):
        row, expert = bad.mT.nonzero()[0].tolist()
        density = float(found.log_prob[expert, row])
        raise NumericalError(
            f"row {first + row} has a log density of {density} under expert {expert}; check the row's size, or use "
            f"float64"
        )
    return found


def online_step(
    state: LatentState,
    experts: LatentExperts,
    learner: MetaLearner,
    settings: LatentSettings,
    start: Tensor,
    rows: Tensor,
    first: int = 0,
) -> EmbeddedBlock:
    """Embed a block of rows against one posterior, weigh the experts row by row, then learn the block.

    Shapes: ``start`` (M, B, K, d), ``rows`` (B, D).

    Raises:
        NumericalError: If a density is not a number or a posterior not positive definite.
    """
    posterior = walked(state.posterior, experts, len(rows))
    found = search_block(posterior, experts, settings, start, rows, first)
    meta, output = learner.update_block(state.meta, found.log_prob)
    log_joint = state.log_joint + (found.log_prob + found.log_latent).sum(-1)
    expert = likeliest(found, output.log_weights)
    Phi = fourier_features(experts.omega, found.point)
    filled = torch.where(torch.isnan(rows), Phi @ posterior.mean, rows)
    kept = filled.movedim(0, 1)[torch.arange(len(rows), device=rows.device), expert]
    after = LatentState(learn_rows(posterior, Phi, filled), meta, log_joint)
    return EmbeddedBlock(after, found, output.log_weights, expert, kept)
