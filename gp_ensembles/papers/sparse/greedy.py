"""Greedy selection of knots by exact gains in the evidence lower bound of many candidates, in doubling blocks.

Gains take O(M N K) for M candidates, and O(M N) for each additional knot.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.draws import permutation
from gp_ensembles.papers.sparse.base import check_positive
from gp_ensembles.papers.sparse.collapsed import Projection, condition
from gp_ensembles.papers.sparse.fitting import (
    fit_hyperparameters,
    fit_sparse,
    has_free_hyperparameters,
    initialize_from_subset,
)
from gp_ensembles.papers.sparse.initialization import distinct_rows, kmeans_knots
from gp_ensembles.papers.sparse.regression import SparseGP
from gp_ensembles.papers.sparse.strategies import SelectionRun, Strategy

NEARLY_EXPLAINED = 1e-9  # share of the prior variance below which a candidate counts as a knot
_FIRST_BLOCK, _NUM_CANDIDATES = 5, 1000  # knots of the first block; random candidate rows per block
_MEMORY = 2**28  # bytes of each of the two tables of candidates by data


class Candidates(NamedTuple):
    r"""Gains of M candidates given the current knots.

    .. math:: \frac{|v|^2}{2 \tau^2} - \frac12 \log t^2 + \frac12 \frac{(v^\top \Sigma^{-1} r)^2}{t^2}, \qquad
              t^2 = 1 + v^\top \Sigma^{-1} v

    """

    covariance: Tensor  # of candidates and data, not explained by the knots, s v, shape (M, N)
    weighted: Tensor  # the same times Sigma^-1, shape (M, N)
    variance: Tensor  # unexplained variances s^2 of the candidates, nugget included, shape (M,)
    residual: Tensor  # targets less their prior mean, shape (N,)
    noise: Tensor  # noise variance, shape ()
    floor: Tensor  # variance below which a candidate adds nothing, shape ()

    def gains(self) -> Tensor:
        """Gain in the bound by each candidate, shape (M,); zero if it is already a knot."""
        variance = self.variance.clamp_min(self.floor)
        length = torch.linalg.vector_norm(self.covariance, dim=-1).square() / variance
        product = torch.einsum("mn,mn->m", self.covariance, self.weighted)
        stretch = 1.0 + (product / variance).clamp_min(0.0)
        fit = (self.weighted @ self.residual).square() / variance
        gain = 0.5 * (length / self.noise - stretch.log() + fit / stretch)
        return torch.where(self.variance > self.floor, gain, 0.0)

    def add_knot(self, index: int, rows: Tensor) -> None:
        """Make candidate ``index`` a knot, in O(M N); candidate i is row ``rows[i]`` of the data."""
        deviation = self.variance[index].sqrt()
        v = self.covariance[index] / deviation
        g = self.weighted[index] / deviation
        with_knot = self.covariance[:, rows[index]] / deviation
        self.weighted.addr_(self.weighted @ v + with_knot, g / (1.0 + v @ g), alpha=-1.0)
        self.covariance.addr_(with_knot, v, alpha=-1.0)
        self.variance.sub_(with_knot.square()).clamp_min_(0.0)[index] = 0.0


def left_open(
    projection: Projection, knots_with_candidates: Tensor, candidates_with_data: Tensor, prior: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Loadings of M candidates, (K, M), and their unexplained covariances, (M, N), and variances, (M,).

    Shapes: ``knots_with_candidates`` (K, M), ``candidates_with_data`` (M, N), ``prior`` (M,).
    """
    loadings = torch.linalg.solve_triangular(projection.lower, knots_with_candidates, upper=False)
    covariance = candidates_with_data - loadings.mT @ projection.projected
    return loadings, covariance, prior - loadings.square().sum(0)


def whiten_rows(projection: Projection) -> Tensor:
    """The data's projections, whitened by the posterior of VFE, shape (K, N)."""
    posterior = condition(projection, projection.noise.expand_as(projection.residual))
    white: Tensor = torch.linalg.solve_triangular(posterior.factor, projection.projected, upper=False)
    return white


