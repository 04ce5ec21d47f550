"""How many knots, and where, when targets are not normal: one at a time, the best of a random subset of rows."""

import time
import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.fitting import fit_sparse
from gp_ensembles.sparse.laplace_model import SparseLaplaceGP
from gp_ensembles.sparse.placement import distinct_rows


class LaplaceStep(NamedTuple):
    """A step of a selection.

    Args:
        what: What was done: "start", "knot" or "polish".
        num_knots: Knots after it.
        objective: Objective after it, in nats.
        seconds: Seconds since the beginning.
        row: The training row that was proposed as a knot, if one was.
    """

    what: str
    num_knots: int
    objective: float
    seconds: float
    row: int | None = None


class LaplaceSelection(NamedTuple):
    """What a selection found.

    Args:
        knots: Knots, shape (K, D).
        model: The model with them.
        history: What was done, and what it brought.
        why: Why no further knot was added.
    """

    knots: Tensor
    model: SparseLaplaceGP
    history: tuple[LaplaceStep, ...]
    why: str


class SubsetSearch(NamedTuple):
    """The best of some random rows becomes a knot, then it and the hyperparameters are refitted.

    Args:
        max_knots: Most knots.
        candidates: Random rows to choose among, for each knot.
        tolerance: Stop when a knot adds less than this, in nats.
        move: Whether the new knot moves in its refit; older ones stay.
        fit_iterations: Iterations of each refit.
        polish: Iterations of moving all knots and hyperparameters together at the end; 0 for none.
    """

    max_knots: int = 40
    candidates: int = 32
    tolerance: float = 0.01
    move: bool = True
    fit_iterations: int = 30
    polish: int = 0


def select_laplace_knots(
    model: SparseLaplaceGP,
    *,
    proposal: SubsetSearch = SubsetSearch(),  # noqa: B008 (immutable)
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> LaplaceSelection:
    """Choose knots and fit hyperparameters by Laplace's log evidence.

    A knot changes what every row has left open, so that its gain has no shortcut: a candidate costs an objective,
    O(N K^2), its mode sought from the last one.

    Args:
        model: The model to start from, which stays as it is: its knots are the first, from
            :func:`~gp_ensembles.sparse.placement.kmeans_knots`, say.
        proposal: How knots are chosen.
        progress: Whether to show a progress bar.
        generator: Source of randomness.

    Returns:
        Knots, model and history; after an interruption from the keyboard the best so far, with a warning.

    Raises:
        ValueError: If the proposal cannot choose anything.
        NumericalError: If the objective cannot be evaluated at the start.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.likelihoods import LogPoissonLikelihood
        >>> X = torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1)
        >>> counts = (5.0 + 5.0 * torch.sin(12.0 * X)).round()
        >>> model = SparseLaplaceGP(X, counts, X[::10], ScaleKernel(RBFKernel()), LogPoissonLikelihood())
        >>> found = select_laplace_knots(model, proposal=SubsetSearch(max_knots=5, fit_iterations=5), progress=False)
        >>> found.knots.shape[0] <= 5, found.history[-1].objective >= found.history[0].objective
        (True, True)
    """
    _check(proposal)
    run = _Run(model.with_knots(model.knots))
    try:
        with tqdm(total=proposal.max_knots, disable=not progress, desc="knots") as bar:
            fit_sparse(run.model, max_iterations=proposal.fit_iterations)
            run.keep(run.model, "start")
            why = None
            while why is None:
                bar.update(run.model.num_knots - bar.n)
                bar.set_postfix_str(f"objective {run.history[-1].objective:.2f}")
                why = _add_knot(run, proposal, generator)
            if proposal.polish:
                fit_sparse(run.model, knots=True, max_iterations=proposal.polish)
                run.keep(run.model, "polish")
    except KeyboardInterrupt:
        if not run.history:
            raise
        why = "interrupted"
        warnings.warn(f"interrupted with {run.model.num_knots} knots; the model is the best so far", stacklevel=2)
    return LaplaceSelection(run.model.knots.detach(), run.model, tuple(run.history), why)


class _Run:
    """The model so far, what was done to it, and the rows that may still become knots."""

    def __init__(self, model: SparseLaplaceGP) -> None:
        self.model = model
        self.history: list[LaplaceStep] = []
        self.free = distinct_rows(model.train_X, 1)
        is_knot = (model.train_X[self.free, None, :] == model.knots.detach()).all(-1).any(-1)
        self.free = self.free[~is_knot]
        self.clock = time.perf_counter()

    def keep(self, model: SparseLaplaceGP, what: str, row: int | None = None) -> None:
        with torch.no_grad():
            objective = float(model.objective())
        self.model = model
        self.history.append(LaplaceStep(what, model.num_knots, objective, time.perf_counter() - self.clock, row))


def _add_knot(run: _Run, proposal: SubsetSearch, generator: torch.Generator | None) -> str | None:
    """Add one knot, or say why not."""
    if run.model.num_knots >= proposal.max_knots:
        return f"there are {run.model.num_knots} knots, the most allowed"
    order = torch.randperm(len(run.free), generator=generator, device="cpu")[: proposal.candidates]
    rows = run.free[order.to(run.free.device)]
    if not len(rows):
        return "every distinct row is a knot"
    values = subset_objectives(run.model, rows)
    best = int(values.argmax())
    if not bool(values[best].isfinite()):
        return "no objective could be evaluated with a further knot"
    row = int(rows[best])
    old = run.model.knots.detach()
    grown = run.model.with_knots(torch.cat([old, run.model.train_X[row : row + 1]]))
    new = slice(len(old), None) if proposal.move else False
    try:
        fit_sparse(grown, knots=new, max_iterations=proposal.fit_iterations)
    except NumericalError:
        return "the objective could not be evaluated with a further knot"
    with torch.no_grad():
        gain = float(grown.objective()) - run.history[-1].objective
    if not gain >= proposal.tolerance:
        return f"a further knot added less than {proposal.tolerance} nats"
    run.free = run.free[run.free != row]
    run.keep(grown, "knot", row)
    return None


@torch.no_grad()
def subset_objectives(model: SparseLaplaceGP, rows: Tensor) -> Tensor:
    """The model's objective with each of some training rows as a further knot, hyperparameters as they are.

    Args:
        model: The model, which stays as it is.
        rows: Training rows, shape (M,).

    Returns:
        Objectives, shape (M,); minus infinity where one cannot be evaluated.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from gp_ensembles.likelihoods import LogisticLikelihood
        >>> X = torch.linspace(0, 1, 30, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseLaplaceGP(X, (X > 0.4).double(), X[::10], RBFKernel(), LogisticLikelihood())
        >>> subset_objectives(model, torch.tensor([3, 7])).shape
        torch.Size([2])
    """
    values = model.train_y.new_full((len(rows),), -torch.inf)
    for place, row in enumerate(rows.tolist()):
        try:
            values[place] = model.objective(torch.cat([model.knots, model.train_X[row : row + 1]]))
        except NumericalError:
            continue
    return values


def _check(proposal: SubsetSearch) -> None:
    if proposal.max_knots < 1 or proposal.candidates < 1 or proposal.fit_iterations < 1 or proposal.polish < 0:
        raise ValueError(f"numbers of knots, candidates and iterations must be positive, got {proposal}")
    if not proposal.tolerance >= 0.0:
        raise ValueError(f"the tolerance must not be negative, got {proposal.tolerance}")
