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
    r"""Probabilistic principal components by one singular value decomposition (Tipping and Bishop, 1999).

    With eigenvalues :math:`\lambda_1 \ge \dots \ge \lambda_D` of the rows' covariance (divided by N) and its first d
    eigenvectors U, the noise is the mean of the others and :math:`W = U (\Lambda - \sigma^2 I)^{1/2}`. The sign of a
    column is such that the largest loading in absolute value is positive, so that the answer is a function of the data.
    They are found in double precision whatever the dtype, because a search that starts from them may hang on round-off.

    Args:
        Y: Rows, shape (N, D), finite.
        num_latent: Number of components d, at most D and at most N - 1.

    Raises:
        ValueError: If there are too few rows or columns for d components, or fewer than d directions vary.

    Example:
        >>> import torch
        >>> Y = torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]], dtype=torch.float64)
        >>> found = principal_components(Y, 1)
        >>> found.embedding.squeeze(-1), found.loadings.squeeze(-1)
        (tensor([-1.2247,  0.0000,  1.2247], dtype=torch.float64), tensor([0.8165, 1.6330], dtype=torch.float64))
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
    posterior = learn_rows(prior, fourier_features(omega, fit.embedding), rows)
    density = embedding_density(LatentModel(omega, posterior, fit.noise, spread), fit.embedding, rows)
    converged = fit.converged.unsqueeze(-1).expand(-1, len(Y))
    found = RowEmbedding(fit.embedding, *density, converged)
    return FirstRows(components.mean, scale, rows, fit, posterior, found)
