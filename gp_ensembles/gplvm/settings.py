"""What an ensemble of latent variable models is told once."""

import math
from typing import NamedTuple


class LatentSettings(NamedTuple):
    r"""Choices that every expert shares.

    Attributes:
        latent_variance: Prior variance :math:`\sigma_x^2` of a latent coordinate.
        random_walk_ratio: Variance of the weights' random step before each row, in units of their prior variance; zero
            for weights that do not change.
        capacity: Most rows kept for the search for a nearest neighbor; beyond, they are a uniform sample. Their memory
            is taken, and saved, from the beginning.
        seed: Chooses that sample.
        batch_iterations: Most iterations of the fit to the first rows.
        num_starts: Nearest neighbors from which the place of a row is searched, the best end being kept. One is the
            paper's algorithm, which ends in poor maxima more often.
        row_iterations: Most iterations of the search for a row's embedding.
    """

    latent_variance: float = 1.0
    random_walk_ratio: float = 0.0
    capacity: int = 20_000
    seed: int = 0
    batch_iterations: int = 600
    num_starts: int = 3
    row_iterations: int = 60


def check_settings(settings: LatentSettings) -> None:
    """Raise a clear error if a number is out of range.

    Raises:
        ValueError: Naming the number.
    """
    if not (settings.latent_variance > 0 and math.isfinite(settings.latent_variance)):
        raise ValueError(f"latent_variance must be positive and finite, got {settings.latent_variance}")
    if not (settings.random_walk_ratio >= 0 and math.isfinite(settings.random_walk_ratio)):
        raise ValueError(f"random_walk_ratio must be at least zero and finite, got {settings.random_walk_ratio}")
    for name in ("capacity", "batch_iterations", "num_starts", "row_iterations"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(settings, name)}")
