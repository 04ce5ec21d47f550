"""Predictions of rows by experts that have not learned them: K-fold cross-validation."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gp_ensembles.fusion.experts import ExpertPredictions, check_inputs, predict_experts


def folds_of(like: Tensor, num_folds: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Random folds whose sizes differ by one at most.

    Args:
        like: Rows to be spread, shape (N, ...); only their number and device matter.
        num_folds: Number of folds.
        generator: Source of randomness, on the rows' device; ``None`` for torch's global one.

    Returns:
        The fold of each row, integers of shape (N,).

    Raises:
        ValueError: If there are fewer than two folds, or more than rows.

    Example:
        >>> import torch
        >>> folds = folds_of(torch.zeros(5, 1), 2, generator=torch.Generator().manual_seed(0))
        >>> folds.bincount()
        tensor([3, 2])
    """
    num_rows = like.shape[0]
    if not 2 <= num_folds <= num_rows:
        raise ValueError(f"the number of folds must be from 2 to the number of rows, {num_rows}; got {num_folds}")
    return torch.randperm(num_rows, generator=generator, device=like.device) % num_folds


def k_fold(
    fits: Sequence[Callable[[Tensor, Tensor], object]], X: Tensor, y: Tensor, folds: Tensor, *, batch_size: int = 1024
) -> ExpertPredictions:
    """Predictions of every row by experts that were fitted to the other folds.

    Args:
        fits: K functions, each of which fits an expert to inputs (n, D) and targets (n,) and returns it, as
            :func:`predict_experts` takes it.
        X: Inputs, shape (N, D).
        y: Targets, shape (N,).
        folds: The fold of each row, integers of shape (N,), as :func:`folds_of` makes them or by groups of your own.
        batch_size: Rows predicted at once.

    Returns:
        Predictions, shapes (K, N); their ``log_prob(y)`` is what weights are learned from.

    Raises:
        ValueError: If shapes do not fit, all rows are in one fold, or an expert's predictions cannot be fused.

    Example:
        >>> import torch
        >>> from botorch.models import SingleTaskGP
        >>> X = torch.linspace(0, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> fit = lambda X, y: SingleTaskGP(X, y.unsqueeze(-1))
        >>> k_fold([fit], X, X.squeeze(-1).sin(), folds_of(X, 4)).log_prob(X.squeeze(-1).sin()).shape
        torch.Size([1, 8])
    """
    check_inputs(X)
    if y.shape != X.shape[:1] or folds.shape != X.shape[:1]:
        raise ValueError(
            f"targets and folds must have shape ({X.shape[0]},), got {tuple(y.shape)} and {tuple(folds.shape)}"
        )
    labels = folds.unique()
    if len(labels) < 2:
        raise ValueError("all rows are in one fold, and no row is left to learn from; give two folds at least")
    result = ExpertPredictions(*(X.new_empty(len(fits), X.shape[0], dtype=y.dtype) for _ in range(3)))
    for label in labels:
        held_out = folds == label
        experts = [fit(X[~held_out], y[~held_out]) for fit in fits]
        found = predict_experts(experts, X[held_out], batch_size=batch_size)
        for whole, part in zip(result, found, strict=True):
            whole[:, held_out] = part
    return result
