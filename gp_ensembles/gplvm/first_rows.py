"""What the first rows teach: their scale, where they lie, each expert's variances and its posterior."""

from typing import NamedTuple

from torch import Tensor

from gp_ensembles.gplvm.batch import BatchFit, fit_batch
from gp_ensembles.gplvm.embed import LatentModel, RowEmbedding, embedding_density
from gp_ensembles.gplvm.fourier import latent_features
from gp_ensembles.gplvm.pca import principal_components
from gp_ensembles.gplvm.posterior import WeightPosterior, learn_rows, weight_prior
from gp_ensembles.gplvm.settings import LatentSettings


class FirstRows(NamedTuple):
    """The first N rows, learned.

    Attributes:
        offset: Their means, shape (D,).
        scale: Root mean square of what is left, a scalar.
        rows: Rows without offset in units of the scale, shape (N, D).
        fit: Embeddings and variances of each expert.
        posterior: Posterior of the weights after them.
        found: Where the rows lie under it, and their densities.
    """

    offset: Tensor
    scale: Tensor
    rows: Tensor
    fit: BatchFit
    posterior: WeightPosterior
    found: RowEmbedding


def learn_first_rows(omega: Tensor, Y: Tensor, settings: LatentSettings) -> FirstRows:
    """Embed and learn complete rows Y (N, D), from their principal components.

    Args:
        omega: Angular frequencies of the experts, shape (M, R, d).
        Y: Rows, finite; more than d, with d directions that vary.
        settings: What all experts share.

    Raises:
        ValueError: If there are too few rows or directions, or the rows' squares are out of the dtype's range.
        NumericalError: If an expert's posterior is not positive definite.

    Example:
        >>> import torch
        >>> t = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> omega = torch.linspace(0.1, 2.0, 5, dtype=torch.float64).reshape(1, 5, 1)
        >>> first = learn_first_rows(omega, torch.cat([3 + t, t.square()], dim=-1), LatentSettings())
        >>> round(first.offset[0].item(), 6), first.fit.embedding.shape
        (3.0, torch.Size([1, 20, 1]))
    """
    components = principal_components(Y, omega.shape[-1])
    centered = Y - components.mean
    scale = centered.square().mean().sqrt()
    if not bool(scale.isfinite() & (scale.square() > 0)):
        raise ValueError(f"the rows' root mean square is {float(scale)} in {Y.dtype}; rescale them")
    rows = centered / scale
    spread = settings.latent_variance
    first = components.embedding * spread**0.5
    fit = fit_batch(omega, first, rows, spread, max_iterations=settings.batch_iterations)
    prior = weight_prior(fit.noise / fit.prior_variance, 2 * omega.shape[-2], Y.shape[1])
    posterior = learn_rows(prior, latent_features(omega, fit.embedding), rows)
    density = embedding_density(LatentModel(omega, posterior, fit.noise, spread), fit.embedding, rows)
    converged = fit.converged.unsqueeze(-1).expand(-1, len(Y))
    found = RowEmbedding(fit.embedding, *density, omega.new_zeros(converged.shape), converged)
    return FirstRows(components.mean, scale, rows, fit, posterior, found)
