"""Optimizers of some knots and the hyperparameters while the other knots stay fixed."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.sparse.base import SparseModel
from gp_ensembles.papers.sparse.fitting import Coordinates, FitResult, fit_sparse, has_free_hyperparameters


class KnotOptimizer(ABC):
    """An optimizer of hyperparameters, and of some knots with them, inside bounds."""

    @abstractmethod
    def optimize(self, model: SparseModel, knots: slice | None = None) -> FitResult:
        """Maximize the model's objective in place, moving some of the knots, if any.

        Raises:
            NumericalError: If the objective cannot be evaluated at the start.
        """


@final
class LBFGSB(KnotOptimizer):
    """L-BFGS-B in logs of scales and logits of knots, see :func:`fit_sparse`; never lower than the start.

    Raises:
        ValueError: If there is no iteration.
    """

    def __init__(self, max_iterations: int = 20) -> None:
        if max_iterations < 1:
            raise ValueError(f"at least one iteration is needed, got {max_iterations}")
        self.max_iterations = max_iterations

    def optimize(self, model: SparseModel, knots: slice | None = None) -> FitResult:
        """Maximize the model's objective in place."""
        if knots is None and not has_free_hyperparameters(model):
            with torch.no_grad():
                return FitResult(float(model.objective()), 0, "no hyperparameter is free")
        return fit_sparse(model, knots=False if knots is None else knots, max_iterations=self.max_iterations)


@final
@dataclass(frozen=True)
class Adadelta(KnotOptimizer):
    r"""The modified ADADELTA of Garton, Niemi and Carriquiry (2020), after Zeiler (2012), as it was published.

    With averages :math:`\bar a \leftarrow \rho \bar a + (1 - \rho) a`, all by coordinate,

    .. math:: s = \eta^{-c} \sqrt{\frac{\overline{s^2} + \epsilon}{\overline{g^2} + \epsilon}}\; g, \qquad
              c = \overline{w\, |\mathrm{sign}\, g - \mathrm{sign}\, g_\mathrm{previous}|}

    Steps shrink where gradients change sign. The ascent is not monotone, and ends at its last point, which may be lower
    than the start.

    Args:
        decay: :math:`\rho`.
        epsilon: :math:`\epsilon`, which sets the first steps.
        damping: :math:`\eta`; a coordinate that changes sign at every step moves by as little as its inverse.
        tolerance: Stop when the function changes by no more than this in a step.
        max_iterations: Most values with gradients.

    Example:
        >>> import torch
        >>> def parabola(x):
        ...     return float(-(x - 0.5).square().sum()), -2.0 * (x - 0.5)
        >>> start = torch.zeros(1, dtype=torch.float64)
        >>> end, result = Adadelta(tolerance=1e-8).maximize(parabola, start, weights=0.5 + start)
        >>> round(float(end), 3), result.message
        (0.5, 'the function changes by no more than 1e-08')
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.papers.sparse import SparseGP
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> Adadelta(max_iterations=30).optimize(model, slice(4, None)).num_evaluations
        30
    """

    decay: float = 0.95
    epsilon: float = 1e-4
    damping: float = 1e3
    tolerance: float = 1e-3
    max_iterations: int = 1000

    def maximize(
        self,
        function: Callable[[Tensor], tuple[float, Tensor]],
        start: Tensor,
        *,
        weights: Tensor,
        bounds: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, FitResult]:
        """Follow the gradient from a point.

        Args:
            function: Value and gradient (P,) at a point (P,).
            start: Where to start, shape (P,).
            weights: Weight w of a change of sign, which is 2 apart, by coordinate, shape (P,).
            bounds: Least and largest coordinates, each of shape (P,); none if ``None``.

        Returns:
            The last point (P,) that could be evaluated, and how it went.

        Raises:
            NumericalError: If the function cannot be evaluated at the start.
        """
        point, (value, gradient) = start, function(start)
        squared, moved, changes = (torch.zeros_like(start) for _ in range(3))
        sign = gradient.sign()
        for count in range(1, self.max_iterations):
            squared = self.decay * squared + (1.0 - self.decay) * gradient.square()
            changes = self.decay * changes + (1.0 - self.decay) * weights * (gradient.sign() - sign).abs()
            sign = gradient.sign()
            step = self.damping ** (-changes) * ((moved + self.epsilon) / (squared + self.epsilon)).sqrt() * gradient
            moved = self.decay * moved + (1.0 - self.decay) * step.square()
            ahead = point + step if bounds is None else (point + step).clamp(*bounds)
            try:
                reached, gradient = function(ahead)
            except NumericalError as error:
                return point, FitResult(value, count + 1, f"the next point could not be evaluated: {error}")
            before, value, point = value, reached, ahead
            if abs(value - before) <= self.tolerance:
                message = f"the function changes by no more than {self.tolerance}"
                return point, FitResult(value, count + 1, message)
        message = f"{self.max_iterations} values are the most allowed"
        return point, FitResult(value, self.max_iterations, message)

    def optimize(self, model: SparseModel, knots: slice | None = None) -> FitResult:
        """Maximize the model's objective in place."""
        coordinates = Coordinates(model, knots)
        start, weights = coordinates.read(), coordinates.weights
        end, result = self.maximize(coordinates.evaluate, start, weights=weights, bounds=coordinates.bounds)
        coordinates.write(end)
        return result
