"""How good embeddings are, beside principal components: labels of nearest neighbors, and rows mapped back."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.cli.embed.labels import Labels
from gp_ensembles.cli.embed.run import EmbedRun
from gp_ensembles.cli.neighbors import neighbor_error

_ROWS = 4096  # reconstructed at once


class Quality(NamedTuple):
    """What an embedding is worth.

    Attributes:
        neighbor_error: Share of the labeled rows whose nearest labeled neighbor has another label; ``None`` without
            categories.
        variance_explained: One minus the ratio of the squared errors of rows mapped back to their squared distances
            from the column means, observed entries only, in the units of the model.
        rmse: Root mean squared error of each column, in units of the data, shape (D,); NaN where nothing was observed.
    """

    neighbor_error: float | None
    variance_explained: float
    rmse: Tensor


def map_back(run: EmbedRun, X: Tensor, expert: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances of rows at latent inputs by the model as it is now, in its units, on the host."""
    device = run.model.omega.device
    parts = []
    for first in range(0, len(X), _ROWS):
        part = slice(first, first + _ROWS)
        found = run.model.inverse_transform(X[part].to(device), expert[part].to(device))
        parts.append((found.mean.cpu(), found.variance.cpu()))
    return torch.cat([mean for mean, _ in parts]), torch.cat([variance for _, variance in parts])


def principal_quality(run: EmbedRun) -> tuple[Tensor, Quality]:
    """Principal components of all rows at once, gaps filled by column means: scores (n, d) and their quality."""
    Y = run.prepared.Y.double()
    mean = Y.nanmean(0)
    centered = torch.where(torch.isnan(Y), 0.0, Y - mean)
    num_latent = run.model.num_latent
    if len(Y) < Y.shape[1]:
        axes = torch.linalg.svd(centered, full_matrices=False).Vh[:num_latent].mT
    else:
        axes = torch.linalg.eigh(centered.mT @ centered).eigenvectors[:, -num_latent:].flip(-1)
    scores = centered @ axes
    return scores, _quality(run, scores, scores @ axes.mT + mean)


def model_quality(run: EmbedRun, X: Tensor, expert: Tensor) -> Quality:
    """Quality of latent inputs (n, d), each in the space of its expert (n,), by the model as it is now."""
    mean, _ = map_back(run, X, expert)
    return _quality(run, X, mean.double())


def _quality(run: EmbedRun, X: Tensor, back: Tensor) -> Quality:
    Y = run.prepared.Y.double()
    squares, spread = (back - Y).square(), (Y - Y.nanmean(0)).square()
    explained = 1.0 - float(squares.nansum() / spread.nansum())
    rmse = squares.nanmean(0).sqrt() * run.prepared.scale
    return Quality(_error_of(run.prepared.rows.labels, X, run.prepared.present), explained, rmse)


def _error_of(labels: Labels | None, X: Tensor, present: Tensor) -> float | None:
    """Error of the nearest labeled neighbor; ``None`` without categories or with fewer than two labeled rows."""
    if labels is None or not labels.categories:
        return None
    known = ~torch.isnan(labels.values[present])
    return neighbor_error(X[known], labels.values[present][known]) if int(known.sum()) > 1 else None
