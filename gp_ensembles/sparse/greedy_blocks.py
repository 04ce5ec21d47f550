"""Greedy blocks of knots that double, refits between them, and a polish at the end."""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.base import KnotModel
from gp_ensembles.sparse.checks import check_positive
from gp_ensembles.sparse.fitting import can_learn, fit_hyperparameters, fit_sparse
from gp_ensembles.sparse.placement import distinct_rows, kmeans_knots
from gp_ensembles.sparse.run import ModelT, Run, Strategy
from gp_ensembles.sparse.subset_start import with_subset_scales


@final
@dataclass(frozen=True)
class GreedyBlocks(Strategy):
    """Rows of the largest exact gains, in blocks that double, hyperparameters refitted after each.

    Hyperparameters start from an exact fit of some rows. Where blocks end early, the knots are chosen anew at these
    hyperparameters once, and more of them: few knots may have made everything look like noise. Gains are those of the
    evidence lower bound, whatever the objective is. In the end all knots move, and are rows no more.

    Args:
        max_knots: Most knots.
        first: Knots of the first block.
        tolerance: Stop when a block adds less than this, in nats; and a refit when three iterations add a tenth.
        gap: Stop when Titsias' bounds of the exact log evidence are closer than this, in nats.
        candidates: Random rows to choose among, drawn anew for each block; all that fit into memory if ``None``.
        subset: Rows of the exact fit; 0 to start from the kernel's own hyperparameters.
        reselect: Whether all knots are chosen again at the final hyperparameters.
        polish: Iterations of moving all knots and hyperparameters together at the end; 0 for none.
        fit_iterations: Iterations of each refit.

    Raises:
        ValueError: If a number is too small.

    Example:
        >>> GreedyBlocks(max_knots=0)
        Traceback (most recent call last):
        ...
        ValueError: max_knots must be at least 1, got 0
    """

    max_knots: int = 80
    first: int = 5
    tolerance: float = 0.01
    gap: float = 0.01
    candidates: int | None = 1000
    subset: int = 150
    reselect: bool = True
    polish: int = 50
    fit_iterations: int = 60

    def __post_init__(self) -> None:
        candidates = 1 if self.candidates is None else self.candidates
        check_positive(
            max_knots=self.max_knots, first=self.first, fit_iterations=self.fit_iterations, candidates=candidates
        )
        if self.polish < 0 or self.subset < 0 or math.isnan(self.tolerance) or math.isnan(self.gap):
            raise ValueError(
                f"polish and subset must be at least 0, tolerance and gap numbers, got {self.polish}, {self.subset}, "
                f"{self.tolerance} and {self.gap}"
            )

    @property
    def most(self) -> int:
        """Most knots."""
        return self.max_knots

    def begin(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Centers of k-means."""
        distinct = len(distinct_rows(X, 1))
        return kmeans_knots(X, min(self.first, self.max_knots, distinct), generator=generator)

    def search(self, run: Run[ModelT]) -> str:
        """Blocks, once more from the start's scales if they end early, and what follows them."""
        start = run.model
        if self.subset and can_learn(run.model):
            start = with_subset_scales(run.model, self.subset, run.generator)
        run.model = start.with_knots(start.knots)
        fit_hyperparameters(run.model, max_iterations=self.fit_iterations, tolerance=0.1 * self.tolerance)
        run.keep(run.model, "start")
        most = min(self.max_knots, len(distinct_rows(start.train_X, 1)))
        why = self._grow(run, most)
        if run.model.num_knots < most and self._escape(run, start, most):
            why = self._grow(run, most)
        if self.reselect and run.model.num_knots > 1:
            self._choose_again(run)
        if self.polish:
            fit_sparse(run.model, knots=True, max_iterations=self.polish, tolerance=0.01 * self.tolerance)
            run.keep(run.model, "polish")
        return why

    def _grow(self, run: Run[ModelT], most: int) -> str:
        """Blocks until one adds nothing."""
        while run.model.num_knots < most:
            model, before = run.model, run.history[-1].objective
            if model.gap() < self.gap:
                return f"the bounds of the log evidence are less than {self.gap} nats apart"
            grown, rows = run.grown(model, min(model.num_knots, most - model.num_knots), self.candidates)
            if not rows:
                return "no row adds anything"
            value = self._fit(grown)
            if value == -torch.inf:
                return "the objective could not be evaluated with further knots"
            if value - before < self.tolerance:
                return f"{len(rows)} further knots added less than {self.tolerance} nats"
            run.keep(grown, "block", rows)
        if most < self.max_knots:
            return f"all {most} distinct rows are knots"
        return f"there are {most} knots, the most allowed"

    def _fit(self, model: KnotModel) -> float:
        try:
            return fit_hyperparameters(model, max_iterations=self.fit_iterations, tolerance=0.1 * self.tolerance)
        except NumericalError:
            return -torch.inf

    def _escape(self, run: Run[ModelT], start: ModelT, most: int) -> bool:
        """More knots, chosen at the start's hyperparameters; kept if the objective is larger."""
        count = min(most, max(2 * run.model.num_knots, 4 * self.first))
        other, rows = run.grown(start, count - start.num_knots, self.candidates)
        if not self._fit(other) - run.history[-1].objective > max(self.tolerance, self.gap, 0.0):
            return False
        run.keep(other, "again", rows)
        return True

    def _choose_again(self, run: Run[ModelT]) -> None:
        """All knots once more, at the hyperparameters learned with them; kept if the objective is larger."""
        model = run.model
        first = model.with_knots(model.knots[:1])
        other, rows = run.grown(first, model.num_knots - 1, self.candidates, learned=model)
        if self._fit(other) > run.history[-1].objective:
            run.keep(other, "reselect", rows)
