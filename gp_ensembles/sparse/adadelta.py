"""ADADELTA with steps that shrink where gradients change sign, as it was used to place knots one at a time."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError


class Ascent(NamedTuple):
    """Where an ascent ended.

    Args:
        point: The last point at which the function could be evaluated, shape (P,).
        value: The function there.
        evaluations: Values with gradients that it took, the start's included.
        message: Why it stopped.
    """

    point: Tensor
    value: float
    evaluations: int
    message: str


class Adadelta(NamedTuple):
    r"""Settings of the modified ADADELTA of Garton, Niemi and Carriquiry (2020) (after Zeiler, 2012), for ascent.

    With averages :math:`\bar a \leftarrow \rho \bar a + (1 - \rho) a`, all by coordinate,

    .. math:: s = \eta^{-c} \sqrt{\frac{\overline{s^2} + \epsilon}{\overline{g^2} + \epsilon}}\; g, \qquad
              c = \overline{w\, |\mathrm{sign}\, g - \mathrm{sign}\, g_\mathrm{previous}|}

    The ascent is not monotone, and its last point is returned.

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
        >>> end = Adadelta(tolerance=1e-8).maximize(parabola, start, weights=0.5 + start)
        >>> round(float(end.point), 3), end.message
        (0.5, 'the function changes by no more than 1e-08')
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
    ) -> Ascent:
        """Follow the gradient from a point.

        Args:
            function: Value and gradient (P,) at a point (P,).
            start: Where to start, shape (P,).
            weights: Weight w of a change of sign, which is 2 apart, by coordinate, shape (P,).
            bounds: Least and largest coordinates, each of shape (P,); none if ``None``.

        Returns:
            The last point that could be evaluated.

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
                return Ascent(point, value, count + 1, f"the next point could not be evaluated: {error}")
            before, value, point = value, reached, ahead
            if abs(value - before) <= self.tolerance:
                message = f"the function changes by no more than {self.tolerance}"
                return Ascent(point, value, count + 1, message)
        return Ascent(point, value, self.max_iterations, f"{self.max_iterations} values are the most allowed")
