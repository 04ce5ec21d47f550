"""Knots one at a time (Garton, Niemi and Carriquiry, 2020): each proposed at fixed hyperparameters, then optimized.

A :data:`KnotProposal` sets the start of the next knot: the best of a random subset of rows, or the best row found by
Bayesian optimization.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.numerics.draws import permutation
from gp_ensembles.papers.sparse.base import check_shape
from gp_ensembles.papers.sparse.collapsed import Projection
from gp_ensembles.papers.sparse.greedy import NEARLY_EXPLAINED, init_candidates, left_open, whiten_rows
from gp_ensembles.papers.sparse.initialization import distinct_rows, kmeans_knots
from gp_ensembles.papers.sparse.regression import SparseGP
from gp_ensembles.papers.sparse.strategies import LBFGSB, KnotOptimizer, SelectionRun, Strategy

_MEMORY = 2**26  # bytes of a table of candidates by data
_LENGTHSCALES = tuple(
    0.02 * 2.0 ** (step / 1.5) for step in range(12)
)  # of the surrogate, relative to the sum of the unit box's sides
_FAR = -1e3  # standardized distance below which the ratio of tails is approximated by its first term
_DIAGONAL, _LEAST = 1e-6, 1e-9  # shares of the surrogate's variance: on the diagonal, and minimum for predictions


def candidate_rows(model: SparseGP) -> Tensor:
    """Training rows that are not knots, without repeated inputs, shape (M,)."""
    X = model.train_X
    rows = distinct_rows(X).sort().values
    among = torch.cat([model.knots.detach(), X[rows]])
    _, label = torch.unique(among, dim=0, return_inverse=True)
    return rows[~torch.isin(label[model.num_knots :], label[: model.num_knots])]


@torch.no_grad()
def candidate_objectives(model: SparseGP) -> Callable[[Tensor], Tensor]:
    """The objective in nats with each of some rows (M,) as the only additional knot; shared terms are precomputed."""
    projection, X = model.projection(), model.train_X
    base = model.objective()
    log_priors = base - model.approximation.objective(projection)  # the same with and without the knot
    delta = model.nugget_variance(model.kernel_matrix(model.knots, model.knots))
    white = whiten_rows(projection)

    def chunk(C: Tensor) -> Tensor:
        prior = model.kernel_diagonal(C) + delta
        loadings, covariance, variance = left_open(
            projection, model.kernel_matrix(model.knots, C), model.kernel_matrix(C, X), prior
        )
        floor = NEARLY_EXPLAINED * prior.max()
        if model.approximation.has_trace:
            gains = init_candidates(projection, white, covariance, variance, floor).gains()
            return torch.where(variance > floor, base + gains, -torch.inf)
        return torch.stack([with_knot(*parts, floor) for parts in zip(loadings.mT, variance, covariance, strict=True)])

    def with_knot(loading: Tensor, variance: Tensor, covariance: Tensor, floor: Tensor) -> Tensor:
        nothing = torch.full_like(variance, -torch.inf)
        if not bool(variance > floor):
            return nothing
        try:
            larger = _extend(projection, loading, variance.sqrt(), covariance)
            value = model.approximation.objective(larger) + log_priors
        except NumericalError:
            return nothing
        return torch.where(value.isfinite(), value, nothing)

    @torch.no_grad()
    def objectives(rows: Tensor) -> Tensor:
        size = max(1, _MEMORY // (X.element_size() * X.shape[0]))
        return torch.cat([chunk(X[part]) for part in rows.split(size)]) if len(rows) else X.new_zeros(0)

    return objectives


def _extend(projection: Projection, loading: Tensor, deviation: Tensor, covariance: Tensor) -> Projection:
    """A projection with one more knot, from its last Cholesky row and its remaining covariances."""
    v = covariance / deviation
    wider = torch.cat([projection.lower, torch.zeros_like(loading).unsqueeze(-1)], -1)
    lower = torch.cat([wider, torch.cat([loading, deviation.reshape(1)]).unsqueeze(0)])
    projected = torch.cat([projection.projected, v.unsqueeze(0)])
    return projection._replace(lower=lower, projected=projected, explained=projection.explained + v.square())


@final
@dataclass(frozen=True)
class RandomSubset:
    """The best of a random subset of the rows (Titsias, 2009).

    Args:
        num_rows: Number of rows in the subset; all if ``None``.

    Raises:
        ValueError: If the subset is empty.

    Example:
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[:1], ScaleKernel(RBFKernel()))
        >>> rows, objectives = RandomSubset(10).propose(model)
        >>> rows.shape, bool(objectives.max() > model.objective())
        (torch.Size([10]), True)
    """

    num_rows: int | None = 40

    def __post_init__(self) -> None:
        if self.num_rows is not None and self.num_rows < 1:
            raise ValueError(f"num_rows must be at least 1, got {self.num_rows}")

    def propose(self, model: SparseGP, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Rows that are not knots, shape (n,), and the objective with each as an additional knot, shape (n,)."""
        rows = _shuffle(candidate_rows(model), generator)[: self.num_rows]
        return rows, candidate_objectives(model)(rows)


