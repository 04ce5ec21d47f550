"""Means and variances that are known at some inputs only, as an expert."""

from typing import final

import torch
from torch import Tensor

from gp_ensembles.fusion.experts import ExpertPredictions, PredictiveExpert, check_inputs


@final
class TabulatedExpert(PredictiveExpert):
    """An expert of which only the predictions at some inputs are left.

    Args:
        X: The inputs, shape (N, D).
        mean: Means there, shape (N,).
        variance: Variances there, shape (N,): of the function with its noise apart, or of the target without.
        noise: Noise variances, shape (N,) or (); none if not given.

    Raises:
        ValueError: If shapes do not fit, values cannot be fused, or an input stands twice with different predictions.

    Example:
        >>> import torch
        >>> expert = TabulatedExpert(torch.tensor([[0.0], [1.0]]), torch.tensor([3.0, 4.0]), torch.ones(2))
        >>> expert.predict(torch.tensor([[1.0], [0.0]])).mean
        tensor([[4., 3.]])
    """

    def __init__(self, X: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> None:
        check_inputs(X)
        if mean.shape != X.shape[:1]:
            raise ValueError(f"{X.shape[0]} inputs need means of shape ({X.shape[0]},), got {tuple(mean.shape)}")
        noise = torch.zeros_like(mean) if noise is None else noise
        rows = ExpertPredictions(mean.unsqueeze(0), variance.unsqueeze(0), noise.unsqueeze(0)).check()
        self.predictions = rows._replace(noise=rows.noise.expand_as(rows.mean))
        self._num_inputs = X.shape[1]
        self._row_of: dict[tuple[float, ...], int] = {}
        first = [self._row_of.setdefault(tuple(row), number) for number, row in enumerate(X.tolist())]
        for part in self.predictions:
            differs = part[0] != part[0, first]
            if bool(differs.any()):
                row = int(differs.int().argmax())
                raise ValueError(
                    f"rows {first[row]} and {row} of the table have the same inputs and different predictions; keep one"
                )

    def predict(self, X: Tensor) -> ExpertPredictions:
        """Predictions at inputs of the table, shapes (1, N).

        Raises:
            ValueError: If an input is not in the table; names its row.
        """
        check_inputs(X)
        if X.shape[1] != self._num_inputs:
            raise ValueError(f"inputs must have {self._num_inputs} columns, got {X.shape[1]}")
        rows = [self._row_of.get(tuple(row)) for row in X.tolist()]
        if None in rows:
            raise ValueError(
                f"the expert is a table, and the input of row {rows.index(None)} is not in it; give predictions at all "
                "inputs that are fused, or the model itself"
            )
        index = torch.tensor(rows, dtype=torch.long, device=self.predictions.mean.device)
        mean, variance, noise = (part[:, index] for part in self.predictions)
        return ExpertPredictions(mean, variance, noise)
