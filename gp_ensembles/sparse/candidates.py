"""What the objective would be with a row as a further knot, whatever the approximation."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.approximations import VFE
from gp_ensembles.sparse.base import KnotModel
from gp_ensembles.sparse.collapsed import Projection, condition
from gp_ensembles.sparse.gains import NEARLY_EXPLAINED, Candidates
from gp_ensembles.sparse.model import SparseGP
from gp_ensembles.sparse.placement import distinct_rows

_MEMORY = 2**26  # bytes of a table of candidates and data


def candidate_rows(model: KnotModel) -> Tensor:
    """Training rows that are no knots, each distinct input once, shape (M,).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.tensor([[0.0], [1.0], [0.0], [2.0], [1.0]], dtype=torch.float64)
        >>> candidate_rows(SparseGP(X, X.squeeze(-1), X[1:2], RBFKernel()))
        tensor([0, 3])
    """
    X = model.train_X
    rows = distinct_rows(X, 1).sort().values
    among = torch.cat([model.knots.detach(), X[rows]])
    _, label = torch.unique(among, dim=0, return_inverse=True)
    return rows[~torch.isin(label[model.num_knots :], label[: model.num_knots])]


def candidate_objectives(model: KnotModel) -> Callable[[Tensor], Tensor]:
    """A function from rows (M,) to the model's objectives in nats with each alone as a further knot, shape (M,).

    Where a likelihood is not normal a knot changes what every row has left open, so that an objective has no shortcut.

    Args:
        model: The model; it must not change while the function is used.

    Raises:
        NumericalError: If the model's own objective cannot be evaluated.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from gp_ensembles.likelihoods import LogisticLikelihood
        >>> from gp_ensembles.sparse import SparseLaplaceGP
        >>> X = torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseLaplaceGP(X, (X > 0.4).double(), X[::10], RBFKernel(), LogisticLikelihood())
        >>> candidate_objectives(model)(torch.tensor([3, 7])).shape
        torch.Size([2])
    """
    if isinstance(model, SparseGP):
        return CandidateObjectives(model).at
    return partial(_evaluate, model)


@torch.no_grad()
def _evaluate(model: KnotModel, rows: Tensor) -> Tensor:
    values = model.train_y.new_full((len(rows),), -torch.inf)
    for place, row in enumerate(rows.tolist()):
        other = model.with_knots(torch.cat([model.knots, model.train_X[row : row + 1]]))
        try:
            value = other.objective()
        except NumericalError:
            continue
        values[place] = torch.where(value.isfinite(), value, -torch.inf)
    return values


class CandidateObjectives:
    """A model's objective with each of some rows alone as a further knot; what all rows share is computed once.

    By the exact gains for VFE, in O(M N K); one by one for others, in O(M N K^2), the knots' factor being extended. The
    nugget is that of the knots so far. A row that the knots explain, or whose objective cannot be evaluated, has -inf.

    Args:
        model: The model; it must not change while this is used.

    Raises:
        NumericalError: If the model's own objective cannot be evaluated.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[:1], RBFKernel())
        >>> added = model.with_knots(X[[0, 30]]).objective()
        >>> bool((CandidateObjectives(model).at(torch.tensor([30])) - added).abs() < 1e-9)
        True
    """

    @torch.no_grad()
    def __init__(self, model: SparseGP) -> None:
        self.model = model
        self._projection = projection = model.projection()
        self._base = model.objective()
        # Priors of hyperparameters are the same with and without the knot.
        self._beside = self._base - model.approximation.objective(projection)
        self._delta = model.delta(model.kernel_matrix(model.knots, model.knots))
        posterior = condition(projection, projection.noise.expand_as(projection.residual))
        self._white = torch.linalg.solve_triangular(posterior.factor, projection.projected, upper=False)  # (K, N)

    @torch.no_grad()
    def at(self, rows: Tensor) -> Tensor:
        """The objective in nats with each of the rows, shape (M,)."""
        X = self.model.train_X
        size = max(1, _MEMORY // (X.element_size() * X.shape[0]))
        return torch.cat([self._chunk(X[chunk]) for chunk in rows.split(size)]) if len(rows) else X.new_zeros(0)

    def _chunk(self, C: Tensor) -> Tensor:
        model, projection = self.model, self._projection
        loadings = torch.linalg.solve_triangular(
            projection.lower, model.kernel_matrix(model.knots, C), upper=False
        )  # (K, M)
        prior = model.kernel_diagonal(C) + self._delta
        variance = prior - loadings.square().sum(0)
        covariance = model.kernel_matrix(C, model.train_X) - loadings.mT @ projection.projected
        floor = NEARLY_EXPLAINED * prior.max()
        if isinstance(model.approximation, VFE):
            noise = projection.noise
            weighted = (covariance - (covariance @ self._white.mT) @ self._white / noise) / noise
            gains = Candidates(covariance, weighted, variance, projection.residual, noise, floor).gains()
            return torch.where(variance > floor, self._base + gains, -torch.inf)
        return torch.stack([self._with(*parts, floor) for parts in zip(loadings.mT, variance, covariance, strict=True)])

    def _with(self, loading: Tensor, variance: Tensor, covariance: Tensor, floor: Tensor) -> Tensor:
        nothing = torch.full_like(variance, -torch.inf)
        if not bool(variance > floor):
            return nothing
        try:
            larger = _extend(self._projection, loading, variance.sqrt(), covariance)
            value = self.model.approximation.objective(larger) + self._beside
        except NumericalError:
            return nothing
        return torch.where(value.isfinite(), value, nothing)


def _extend(projection: Projection, loading: Tensor, deviation: Tensor, covariance: Tensor) -> Projection:
    """A projection with a further knot, from its last row of the Cholesky factor and its remaining covariances."""
    v = covariance / deviation
    wider = torch.cat([projection.lower, torch.zeros_like(loading).unsqueeze(-1)], -1)
    lower = torch.cat([wider, torch.cat([loading, deviation.reshape(1)]).unsqueeze(0)])
    projected = torch.cat([projection.projected, v.unsqueeze(0)])
    return projection._replace(lower=lower, projected=projected, explained=projection.explained + v.square())
