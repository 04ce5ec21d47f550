"""How some knots and the hyperparameters are optimized together while the other knots stay."""

from abc import ABC, abstractmethod

import torch

from gp_ensembles.sparse.adadelta import Adadelta
from gp_ensembles.sparse.base import KnotModel
from gp_ensembles.sparse.coordinates import Coordinates
from gp_ensembles.sparse.fitting import Fit, can_learn, fit_sparse


class Refit(ABC):
    """An optimizer of hyperparameters, and of some knots with them, inside bounds."""

    @abstractmethod
    def refit(self, model: KnotModel, knots: slice | None = None) -> Fit:
        """Raise the model's objective in place.

        Args:
            model: The model.
            knots: Which knots move; none if ``None``.

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
        >>> from gp_ensembles.sparse import SparseGP
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> fit = LBFGSRefit(20).refit(model, slice(4, None))
        >>> bool((model.knots[:4] == X[:40:10]).all()), bool((model.knots[4] == X[40]).all())
        (True, False)
    """

    def __init__(self, max_iterations: int = 20) -> None:
        if max_iterations < 1:
            raise ValueError(f"at least one iteration is needed, got {max_iterations}")
        self.max_iterations = max_iterations

    def refit(self, model: KnotModel, knots: slice | None = None) -> Fit:
        """Raise the model's objective in place."""
        if knots is None and not can_learn(model):
            with torch.no_grad():
                return Fit(float(model.objective()), 0, "no hyperparameter moves")
        return fit_sparse(model, knots=False if knots is None else knots, max_iterations=self.max_iterations)


class AdadeltaRefit(Refit):
    """By the modified ADADELTA of the paper; ends at the last point, which may be lower than the start.

    Args:
        settings: The ascent's.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> from gp_ensembles.sparse import SparseGP
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> AdadeltaRefit(Adadelta(max_iterations=30)).refit(model, slice(4, None)).evaluations
        30
    """

    def __init__(self, settings: Adadelta = Adadelta()) -> None:  # noqa: B008 (immutable)
        self.settings = settings

    def refit(self, model: KnotModel, knots: slice | None = None) -> Fit:
        """Raise the model's objective in place."""
        coordinates = Coordinates(model, knots)
        start = coordinates.read()
        end = self.settings.maximize(
            coordinates.evaluate, start, weights=coordinates.weights, bounds=coordinates.bounds
        )
        coordinates.write(end.point)
        return Fit(end.value, end.evaluations, end.message)
