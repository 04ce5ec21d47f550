"""How many knots, and where."""

import warnings

import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.sparse.approximations import Approximation
from gp_ensembles.sparse.checks import check_rows
from gp_ensembles.sparse.greedy_blocks import GreedyBlocks
from gp_ensembles.sparse.model import SparseGP
from gp_ensembles.sparse.run import Run, Selection, Strategy


def select_knots(
    X: Tensor,
    y: Tensor,
    kernel: Kernel,
    likelihood: GaussianLikelihood | None = None,
    mean: Mean | None = None,
    *,
    proposal: Strategy = GreedyBlocks(),  # noqa: B008 (immutable)
    objective: Approximation | None = None,
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> Selection:
    """Choose knots and fit hyperparameters.

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,) or (N, 1).
        kernel: Any GPyTorch kernel; its hyperparameters are the start, and change.
        likelihood: Gaussian likelihood; its noise is the start.
        mean: Prior mean; a constant that starts at the targets' average if ``None``.
        proposal: How knots are chosen: :class:`GreedyBlocks`, :class:`OneAtATime`, :class:`Simultaneous` or
            :class:`Placed`.
        objective: The approximation; :class:`VFE` if ``None``.
        progress: Whether to show a progress bar.
        generator: Source of randomness.

    Returns:
        Knots, model and history; after an interruption from the keyboard the best so far, with a warning.

    Raises:
        ValueError: If shapes do not fit, a value is not finite, or targets are constant.
        NumericalError: If the objective cannot be evaluated with the first knots.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> found = select_knots(X, torch.sin(6.0 * X.squeeze(-1)), ScaleKernel(RBFKernel()), progress=False)
        >>> found.knots.shape[0] <= 50, found.history[-1].objective > found.history[0].objective
        (True, True)
    """
    y = check_rows(X, y)
    if not bool(y.amax() > y.amin()):
        raise ValueError("the targets are constant; there is nothing to learn from them")
    start = proposal.begin(X, generator=generator)
    model = SparseGP(X, y, start, kernel, likelihood, mean, approximation=objective)
    with tqdm(total=proposal.most, disable=not progress, desc="knots") as bar:
        run = Run(model, bar, generator)
        try:
            why = proposal.search(run)
        except KeyboardInterrupt:
            run.keep(run.model, "interrupted")  # what was being fitted has its best parameters so far
            why = "interrupted"
            warnings.warn(f"interrupted with {run.model.num_knots} knots; the model is the best so far", stacklevel=2)
    return run.result(why)
