"""How many knots, and where, for a stochastic variational Gaussian process of any targets."""

import time
import warnings
from typing import Any, NamedTuple

import torch
from botorch.models.approximate_gp import SingleTaskVariationalGP
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.checks import check_positive, check_rows
from gp_ensembles.sparse.fitting import fit_sparse
from gp_ensembles.sparse.local_picks import pick_locally
from gp_ensembles.sparse.placement import distinct_rows, kmeans_knots
from gp_ensembles.sparse.variational_model import SparseVariationalGP


class VariationalStep(NamedTuple):
    """A step of a selection.

    Args:
        what: What was done: "start", "block", "again", "reselect", "polish" or "interrupted".
        num_knots: Knots after it.
        objective: Evidence lower bound of all rows after it, log densities of priors included, in nats.
        seconds: Seconds since the beginning.
        rows: Training rows added as knots.
    """

    what: str
    num_knots: int
    objective: float
    seconds: float
    rows: tuple[int, ...] = ()


class VariationalSelection(NamedTuple):
    """What a selection found.

    Args:
        knots: Knots, shape (K, D).
        model: BoTorch's variational GP with them, ready to predict, or to be trained further.
        history: What was done, and what it brought.
        why: Why no further knot was added.
    """

    knots: Tensor
    model: SingleTaskVariationalGP
    history: tuple[VariationalStep, ...]
    why: str


class VariationalBlocks(NamedTuple):
    """Rows of the largest local gains, in blocks that double, hyperparameters refitted after each.

    Where blocks end early, more knots are chosen anew at the hyperparameters of the start, once.

    Args:
        max_knots: Most knots.
        first: Knots of the first block.
        tolerance: Stop when a block adds less than this, in nats.
        candidates: Random rows to choose among, as far as they fit into memory.
        batch_size: Rows handled at a time, which bounds the memory that gradients take.
        fit_iterations: Iterations of each refit.
        reselect: Whether all knots are chosen again at the final hyperparameters.
        polish: Iterations of moving all knots and hyperparameters together at the end; 0 for none.
    """

    max_knots: int = 80
    first: int = 5
    tolerance: float = 0.01
    candidates: int = 1000
    batch_size: int = 10_000
    fit_iterations: int = 30
    reselect: bool = True
    polish: int = 0


