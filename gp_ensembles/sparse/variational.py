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

from gp_ensembles.sparse.checks import check_positive, check_rows
from gp_ensembles.sparse.fitting import fit_sparse
from gp_ensembles.sparse.greedy import Picked
from gp_ensembles.sparse.local_gains import LocalCandidates, measure_locally
from gp_ensembles.sparse.placement import distinct_rows, kmeans_knots
from gp_ensembles.sparse.variational_model import SparseVariationalGP

_MEMORY = 2**28  # bytes of each of the two tables of candidates and data


class VariationalStep(NamedTuple):
    """A step of a selection.

    Args:
        what: What was done: "start", "block", "polish" or "interrupted".
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

    Args:
        max_knots: Most knots.
        first: Knots of the first block.
        tolerance: Stop when a block adds less than this, in nats.
        candidates: Random rows to choose among, as far as they fit into memory.
        batch_size: Rows handled at a time, which bounds the memory that gradients take.
        fit_iterations: Iterations of each refit.
        polish: Iterations of moving all knots and hyperparameters together at the end; 0 for none.
    """

    max_knots: int = 80
    first: int = 5
    tolerance: float = 0.01
    candidates: int = 1000
    batch_size: int = 10_000
    fit_iterations: int = 30
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
        mean: Prior mean; a trainable constant that starts at zero if ``None``.
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
            why = _grow(run, proposal, bar, generator)
    except KeyboardInterrupt:
        run.record("interrupted")  # what was being fitted has its best parameters so far
        why = "interrupted"
        warnings.warn(f"interrupted with {run.best.num_knots} knots; the model is the best so far", stacklevel=2)
    return VariationalSelection(run.best.knots.detach().clone(), run.best.export(), tuple(run.history), why)


@torch.no_grad()
def pick_locally(
    model: SparseVariationalGP,
    count: int,
    *,
    candidates: int = 1000,
    generator: torch.Generator | None = None,
) -> Picked:
    """The ``count`` rows that, one after the other, add most to the bound, as far as its normal sites know.

    Args:
        model: The model, whose knots and hyperparameters stay as they are.
        count: Most rows to pick.
        candidates: Random rows to choose among, as far as they fit into memory.
        generator: Source of randomness.

    Returns:
        The rows and their gains; fewer if no further one adds anything.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.likelihoods import LogisticLikelihood
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> labels = (X > 0.4).double()
        >>> model = SparseVariationalGP(X, labels, X[:1], ScaleKernel(RBFKernel()), LogisticLikelihood())
        >>> bool((pick_locally(model, 2).gains > 0).all())
        True
    """
    X = model.train_X
    most = max(1, min(candidates, X.shape[0], _MEMORY // (X.element_size() * X.shape[0])))
    rows = torch.randperm(X.shape[0], generator=generator, device="cpu")[:most].sort().values.to(X.device)
    state = _measure(model, X[rows])
    picked: list[int] = []
    gains: list[Tensor] = []
    for _ in range(min(count, most)):
        gain = state.gains()
        best = int(gain.argmax())
        if not bool(gain[best] > 0.0):
            break
        picked.append(best)
        gains.append(gain[best])
        state.take(best, rows)
    chosen = rows[torch.tensor(picked, dtype=torch.long, device=X.device)]
    return Picked(chosen, torch.stack(gains) if gains else X.new_zeros(0))


def _measure(model: SparseVariationalGP, C: Tensor) -> LocalCandidates:
    sites, projection = model.tighten().sites, model.projection()
    with_knots = model.kernel_matrix(model.knots, C)
    with_data = model.kernel_matrix(C, model.train_X)
    return measure_locally(projection, sites, with_knots, with_data, model.kernel_diagonal(C) + model.jitter)


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


def _grow(run: _Run, proposal: VariationalBlocks, bar: "tqdm[Any]", generator: torch.Generator | None) -> str:
    fit_sparse(run.best, max_iterations=proposal.fit_iterations)
    before = run.record("start")
    why = f"there are {proposal.max_knots} knots, the most allowed"
    while run.best.num_knots < proposal.max_knots:
        bar.update(run.best.num_knots - bar.n)
        bar.set_postfix_str(f"bound {before:.2f}")
        count = min(run.best.num_knots, proposal.max_knots - run.best.num_knots)
        picked = pick_locally(run.best, count, candidates=proposal.candidates, generator=generator)
        if not len(picked.rows):
            why = "no row adds anything"
            break
        grown = run.best.with_knots(torch.cat([run.best.knots.detach(), run.best.train_X[picked.rows]]))
        gain = fit_sparse(grown, max_iterations=proposal.fit_iterations).objective - before
        if gain < proposal.tolerance:
            why = f"{len(picked.rows)} further knots added less than {proposal.tolerance} nats"
            break
        run.best = grown
        before = run.record("block", picked.rows)
    if proposal.polish:
        fit_sparse(run.best, knots=True, max_iterations=proposal.polish)
        run.record("polish")
    bar.update(run.best.num_knots - bar.n)
    return why
