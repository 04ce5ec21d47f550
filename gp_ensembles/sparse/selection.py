"""How many knots, and where: greedy blocks that double, refits between them, and a polish at the end."""

import time
import warnings
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.sparse.approximations import VFE, Approximation
from gp_ensembles.sparse.checks import check_rows
from gp_ensembles.sparse.fitting import fit_sparse
from gp_ensembles.sparse.greedy import pick_greedily
from gp_ensembles.sparse.model import SparseGP
from gp_ensembles.sparse.placement import kmeans_knots


class Step(NamedTuple):
    """A step of a selection.

    Args:
        what: What was done.
        num_knots: Knots after it.
        objective: Objective after it, in nats.
        upper_bound: Upper bound of the log evidence at the same hyperparameters.
        seconds: Seconds since the beginning.
        rows: Training rows added as knots (none by a refit).
    """

    what: str
    num_knots: int
    objective: float
    upper_bound: float
    seconds: float
    rows: tuple[int, ...] = ()


class Selection(NamedTuple):
    """What a selection found.

    Args:
        knots: Knots, shape (K, D).
        model: The model with them.
        history: What was done, and what it brought.
        why: Why no further knot was added.
    """

    knots: Tensor
    model: SparseGP
    history: tuple[Step, ...]
    why: str


class GreedyBlocks(NamedTuple):
    """Rows of the largest exact gains, in blocks that double, hyperparameters refitted after each.

    Args:
        max_knots: Most knots.
        first: Knots of the first block.
        tolerance: Stop when a block adds less than this, in nats.
        gap: Stop when upper bound and objective are closer than this, in nats.
        candidates: Random rows to choose among; all that fit into memory if ``None``.
        reselect: Whether all knots are chosen again at the final hyperparameters.
        polish: Iterations of moving all knots and hyperparameters together at the end; 0 for none.
        fit_iterations: Iterations of each refit.
    """

    max_knots: int = 80
    first: int = 5
    tolerance: float = 0.01
    gap: float = 0.01
    candidates: int | None = None
    reselect: bool = True
    polish: int = 0
    fit_iterations: int = 60


def select_knots(
    X: Tensor,
    y: Tensor,
    kernel: Kernel,
    likelihood: GaussianLikelihood | None = None,
    *,
    proposal: GreedyBlocks = GreedyBlocks(),  # noqa: B008 (immutable)
    objective: Approximation | None = None,
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> Selection:
    """Choose knots and fit hyperparameters.

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,).
        kernel: Any GPyTorch kernel; its hyperparameters are the start, and change.
        likelihood: Gaussian likelihood; its noise is the start.
        proposal: How knots are chosen.
        objective: The approximation; :class:`VFE` if ``None``.
        progress: Whether to show a progress bar.
        generator: Source of randomness.

    Returns:
        Knots, model and history; after an interruption from the keyboard the best so far, with a warning.

    Raises:
        ValueError: If shapes do not fit, a value is not finite, or targets are constant.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> found = select_knots(X, torch.sin(6.0 * X.squeeze(-1)), ScaleKernel(RBFKernel()), progress=False)
        >>> found.knots.shape[0] <= 50, found.history[-1].objective > found.history[0].objective
        (True, True)
    """
    y = check_rows(X, y)
    _check(proposal)
    if bool((y.amax(0) - y.amin(0)).le(0).any()):
        raise ValueError("the targets are constant; there is nothing to learn from them")
    approximation = VFE() if objective is None else objective
    distinct = torch.unique(X, dim=0).shape[0]
    proposal = proposal._replace(
        first=min(proposal.first, distinct, proposal.max_knots), max_knots=min(proposal.max_knots, distinct)
    )
    start = kmeans_knots(X, proposal.first, generator=generator)
    model = SparseGP(X, y, start, kernel, likelihood, approximation=approximation)
    run = _Run(model)
    try:
        with tqdm(total=proposal.max_knots, disable=not progress, desc="knots") as bar:
            why = _grow(run, proposal, bar, generator)
    except KeyboardInterrupt:
        run.record("interrupted")  # what was being fitted has its best parameters so far
        why = "interrupted"
        warnings.warn(f"interrupted with {run.model.num_knots} knots; the model is the best so far", stacklevel=2)
    return Selection(run.model.knots.detach(), run.model, tuple(run.history), why)


def _check(proposal: GreedyBlocks) -> None:
    smallest = {
        "max_knots": proposal.max_knots,
        "first": proposal.first,
        "fit_iterations": proposal.fit_iterations,
        "candidates": 1 if proposal.candidates is None else proposal.candidates,
    }
    for name, value in smallest.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


class _Run:
    """The model so far, and what was done to it."""

    def __init__(self, model: SparseGP) -> None:
        self.model = model
        self.history: list[Step] = []
        self.clock = time.perf_counter()

    def evidence(self) -> float:
        """The approximation's objective alone, without priors, which is what the upper bound bounds."""
        with torch.no_grad():
            return float(self.model.approximation.objective(self.model.projection()))

    def record(self, what: str, rows: Tensor | None = None) -> Step:
        with torch.no_grad():
            objective, upper = float(self.model.objective()), float(self.model.upper_bound())
        chosen = () if rows is None else tuple(rows.tolist())
        step = Step(what, self.model.num_knots, objective, upper, time.perf_counter() - self.clock, chosen)
        self.history.append(step)
        return step


def _grow(run: _Run, proposal: GreedyBlocks, bar: "tqdm[Any]", generator: torch.Generator | None) -> str:
    fit_sparse(run.model, max_iterations=proposal.fit_iterations)
    before = run.record("start")
    why = f"there are {proposal.max_knots} knots, the most allowed"
    while run.model.num_knots < proposal.max_knots:
        bar.update(run.model.num_knots - bar.n)
        bar.set_postfix_str(f"objective {before.objective:.2f}, at most {before.upper_bound:.2f}")
        if before.upper_bound - run.evidence() < proposal.gap:
            why = f"the bounds of the log evidence are {proposal.gap} nats apart"
            break
        count = min(run.model.num_knots, proposal.max_knots - run.model.num_knots)
        picked = pick_greedily(run.model, count, candidates=proposal.candidates, generator=generator)
        if not len(picked.rows):
            why = "no row adds anything"
            break
        grown = run.model.with_knots(torch.cat([run.model.knots.detach(), run.model.train_X[picked.rows]]))
        fit_sparse(grown, max_iterations=proposal.fit_iterations)
        gain = float(grown.objective().detach()) - before.objective
        if gain < proposal.tolerance:
            why = f"{len(picked.rows)} further knots added less than {proposal.tolerance} nats"
            break
        run.model = grown
        before = run.record("block", picked.rows)
    if proposal.reselect:
        _reselect(run, proposal, generator)
    if proposal.polish:
        fit_sparse(run.model, knots=True, max_iterations=proposal.polish)
        run.record("polish")
    bar.update(run.model.num_knots - bar.n)
    return why


def _reselect(run: _Run, proposal: GreedyBlocks, generator: torch.Generator | None) -> None:
    """All knots once more, at the hyperparameters learned with them; kept if the objective is larger."""
    model = run.model
    first = pick_greedily(
        model.with_knots(model.knots[:1]), model.num_knots - 1, candidates=proposal.candidates, generator=generator
    )
    other = model.with_knots(torch.cat([model.knots[:1].detach(), model.train_X[first.rows]]))
    fit_sparse(other, max_iterations=30)
    if float(other.objective().detach()) > float(model.objective().detach()):
        run.model = other
        run.record("reselect", first.rows)
