"""Where the next knot starts: the best of a random subset of the rows, or Bayesian optimization over them."""

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import NamedTuple

import torch
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.base import KnotModel
from gp_ensembles.sparse.candidates import candidate_objectives, candidate_rows

_POINTS = 4096  # points at which the surrogate predicts at a time


class Proposed(NamedTuple):
    """A row to start the next knot at.

    Args:
        row: The row of the training inputs.
        objective: The model's objective with the row as a further knot, in nats.
        evaluated: Rows at which the objective was evaluated, in order, shape (n,).
        objectives: The objective there, in nats, shape (n,).
    """

    row: int
    objective: float
    evaluated: Tensor
    objectives: Tensor


class KnotProposal(ABC):
    """A way to find the row at which the next knot starts, at fixed hyperparameters."""

    @abstractmethod
    def propose(self, model: KnotModel, *, generator: torch.Generator | None = None) -> Proposed | None:
        """The row that was found best, or ``None`` if every row is a knot already.

        Args:
            model: The model, which is not changed.
            generator: Source of randomness.
        """


class RandomSubset(KnotProposal):
    """The best of a random subset of the rows (Titsias, 2009).

    Args:
        count: Rows in the subset; all if ``None``.

    Raises:
        ValueError: If the subset is empty.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> from gp_ensembles.sparse import SparseGP
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[:1], ScaleKernel(RBFKernel()))
        >>> found = RandomSubset(10).propose(model)
        >>> found.evaluated.shape, found.objective > float(model.objective().detach())
        (torch.Size([10]), True)
    """

    def __init__(self, count: int | None = 40) -> None:
        if count is not None and count < 1:
            raise ValueError(f"the subset must have a row at least, got {count}")
        self.count = count

    def propose(self, model: KnotModel, *, generator: torch.Generator | None = None) -> Proposed | None:
        """The best of the subset."""
        rows = _shuffle(candidate_rows(model), generator)[: self.count]
        return _best(rows, candidate_objectives(model)(rows)) if len(rows) else None


class BayesianOptimization(KnotProposal):
    r"""Bayesian optimization over the rows (Garton, Niemi and Carriquiry, 2020), with BoTorch.

    The objective at some random rows is learned by a Gaussian process; then, again and again, the row of the largest
    expected improvement is evaluated and learned. No row is evaluated twice: the objective has no noise. The
    surrogate's hyperparameters are fitted when the evaluations have grown by ``refit_factor`` since the last fit.

    Args:
        first: Random rows to begin with.
        count: Rows evaluated in all.
        kernel: The surrogate's kernel, hyperparameters and priors included, of inputs scaled to [0, 1]; a copy is
            fitted. The exponential kernel (Matern-1/2) if ``None``.
        refit_factor: Growth of the evaluations between fits; 1 for a fit after every evaluation, as published.

    Raises:
        ValueError: If fewer than two rows come first, more than there are in all, or the factor is less than 1.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> from gp_ensembles.sparse import SparseGP
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[:1], ScaleKernel(RBFKernel()))
        >>> found = BayesianOptimization(first=3, count=6).propose(model)
        >>> found.evaluated.shape, found.objective == found.objectives.max()
        (torch.Size([6]), tensor(True))
    """

    def __init__(
        self, first: int = 5, count: int = 40, kernel: Kernel | None = None, refit_factor: float = 2.0
    ) -> None:
        if not 2 <= first <= count:
            raise ValueError(f"two rows at least come first, and no more than in all, got {first} of {count}")
        if not refit_factor >= 1.0:
            raise ValueError(f"evaluations between fits must grow by a factor of at least 1, got {refit_factor}")
        self.first, self.count, self.kernel, self.refit_factor = first, count, kernel, refit_factor

    def propose(self, model: KnotModel, *, generator: torch.Generator | None = None) -> Proposed | None:
        """The best row evaluated."""
        left = _shuffle(candidate_rows(model), generator)
        if not len(left):
            return None
        rows, left = left[: self.first], left[self.first :]
        objective = candidate_objectives(model)
        values = objective(rows)
        X = _to_unit_box(model.train_X)
        kernel = ScaleKernel(MaternKernel(nu=0.5)) if self.kernel is None else deepcopy(self.kernel)
        next_fit = float(len(rows))
        while len(rows) < self.count and len(left):
            fit = len(rows) >= next_fit
            next_fit = len(rows) * self.refit_factor if fit else next_fit
            gain = log_expected_improvement(X[rows], values, X[left], kernel, fit=fit)
            at = int(gain.argmax())
            rows = torch.cat([rows, left[at : at + 1]])
            left = torch.cat([left[:at], left[at + 1 :]])
            values = torch.cat([values, objective(rows[-1:])])
        return _best(rows, values)


def log_expected_improvement(X: Tensor, values: Tensor, candidates: Tensor, kernel: Kernel, *, fit: bool) -> Tensor:
    """Log expected improvement over the best value, by a Gaussian process without noise, shape (M,).

    Args:
        X: Evaluated points, shape (n, D).
        values: Values there, shape (n,); those that are not finite count as the least finite one.
        candidates: Points, shape (M, D).
        kernel: The kernel, whose hyperparameters are those of standardized values.
        fit: Whether hyperparameters are fitted first, in place, from where they are.

    Example:
        >>> import torch
        >>> X = torch.tensor([[0.0], [0.4], [1.0]], dtype=torch.float64)
        >>> kernel = ScaleKernel(MaternKernel(nu=0.5))
        >>> gain = log_expected_improvement(X, X.squeeze(-1), X[:2] + 0.3, kernel, fit=False)
        >>> bool(gain[1] > gain[0])
        True
    """
    finite = values[values.isfinite()]
    if not len(finite) or not bool(finite.amax() > finite.amin()):
        return torch.zeros_like(candidates[:, 0])
    known = torch.where(values.isfinite(), values, finite.amin())
    deviation = known.std()
    scaled = ((known - known.mean()) / deviation).unsqueeze(-1)
    # The least noise that keeps the covariance well conditioned; the objective itself has none.
    surrogate = SingleTaskGP(
        X, scaled, train_Yvar=torch.full_like(scaled, 1e-6), covar_module=kernel, outcome_transform=None
    )
    if fit:
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(surrogate.likelihood, surrogate),
            optimizer_kwargs={"options": {"maxiter": 30}, "timeout_sec": None},
        )
    surrogate.eval()
    with torch.no_grad():
        improvement = LogExpectedImprovement(surrogate, best_f=scaled.amax())
        # Each point is a batch of its own, with its own copy of the surrogate's covariance: not all at once.
        return torch.cat([improvement(part.unsqueeze(-2)) for part in candidates.split(_POINTS)])


def _shuffle(rows: Tensor, generator: torch.Generator | None) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator, device="cpu").to(rows.device)]


def _best(rows: Tensor, objectives: Tensor) -> Proposed:
    best = int(objectives.argmax())
    if not bool(objectives[best].isfinite()):
        raise NumericalError("the objective could not be evaluated at any proposed row; use a larger nugget or noise")
    return Proposed(int(rows[best]), float(objectives[best]), rows, objectives)


def _to_unit_box(X: Tensor) -> Tensor:
    least, most = X.amin(0), X.amax(0)
    return (X - least) / torch.where(most > least, most - least, 1.0)
