"""Conversions between numpy arrays, as in scikit-learn, and torch tensors."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]


def as_tensor(values: Array) -> Tensor:
    """A float64 copy as a tensor: the user's memory may be read-only, or change later."""
    return torch.from_numpy(np.array(values, dtype=np.float64))


def as_array(values: Tensor) -> Array:
    """A float64 array on the host."""
    result: Array = values.cpu().double().numpy()
    return result
