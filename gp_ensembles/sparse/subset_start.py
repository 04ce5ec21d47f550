"""Hyperparameters to start from: those of an exact Gaussian process of some rows."""

from typing import Any

import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.base import KnotModel
from gp_ensembles.sparse.coordinates import Coordinates
from gp_ensembles.sparse.fitting import fit_sparse
from gp_ensembles.sparse.placement import distinct_rows
from gp_ensembles.sparse.run import ModelT

_SHARES = (1.0, 0.3, 0.1, 0.03)  # lengthscales of the further starts, in standard deviations of the inputs
_SHORT, _LONG = 8, 60  # iterations from each start, and from the best place


def with_subset_scales(model: ModelT, count: int, generator: torch.Generator | None = None) -> ModelT:
    """The model with hyperparameters fitted exactly to random rows, from its own and from scales of the data.

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
        >>> from gp_ensembles.sparse import SparseGP
        >>> X = torch.linspace(0, 1, 200, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(40.0 * X.squeeze(-1)), X[::50], ScaleKernel(RBFKernel()))
        >>> found = with_subset_scales(model, 60)
        >>> bool(found.covar_module.base_kernel.lengthscale < 0.1)
        True
    """
    rows = distinct_rows(model.train_X, 1)
    order = torch.randperm(len(rows), generator=generator, device="cpu")[:count]
    rows = rows[order.to(rows.device)]
    best, reached = None, -torch.inf
    for share in (None, *_SHARES):
        exact = model.of_rows(rows)
        if share is not None:
            _rescale(exact, share)
        try:
            value = fit_sparse(exact, max_iterations=_SHORT).objective
        except NumericalError:
            continue
        if value > reached:
            best, reached = exact, value
    Coordinates(model)  # bounds of later fits stand around the given hyperparameters ...
    found = model.with_knots(model.knots)
    if best is not None:
        fit_sparse(best, max_iterations=_LONG)
        with torch.no_grad():
            for (name, parameter), (_, learned) in zip(found.named_parameters(), best.named_parameters(), strict=True):
                if name != "knots":
                    parameter.copy_(learned)
        Coordinates(found).widen()  # ... and around these
    return found


@torch.no_grad()
def _rescale(model: KnotModel, share: float) -> None:
    """Lengthscales a share of the inputs' spread; of normal targets, half the variance noise and half the function."""
    spread = model.train_X.std(0, unbiased=False)
    spread = torch.where(spread > 0, spread, 1.0)
    for module in model.covar_module.modules():
        if "raw_lengthscale" in module._parameters:
            old = module.raw_lengthscale_constraint.transform(module.raw_lengthscale)
            width = spread if module.active_dims is None else spread[module.active_dims]
            _set(
                module,
                "raw_lengthscale",
                share * (width if old.shape[-1] == len(width) else width.mean()).expand_as(old),
            )
    if isinstance(model.likelihood, GaussianLikelihood):
        half = 0.5 * (model.train_y - model.mean_module(model.train_X)).square().mean()
        ratio = half / model.kernel_diagonal(model.train_X).mean()
        for module in model.covar_module.modules():
            if "raw_outputscale" in module._parameters:
                old = module.raw_outputscale_constraint.transform(module.raw_outputscale)
                _set(module, "raw_outputscale", old * ratio)
        noise = model.likelihood.noise_covar
        _set(noise, "raw_noise", half.expand_as(noise.raw_noise))


def _set(module: Any, name: str, value: Tensor) -> None:
    """A hyperparameter's value, if it may move and its constraint allows the value."""
    raw, constraint = getattr(module, name), getattr(module, f"{name}_constraint")
    if raw.requires_grad and constraint.check(value):
        raw.copy_(constraint.inverse_transform(value))
