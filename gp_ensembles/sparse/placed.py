"""Knots placed by a rule that does not see the targets, again whenever hyperparameters have been fitted."""

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from gp_ensembles.sparse.allocators import Placement
from gp_ensembles.sparse.checks import check_positive
from gp_ensembles.sparse.fitting import fit_hyperparameters, fit_sparse
from gp_ensembles.sparse.kernels import Covariance
from gp_ensembles.sparse.placement import kmeans_knots
from gp_ensembles.sparse.run import Run, Strategy


@final
@dataclass(frozen=True)
class Placed(Strategy):
    """Knots by a rule from inputs and kernel, in turn with fits of the hyperparameters (Burt et al., 2020).

    The better of two rounds is kept, so that it never harms to place again.

    Args:
        count: Number of knots.
        place: The rule, such as :func:`greedy_variance_knots`, :func:`dpp_knots` or :func:`kmeans_knots`.
        rounds: Times that knots are placed.
        fit_iterations: Iterations of each fit.
        polish: Iterations of moving all knots and hyperparameters together at the end; 0 for none.

    Raises:
        ValueError: If a number is too small.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.sparse import greedy_variance_knots, select_knots
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(6.0 * X.squeeze(-1))
        >>> proposal = Placed(5, greedy_variance_knots, rounds=2)
        >>> found = select_knots(X, y, ScaleKernel(RBFKernel()), proposal=proposal, progress=False)
        >>> found.knots.shape
        torch.Size([5, 1])
    """

    count: int
    place: Placement
    rounds: int = 4
    fit_iterations: int = 60
    polish: int = 0

    def __post_init__(self) -> None:
        check_positive(count=self.count, rounds=self.rounds, fit_iterations=self.fit_iterations)
        if self.polish < 0:
            raise ValueError(f"polish must be at least 0, got {self.polish}")

    @property
    def most(self) -> int:
        """The number of knots."""
        return self.count

    def begin(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Centers of k-means, which are no more than the seat of the first placement."""
        return kmeans_knots(X, self.count, generator=generator)

    def search(self, run: Run[Any]) -> str:
        """Place and fit by turns."""
        why = f"knots were placed {self.rounds} times"
        for turn in range(self.rounds):
            model = run.model
            with torch.no_grad():
                covariance = Covariance(model.covar_module)
                knots = self.place(model.train_X, self.count, covariance, generator=run.generator)
            other = model.with_knots(knots)
            value = fit_hyperparameters(other, max_iterations=self.fit_iterations)
            if turn and not value > run.history[-1].objective:
                why = "knots placed again were no better"
                break
            run.keep(other, "placed")
        if self.polish:
            fit_sparse(run.model, knots=True, max_iterations=self.polish)
            run.keep(run.model, "polish")
        return why
