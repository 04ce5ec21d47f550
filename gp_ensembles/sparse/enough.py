"""As many knots as it takes: all rows where that can be had, else knots until the bounds meet or the budget ends."""

import math
import time
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.base import SparseModel, check_positive
from gp_ensembles.sparse.exact import ExactGP
from gp_ensembles.sparse.fitting import (
    copy_hyperparameters,
    fit_sparse,
    has_free_hyperparameters,
    rescale,
)
from gp_ensembles.sparse.initialization import distinct_rows, greedy_variance_rows
from gp_ensembles.sparse.regression import SparseGP
from gp_ensembles.sparse.strategies import SelectionRun, Strategy

_NESTED = (200, 600)  # rows of the first fits
_STARTS = (1.0, 0.3, 3.0)  # lengthscales of the starts, in standard deviations of the inputs
_SHORT, _MIDDLE, _LONG = 15, 30, 200  # iterations from each start, on some rows, and on all
_TOLERANCE = 0.01  # nats that three iterations must bring
_FIRST = 100  # knots that growth begins with
_POOL = 4  # rows per knot among which knots are chosen
_POLISHED = 200  # knots up to which all of them move in the end: each iteration costs O(N K^2)
_POLISH_ROWS, _POLISH_SOME, _POLISH_ALL = 50, 60, 12  # rows per knot, iterations on these, and on all rows


class _Clock:
    """Seconds left of a budget."""

    def __init__(self, budget: float) -> None:
        self._end = time.perf_counter() + budget

    @property
    def left(self) -> float:
        return self._end - time.perf_counter()


