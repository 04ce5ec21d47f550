"""Joint forecasts of the next rows: one frozen record."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.display import ends, rows_text
from gp_ensembles.numerics.draws import generator_device
from gp_ensembles.streaming.predictions import StreamDistribution


class Forecast(NamedTuple):
    """Joint sample paths of the targets of the next H rows, in their units.

    Attributes:
        paths: S sample paths, each as likely as any other, shape (S, H).
        first: Distribution of the first row, of N = 1 rows.
    """

    paths: Tensor
    first: StreamDistribution

    @property
    def num_steps(self) -> int:
        """Number of rows H."""
        return self.paths.shape[1]

    @property
    def mean(self) -> Tensor:
        """Means, shape (H,)."""
        if self.num_steps == 1:
            return self.first.mean.to(self.paths)
        return torch.cat([self.first.mean.to(self.paths), self.paths[:, 1:].mean(0)])

    @property
    def variance(self) -> Tensor:
        """Variances, shape (H,)."""
        if self.num_steps == 1:
            return self.first.variance.to(self.paths)
        return torch.cat([self.first.variance.to(self.paths), self.paths[:, 1:].var(0)])

    @property
    def stddev(self) -> Tensor:
        """Standard deviations, shape (H,)."""
        return self.variance.sqrt()

    def quantile(self, p: float | Sequence[float]) -> Tensor:
        """Marginal quantiles of each row, shape (H,), or (K, H) for several.

        Raises:
            ValueError: If a probability is not between 0 and 1.
        """
        levels = torch.as_tensor(p, dtype=self.paths.dtype, device=self.paths.device)
        if not bool(((levels >= 0) & (levels <= 1)).all()):
            raise ValueError(f"probabilities must lie between 0 and 1, got {levels.tolist()}")
        flat = levels.reshape(-1)
        later = self.paths.new_empty(flat.shape[0], 0)
        if self.num_steps > 1:
            later = torch.quantile(self.paths[:, 1:], flat, dim=0)
        values = torch.cat([self.first.quantile(flat.unsqueeze(-1)).to(later), later], dim=-1)
        return values[0] if levels.ndim == 0 else values

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, (H,) each, of central marginal intervals of each row.

        Raises:
            ValueError: If the coverage is not between 0 and 1.
        """
        lower, upper = self.quantile([(1 - coverage) / 2, (1 + coverage) / 2])
        return lower, upper

    def __repr__(self) -> str:
        rows = ends(self.num_steps)
        columns = {"mean": [self.mean], "stddev": [self.stddev], "90% interval": self.interval()}
        shown = {name: [values[rows] for values in tensors] for name, tensors in columns.items()}
        return rows_text(f"Forecast of {self.num_steps} rows by {self.paths.shape[0]} paths", rows, shown)

    def sample(self, num: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Paths drawn with replacement from the sample paths, shape (num, H)."""
        if num < 1:
            raise ValueError(f"the number of draws must be at least one, got {num}")
        place = torch.randint(self.paths.shape[0], (num,), generator=generator, device=generator_device(generator))
        return self.paths[place.to(self.paths.device)]
