"""Settings, results and input checks of a latent variable model."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.features.base import check_matrix
from gp_ensembles.numerics.display import prints_fields
from gp_ensembles.spectral.frequencies import components_of


class LatentSettings(NamedTuple):
    r"""Choices that every expert shares.

    Attributes:
        latent_variance: Prior variance :math:`\sigma_x^2` of a latent coordinate.
        random_walk_ratio: Variance of the weights' random step before each row, in units of their prior variance; zero
            for weights that do not change.
        capacity: Maximum number of rows kept for the nearest-neighbor search, a uniform sample beyond it. Their memory
            is taken, and saved, from the beginning.
        seed: Chooses that sample.
        batch_iterations: Maximum number of iterations of the fit to the first rows.
        num_starts: Nearest neighbors from which the place of a row is searched, the best end being kept. One is the
            paper's algorithm, which ends in poor maxima more often.
        row_iterations: Maximum number of iterations of the search for a row's embedding.
    """

    latent_variance: float = 1.0
    random_walk_ratio: float = 0.0
    capacity: int = 20_000
    seed: int = 0
    batch_iterations: int = 600
    num_starts: int = 3
    row_iterations: int = 60


@prints_fields
class Embeddings(NamedTuple):
    """Latent inputs of rows.

    Every expert has its own latent space. ``embedding`` is that of the expert which explained the row best, but
    rows reported from different experts cannot be compared; to compare all rows of a stream (neighbors, a plot) use
    ``by_expert`` of one expert, best the model's ``best_expert`` at the end.

    Attributes:
        embedding: That of the expert with the largest weight times density, shape (N, d).
        expert: Which one, shape (N,).
        by_expert: Every expert's, shape (M, N, d).
        log_prob: Log density of what was observed of each row given its embedding, under the mixture, shape (N,), in
            units of the data. The embeddings have seen the row, so it is not a forecast score.
        log_weights: Log weights before each row, shape (M, N).
        converged: Whether each search converged within its iterations, shape (M, N), boolean.
    """

    embedding: Tensor
    expert: Tensor
    by_expert: Tensor
    log_prob: Tensor
    log_weights: Tensor
    converged: Tensor


@prints_fields
class Reconstruction(NamedTuple):
    """Mean and variance of rows given their embeddings, each of shape (N, D), in units of the data."""

    mean: Tensor
    variance: Tensor


def check_settings(settings: LatentSettings) -> None:
    """Raise a clear error if a number is out of range."""
    if not (settings.latent_variance > 0 and math.isfinite(settings.latent_variance)):
        raise ValueError(f"latent_variance must be positive and finite, got {settings.latent_variance}")
    if not (settings.random_walk_ratio >= 0 and math.isfinite(settings.random_walk_ratio)):
        raise ValueError(f"random_walk_ratio must be at least zero and finite, got {settings.random_walk_ratio}")
    for name in ("capacity", "batch_iterations", "num_starts", "row_iterations"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(settings, name)}")


def check_features(features: RandomFourierFeatures, num_outputs: int) -> None:
    """Raise unless the features are of a batch of experts with one summand each, in no more inputs than outputs."""
    if len(features.batch_shape) != 1:
        raise ValueError(
            f"the features must have one batch axis, that of the experts, got batch shape "
            f"{tuple(features.batch_shape)}; give from_kernel the kernels by stack_kernels"
        )
    if len(components_of(features.kernel, features.num_inputs)) != 1:
        raise ValueError("the kernel of an expert must have one summand; use one expert for each summand")
    if features.num_inputs > num_outputs:
        raise ValueError(f"{features.num_inputs} latent inputs are more than the {num_outputs} entries of a row")


def check_rows(Y: Tensor, num_outputs: int, like: Tensor) -> None:
    """Raise unless Y (N, D) has the right form and every row has an observed entry; NaN means not observed."""
    if not isinstance(Y, Tensor) or Y.dtype != like.dtype:
        kind = Y.dtype if isinstance(Y, Tensor) else type(Y).__name__
        raise TypeError(f"Y must be a tensor of {like.dtype}, the model's dtype, got {kind}; convert it with .to(...)")
    if Y.ndim != 2 or Y.shape[1] != num_outputs:
        raise ValueError(f"Y must have shape (N, {num_outputs}), got {tuple(Y.shape)}")
    infinite = torch.isinf(Y)
    if bool(infinite.any()):
        row, column = divmod(int(infinite.flatten().int().argmax()), num_outputs)
        raise ValueError(f"Y is infinite in row {row}, column {column}; give NaN where a value was not observed")
    empty = torch.isnan(Y).all(-1)
    if bool(empty.any()):
        raise ValueError(f"row {int(empty.int().argmax())} of Y has no observed entry; drop it")


def check_start(Y: Tensor, num_latent: int) -> None:
    """Raise unless the rows Y (N, D) are more than there are latent inputs, and every column has been observed."""
    if len(Y) <= num_latent:
        raise ValueError(
            f"got {len(Y)} rows to start from; {num_latent} latent inputs need at least {num_latent + 1}, and should "
            f"have many more"
        )
    empty = torch.isnan(Y).all(0)
    if bool(empty.any()):
        raise ValueError(
            f"column {int(empty.int().argmax())} has no value in the {len(Y)} rows to start from; leave it out, or "
            f"start from more rows"
        )


def check_latent(X: Tensor, expert: Tensor, num_latent: int, num_experts: int, like: Tensor) -> None:
    """Raise unless X (N, d) is finite and ``expert`` (N,) names the expert in whose latent space each row lies."""
    if not isinstance(X, Tensor) or X.dtype != like.dtype:
        kind = X.dtype if isinstance(X, Tensor) else type(X).__name__
        raise TypeError(f"X must be a tensor of {like.dtype}, the model's dtype, got {kind}; convert it with .to(...)")
    if not isinstance(expert, Tensor) or expert.dtype != torch.int64:
        kind = expert.dtype if isinstance(expert, Tensor) else type(expert).__name__
        raise TypeError(f"expert must be a tensor of torch.int64, one number per row, got {kind}")
    check_matrix(X)
    if X.ndim != 2 or X.shape[1] != num_latent or expert.shape != X.shape[:1]:
        raise ValueError(
            f"X must have shape (N, {num_latent}) and expert (N,), got {tuple(X.shape)} and {tuple(expert.shape)}"
        )
    if bool(((expert < 0) | (expert >= num_experts)).any()):
        raise ValueError(f"expert must hold numbers of experts, from 0 to {num_experts - 1}")
