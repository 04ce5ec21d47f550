"""Knots one at a time at fixed hyperparameters, by exact gains: O(M N) a knot for M candidates."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.sparse.gains import measure_candidates
from gp_ensembles.sparse.model import SparseGP

_MEMORY = 2**28  # bytes of each of the two tables of candidates and data


class Picked(NamedTuple):
    """Rows chosen as knots, in order, and what each added to the bound.

    Args:
        rows: Rows of the training inputs, shape (k,).
        gains: Gains of the evidence lower bound in nats, shape (k,).
    """

    rows: Tensor
    gains: Tensor


def most_candidates(model: SparseGP) -> int:
    """How many candidates fit into memory at a time."""
    X = model.train_X
    return max(1, min(X.shape[0], _MEMORY // (X.element_size() * X.shape[0])))


@torch.no_grad()
def pick_greedily(
    model: SparseGP,
    count: int,
    *,
    candidates: int | None = None,
    tolerance: float = 0.0,
    generator: torch.Generator | None = None,
) -> Picked:
    """The ``count`` rows that, one after the other, add most to the model's evidence lower bound.

    Args:
        model: The model, whose knots and hyperparameters stay as they are.
        count: Most rows to pick.
        candidates: Random rows to choose among; all that fit into memory if ``None``.
        tolerance: Stop when the best row adds no more than this, in nats.
        generator: Source of randomness.

    Returns:
        The rows and their gains; fewer if no further one adds anything.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[:1], ScaleKernel(RBFKernel()))
        >>> picked = pick_greedily(model, 3)
        >>> picked.rows.shape, bool((picked.gains > 0).all())
        (torch.Size([3]), True)
    """
    X = model.train_X
    most = most_candidates(model) if candidates is None else min(candidates, most_candidates(model))
    rows = torch.randperm(X.shape[0], generator=generator, device="cpu")[:most].sort().values.to(X.device)
    if most == X.shape[0]:
        rows = torch.arange(X.shape[0], device=X.device)
    C = X[rows]
    own = model.kernel_matrix(model.knots, model.knots)
    prior = model.kernel_diagonal(C) + model.delta(own)
    state = measure_candidates(
        model.projection(), model.kernel_matrix(model.knots, C), model.kernel_matrix(C, X), prior
    )
    picked: list[int] = []
    gains: list[Tensor] = []
    for _ in range(min(count, most)):
        gain = state.gains()
        best = int(gain.argmax())
        if not bool(gain[best] > tolerance):
            break
        picked.append(best)
        gains.append(gain[best])
        state = state.add(best, rows)
    chosen = rows[torch.tensor(picked, dtype=torch.long, device=X.device)]
    return Picked(chosen, torch.stack(gains) if gains else X.new_zeros(0))
