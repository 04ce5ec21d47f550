"""Adaptive number of knots: all rows if affordable, else knots until the bounds meet or the budget ends."""

import math
import time
from dataclasses import dataclass
from typing import final

import torch
from gpytorch.constraints import Positive
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import Prior
from torch import Tensor, nn
from tqdm import tqdm

from gp_ensembles.numerics.draws import permutation
from gp_ensembles.numerics.short_length_scales import short_length_scales
from gp_ensembles.papers.sparse.base import SparseModel, check_positive
from gp_ensembles.papers.sparse.fitting import (
    best_start,
    copy_hyperparameters,
    fit_sparse,
    has_free_hyperparameters,
    spread_of,
)
from gp_ensembles.papers.sparse.greedy import GreedyBlocks
from gp_ensembles.papers.sparse.initialization import distinct_rows, greedy_variance_rows
from gp_ensembles.papers.sparse.regression import ExactGP, SparseGP
from gp_ensembles.papers.sparse.strategies import SelectionRun, Strategy

_NESTED = (200, 600)  # rows of the first fits
_STARTS = (1.0, 0.3, 3.0)  # lengthscales of the starting points, in standard deviations of the inputs
_ROWS_PER_LENGTH = 2  # in the first fit of a rapidly varying function
_SHORT, _MIDDLE, _LONG = 15, 30, 200  # iterations from each starting point, on some rows, and on all
_TOLERANCE = 0.01  # nats that three iterations must gain
_FIRST = 100  # initial number of knots for growth
_POOL = 4  # candidate rows per knot
_FEW = 200  # up to this many knots are few for many rows: they are selected and moved by the bound
_ROWS_PER_KNOT = 25  # number of rows of that bound, per knot
_POLISH_SOME, _POLISH = 100, 8  # iterations that move all knots, by the bound of these rows and of all rows


