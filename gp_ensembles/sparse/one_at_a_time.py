"""Knots one at a time: each proposed at fixed hyperparameters, then optimised together with them."""

import time
import warnings

import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.approximations import Approximation
from gp_ensembles.sparse.checks import check_rows
from gp_ensembles.sparse.model import SparseGP
from gp_ensembles.sparse.placement import distinct_rows, kmeans_knots
from gp_ensembles.sparse.proposals import KnotProposal, RandomSubset
from gp_ensembles.sparse.refits import LBFGSRefit, Refit
from gp_ensembles.sparse.selection import Selection, Step


def select_one_at_a_time(
    X: Tensor,
    y: Tensor,
    kernel: Kernel,
    likelihood: GaussianLikelihood | None = None,
    *,
    proposal: KnotProposal | None = None,
    objective: Approximation | None = None,
    optimiser: Refit | None = None,
    first: int | Tensor = 5,
    max_knots: int = 80,
    tolerance: float = 1e-3,
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> Selection:
    """The one-at-a-time algorithm of Garton, Niemi and Carriquiry (2020), OAT.

    Hyperparameters are fitted with the first knots, which never move. Then a row is proposed as a knot, and this knot
    and the hyperparameters are optimised together, all older ones staying; the first that does not add more than the
    tolerance is dropped, and ends the selection. The prior mean stays at the targets' average. With
    :class:`~gp_ensembles.sparse.proposals.BayesianOptimisation` this is OAT-BO, with
    :class:`~gp_ensembles.sparse.proposals.RandomSubset` OAT-RS.

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,) or (N, 1).
        kernel: Any GPyTorch kernel; its hyperparameters are the start, and the model has a copy.
        likelihood: Gaussian likelihood; its noise is the start.
        proposal: Where the next knot starts; the best of 40 random rows if ``None``.
        objective: The approximation; VFE if ``None``.
        optimiser: Of the new knot and the hyperparameters; L-BFGS if ``None``, the published one is
            :class:`~gp_ensembles.sparse.refits.AdadeltaRefit`.
        first: Number of first knots, centres of k-means; or these knots, shape (K, D).
        max_knots: Most knots.
        tolerance: What a knot must add, in nats.
        progress: Whether to show a progress bar.
        generator: Source of randomness.

    Returns:
        Knots, model and history; after an interruption from the keyboard the best so far, with a warning.

    Raises:
        ValueError: If shapes do not fit, a value is not finite, targets are constant, or counts are not positive.
        NumericalError: If the objective cannot be evaluated with the first knots.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(6.0 * X.squeeze(-1))
        >>> found = select_one_at_a_time(X, y, ScaleKernel(RBFKernel()), first=2, max_knots=4, progress=False)
        >>> found.knots.shape, [step.what for step in found.history]
        (torch.Size([4, 1]), ['start', 'knot', 'knot'])
    """
    targets = check_rows(X, y)
    if not bool(targets.amax() > targets.amin()):
        raise ValueError("the targets are constant; there is nothing to learn from them")
    distinct = len(distinct_rows(X, 1))
    least = first if isinstance(first, int) else len(first)
    if least < 1 or max_knots < least:
        raise ValueError(f"there must be a first knot at least, and no more than {max_knots} in all, got {least}")
    start = kmeans_knots(X, min(first, distinct), generator=generator) if isinstance(first, int) else first
    model = SparseGP(X, targets, start, kernel, likelihood, approximation=objective)
    model.mean_module.requires_grad_(False)
    run = _Run(
        model,
        RandomSubset() if proposal is None else proposal,
        LBFGSRefit() if optimiser is None else optimiser,
        tolerance,
        generator,
    )
    most = min(max_knots, distinct)
    why = f"there are {most} knots, the most allowed" if most == max_knots else f"all {most} distinct rows have a knot"
    with tqdm(total=most, disable=not progress, desc="knots") as bar:
        try:
            run.begin()
            while run.model.num_knots < most:
                bar.update(run.model.num_knots - bar.n)
                bar.set_postfix_str(f"objective {run.objective:.2f}")
                failure = run.add()
                if failure is not None:
                    why = failure
                    break
        except KeyboardInterrupt:
            why = "interrupted"
            warnings.warn(f"interrupted with {run.model.num_knots} knots; the model is the best so far", stacklevel=2)
        bar.update(run.model.num_knots - bar.n)
    return Selection(run.model.knots.detach(), run.model, tuple(run.history), why)


class _Run:
    """The model so far, and what was done to it."""

    def __init__(
        self,
        model: SparseGP,
        proposal: KnotProposal,
        optimiser: Refit,
        tolerance: float,
        generator: torch.Generator | None,
    ) -> None:
        self.model = model
        self.proposal = proposal
        self.optimiser = optimiser
        self.tolerance = tolerance
        self.generator = generator
        self.objective = -torch.inf
        self.history: list[Step] = []
        self.clock = time.perf_counter()

    def begin(self) -> None:
        """Fit hyperparameters with the first knots; an interrupted fit leaves the model as it was."""
        fitted = self.model.with_knots(self.model.knots)
        self.optimiser.refit(fitted)
        self._keep(fitted, "start")

    def add(self) -> str | None:
        """A further knot, or why there is none; the model changes only when the knot has been accepted."""
        try:
            found = self.proposal.propose(self.model, generator=self.generator)
            if found is None:
                return "every row is a knot"
            row = self.model.train_X[found.row : found.row + 1]
            grown = self.model.with_knots(torch.cat([self.model.knots.detach(), row]))
            reached = self.optimiser.refit(grown, self.model.num_knots).objective
        except NumericalError as error:
            return f"a further knot could not be evaluated: {error}"
        if not reached - self.objective > self.tolerance:
            return f"a further knot added no more than {self.tolerance} nats"
        self._keep(grown, "knot", found.row)
        return None

    def _keep(self, model: SparseGP, what: str, *rows: int) -> None:
        with torch.no_grad():
            objective, upper = float(model.objective()), float(model.upper_bound())
        seconds = time.perf_counter() - self.clock
        self.model, self.objective = model, objective
        self.history.append(Step(what, model.num_knots, objective, upper, seconds, rows))
