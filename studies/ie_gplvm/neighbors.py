"""The error of one nearest neighbor, left out one at a time: how well an embedding keeps labels apart."""

import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor


def neighbor_error(X: Tensor, label: Tensor) -> float:
    """Share of rows whose nearest other row has another label: the leave-one-out error of one nearest neighbor.

    Args:
        X: Places of the rows, shape (N, d).
        label: Labels, shape (N,).

    Raises:
        ValueError: If there are fewer than two rows, or a place is not finite.

    Example:
        >>> X = torch.tensor([[0.0], [1.0], [3.0], [3.5]], dtype=torch.float64, device="cpu")
        >>> neighbor_error(X, torch.tensor([0, 1, 1, 1], dtype=torch.int64, device="cpu"))
        0.5
    """
    if len(X) < 2 or not bool(X.isfinite().all()):
        raise ValueError(f"neighbors need at least two rows and finite places, got {len(X)} rows")
    nearest = NearestNeighbors(n_neighbors=1).fit(X.double().cpu().numpy()).kneighbors(return_distance=False)
    other = label[torch.as_tensor(nearest[:, 0], dtype=torch.int64, device=label.device)]
    return float((other != label).double().mean())
