"""Fitting of hyperparameters and knots by bounded L-BFGS, and initialization by a subset of data."""

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gpytorch.constraints import Interval
from gpytorch.likelihoods import GaussianLikelihood
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.draws import permutation
from gp_ensembles.papers.sparse.base import SparseModel
from gp_ensembles.papers.sparse.initialization import distinct_rows
from gp_ensembles.papers.sparse.regression import SparseGP

_FACTOR = 1e4  # positive hyperparameters stay within this factor of their value before the first fit
_MARGIN = 0.1  # knots stay within the inputs' range, extended by this share on each side
_EDGE = 1e-6  # minimum distance from the edge, as a share of that range: at the edge logits are infinite
_VARIANCES = ("raw_outputscale", "raw_noise", "raw_variance")  # optimized as logs of their roots
_PATIENCE = 3  # consecutive iterations that must gain less than the tolerance: the first steps may be short
_SHARES = (1.0, 0.3, 0.1, 0.03)  # lengthscales of the other starting points, in standard deviations of the inputs
_SHORT, _LONG = 8, 60  # iterations from each starting point, and from the best one


class Coordinates:
    """Unconstrained coordinates of knots and hyperparameters for joint optimization."""

    def __init__(self, model: SparseModel, knots: slice | None = None, *, hyperparameters: bool = True) -> None:
        self.model = model
        found: Iterable[tuple[str, Tensor, Interval | None]] = model.named_parameters_and_constraints()  # type: ignore[operator]
        self._parts = [
            (
                name,
                parameter,
                constraint if constraint is not None and bool((constraint.lower_bound >= 0).all()) else None,
            )
            for name, parameter, constraint in found
            if parameter.requires_grad and name != "knots" and hyperparameters
        ]
        least, most = model.train_X.amin(0), model.train_X.amax(0)
        margin = _MARGIN * (most - least)
        # A constant column has a box of zero width, in which nothing can move.
        self._low, self._width = least - margin, most - least + 2.0 * margin
        self._free = self._width > 0
        movable = model.knots.requires_grad and bool(self._free.any())
        self.knots: slice[int | Any, int | Any, Any] = slice(0, 0) if knots is None or not movable else knots
        self._shape = (model.knots[self.knots].shape[0], int(self._free.sum()))
        if not self._parts and not self._shape[0]:
            raise ValueError("nothing to optimize: pass knots or hyperparameters that require gradients")
        self._start = model.knots.detach()[self.knots][:, self._free].clone()
        self._start_logits = self._logits()
        self.bounds: tuple[Tensor, Tensor] = self._find_bounds()

    @property
    def weights(self) -> Tensor:
        """Weights of sign changes in ADADELTA: 1/2 for hyperparameters, one for knots, shape (P,)."""
        point = self.read()
        rest = len(point) - self._shape[0] * self._shape[1]
        return torch.cat([torch.full_like(point[:rest], 0.5), torch.ones_like(point[rest:])])

    @torch.no_grad()
    def read(self) -> Tensor:
        """The model's coordinates, shape (P,)."""
        parts = [
            (parameter if constraint is None else constraint.transform(parameter).log() * _power(name)).reshape(-1)
            for name, parameter, constraint in self._parts
        ]
        parts.append(self._logits().reshape(-1))
        return torch.cat(parts)

    @torch.no_grad()
    def write(self, point: Tensor) -> None:
        """Set the model to a point (P,)."""
        at = 0
        for name, parameter, constraint in self._parts:
            part = point[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
            parameter.copy_(part if constraint is None else constraint.inverse_transform((part / _power(name)).exp()))
        moved = self.model.knots[self.knots].clone()
        share = point[at:].sigmoid().reshape(self._shape)
        place = self._low[self._free] + self._width[self._free] * share
        # Unmoved values are kept exactly: a category with round-off is no category.
        still = point[at:].reshape(self._shape) == self._start_logits
        moved[:, self._free] = torch.where(still, self._start, place)
        self.model.knots[self.knots] = moved

    def evaluate(self, point: Tensor) -> tuple[float, Tensor]:
        """Set the model to a point (P,); returns its objective and its gradient, shape (P,)."""
        self.write(point)
        with torch.enable_grad():
            value = self.model.objective()
        moving = [parameter for _, parameter, _ in self._parts]
        moving = [*moving, self.model.knots] if self._shape[0] else moving
        # A kernel may not depend on all coordinates: categories have no gradient, nor do knots of a constant kernel.
        gradients = (
            torch.autograd.grad(value, moving, allow_unused=True) if value.requires_grad else [None] * len(moving)
        )
        parts = []
        for (name, parameter, constraint), gradient in zip(self._parts, gradients, strict=False):
            slope = torch.zeros_like(parameter) if gradient is None else gradient
            if constraint is not None:
                raw = parameter.detach().requires_grad_()
                with torch.enable_grad():
                    logs = (constraint.transform(raw).log() * _power(name)).sum()
                slope = slope / torch.autograd.grad(logs, raw)[0]
            parts.append(slope.reshape(-1))
        if self._shape[0]:
            share = self._share()
            slope = torch.zeros_like(self.model.knots) if gradients[-1] is None else gradients[-1]
            inside = slope[self.knots][:, self._free] * self._width[self._free] * share * (1.0 - share)
            parts.append(inside.reshape(-1))
        return float(value.detach()), torch.cat(parts)

    @torch.no_grad()
    def widen(self) -> None:
        """Make bounds of later fits relative also to the current hyperparameters."""
        for name, parameter, constraint in self._parts:
            if constraint is not None:
                self.model.widen_start_range(name, constraint.transform(parameter))

    @torch.no_grad()
    def at_bounds(self) -> list[str]:
        """Names of noises at their upper bounds and lengthscales at their lower bounds."""
        found = []
        for name, parameter, constraint in self._parts:
            if constraint is not None:
                value: Tensor = constraint.transform(parameter)
                least, most = self.model.start_range(name, value)
                noisy = name.endswith("noise") and bool((value >= 0.999 * most * _FACTOR).any())
                if noisy or (name.endswith("lengthscale") and bool((value <= 1.001 * least / _FACTOR).any())):
                    found.append(name.replace("raw_", ""))
        return found

    def _share(self) -> Tensor:
        """Relative positions of the optimized knots in their box, shape (k, free columns)."""
        knots = self.model.knots.detach()[self.knots][:, self._free]
        return (knots - self._low[self._free]) / self._width[self._free]

    def _logits(self) -> Tensor:
        return self._share().clamp(_EDGE, 1.0 - _EDGE).logit()

    @torch.no_grad()
    def _find_bounds(self) -> tuple[Tensor, Tensor]:
        lower, upper = [], []
        for name, parameter, constraint in self._parts:
            if constraint is None:
                sides = (torch.full_like(parameter, -torch.inf), torch.full_like(parameter, torch.inf))
            else:
                value: Tensor = constraint.transform(parameter)
                least, most = self.model.start_range(name, value)
                # A value that was set manually since then must lie inside, too.
                low = torch.maximum(torch.minimum(least / _FACTOR, value), constraint.lower_bound + 1e-6 * value)
                high = torch.minimum(torch.maximum(most * _FACTOR, value), constraint.upper_bound - 1e-6 * value)
                sides = (low.log() * _power(name), high.log() * _power(name))
            lower.append(sides[0].reshape(-1))
            upper.append(sides[1].reshape(-1))
        edge = torch.full_like(self._share(), _EDGE).logit().reshape(-1)
        return torch.cat([*lower, edge]), torch.cat([*upper, -edge])


def _power(name: str) -> float:
    return 0.5 if name.endswith(_VARIANCES) else 1.0


class FitResult(NamedTuple):
    """Result of a fit."""

    objective: float  # final value, in nats
    num_evaluations: int  # number of evaluations with gradients
    message: str  # reason for stopping


def fit_sparse(
    model: SparseModel,
    *,
    knots: bool | slice = False,
    hyperparameters: bool = True,
    max_iterations: int = 200,
    tolerance: float = 0.0,
    max_seconds: float = math.inf,
) -> FitResult:
    """Maximize a model's objective in place, by L-BFGS-B in logs of scales and logits of knots in their box.

    Scales stay within a factor of 10000 of their values before the first fit of the model (or of one it was derived
    from), knots within the inputs' range extended by a tenth.

    Args:
        model: The model, a :class:`~gp_ensembles.papers.sparse.SparseGP` or an
            :class:`~gp_ensembles.papers.sparse.ExactGP`.
        knots: Whether the knots are optimized, or which of them.
        hyperparameters: Whether the parameters of kernel, mean and likelihood are optimized.
        max_iterations: Maximum number of L-BFGS iterations.
        tolerance: Stop when three iterations gain less than this, in nats; scipy's relative tolerance always applies.
        max_seconds: Stop after the first iteration that ends later than this.

    Returns:
        Value, evaluations and stop message. If nothing better is found, the model is unchanged.

    Raises:
        ValueError: If there is nothing to optimize.
        NumericalError: If the objective cannot be evaluated at the start.

    Example:
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> before = float(model.objective().detach())
        >>> fit_sparse(model, knots=True).objective > before
        True
    """
    if max_iterations < 1:
        raise ValueError(f"max_iterations must be at least 1, got {max_iterations}")
    moving = knots if isinstance(knots, slice) else slice(None) if knots else None
    return _ascend(Coordinates(model, moving, hyperparameters=hyperparameters), max_iterations, tolerance, max_seconds)


def has_free_hyperparameters(model: SparseModel) -> bool:
    """Whether any hyperparameter requires gradients: those of a kernel fitted elsewhere may all be fixed."""
    return any(parameter.requires_grad for name, parameter in model.named_parameters() if name != "knots")


def fit_hyperparameters(model: SparseModel, *, max_iterations: int, tolerance: float = 0.0) -> FitResult:
    """Fit the free hyperparameters; if there are none, only evaluate the objective."""
    if has_free_hyperparameters(model):
        return fit_sparse(model, max_iterations=max_iterations, tolerance=tolerance)
    with torch.no_grad():
        return FitResult(float(model.objective()), 0, "no hyperparameter is free")


def _ascend(coordinates: Coordinates, max_iterations: int, tolerance: float, max_seconds: float) -> FitResult:
    """L-BFGS-B on a model's coordinates; ends at the best point, even after an error or an interruption."""
    begin, model, bounds = time.perf_counter(), coordinates.model, coordinates.bounds
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    with torch.no_grad():  # logs, logits and bounds may change the start slightly, and categorical knots a lot
        best = float(model.objective())
    if not math.isfinite(best):
        raise NumericalError(f"the objective is {best} at the start; standardize the targets, or use another start")
    best_point: Tensor | None = None
    num_evaluations, bad = 0, math.inf  # replaces undefined values, once there is a defined one
    path: list[float] = []

    def descend(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        nonlocal best, best_point, num_evaluations, bad
        num_evaluations += 1
        x = torch.as_tensor(point).to(bounds[0])
        try:
            value, gradient = coordinates.evaluate(x)
            if not math.isfinite(value) or not bool(gradient.isfinite().all()):
                raise NumericalError(f"the objective is {value}; standardize the targets, or use another start")
        except NumericalError:
            if num_evaluations == 1:
                raise
            return bad, np.zeros_like(point)
        if num_evaluations == 1:
            bad = 10.0 * abs(value) + 1e3 - value  # an infinite value would break the line search
        if value > best:
            best, best_point = value, x
        return -value, -gradient.cpu().double().numpy()

    def follow(_: NDArray[np.float64]) -> None:
        path.append(best)
        if len(path) > _PATIENCE and path[-1] - path[-1 - _PATIENCE] < tolerance:
            raise StopIteration
        if time.perf_counter() - begin > max_seconds:
            raise StopIteration

    try:
        result = minimize(
            descend,
            coordinates.read().clamp(*bounds).cpu().double().numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(*(side.cpu().double().numpy() for side in bounds), strict=True)),
            options={"maxiter": max_iterations},
            callback=cast(Any, follow),  # the stubs require the parameter name that scipy inspects
        )
    finally:
        if best_point is not None:
            coordinates.write(best_point)
        else:  # restore the start bit for bit
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(start[name])
    return FitResult(best, num_evaluations, str(result.message))


def initialize_from_subset(model: SparseGP, num_rows: int, generator: torch.Generator | None = None) -> SparseGP:
    """The model with hyperparameters of an exact fit to random rows, from its own and from data scales."""
    rows = distinct_rows(model.train_X, 1)
    order = permutation(len(rows), generator)[:num_rows]
    rows = rows[order.to(rows.device)]
    scales = [share * spread_of(model.train_X[rows]) for share in _SHARES]
    best = best_start(lambda: model.subset_of_data(rows), scales, max_iterations=_SHORT)
    Coordinates(model)  # bounds of later fits are relative to the given hyperparameters ...
    found = model.with_knots(model.knots)
    if best is not None:
        fit_sparse(best, max_iterations=_LONG)
        copy_hyperparameters(best, found)
        Coordinates(found).widen()  # ... and to these
    return found


def best_start(
    exact: Callable[[], SparseModel], scales: Iterable[Tensor], *, max_seconds: float = math.inf, **settings: Any
) -> SparseModel | None:
    """The best model after short fits from its own hyperparameters and from scales of the inputs."""
    deadline = time.perf_counter() + max_seconds
    best, reached = None, -math.inf
    for own in (None, *scales):
        model = exact()
        if own is not None:
            rescale(model, own)
        try:
            value = fit_sparse(model, max_seconds=deadline - time.perf_counter(), **settings).objective
        except NumericalError:
            continue
        if value > reached:
            best, reached = model, value
        if time.perf_counter() >= deadline:
            break
    return best


@torch.no_grad()
def copy_hyperparameters(source: SparseModel, target: SparseModel) -> None:
    """Copy hyperparameters between models of the same structure; knots and rows are unchanged."""
    both = ([part for name, part in model.named_parameters() if name != "knots"] for model in (source, target))
    for learned, parameter in zip(*both, strict=True):
        parameter.copy_(learned)


def spread_of(X: Tensor) -> Tensor:
    """Standard deviations of inputs (N, D), one for constant columns, shape (D,)."""
    spread = X.std(0, unbiased=False)
    return torch.where(spread > 0, spread, 1.0)


@torch.no_grad()
def rescale(model: SparseModel, scales: Tensor) -> None:
    """Set lengthscales (D,), and split the variance of normal targets equally between noise and function."""
    for module in model.covar_module.modules():
        if "raw_lengthscale" in module._parameters:
            old = module.raw_lengthscale_constraint.transform(module.raw_lengthscale)
            own = scales if module.active_dims is None else scales[module.active_dims]
            _set(module, "raw_lengthscale", (own if old.shape[-1] == len(own) else own.mean()).expand_as(old))
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
    """Set a hyperparameter, if it is free and its constraint allows the value."""
    raw, constraint = getattr(module, name), getattr(module, f"{name}_constraint")
    if raw.requires_grad and constraint.check(value):
        raw.copy_(constraint.inverse_transform(value))
