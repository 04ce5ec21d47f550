"""The unbounded numbers in which knots and hyperparameters move together."""

from collections.abc import Iterable

import torch
from gpytorch.constraints import Interval
from torch import Tensor

from gp_ensembles.sparse.base import KnotModel

_FACTOR = 1e4  # positive hyperparameters stay within this factor of where the first fit found them
_MARGIN = 0.1  # knots stay within the inputs' range and a tenth of it
_EDGE = 1e-6  # share of that range which separates knots from the edge, where logits are infinite
_VARIANCES = ("raw_outputscale", "raw_noise", "raw_variance")  # moved by the logs of their roots


class Coordinates:
    """Logs of positive hyperparameters, of standard deviations in place of variances, and logits of knots in their box.

    Other parameters are themselves. The box is the inputs' range and a tenth of it on each side.

    Args:
        model: The model; only parameters that require gradients are moved.
        knots: Which knots move; none if ``None``.
        hyperparameters: Whether the kernel's, the mean's and the likelihood's parameters move.

    Raises:
        ValueError: If nothing is to move.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> from gp_ensembles.sparse import SparseGP
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[24:25], ScaleKernel(RBFKernel()))
        >>> coordinates = Coordinates(model, slice(0, 1))
        >>> coordinates.write(coordinates.read() * 0.0)
        >>> round(model.knots.item(), 6), round(model.covar_module.outputscale.item(), 6)
        (0.5, 1.0)
    """

    def __init__(self, model: KnotModel, knots: slice | None = None, *, hyperparameters: bool = True) -> None:
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
        # A constant column has a box without width, in which nothing moves.
        self._low, self._width = least - margin, most - least + 2.0 * margin
        self._free = self._width > 0
        movable = model.knots.requires_grad and bool(self._free.any())
        self.knots = slice(0, 0) if knots is None or not movable else knots
        self._shape = (model.knots[self.knots].shape[0], int(self._free.sum()))
        if not self._parts and not self._shape[0]:
            raise ValueError("nothing is to move: let knots or hyperparameters, and see that they require gradients")
        self._start = model.knots.detach()[self.knots][:, self._free].clone()
        self._start_logits = self._logits()
        self.bounds = self._find_bounds()

    @property
    def weights(self) -> Tensor:
        """Weights of a change of sign in ADADELTA: a half for hyperparameters, one for knots, shape (P,)."""
        point = self.read()
        rest = len(point) - self._shape[0] * self._shape[1]
        return torch.cat([torch.full_like(point[:rest], 0.5), torch.ones_like(point[rest:])])

    @torch.no_grad()
    def read(self) -> Tensor:
        """Where the model is, shape (P,)."""
        parts = [
            (parameter if constraint is None else constraint.transform(parameter).log() * _power(name)).reshape(-1)
            for name, parameter, constraint in self._parts
        ]
        parts.append(self._logits().reshape(-1))
        return torch.cat(parts)

    @torch.no_grad()
    def write(self, point: Tensor) -> None:
        """Move the model to a point (P,)."""
        at = 0
        for name, parameter, constraint in self._parts:
            part = point[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
            parameter.copy_(part if constraint is None else constraint.inverse_transform((part / _power(name)).exp()))
        moved = self.model.knots[self.knots].clone()
        share = point[at:].sigmoid().reshape(self._shape)
        place = self._low[self._free] + self._width[self._free] * share
        # What does not move stays to the last bit: a category a little off is none.
        still = point[at:].reshape(self._shape) == self._start_logits
        moved[:, self._free] = torch.where(still, self._start, place)
        self.model.knots[self.knots] = moved

    def evaluate(self, point: Tensor) -> tuple[float, Tensor]:
        """The model's objective at a point (P,), to which it moves, and its gradient, shape (P,).

        Raises:
            NumericalError: If the objective cannot be evaluated there.
        """
        self.write(point)
        with torch.enable_grad():
            value = self.model.objective()
        moving = [parameter for _, parameter, _ in self._parts]
        moving = [*moving, self.model.knots] if self._shape[0] else moving
        # A kernel may know nothing of what moves: categories have no gradient, nor has a constant kernel's knot.
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
        """Let bounds of later fits stand around the present hyperparameters, too."""
        for name, parameter, constraint in self._parts:
            if constraint is not None:
                self.model.widen_scales(name, constraint.transform(parameter))

    @torch.no_grad()
    def at_bounds(self) -> list[str]:
        """Names of noises at their largest and lengthscales at their smallest, as the data's own scales never are.

        The other ends are reached in earnest: a plane has no lengthscale, and some targets have no noise.
        """
        found = []
        for name, parameter, constraint in self._parts:
            if constraint is not None:
                value: Tensor = constraint.transform(parameter)
                least, most = self.model.scales(name, value)
                noisy = name.endswith("noise") and bool((value >= 0.999 * most * _FACTOR).any())
                if noisy or (name.endswith("lengthscale") and bool((value <= 1.001 * least / _FACTOR).any())):
                    found.append(name.replace("raw_", ""))
        return found

    def _share(self) -> Tensor:
        """Where the moving knots are in their box, as shares of its width, shape (k, free columns)."""
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
                least, most = self.model.scales(name, value)
                # A value set by hand since then is no reason to move it at once.
                low = torch.maximum(torch.minimum(least / _FACTOR, value), constraint.lower_bound + 1e-6 * value)
                high = torch.minimum(torch.maximum(most * _FACTOR, value), constraint.upper_bound - 1e-6 * value)
                sides = (low.log() * _power(name), high.log() * _power(name))
            lower.append(sides[0].reshape(-1))
            upper.append(sides[1].reshape(-1))
        edge = torch.full_like(self._share(), _EDGE).logit().reshape(-1)
        return torch.cat([*lower, edge]), torch.cat([*upper, -edge])


def _power(name: str) -> float:
    return 0.5 if name.endswith(_VARIANCES) else 1.0
