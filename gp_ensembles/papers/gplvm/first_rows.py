"""The start: scale, principal components, latent inputs, variances and posteriors of the first rows."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.features.fourier import fourier_features
from gp_ensembles.papers.gplvm.batch import BatchFit, fit_batch
from gp_ensembles.papers.gplvm.embed import LatentModel, RowEmbedding, embedding_density
from gp_ensembles.papers.gplvm.posterior import WeightPosterior, learn_rows, weight_prior
from gp_ensembles.papers.gplvm.records import LatentSettings


class PrincipalComponents(NamedTuple):
    """A maximum-likelihood fit of probabilistic principal components.

    Attributes:
        embedding: Whitened scores, shape (N, d): every column has mean zero and mean square one.
        loadings: W, shape (D, d), in units of the data: the covariance of a row is W Wᵀ + ``noise`` I.
        noise: Variance left over in each direction, a scalar; zero where nothing is left.
        mean: Mean of the rows, shape (D,).
    """

    embedding: Tensor
    loadings: Tensor
    noise: Tensor
    mean: Tensor


def principal_components(Y: Tensor, num_latent: int) -> PrincipalComponents:
    """Probabilistic principal components by one singular value decomposition (Tipping and Bishop, 1999).

    Shapes: ``Y`` (N, D).

    Raises:
        ValueError: If there are too few rows or columns for d components, or fewer than d directions vary.
    """
    num_rows, num_columns = Y.shape
    if not 1 <= num_latent <= min(num_rows - 1, num_columns):
        raise ValueError(
            f"num_latent={num_latent} components need at least as many columns and one more row, got {num_rows} rows "
            f"of {num_columns} columns; lower num_latent or give more rows"
        )
    exact = Y.double()
    mean = exact.mean(0)
    left, singular, right = torch.linalg.svd(exact - mean, full_matrices=False)
    negligible = max(Y.shape) * torch.finfo(Y.dtype).eps * torch.maximum(singular[0], Y.abs().max())
    if not bool(singular[num_latent - 1] > negligible):
        varying = int((singular > negligible).sum())
        raise ValueError(
            f"the rows vary in {varying} directions only, too few for num_latent={num_latent}; lower num_latent or "
            f"give rows that differ more"
        )
    axes = right[:num_latent].mT
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True)).squeeze(0)
    sign = torch.where(largest < 0, -1.0, 1.0).to(exact)
    eigenvalues = singular.square() / num_rows
    rest = num_columns - num_latent
    noise = eigenvalues[num_latent:].sum() / rest if rest else eigenvalues.new_zeros(())
    scale = (eigenvalues[:num_latent] - noise).clamp_min(0.0).sqrt()  # round-off where they are equal
    embedding = left[:, :num_latent] * sign * num_rows**0.5
    return PrincipalComponents(*(part.to(Y.dtype) for part in (embedding, axes * sign * scale, noise, mean)))


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
    """Embed and learn complete rows Y (N, D), from their principal components. Shapes: ``omega`` (M, R, d).

    Raises:
        ValueError: If there are too few rows or directions, or the rows' squares are out of the dtype's range.
        NumericalError: If an expert's posterior is not positive definite.
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
    posterior = learn_rows(prior, fourier_features(omega, fit.embedding), rows)
    density = embedding_density(LatentModel(omega, posterior, fit.noise, spread), fit.embedding, rows)
    converged = fit.converged.unsqueeze(-1).expand(-1, len(Y))
    found = RowEmbedding(fit.embedding, *density, converged)
    return FirstRows(components.mean, scale, rows, fit, posterior, found)
