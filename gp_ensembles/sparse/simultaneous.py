"""All knots and hyperparameters at once, as many as were asked for."""

from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from gp_ensembles.sparse.checks import check_knots
from gp_ensembles.sparse.placement import kmeans_knots
from gp_ensembles.sparse.refits import LBFGSRefit, Refit
from gp_ensembles.sparse.run import Run, Strategy


@final
@dataclass(frozen=True)
class Simultaneous(Strategy):
    """Simultaneous optimization of knots and hyperparameters (Snelson and Ghahramani, 2006; Titsias, 2009).

    With as many knots as one at a time chose this is SVk of Garton, Niemi and Carriquiry (2020), from its knots SVO.

    Args:
        start: Number of knots, which start at centers of k-means; or these knots, shape (K, D).
        optimizer: Of knots and hyperparameters.

    Raises:
        ValueError: If there is no knot.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.sparse import select_knots
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(6.0 * X.squeeze(-1))
        >>> found = select_knots(X, y, ScaleKernel(RBFKernel()), proposal=Simultaneous(4), progress=False)
        >>> found.knots.shape, [step.what for step in found.history]
        (torch.Size([4, 1]), ['start', 'simultaneous'])
    """

    start: int | Tensor
    optimizer: Refit = field(default_factory=lambda: LBFGSRefit(200))

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError("at least one knot is needed, got none")

    @property
    def most(self) -> int:
        """As many as at the start."""
        return self.start if isinstance(self.start, int) else len(self.start)

    def begin(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Given knots, or centers of k-means."""
        if isinstance(self.start, int):
            return kmeans_knots(X, self.start, generator=generator)
        check_knots(X, self.start)
        return self.start

    def search(self, run: Run[Any]) -> str:
        """One ascent."""
        run.keep(run.model, "start")
        fit = self.optimizer.refit(run.model, slice(None))
        run.keep(run.model, "simultaneous")
        return f"the number of knots was given; the ascent ended with: {fit.message}"
