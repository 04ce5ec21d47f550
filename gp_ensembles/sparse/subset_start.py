"""Hyperparameters to start from: those of an exact Gaussian process of some rows."""

import torch

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.approximations import VFE
from gp_ensembles.sparse.fitting import fit_sparse
from gp_ensembles.sparse.model import SparseGP
from gp_ensembles.sparse.placement import distinct_rows

_SHRINKING = (1.0, 0.3, 0.1, 0.03)  # factors of the lengthscales at the starts
_SHORT, _LONG = 12, 60  # iterations from each start, and from the best place


def with_subset_scales(model: SparseGP, count: int, generator: torch.Generator | None = None) -> SparseGP:
    """The model with hyperparameters fitted exactly to random rows, from its own and from shorter lengthscales.

    With few knots a lower bound takes what they cannot follow for noise, and from there a fit never comes back. Some
    rows seen exactly say more about scales than all of them through few knots.

    Args:
        model: The model, which stays as it is.
        count: Most rows.
        generator: Source of randomness.

    Returns:
        A copy with the same knots; with the same hyperparameters if no fit succeeded.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 200, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(40.0 * X.squeeze(-1)), X[::50], ScaleKernel(RBFKernel()))
        >>> found = with_subset_scales(model, 60)
        >>> bool(found.covar_module.base_kernel.lengthscale < 0.1)
        True
    """
    rows = distinct_rows(model.train_X, 1)
    order = torch.randperm(len(rows), generator=generator, device="cpu")[:count]
    rows = rows[order.to(rows.device)]
    X, y = model.train_X[rows], model.train_y[rows]
    best: SparseGP | None = None
    reached = -torch.inf
    for factor in _SHRINKING:
        exact = model.with_knots(X)  # as many knots as rows: nothing is approximated
        exact.train_X, exact.train_y, exact.approximation = X, y, VFE()
        _shrink(exact, factor)
        try:
            value = fit_sparse(exact, max_iterations=_SHORT).objective
        except NumericalError:
            continue
        if value > reached:
            best, reached = exact, value
    if best is None:
        return model.with_knots(model.knots)
    fit_sparse(best, max_iterations=_LONG)
    found = best.with_knots(model.knots)
    found.train_X, found.train_y, found.approximation = model.train_X, model.train_y, model.approximation
    return found


@torch.no_grad()
def _shrink(model: SparseGP, factor: float) -> None:
    for module in model.covar_module.modules():
        if "raw_lengthscale" in module._parameters:
            constraint = module.raw_lengthscale_constraint
            shorter = constraint.transform(module.raw_lengthscale) * factor
            if constraint.check(shorter):
                module.raw_lengthscale.copy_(constraint.inverse_transform(shorter))
