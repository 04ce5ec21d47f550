r"""A range of inputs that grows with them, but slowly, so that one outlier does no lasting harm.

A row a thousand times as far out as the others has the leverage of a million of them: a static expert would never
recover from one broken number. So an input further beyond the range seen so far than the width w of the warm-up's
is moved to there. With lower and upper end :math:`a_t, b_t` of a column,

.. math:: x_t \leftarrow \min(\max(x_t, a_t - w), b_t + w), \qquad b_{t+1} = \max(b_t, \min(x_t, b_t + w / 10))

and the lower end likewise. A column that moves on, such as a clock, is followed and never moved.
"""

from typing import NamedTuple

import torch
from torch import Tensor

REACH, GROWTH = 1.0, 0.1  # in widths of the warm-up range


class InputRange(NamedTuple):
    """The range of D columns so far, of one series or of many side by side."""

    lower: Tensor  # lower ends, shape (..., D)
    upper: Tensor  # upper ends, shape (..., D)
    width: Tensor  # widths of the warm-up range, shape (..., D)

    @classmethod
    def of(cls, X: Tensor) -> "InputRange":
        """The range of warm-up rows X (..., N, D) without gaps."""
        lower, upper = X.amin(-2), X.amax(-2)
        return cls(lower, upper, upper - lower)

    @classmethod
    def everywhere(cls, like: Tensor) -> "InputRange":
        """One that no input is beyond; ``like`` has shape (..., D)."""
        return cls(torch.full_like(like, -torch.inf), torch.full_like(like, torch.inf), torch.zeros_like(like))

    def limit(self, X: Tensor) -> Tensor:
        """Rows (..., N, D) that all come next, moved into range."""
        reach = REACH * self.width
        return X.clamp((self.lower - reach).unsqueeze(-2), (self.upper + reach).unsqueeze(-2))

    def follow(self, X: Tensor) -> tuple["InputRange", Tensor, Tensor]:
        """Move rows X (..., N, D) into the range of those before them; the last part is how many of each were moved."""
        upper = _follow(self.upper, X, GROWTH * self.width)
        lower = -_follow(-self.lower, -X, GROWTH * self.width)
        reach = REACH * self.width.unsqueeze(-2)
        moved = torch.minimum(torch.maximum(X, lower[..., :-1, :] - reach), upper[..., :-1, :] + reach)
        return InputRange(lower[..., -1, :], upper[..., -1, :], self.width), moved, (moved != X).sum(-1)


def _follow(upper: Tensor, X: Tensor, step: Tensor) -> Tensor:
    """Upper ends before each row and after the last, (..., N + 1, D), none above the one before by more than a step."""
    ends = torch.cat([upper.unsqueeze(-2), X], dim=-2).cummax(-2).values
    if bool((ends[..., 1:, :] <= ends[..., :-1, :] + step.unsqueeze(-2)).all()):
        return ends
    found = [upper]
    for row in X.unbind(-2):
        found.append(torch.maximum(found[-1], torch.minimum(row, found[-1] + step)))
    return torch.stack(found, dim=-2)
