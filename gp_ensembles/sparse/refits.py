"""How a new knot and the hyperparameters are optimised together while the older knots stay."""

from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.adadelta import Adadelta
from gp_ensembles.sparse.coordinates import Coordinates
from gp_ensembles.sparse.fitting import Fit
from gp_ensembles.sparse.model import SparseGP


class Refit(ABC):
    """An optimiser of hyperparameters, and of one knot with them, inside bounds."""

    @abstractmethod
    def refit(self, model: SparseGP, knot: int | None = None) -> Fit:
        """Raise the model's objective in place.

        Args:
            model: The model.
            knot: Index of the only knot that moves; none if ``None``.

        Returns:
            How it went; the objective is that of the model as it now is.

        Raises:
            NumericalError: If the objective cannot be evaluated at the start.
        """


class LBFGSRefit(Refit):
    """By L-BFGS-B in logs and logits, where scales of any size are moved alike; never lower than the start.

    Args:
        max_iterations: Most iterations.

    Raises:
        ValueError: If there is no iteration.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> fit = LBFGSRefit(20).refit(model, knot=4)
        >>> bool((model.knots[:4] == X[:40:10]).all()), bool((model.knots[4] == X[40]).all())
        (True, False)
    """

    def __init__(self, max_iterations: int = 20) -> None:
        if max_iterations < 1:
            raise ValueError(f"at least one iteration is needed, got {max_iterations}")
        self.max_iterations = max_iterations

    def refit(self, model: SparseGP, knot: int | None = None) -> Fit:
        """Raise the model's objective in place."""
        coordinates = Coordinates(model, knot)
        best: list[tuple[float, Tensor]] = []
        count = 0

        def descend(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            nonlocal count
            count += 1
            place = torch.as_tensor(point).to(start)
            try:
                value, gradient = coordinates.evaluate(place)
                if not np.isfinite(value):
                    raise NumericalError(f"the objective is {value}; bring hyperparameters to the scales of the data")
            except NumericalError:
                if not best:
                    raise
                return np.inf, np.zeros_like(point)
            if not best or value > best[0][0]:
                best[:] = [(value, place)]
            return -value, -gradient.cpu().double().numpy()

        start = coordinates.read().clamp(*coordinates.bounds)
        sides = (side.cpu().double().numpy() for side in coordinates.bounds)
        try:
            result = minimize(
                descend,
                start.cpu().double().numpy(),
                jac=True,
                method="L-BFGS-B",
                bounds=list(zip(*sides, strict=True)),
                options={"maxiter": self.max_iterations},
            )
        finally:  # whatever happens, the best place seen is the model's
            coordinates.write(best[0][1] if best else start)
        return Fit(best[0][0], count, str(result.message))


class AdadeltaRefit(Refit):
    """By the modified ADADELTA of the paper; ends at the last point, which may be lower than the start.

    Args:
        settings: The ascent's.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> AdadeltaRefit(Adadelta(max_iterations=30)).refit(model, knot=4).evaluations
        30
    """

    def __init__(self, settings: Adadelta = Adadelta()) -> None:  # noqa: B008 (immutable)
        self.settings = settings

    def refit(self, model: SparseGP, knot: int | None = None) -> Fit:
        """Raise the model's objective in place."""
        coordinates = Coordinates(model, knot)
        start = coordinates.read()
        end = self.settings.maximise(
            coordinates.evaluate, start, weights=coordinates.weights, bounds=coordinates.bounds
        )
        coordinates.write(end.point)
        return Fit(end.value, end.evaluations, end.message)
