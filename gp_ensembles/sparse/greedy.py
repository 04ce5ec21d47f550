"""Knots one at a time at fixed hyperparameters, by exact gains: O(M N) a knot for M candidates."""

import torch
from torch import Tensor

from gp_ensembles.sparse.gains import Candidates, measure_candidates
from gp_ensembles.sparse.model import SparseGP
from gp_ensembles.sparse.run import Picked

_MEMORY = 2**28  # bytes of each of the two tables of candidates and data


def draw_candidates(X: Tensor, most: int | None, generator: torch.Generator | None) -> Tensor:
    """Random rows of X (N, D), in order: ``most`` at most, and no more than fit into memory.

    Example:
        >>> draw_candidates(torch.zeros(3, 1), None, None)
        tensor([0, 1, 2])
    """
    total = X.shape[0]
    fitting = max(1, min(total, _MEMORY // (X.element_size() * total)))
    count = fitting if most is None else min(most, fitting)
    if count == total:
        return torch.arange(total, device=X.device)
    return torch.randperm(total, generator=generator, device="cpu")[:count].sort().values.to(X.device)


@torch.no_grad()
def pick_greedily(
    model: SparseGP,
    count: int,
    *,
    learned: SparseGP | None = None,
    candidates: int | None = None,
    tolerance: float = 0.0,
    generator: torch.Generator | None = None,
) -> Picked:
    """The ``count`` rows that, one after the other, add most to the model's evidence lower bound.

    Args:
        model: The model, whose knots and hyperparameters stay as they are.
        count: Most rows to pick.
        learned: Does not matter: the targets are known as they are.
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
    rows = draw_candidates(X, candidates, generator)
    C = X[rows]
    own = model.kernel_matrix(model.knots, model.knots)
    prior = model.kernel_diagonal(C) + model.delta(own)
    state = measure_candidates(
        model.projection(), model.kernel_matrix(model.knots, C), model.kernel_matrix(C, X), prior
    )
    return take_best(state, min(count, len(rows)), rows, tolerance)


def take_best(state: Candidates, count: int, rows: Tensor, tolerance: float = 0.0) -> Picked:
    """Candidates of the largest gains, one after the other, each a knot for those after it.

    Args:
        state: The candidates, which become those that are left.
        count: Most candidates to take.
        rows: The rows of the data at which they stand, shape (M,).
        tolerance: Stop when the best one adds no more than this, in nats.

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> from gp_ensembles.sparse.gains import measure_candidates
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], one[0], one[0, 0])
        >>> take_best(measure_candidates(projection, 0.0 * one, one, one[0]), 5, torch.tensor([0])).rows
        tensor([0])
    """
    picked: list[int] = []
    gains: list[Tensor] = []
    for _ in range(count):
        gain = state.gains()
        best = int(gain.argmax())
        if not bool(gain[best] > tolerance):
            break
        picked.append(best)
        gains.append(gain[best])
        state.take(best, rows)
    chosen = rows[torch.tensor(picked, dtype=torch.long, device=rows.device)]
    return Picked(chosen, torch.stack(gains) if gains else state.variance.new_zeros(0))