@final
@dataclass(frozen=True)
class AdaptiveKnots(Strategy):
    """All rows as knots if affordable, else knots until the bounds meet or the budget ends; the default.

    Hyperparameters are fitted by the exact log evidence of nested random subsets: from several starting points on
    200 rows, from the best of these on 600, and on ``fit_rows``. Up to ``exact_rows`` distinct rows, the result is an
    :class:`ExactGP`, with one factorization of all of them. Beyond that, knots are rows of the largest remaining prior
    variance, doubled until Titsias' bounds on the log evidence are within ``gap_tolerance`` or there are
    ``max_knots``. Up to 200 knots are few for so many rows, and the exact process' hyperparameters are not optimal for
    them: they are selected by :class:`GreedyBlocks` on some rows, and finally optimized with hyperparameters on all.

    Args:
        max_knots: Maximum number of knots if not all rows are knots.
        exact_rows: Up to this many distinct rows, all are knots, with 16 bytes per pair of rows: 3.6 GB.
        fit_rows: Maximum number of rows in the fits of the hyperparameters.
        gap_tolerance: Distance between the bounds, in nats, at which there are enough knots.
        max_seconds: Time budget: no step starts after it but the selection of the first knots, and the step in
            progress is finished. The history has at least one step.

    Raises:
        ValueError: If a setting is out of range.

    Example:
        >>> from gp_ensembles.papers.sparse import select_knots
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
        """Some rows, for an initial model."""
        return X[distinct_rows(X)[: min(_FIRST, self.max_knots)]]

    def search(self, run: SelectionRun) -> str:
        """Fit hyperparameters to nested rows, then use all rows, or add knots until there are enough."""
        deadline, model = time.perf_counter() + self.max_seconds, run.model
        X, y = model.train_X, model.train_y
        if len(distinct_rows(X)) <= self.exact_rows:
            exact = ExactGP(X, y, model.covar_module, model.likelihood, model.mean_module)
            run.model = exact  # kept after an interruption
            finished = self._fit(exact, deadline, run.generator)
            step = run.record(exact, "all rows")
            ended = "" if finished else f"; the budget of {self.max_seconds:g} s ended the fit"
            return f"all {step.num_knots} distinct rows are knots: the model is exact{ended}"
        few = self.max_knots <= _FEW
        finished = self._fit(model, deadline, run.generator, few)
        return self._few(run, deadline) if few and finished else self._grow(run, deadline)

    def _fit(self, model: SparseModel, deadline: float, generator: torch.Generator | None, few: bool = False) -> bool:
        """Fit hyperparameters to nested rows; returns whether the budget sufficed."""
        if not has_free_hyperparameters(model):
            return True
        total = len(model.train_y)
        order = permutation(total, generator).to(model.train_X.device)
        sizes = [size for size in _NESTED if 2 * size <= min(total, self.fit_rows)] or [min(total, _NESTED[0])]
        short = short_length_scales(model.train_X, model.train_y)
        if short is not None:  # too few rows of a rapidly varying function are uninformative
            lengths = (model.train_X.amax(0) - model.train_X.amin(0)) / short
            fewest = _ROWS_PER_LENGTH * float(lengths.clamp_min(1.0).prod())
            sizes = [size for size in sizes if size >= fewest] or [min(total, self.fit_rows)]
        self._choose_start(model, order[: sizes[0]], short, deadline)
        for size in sizes[1:]:
            self._fit_some(model, order[:size], _MIDDLE, deadline)
        if not few:
            self._fit_some(model, order[: self.fit_rows], _LONG, deadline)
        return _left(deadline) > 0.0

    def _choose_start(self, model: SparseModel, rows: Tensor, short: Tensor | None, deadline: float) -> None:
        settings = {"max_iterations": _SHORT, "tolerance": _TOLERANCE, "max_seconds": _left(deadline)}
        spread = spread_of(model.train_X[rows])
        scales = [share * spread for share in _STARTS] + ([] if short is None else [short])
        best = best_start(lambda: _exact_part(model, rows), scales, **settings)
        if best is not None:
            copy_hyperparameters(best, model)

    def _fit_some(self, model: SparseModel, rows: Tensor, iterations: int, deadline: float) -> None:
        if _left(deadline) <= 0.0:
            return
        exact = _exact_part(model, rows)
        fit_sparse(exact, max_iterations=iterations, tolerance=_TOLERANCE, max_seconds=_left(deadline))
        copy_hyperparameters(exact, model)

    def _grow(self, run: SelectionRun, deadline: float) -> str:
        model = run.model
        X = model.train_X
        rows = distinct_rows(X)
        order = permutation(len(rows), run.generator).to(X.device)
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
                return f"{len(chosen)} rows explain the entire prior"
            if _left(deadline) <= 0.0:
                return f"the budget of {self.max_seconds:g} s has ended; the bounds are {gap:.3g} nats apart"
            if count == most:
                return f"there are {most} knots, the most allowed; the bounds are {gap:.3g} nats apart"
            count = min(2 * count, most)

    def _few(self, run: SelectionRun, deadline: float) -> str:
        """Greedy blocks by the bound of some rows, then all knots and hyperparameters by the bound of all rows."""
        model = run.model
        size = max(_ROWS_PER_KNOT * self.max_knots, self.fit_rows)
        order = permutation(len(model.train_y), run.generator)[:size]
        rows = order.to(model.train_X.device)
        some = model.with_knots(model.knots)
        some.train_X, some.train_y = model.train_X[rows], model.train_y[rows]
        times = len(model.train_y) / len(rows)
        some.likelihood = _repeated(model.likelihood, times, len(rows))
        strategy = GreedyBlocks(max_knots=self.max_knots, subset_size=0, polish_iterations=_POLISH_SOME)
        some = some.with_knots(strategy.initial_knots(some.train_X, generator=run.generator))
        with tqdm(disable=True) as bar:
            part = SelectionRun(some, bar, run.generator)
            strategy.search(part)
        fitted = model.with_knots(part.model.knots)
        copy_hyperparameters(part.model, fitted)
        noise = times * part.model.likelihood.noise.detach()
        fitted.likelihood.noise = noise.clamp_min(
            1.001 * fitted.likelihood.noise_covar.raw_noise_constraint.lower_bound
        )
        step = run.record(fitted, "greedy blocks")
        if _left(deadline) > 0.0:
            polished = fitted.with_knots(fitted.knots)
            fit_sparse(polished, knots=True, max_iterations=_POLISH, max_seconds=_left(deadline))
            step = run.record(polished, "polish")
        gap = run.model.bound_gap()
        if gap < self.gap_tolerance:
            return f"the bounds of the log evidence are less than {self.gap_tolerance} nats apart"
        ended = "" if _left(deadline) > 0.0 else f"the budget of {self.max_seconds:g} s has ended: "
        most = ", the most allowed" if step.num_knots == self.max_knots else ""
        return f"{ended}there are {step.num_knots} knots{most}; the bounds are {gap:.3g} nats apart"


@final
class _Repeats(Prior):  # type: ignore[misc]  # GPyTorch is untyped
    r"""The factor of :math:`N(y; f, w \tau)^w` relative to :math:`N(y; f, \tau)`, as a prior of :math:`\tau`."""

    def __init__(self, power: float) -> None:
        nn.Module.__init__(self)
        self.power = power

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the power."""
        return -self.power * value.log()


def _repeated(likelihood: GaussianLikelihood, times: float, num_rows: int) -> GaussianLikelihood:
    """A likelihood for which the bound of some rows equals that of ``times`` copies of them, up to a constant."""
    constraint = Positive(transform=torch.exp, inv_transform=torch.log)
    other = GaussianLikelihood(noise_constraint=constraint).to(likelihood.noise)
    other.noise = likelihood.noise.detach() / times
    other.noise_covar.register_prior("repeats", _Repeats(0.5 * num_rows * (times - 1.0)), "noise")
    return other.requires_grad_(likelihood.noise_covar.raw_noise.requires_grad)


def _left(deadline: float) -> float:
    """Seconds until a deadline by :func:`time.perf_counter`."""
    return deadline - time.perf_counter()


def _exact_part(model: SparseModel, rows: Tensor) -> ExactGP:
    """The exact model of some rows, with a copy of a model's hyperparameters."""
    if isinstance(model, ExactGP):
        return model.subset_of_data(rows)
    assert isinstance(model, SparseGP)
    part = model.with_knots(model.knots)
    return ExactGP(model.train_X[rows], model.train_y[rows], part.covar_module, part.likelihood, part.mean_module)