@final
@dataclass(frozen=True)
class EnoughKnots(Strategy):
    """All rows as knots where that can be had, else knots until the bounds meet or the budget ends: the default.

    Hyperparameters are fitted by the exact log evidence of nested random rows, cheap to dear: from several starts on
    200, from the best of these on 600, and on ``fit_rows``. Up to ``exact_rows`` distinct rows the answer is an
    :class:`ExactGP`, with one factorization of all of them. Beyond that knots are rows of the largest remaining prior
    variance, doubled until Titsias' bounds of the log evidence are as close as ``gap_tolerance`` or there are
    ``max_knots``. Up to 200 knots are few for so many rows, and move with the hyperparameters in the end, first by the
    bound of some rows, then by that of all.

    Args:
        max_knots: Most knots where not all rows are.
        exact_rows: Most distinct rows that are all knots, with 16 bytes of memory for each pair of them: 3.6 GB.
        fit_rows: Most rows of the fits of the hyperparameters.
        gap_tolerance: Distance of the bounds, in nats, at which there are enough knots.
        max_seconds: Budget by the clock: the step that goes on longer is finished, and the last. The history has at
            least one step.

    Raises:
        ValueError: If a number is too small.

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse import select_knots
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> found = select_knots(X, torch.sin(6.0 * X.squeeze(-1)))
        >>> len(found.knots), found.stop_reason
        (50, 'all 50 distinct rows are knots: the model is exact')
    """

    max_knots: int = 1000
    exact_rows: int = 15_000
    fit_rows: int = 2000
    gap_tolerance: float = 1.0
    max_seconds: float = math.inf

    def __post_init__(self) -> None:
        check_positive(max_knots=self.max_knots, fit_rows=self.fit_rows)
        if self.exact_rows < 0 or math.isnan(self.gap_tolerance) or not self.max_seconds > 0.0:
            raise ValueError(
                f"exact_rows must be at least 0, gap_tolerance a number and max_seconds above 0, got "
                f"{self.exact_rows}, {self.gap_tolerance} and {self.max_seconds}"
            )

    def initial_knots(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Some rows, for a model to begin with."""
        return X[distinct_rows(X)[: min(_FIRST, self.max_knots)]]

    def search(self, run: SelectionRun[Any]) -> str:
        """Hyperparameters on nested rows, then all rows, or knots until there are enough."""
        clock, model = _Clock(self.max_seconds), run.model
        if not isinstance(model, SparseGP):
            raise ValueError(f"a {type(model).__name__} has no exact evidence; choose its knots by GreedyBlocks")
        X, y = model.train_X, model.train_y
        if len(distinct_rows(X)) <= self.exact_rows:
            exact = ExactGP(X, y, model.covar_module, model.likelihood, model.mean_module)
            run.model = exact  # what an interruption keeps
            finished = self._fit(exact, clock, run.generator)
            step = run.record(exact, "all rows")
            few = "" if finished else f"; the budget of {self.max_seconds:g} s ended the fit"
            return f"all {step.num_knots} distinct rows are knots: the model is exact{few}"
        if not self._fit(model, clock, run.generator):
            run.record(model, "start")
            return f"the budget of {self.max_seconds:g} s ended before knots were chosen"
        stop_reason = self._grow(run, clock)
        if run.model.num_knots <= _POLISHED and clock.left > 0.0:
            self._polish(run, clock)
        return stop_reason

    def _fit(self, model: SparseModel, clock: _Clock, generator: torch.Generator | None) -> bool:
        """Fit hyperparameters to nested rows; whether the budget allowed all of it."""
        if not has_free_hyperparameters(model):
            return True
        total = len(model.train_y)
        order = torch.randperm(total, generator=generator, device="cpu").to(model.train_X.device)
        sizes = [size for size in _NESTED if 2 * size <= min(total, self.fit_rows)] or [min(total, _NESTED[0])]
        self._choose_start(model, order[: sizes[0]], clock)
        for size in sizes[1:]:
            self._fit_some(model, order[:size], _MIDDLE, clock)
        self._fit_some(model, order[: self.fit_rows], _LONG, clock)
        return clock.left > 0.0

    def _choose_start(self, model: SparseModel, rows: Tensor, clock: _Clock) -> None:
        best, reached = None, -math.inf
        for share in (None, *_STARTS):
            exact = _exact_part(model, rows)
            if share is not None:
                rescale(exact, share)
            try:
                value = fit_sparse(exact, max_iterations=_SHORT, tolerance=_TOLERANCE, max_seconds=clock.left).objective
            except NumericalError:
                continue
            if value > reached:
                best, reached = exact, value
            if clock.left <= 0.0:
                break
        if best is not None:
            copy_hyperparameters(best, model)

    def _fit_some(self, model: SparseModel, rows: Tensor, iterations: int, clock: _Clock) -> None:
        if clock.left <= 0.0:
            return
        exact = _exact_part(model, rows)
        fit_sparse(exact, max_iterations=iterations, tolerance=_TOLERANCE, max_seconds=clock.left)
        copy_hyperparameters(exact, model)

    def _grow(self, run: SelectionRun[Any], clock: _Clock) -> str:
        model = run.model
        X = model.train_X
        rows = distinct_rows(X)
        order = torch.randperm(len(rows), generator=run.generator, device="cpu").to(X.device)
        pool = rows[order[: max(_POOL * self.max_knots, _NESTED[0])]]
        most = min(self.max_knots, len(pool))
        count = min(_FIRST, most)
        while True:
            chosen = pool[greedy_variance_rows(X[pool], count, model.covar_module)]
            grown = model.with_knots(X[chosen])
            gap = grown.bound_gap()
            run.record(grown, "knots", tuple(chosen.tolist()))
            if gap < self.gap_tolerance:
                return f"the bounds of the log evidence are less than {self.gap_tolerance} nats apart"
            if len(chosen) < count:
                return f"{len(chosen)} rows explain the whole prior"
            if count == most:
                return f"there are {most} knots, the most allowed; the bounds are {gap:.3g} nats apart"
            if clock.left <= 0.0:
                return f"the budget of {self.max_seconds:g} s has ended; the bounds are {gap:.3g} nats apart"
            count = min(2 * count, most)

    def _polish(self, run: SelectionRun[Any], clock: _Clock) -> None:
        """Move all knots and hyperparameters, by the bound of some rows and then of all."""
        model = run.model
        size = max(_POLISH_ROWS * model.num_knots, self.fit_rows)
        polished = model.with_knots(model.knots)
        if size < len(model.train_y):
            order = torch.randperm(len(model.train_y), generator=run.generator, device="cpu")[:size]
            rows = order.to(model.train_X.device)
            some = model.with_knots(model.knots)
            some.train_X, some.train_y = model.train_X[rows], model.train_y[rows]
            fit_sparse(some, knots=True, max_iterations=_POLISH_SOME, max_seconds=clock.left)
            copy_hyperparameters(some, polished)
            with torch.no_grad():
                polished.knots.copy_(some.knots)
        fit_sparse(polished, knots=True, max_iterations=_POLISH_ALL, max_seconds=max(clock.left, 0.0))
        with torch.no_grad():
            better = bool(polished.objective() > run.history[-1].objective)
        if better:
            run.record(polished, "polish")


def _exact_part(model: SparseModel, rows: Tensor) -> ExactGP:
    """The exact model of some rows, with the hyperparameters of a model, copied."""
    if isinstance(model, ExactGP):
        return model.subset_of_data(rows)
    assert isinstance(model, SparseGP)
    part = model.with_knots(model.knots)
    return ExactGP(model.train_X[rows], model.train_y[rows], part.covar_module, part.likelihood, part.mean_module)
