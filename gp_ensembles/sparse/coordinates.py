"""The unbounded numbers in which one knot and the hyperparameters move together."""

from collections.abc import Iterable

import torch
from gpytorch.constraints import Interval
from torch import Tensor

from gp_ensembles.sparse.model import SparseGP

_FACTOR = 1e4  # positive hyperparameters stay within this factor of where they start
_MARGIN = 0.1  # a knot stays within the inputs' range and a tenth of it
_EDGE = 1e-6  # share of that range which separates a knot from the edge, where logits are infinite
_VARIANCES = ("raw_outputscale", "raw_noise", "raw_variance")  # moved by the logs of their roots


class Coordinates:
    """Logs of positive hyperparameters, of standard deviations in place of variances, and logits of a knot in its box.

    Other parameters are themselves. The box is the inputs' range and a tenth of it on each side.

    Args:
        model: The model, whose parameters that require gradients are moved.
        knot: Index of the knot that moves with them; none if ``None``.

    Raises:
        ValueError: If nothing is to move.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[24:25], ScaleKernel(RBFKernel()))
        >>> coordinates = Coordinates(model, 0)
        >>> coordinates.write(coordinates.read() * 0.0)
        >>> round(model.knots.item(), 6), round(model.covar_module.outputscale.item(), 6)
        (0.5, 1.0)
    """

    def __init__(self, model: SparseGP, knot: int | None = None) -> None:
        self.model = model
        self.knot = knot
        found: Iterable[tuple[str, Tensor, Interval | None]] = model.named_parameters_and_constraints()  # type: ignore[operator]
        self._parts = [
            (
                name,
                parameter,
                constraint if constraint is not None and bool((constraint.lower_bound >= 0).all()) else None,
            )
            for name, parameter, constraint in found
            if parameter.requires_grad and name != "knots"
        ]
        least, most = model.train_X.amin(0), model.train_X.amax(0)
        margin = _MARGIN * (most - least)
        # A constant column has a box without width, in which nothing moves.
        self._low, self._width = least - margin, most - least + 2.0 * margin
        self._free = self._width > 0
        if not self._parts and (knot is None or not bool(self._free.any())):
            raise ValueError("nothing is to move: no hyperparameter requires gradients, and no knot is free")
        self.bounds = self._find_bounds()

    @property
    def weights(self) -> Tensor:
        """Weights of a change of sign in ADADELTA: a half for hyperparameters, one for the knot, shape (P,)."""
        point = self.read()
        columns = 0 if self.knot is None else int(self._free.sum())
        rest = point.shape[0] - columns
        return torch.cat([torch.full_like(point[:rest], 0.5), torch.ones_like(point[rest:])])

    @torch.no_grad()
    def read(self) -> Tensor:
        """Where the model is, shape (P,)."""
        parts = [
            (parameter if constraint is None else constraint.transform(parameter).log() * _power(name)).reshape(-1)
            for name, parameter, constraint in self._parts
        ]
        if self.knot is not None:
            share = ((self.model.knots[self.knot] - self._low) / self._width)[self._free]
            parts.append(share.clamp(_EDGE, 1.0 - _EDGE).logit())
        return torch.cat(parts)

    @torch.no_grad()
    def write(self, point: Tensor) -> None:
        """Move the model to a point (P,)."""
        at = 0
        for name, parameter, constraint in self._parts:
            part = point[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
            parameter.copy_(part if constraint is None else constraint.inverse_transform((part / _power(name)).exp()))
        if self.knot is not None:
            place = self.model.knots[self.knot].clone()
            place[self._free] = self._low[self._free] + self._width[self._free] * point[at:].sigmoid()
            self.model.knots[self.knot] = place

    def evaluate(self, point: Tensor) -> tuple[float, Tensor]:
        """The model's objective at a point (P,), to which it moves, and its gradient, shape (P,).

        Raises:
            NumericalError: If the objective cannot be evaluated there.
        """
        self.write(point)
        value = self.model.objective()
        moving = [parameter for _, parameter, _ in self._parts]
        gradients = torch.autograd.grad(value, [*moving, self.model.knots], allow_unused=True)
        parts = []
        for (name, parameter, constraint), gradient in zip(self._parts, gradients, strict=False):
            slope = torch.zeros_like(parameter) if gradient is None else gradient
            if constraint is not None:
                raw = parameter.detach().requires_grad_()
                log = constraint.transform(raw).log() * _power(name)
                slope = slope / torch.autograd.grad(log.sum(), raw)[0]
            parts.append(slope.reshape(-1))
        if self.knot is not None:
            share = ((self.model.knots[self.knot].detach() - self._low) / self._width)[self._free]
            knots = gradients[-1]
            parts.append(knots[self.knot][self._free] * self._width[self._free] * share * (1.0 - share))
        return float(value.detach()), torch.cat(parts)

    @torch.no_grad()
    def _find_bounds(self) -> tuple[Tensor, Tensor]:
        lower, upper = [], []
        for name, parameter, constraint in self._parts:
            if constraint is None:
                sides = (torch.full_like(parameter, -torch.inf), torch.full_like(parameter, torch.inf))
            else:
                value: Tensor = constraint.transform(parameter)
                low = torch.maximum(value / _FACTOR, constraint.lower_bound + 1e-6 * value)
                high = torch.minimum(value * _FACTOR, constraint.upper_bound - 1e-6 * value)
                sides = (low.log() * _power(name), high.log() * _power(name))
            lower.append(sides[0].reshape(-1))
            upper.append(sides[1].reshape(-1))
        if self.knot is not None:
            edge = torch.full_like(self._low[self._free], _EDGE).logit()
            lower.append(edge)
            upper.append(-edge)
        return torch.cat(lower), torch.cat(upper)


def _power(name: str) -> float:
    return 0.5 if name.endswith(_VARIANCES) else 1.0