def init_candidates(
    projection: Projection, white: Tensor, covariance: Tensor, variance: Tensor, floor: Tensor
) -> Candidates:
    """Candidates given the knots, in O(M N K), by :func:`left_open` and :func:`whiten_rows`."""
    # Sigma^{-1} = (I - V^T B^{-1} V / tau^2) / tau^2
    noise = projection.noise
    weighted = (covariance - (covariance @ white.mT) @ white / noise) / noise
    return Candidates(covariance, weighted, variance.clamp_min(0.0), projection.residual, noise, floor)


@torch.no_grad()
def greedy_elbo_rows(
    model: SparseGP, num_rows: int, *, num_candidates: int | None = None, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Rows (k,) that successively increase the evidence lower bound the most, and the gain of each."""
    X = model.train_X
    rows = _draw_candidates(X, num_candidates, generator)
    C = X[rows]
    prior = model.kernel_diagonal(C) + model.nugget_variance(model.kernel_matrix(model.knots, model.knots))
    projection = model.projection()
    _, covariance, variance = left_open(
        projection, model.kernel_matrix(model.knots, C), model.kernel_matrix(C, X), prior
    )
    floor = NEARLY_EXPLAINED * prior.max()
    candidates = init_candidates(projection, whiten_rows(projection), covariance, variance, floor)
    chosen: list[int] = []
    gains: list[Tensor] = []
    for _ in range(min(num_rows, len(rows))):
        gain = candidates.gains()
        best = int(gain.argmax())
        if not bool(gain[best] > 0.0):
            break
        chosen.append(best)
        gains.append(gain[best])
        candidates.add_knot(best, rows)
    taken = rows[torch.tensor(chosen, dtype=torch.long, device=rows.device)]
    return taken, torch.stack(gains) if gains else candidates.variance.new_zeros(0)


def _draw_candidates(X: Tensor, most: int | None, generator: torch.Generator | None) -> Tensor:
    """Random rows of X (N, D), in order: at most ``most``, and no more than fit into memory."""
    total = X.shape[0]
    fitting = max(1, min(total, _MEMORY // (X.element_size() * total)))
    count = fitting if most is None else min(most, fitting)
    if count == total:
        return torch.arange(total, device=X.device)
    return permutation(total, generator)[:count].sort().values.to(X.device)


@final
@dataclass(frozen=True)
class GreedyBlocks(Strategy):
    """Rows with the largest exact gains, in doubling blocks, with a refit of hyperparameters after each.

    Hyperparameters start from an exact fit to some rows. If blocks end early, the knots are selected again with these
    hyperparameters once, and more of them: with few knots the fit may have explained everything as noise. Gains are
    those of the evidence lower bound, for every approximation. Finally all knots are optimized.

    Args:
        max_knots: Maximum number of knots.
        tolerance: Stop when a block gains less than this, in nats; a refit stops when three iterations gain a tenth.
        gap_tolerance: Stop when Titsias' bounds on the exact log evidence are closer than this, in nats.
        subset_size: Rows of the exact fit; 0 to start from the kernel's own hyperparameters.
        reselect: Whether all knots are selected again with the final hyperparameters.
        polish_iterations: Iterations of the final joint optimization of knots and hyperparameters; 0 for none.
        fit_iterations: Iterations of each refit.

    Raises:
        ValueError: If a setting is out of range.

    Example:
        >>> GreedyBlocks(max_knots=0)
        Traceback (most recent call last):
        ...
        ValueError: max_knots must be at least 1, got 0
    """

    max_knots: int = 80
    tolerance: float = 0.01
    gap_tolerance: float = 0.01
    subset_size: int = 150
    reselect: bool = True
    polish_iterations: int = 50
    fit_iterations: int = 60

    def __post_init__(self) -> None:
        check_positive(max_knots=self.max_knots, fit_iterations=self.fit_iterations)
        if min(self.polish_iterations, self.subset_size) < 0 or math.isnan(self.tolerance + self.gap_tolerance):
            raise ValueError(
                f"polish_iterations and subset_size must be at least 0, tolerance and gap_tolerance numbers, got "
                f"{self.polish_iterations}, {self.subset_size}, {self.tolerance} and {self.gap_tolerance}"
            )

    def initial_knots(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Centers of k-means."""
        distinct = len(distinct_rows(X))
        return kmeans_knots(X, min(_FIRST_BLOCK, self.max_knots, distinct), generator=generator)

    def search(self, run: SelectionRun) -> str:
        """Add blocks, again from the initial hyperparameters if they end early, then reselect and polish."""
        start = run.model
        if self.subset_size and has_free_hyperparameters(run.model):
            start = initialize_from_subset(run.model, self.subset_size, run.generator)
        run.model = start.with_knots(start.knots)
        fit_hyperparameters(run.model, max_iterations=self.fit_iterations, tolerance=0.1 * self.tolerance)
        run.record(run.model, "start")
        most = min(self.max_knots, len(distinct_rows(start.train_X)))
        stop_reason = self._grow(run, most)
        if run.model.num_knots < most and self._escape(run, start, most):
            stop_reason = self._grow(run, most)
        if self.reselect and run.model.num_knots > 1:
            self._reselect(run)
        if self.polish_iterations:
            fit_sparse(run.model, knots=True, max_iterations=self.polish_iterations, tolerance=0.01 * self.tolerance)
            run.record(run.model, "polish")
        return stop_reason

    def _grow(self, run: SelectionRun, most: int) -> str:
        """Add blocks until one gains nothing."""
        while run.model.num_knots < most:
            model, before = run.model, run.history[-1].objective
            if model.bound_gap() < self.gap_tolerance:
                return f"the bounds of the log evidence are less than {self.gap_tolerance} nats apart"
            grown, rows = self._extend(run, model, min(model.num_knots, most - model.num_knots))
            if not rows:
                return "no row adds anything"
            value = self._fit(grown)
            if value == -torch.inf:
                return "the objective could not be evaluated with more knots"
            if value - before < self.tolerance:
                return f"{len(rows)} more knots added less than {self.tolerance} nats"
            run.record(grown, "block", rows)
        if most < self.max_knots:
            return f"all {most} distinct rows are knots"
        return f"there are {most} knots, the most allowed"

    def _extend(self, run: SelectionRun, model: SparseGP, num_rows: int) -> tuple[SparseGP, tuple[int, ...]]:
        """A model with at most ``num_rows`` more knots, those with the largest gains, and their rows."""
        rows, _ = greedy_elbo_rows(model, num_rows, num_candidates=_NUM_CANDIDATES, generator=run.generator)
        return model.with_knots(torch.cat([model.knots.detach(), model.train_X[rows]])), tuple(rows.tolist())

    def _fit(self, model: SparseGP) -> float:
        try:
            fit = fit_hyperparameters(model, max_iterations=self.fit_iterations, tolerance=0.1 * self.tolerance)
            return fit.objective
        except NumericalError:
            return -torch.inf

    def _escape(self, run: SelectionRun, start: SparseGP, most: int) -> bool:
        """Select more knots with the initial hyperparameters; kept if the objective is larger."""
        count = min(most, max(2 * run.model.num_knots, 4 * _FIRST_BLOCK))
        other, rows = self._extend(run, start, count - start.num_knots)
        if not self._fit(other) - run.history[-1].objective > max(self.tolerance, self.gap_tolerance, 0.0):
            return False
        run.record(other, "restart", rows)
        return True

    def _reselect(self, run: SelectionRun) -> None:
        """Reselect all knots with the fitted hyperparameters; kept if the objective is larger."""
        model = run.model
        first = model.with_knots(model.knots[:1])
        other, rows = self._extend(run, first, model.num_knots - 1)
        if self._fit(other) > run.history[-1].objective:
            run.record(other, "reselect", rows)