def select_variational_knots(
    X: Tensor,
    y: Tensor,
    kernel: Kernel,
    likelihood: Likelihood,
    *,
    mean: Mean | None = None,
    proposal: VariationalBlocks = VariationalBlocks(),  # noqa: B008 (immutable)
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> VariationalSelection:
    """Choose knots and fit hyperparameters by the evidence lower bound of a variational GP.

    The likelihood is replaced by the normal sites of its best posterior, under which the gain of each candidate is
    exact; the bound itself decides whether the chosen ones stay.

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,) or (N, 1), floating point.
        kernel: Any GPyTorch kernel; its hyperparameters are the start, and change.
        likelihood: GPyTorch's Gaussian likelihood, or any of one latent value; its parameters are learned, too.
        mean: Prior mean; a trainable constant that starts where it alone explains the targets best if ``None``.
        proposal: How knots are chosen.
        progress: Whether to show a progress bar.
        generator: Source of randomness.

    Returns:
        Knots, model and history; after an interruption from the keyboard the best so far, with a warning.

    Raises:
        ValueError: If shapes do not fit, a value is not finite, targets are constant or not possible under the
            likelihood, or the likelihood has latent vectors or a noise for each row.
        NumericalError: If the bound cannot be evaluated at the start.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.likelihoods import LogPoissonLikelihood
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> counts = (5.0 + 5.0 * torch.sin(12.0 * X)).round()
        >>> proposal = VariationalBlocks(max_knots=10, fit_iterations=5)
        >>> found = select_variational_knots(
        ...     X, counts, ScaleKernel(RBFKernel()), LogPoissonLikelihood(), proposal=proposal, progress=False
        ... )
        >>> found.model.posterior(X[:3]).mean.shape, found.history[-1].objective > found.history[0].objective
        (torch.Size([3, 1]), True)
    """
    y = check_rows(X, y)
    _check(proposal)
    if bool(y.amax() <= y.amin()):
        raise ValueError("the targets are constant; there is nothing to learn from them")
    distinct = len(distinct_rows(X, 1))
    proposal = proposal._replace(
        first=min(proposal.first, distinct, proposal.max_knots), max_knots=min(proposal.max_knots, distinct)
    )
    start = kmeans_knots(X, proposal.first, generator=generator)
    run = _Run(SparseVariationalGP(X, y, start, kernel, likelihood, mean, batch_size=proposal.batch_size))
    try:
        with tqdm(total=proposal.max_knots, disable=not progress, desc="knots") as bar:
            why = _search(run, proposal, bar, generator)
    except KeyboardInterrupt:
        run.record("interrupted")  # what was being fitted has its best parameters so far
        why = "interrupted"
        warnings.warn(f"interrupted with {run.best.num_knots} knots; the model is the best so far", stacklevel=2)
    return VariationalSelection(run.best.knots.detach().clone(), run.best.export(), tuple(run.history), why)


def _check(proposal: VariationalBlocks) -> None:
    check_positive(
        max_knots=proposal.max_knots,
        first=proposal.first,
        candidates=proposal.candidates,
        batch_size=proposal.batch_size,
        fit_iterations=proposal.fit_iterations,
    )
    if proposal.polish < 0 or not proposal.tolerance >= 0.0:
        raise ValueError(f"polish and tolerance must not be negative, got {proposal.polish} and {proposal.tolerance}")


class _Run:
    """The bound so far, and what was done to it."""

    def __init__(self, model: SparseVariationalGP) -> None:
        self.best = model
        self.history: list[VariationalStep] = []
        self.clock = time.perf_counter()

    def record(self, what: str, rows: Tensor | None = None) -> float:
        with torch.no_grad():
            value = float(self.best.objective())
        chosen = () if rows is None else tuple(rows.tolist())
        seconds = time.perf_counter() - self.clock
        self.history.append(VariationalStep(what, self.best.num_knots, value, seconds, chosen))
        return value


def _search(run: _Run, proposal: VariationalBlocks, bar: "tqdm[Any]", generator: torch.Generator | None) -> str:
    start = run.best.with_knots(run.best.knots)
    fit_sparse(run.best, max_iterations=proposal.fit_iterations)
    run.record("start")
    why = _grow(run, proposal, bar, generator)
    if run.best.num_knots < proposal.max_knots and _escape(run, proposal, start, generator):
        why = _grow(run, proposal, bar, generator)
    if proposal.reselect and run.best.num_knots > 1:
        _choose_again(run, proposal, generator)
    if proposal.polish:
        fit_sparse(run.best, knots=True, max_iterations=proposal.polish)
        run.record("polish")
    return why


def _grow(run: _Run, proposal: VariationalBlocks, bar: "tqdm[Any]", generator: torch.Generator | None) -> str:
    """Blocks until one adds nothing."""
    while run.best.num_knots < proposal.max_knots:
        model, before = run.best, run.history[-1].objective
        bar.update(model.num_knots - bar.n)
        bar.set_postfix_str(f"bound {before:.2f}")
        count = min(model.num_knots, proposal.max_knots - model.num_knots)
        rows = pick_locally(model, count, candidates=proposal.candidates, generator=generator).rows
        if not len(rows):
            return "no row adds anything"
        grown, value = _refit(model, rows, proposal)
        if value == -torch.inf:
            return "the bound could not be evaluated with further knots"
        if value - before < proposal.tolerance:
            return f"{len(rows)} further knots added less than {proposal.tolerance} nats"
        run.best = grown
        run.record("block", rows)
    bar.update(run.best.num_knots - bar.n)
    return f"there are {proposal.max_knots} knots, the most allowed"


def _refit(model: SparseVariationalGP, rows: Tensor, proposal: VariationalBlocks) -> tuple[SparseVariationalGP, float]:
    """A model with further knots and its objective, minus infinity if it cannot be evaluated."""
    other = model.with_knots(torch.cat([model.knots.detach(), model.train_X[rows]]))
    try:
        return other, fit_sparse(other, max_iterations=proposal.fit_iterations).objective
    except NumericalError:
        return other, -torch.inf


def _escape(
    run: _Run, proposal: VariationalBlocks, start: SparseVariationalGP, generator: torch.Generator | None
) -> bool:
    """More knots, chosen at the start's hyperparameters, for few may have made everything look like chance."""
    count = min(proposal.max_knots, max(2 * run.best.num_knots, 4 * proposal.first)) - start.num_knots
    rows = pick_locally(start, count, candidates=proposal.candidates, generator=generator).rows
    other, value = _refit(start, rows, proposal)
    if not value - run.history[-1].objective > proposal.tolerance:
        return False
    run.best = other
    run.record("again", rows)
    return True


def _choose_again(run: _Run, proposal: VariationalBlocks, generator: torch.Generator | None) -> None:
    """All knots once more, at the hyperparameters and sites learned with them; kept if the bound is larger."""
    model = run.best
    first = model.with_knots(model.knots[:1])
    sites, count = model.tighten().sites, model.num_knots - 1
    rows = pick_locally(first, count, sites=sites, candidates=proposal.candidates, generator=generator).rows
    other, value = _refit(first, rows, proposal)
    if value > run.history[-1].objective:
        run.best = other
        run.record("reselect", rows)
