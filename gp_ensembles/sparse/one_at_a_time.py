"""Knots one at a time: each proposed at fixed hyperparameters, then optimized together with them."""

from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.checks import check_shape
from gp_ensembles.sparse.placement import distinct_rows, kmeans_knots
from gp_ensembles.sparse.proposals import KnotProposal, RandomSubset
from gp_ensembles.sparse.refits import LBFGSRefit, Refit
from gp_ensembles.sparse.run import Run, Strategy


@final
@dataclass(frozen=True)
class OneAtATime(Strategy):
    """The one-at-a-time algorithm of Garton, Niemi and Carriquiry (2020), OAT.

    Hyperparameters are fitted with the first knots, which never move. Then a row is proposed as a knot, and this knot
    and the hyperparameters are optimized together, all older ones staying; the first that does not add more than the
    tolerance is dropped, and ends the selection. With
    :class:`~gp_ensembles.sparse.BayesianOptimization` this is OAT-BO, with
    :class:`~gp_ensembles.sparse.RandomSubset` OAT-RS.

    Args:
        proposal: Where the next knot starts; the best of 40 random rows if not given.
        optimizer: Of the new knot and the hyperparameters; L-BFGS if not given, the published one is
            :class:`~gp_ensembles.sparse.AdadeltaRefit`.
        first: Number of first knots, centers of k-means; or these knots, shape (K, D).
        max_knots: Most knots.
        tolerance: What a knot must add, in nats.
        hold_mean: Whether the prior mean stays as it is at the start, as published.

    Raises:
        ValueError: If there is no first knot, or there are more of them than allowed in all.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.sparse import select_knots
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(6.0 * X.squeeze(-1))
        >>> proposal = OneAtATime(RandomSubset(10), first=2, max_knots=4)
        >>> found = select_knots(X, y, ScaleKernel(RBFKernel()), proposal=proposal, progress=False)
        >>> found.knots.shape, [step.what for step in found.history]
        (torch.Size([4, 1]), ['start', 'knot', 'knot'])
    """

    proposal: KnotProposal = field(default_factory=RandomSubset)
    optimizer: Refit = field(default_factory=LBFGSRefit)
    first: int | Tensor = 5
    max_knots: int = 80
    tolerance: float = 1e-3
    hold_mean: bool = True

    def __post_init__(self) -> None:
        least = self.first if isinstance(self.first, int) else len(self.first)
        if least < 1 or self.max_knots < least:
            raise ValueError(f"there must be a first knot at least, and no more than {self.max_knots}, got {least}")

    @property
    def most(self) -> int:
        """Most knots."""
        return self.max_knots

    def begin(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Given knots, or centers of k-means."""
        if isinstance(self.first, int):
            return kmeans_knots(X, min(self.first, len(distinct_rows(X, 1))), generator=generator)
        check_shape(X, self.first)
        return self.first

    def search(self, run: Run[Any]) -> str:
        """One knot after the other; the run's model changes only when a knot has been accepted."""
        held = [parameter for parameter in run.model.mean_module.parameters() if self.hold_mean]
        moving = [parameter.requires_grad for parameter in held]
        for parameter in held:
            parameter.requires_grad_(False)
        try:
            return self._search(run)
        finally:
            for parameter, moves in zip(run.model.mean_module.parameters(), moving, strict=False):
                parameter.requires_grad_(moves)

    def _search(self, run: Run[Any]) -> str:
        fitted = run.model.with_knots(run.model.knots)
        self.optimizer.refit(fitted)
        run.keep(fitted, "start")
        distinct = len(distinct_rows(run.model.train_X, 1))
        most = min(self.max_knots, distinct)
        while run.model.num_knots < most:
            failure = self._add(run)
            if failure is not None:
                return failure
        all_rows = f"all {most} distinct rows have a knot"
        return f"there are {most} knots, the most allowed" if most == self.max_knots else all_rows

    def _add(self, run: Run[Any]) -> str | None:
        """A further knot, or why there is none."""
        model = run.model
        try:
            found = self.proposal.propose(model, generator=run.generator)
            if found is None:
                return "every row is a knot"
            row = model.train_X[found.row : found.row + 1]
            grown = model.with_knots(torch.cat([model.knots.detach(), row]))
            reached = self.optimizer.refit(grown, slice(model.num_knots, None)).objective
        except NumericalError as error:
            return f"a further knot could not be evaluated: {error}"
        if not reached - run.history[-1].objective > self.tolerance:
            return f"a further knot added no more than {self.tolerance} nats"
        run.keep(grown, "knot", (found.row,))
        return None
