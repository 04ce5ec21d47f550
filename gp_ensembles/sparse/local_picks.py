"""Knots one at a time at fixed hyperparameters, by gains under the normal sites of a likelihood."""

import torch
from torch import Tensor

from gp_ensembles.sparse.gains import Candidates
from gp_ensembles.sparse.greedy import draw_candidates, take_best
from gp_ensembles.sparse.local_gains import Sites, measure_locally
from gp_ensembles.sparse.run import Picked
from gp_ensembles.sparse.variational_model import SparseVariationalGP


@torch.no_grad()
def pick_locally(
    model: SparseVariationalGP,
    count: int,
    *,
    learned: SparseVariationalGP | None = None,
    candidates: int | None = 1000,
    generator: torch.Generator | None = None,
) -> Picked:
    """The ``count`` rows that, one after the other, add most to the bound, as far as its normal sites know.

    Args:
        model: The model, whose knots and hyperparameters stay as they are.
        count: Most rows to pick.
        learned: The model of the same rows whose normal sites stand for the likelihood; the model itself if ``None``.
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
    rows = draw_candidates(X, candidates, generator)
    state = _measure(model, X[rows], (model if learned is None else learned).tighten().sites)
    return take_best(state, min(count, len(rows)), rows)


def _measure(model: SparseVariationalGP, C: Tensor, sites: Sites) -> Candidates:
    with_knots = model.kernel_matrix(model.knots, C)
    with_data = model.kernel_matrix(C, model.train_X)
    return measure_locally(model.projection(), sites, with_knots, with_data, model.kernel_diagonal(C) + model.jitter)
