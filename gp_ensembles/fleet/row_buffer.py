"""What was said of the rows of a call, put together from batches in any order."""

import torch
from torch import Tensor

from gp_ensembles.engine.predictions import EnsemblePredictions


class RowBuffer:
    """Predictions of the N rows of a call; NaN where nothing was said."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._whole: EnsemblePredictions | None = None

    @property
    def whole(self) -> EnsemblePredictions | None:
        """All rows; ``None`` if nothing was said of any."""
        return self._whole

    def put(self, rows: Tensor, part: EnsemblePredictions) -> None:
        """Write what was said of some rows, integers (n,)."""
        if self._whole is None:
            steps = type(part.experts)(*(self._empty(value, 1) for value in part.experts))
            mean, variance, log_prob = (self._empty(value, 0) for value in part[:3])
            log_weights = self._empty(part.log_weights, 1)
            self._whole = EnsemblePredictions(mean, variance, log_prob, log_weights, steps, part.responses)
        for whole, value in zip(self._whole[:3], part[:3], strict=True):
            whole.index_copy_(0, rows, value)
        for whole, value in zip(
            (self._whole.log_weights, *self._whole.experts), (part.log_weights, *part.experts), strict=True
        ):
            whole.index_copy_(1, rows, value)

    def _empty(self, like: Tensor, axis: int) -> Tensor:
        shape = list(like.shape)
        shape[axis] = self._num_rows
        return like.new_full(shape, torch.nan)