@final
@dataclass(frozen=True)
class BayesianOptimization:
    r"""Bayesian optimization over the rows (Garton, Niemi and Carriquiry, 2020), if it helps.

    The objective at some random rows is learned by a Gaussian process with an exponential kernel; then, repeatedly,
    the row with the largest expected improvement is evaluated and learned. No row is evaluated twice: the
    objective has no noise. The process has a closed form: its mean is the average, its variance that of maximum
    likelihood, its lengthscale the best of a dozen.

    Under ``VFE`` the objectives of all rows cost less than a search among them, as long as a table of rows by
    rows fits into memory: then all are evaluated, and the best row is exact.

    Args:
        num_initial: Number of initial random rows.
        num_evaluations: Total number of rows evaluated.
        all_if_cheap: Whether to evaluate all rows if that costs less than the search; ``False`` is as published.

    Raises:
        ValueError: If ``num_initial`` is below two or above ``num_evaluations``.

    Example:
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> from gp_ensembles.papers.sparse import FIC
        >>> y = torch.sin(6.0 * X.squeeze(-1))
        >>> model = SparseGP(X, y, X[:1], ScaleKernel(RBFKernel()), approximation=FIC)
        >>> rows, objectives = BayesianOptimization(num_initial=3, num_evaluations=6).propose(model)
        >>> rows.shape, bool(objectives.max() > model.objective())
        (torch.Size([6]), True)
    """

    num_initial: int = 5
    num_evaluations: int = 40
    all_if_cheap: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        if not 2 <= self.num_initial <= self.num_evaluations:
            raise ValueError(
                f"num_initial must be at least 2 and at most num_evaluations, got {self.num_initial} of "
                f"{self.num_evaluations}"
            )

    def propose(self, model: SparseGP, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """The rows evaluated, in order, shape (n,), and the objective with each as an additional knot, shape (n,)."""
        left = _shuffle(candidate_rows(model), generator)
        objective = candidate_objectives(model)
        if self.all_if_cheap and _all_are_cheap(model, left):
            return left, objective(left)
        rows, left = left[: self.num_initial], left[self.num_initial :]
        values = objective(rows)
        least, most = model.train_X.amin(0), model.train_X.amax(0)
        X = (model.train_X - least) / torch.where(most > least, most - least, 1.0)
        while len(rows) < self.num_evaluations and len(left):
            at = int(log_expected_improvement(X[rows], values, X[left]).argmax())
            rows = torch.cat([rows, left[at : at + 1]])
            left = torch.cat([left[:at], left[at + 1 :]])
            values = torch.cat([values, objective(rows[-1:])])
        return rows, values


KnotProposal = RandomSubset | BayesianOptimization


def _all_are_cheap(model: SparseGP, rows: Tensor) -> bool:
    if not model.approximation.has_trace:
        return False
    return len(rows) * model.train_X.shape[0] * model.train_X.element_size() <= _MEMORY


@torch.no_grad()
def log_expected_improvement(
    X: Tensor, values: Tensor, candidates: Tensor, scales: tuple[float, float] | None = None
) -> Tensor:
    """Log expected improvement over the best value, by a noise-free Gaussian process, shape (M,).

    Shapes: ``X`` (n, D), ``values`` (n,), ``candidates`` (M, D).
    """
    finite = values[values.isfinite()]
    if not len(finite) or not bool(finite.amax() > finite.amin()):
        return torch.zeros_like(candidates[:, 0])
    known = torch.where(values.isfinite(), values, finite.amin())
    scaled = ((known - known.mean()) / known.std()).unsqueeze(-1)
    apart = torch.cdist(X, X, p=1.0)
    lengthscales = X.new_tensor(_LENGTHSCALES if scales is None else scales[1:]) * (
        len(X[0]) ** 0.5 if scales is None else 1.0
    )
    own = (-apart / lengthscales[:, None, None]).exp() + _DIAGONAL * torch.diag_embed(torch.ones_like(scaled[:, 0]))
    factors = cholesky(own, "the covariance of the evaluated rows")
    whitened = torch.linalg.solve_triangular(factors, scaled, upper=False)  # (L, n, 1)
    variance = whitened.square().mean((-2, -1))
    likelihood = -0.5 * len(X) * variance.log() - factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    best = int(likelihood.argmax())
    deviation = variance[best].sqrt() if scales is None else variance.new_tensor(scales[0])
    between = (-torch.cdist(X, candidates, p=1.0) / lengthscales[best]).exp()
    loadings = torch.linalg.solve_triangular(factors[best], between, upper=False)
    mean = (whitened[best].mT @ loadings).squeeze(0)
    spread = deviation * (1.0 - loadings.square().sum(0)).clamp_min(_LEAST).sqrt()
    gain: Tensor = spread.log() + log_improvement((mean - scaled.amax()) / spread)
    return gain


def log_improvement(u: Tensor) -> Tensor:
    r"""The logarithm of :math:`\varphi(u) + u \Phi(u)`, accurate even far below zero (Ament et al., 2023)."""
    log_density = -0.5 * u.square() - 0.5 * math.log(2.0 * math.pi)
    near = u.clamp_min(-1.0)
    above = (log_density.exp() + near * torch.special.ndtr(near)).clamp_min(_LEAST).log()
    below = u.clamp_max(-1.0)
    ratio = (math.sqrt(0.5 * math.pi) * torch.special.erfcx(-below / math.sqrt(2.0)) * below + 1.0).clamp_min(0.0)
    tail = torch.where(below < _FAR, -2.0 * below.abs().log(), ratio.log())
    logarithm: Tensor = torch.where(u > -1.0, above, log_density + tail)
    return logarithm


def _shuffle(rows: Tensor, generator: torch.Generator | None) -> Tensor:
    return rows[permutation(len(rows), generator).to(rows.device)]


@final
@dataclass(frozen=True)
class OneAtATime(Strategy):
    """The one-at-a-time algorithm of Garton, Niemi and Carriquiry (2020), OAT.

    Hyperparameters are fitted with the first knots, which never move; the prior mean is fixed. Then a row is
    proposed as a knot, and this knot and the hyperparameters are optimized jointly, all older ones fixed; the first
    that does not gain more than the tolerance is dropped, and ends the selection. With
    :class:`~gp_ensembles.papers.sparse.BayesianOptimization` this is OAT-BO, with
    :class:`~gp_ensembles.papers.sparse.RandomSubset` OAT-RS.

    Args:
        proposal: Proposal of the next knot's start; by default the best of 40 random rows.
        optimizer: Optimizer of the new knot and the hyperparameters; L-BFGS by default, the published one is
            :class:`~gp_ensembles.papers.sparse.Adadelta`.
        start: Number of first knots, which are k-means centers; or these knots, shape (K, D).
        max_knots: Maximum number of knots.
        tolerance: Minimum gain of a knot, in nats.

    Raises:
        ValueError: If there is no first knot, or there are more than ``max_knots``.

    Example:
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.papers.sparse import select_knots
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(6.0 * X.squeeze(-1))
        >>> strategy = OneAtATime(RandomSubset(10), start=2, max_knots=4)
        >>> found = select_knots(X, y, ScaleKernel(RBFKernel()), strategy=strategy)
        >>> found.knots.shape, [step.action for step in found.history]
        (torch.Size([4, 1]), ['start', 'knot', 'knot'])
    """

    proposal: KnotProposal = field(default_factory=RandomSubset)
    optimizer: KnotOptimizer = field(default_factory=LBFGSB)
    start: int | Tensor = 5
    max_knots: int = 80
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        least = self.start if isinstance(self.start, int) else len(self.start)
        if least < 1 or self.max_knots < least:
            raise ValueError(f"the number of initial knots must be between 1 and {self.max_knots}, got {least}")

    def initial_knots(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Given knots, or k-means centers."""
        if isinstance(self.start, int):
            return kmeans_knots(X, min(self.start, len(distinct_rows(X))), generator=generator)
        check_shape(X, self.start)
        return self.start

    def search(self, run: SelectionRun) -> str:
        """Add knots one by one; the run's model changes only when a knot is accepted."""
        moving = [parameter.requires_grad for parameter in run.model.mean_module.parameters()]
        run.model.mean_module.requires_grad_(False)
        try:
            return self._search(run)
        finally:
            for parameter, moves in zip(run.model.mean_module.parameters(), moving, strict=True):
                parameter.requires_grad_(moves)

    def _search(self, run: SelectionRun) -> str:
        fitted = run.model.with_knots(run.model.knots)
        self.optimizer.optimize(fitted)
        run.record(fitted, "start")
        distinct = len(distinct_rows(run.model.train_X))
        most = min(self.max_knots, distinct)
        while run.model.num_knots < most:
            failure = self._add(run)
            if failure is not None:
                return failure
        all_rows = f"all {most} distinct rows have a knot"
        return f"there are {most} knots, the most allowed" if most == self.max_knots else all_rows

    def _add(self, run: SelectionRun) -> str | None:
        """Add a knot, or return why there is none."""
        model = run.model
        try:
            rows, objectives = self.proposal.propose(model, generator=run.generator)
            if not len(rows):
                return "every row is a knot"
            best = int(objectives.argmax())
            if not bool(objectives[best].isfinite()):
                raise NumericalError(
                    "the objective could not be evaluated at any proposed row; use a larger nugget or noise"
                )
            row = int(rows[best])
            grown = model.with_knots(torch.cat([model.knots.detach(), model.train_X[row : row + 1]]))
            reached = self.optimizer.optimize(grown, slice(model.num_knots, None)).objective
        except NumericalError as error:
            return f"another knot could not be evaluated: {error}"
        if not reached - run.history[-1].objective > self.tolerance:
            return f"another knot added no more than {self.tolerance} nats"
        run.record(grown, "knot", (row,))
        return None
