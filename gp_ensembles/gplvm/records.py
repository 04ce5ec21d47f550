"""What a latent variable model says about rows."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.gplvm.embed import RowEmbedding


class Embeddings(NamedTuple):
    """Where rows lie.

    Every expert has a latent space of its own. ``embedding`` is the best account of each row as it came, but rows
    reported from different experts cannot be compared; to compare all rows of a stream (neighbors, a picture) take
    ``by_expert`` of one expert, best the model's ``best_expert`` at the end.

    Attributes:
        embedding: That of the expert with the largest weight times density, shape (N, d).
        expert: Which one, shape (N,).
        by_expert: Every expert's, shape (M, N, d).
        log_prob: Log density of what was observed of each row given where it lies, under the mixture, shape (N,), in
            units of the data. The embeddings have seen the row, so it is no forecast's score.
        log_weights: Log weights in force before each row, shape (M, N).
        converged: Whether each search ended before its budget, shape (M, N), boolean.
    """

    embedding: Tensor
    expert: Tensor
    by_expert: Tensor
    log_prob: Tensor
    log_weights: Tensor
    converged: Tensor


class Reconstruction(NamedTuple):
    """Mean and variance of rows given their embeddings, each of shape (N, D), in units of the data."""

    mean: Tensor
    variance: Tensor


def joined(parts: Sequence[Embeddings]) -> Embeddings:
    """Embeddings of consecutive blocks as one; the rows' axis follows the experts' where there is one."""
    return Embeddings(
        torch.cat([part.embedding for part in parts]),
        torch.cat([part.expert for part in parts]),
        torch.cat([part.by_expert for part in parts], dim=1),
        torch.cat([part.log_prob for part in parts]),
        torch.cat([part.log_weights for part in parts], dim=1),
        torch.cat([part.converged for part in parts], dim=1),
    )


def likeliest(found: RowEmbedding, log_weights: Tensor) -> Tensor:
    """The expert with the largest weight times density of the row and of where it lies, shape (B,)."""
    return (log_weights + found.log_prob + found.log_latent).argmax(0)


def reported(found: RowEmbedding, rows: Tensor, log_weights: Tensor, expert: Tensor, scale: Tensor) -> Embeddings:
    """Embeddings of scaled rows (B, D), each from the space of its expert, with densities in units of the data."""
    numbers = torch.arange(len(rows), device=rows.device)
    count = (~torch.isnan(rows)).sum(-1)
    log_prob = (log_weights + found.log_prob).logsumexp(0) - count * scale.log()
    return Embeddings(found.point[expert, numbers], expert, found.point, log_prob, log_weights.clone(), found.converged)
