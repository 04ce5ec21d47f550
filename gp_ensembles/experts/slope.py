r"""Local linear trend: a slope that walks, and its effect on the level over any number of steps.

.. math::
    \mu_{t+1} = \mu_t + b_t, \qquad b_{t+1} = \phi\, b_t + \zeta_t, \quad \zeta_t \sim N(0, q)

(the local linear trend, damped where :math:`\phi < 1`: Harvey 1989, section 2.3; Durbin and Koopman 2012, section 3.2).
Here level and slope are the first and the last of F states; the others stay, or walk at random as the level may.
"""

from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.filters.block import joint_covariance
from gp_ensembles.filters.states import GaussianState


class Passage(NamedTuple):
    r"""Level and slope some steps later, :math:`\mu + g b` and :math:`d b` with noise; each (\*batch, ...).

    Attributes:
        gain: g.
        decay: d.
        level: Variance that the noise of the slope adds to the level.
        both: Covariance that it adds.
        slope: Variance that it adds to the slope.
    """

    gain: Tensor
    decay: Tensor
    level: Tensor
    both: Tensor
    slope: Tensor

    def then(self, later: "Passage") -> "Passage":
        """This one, and another after it."""
        g, d = later.gain, later.decay
        return Passage(
            self.gain + g * self.decay,
            d * self.decay,
            self.level + 2 * g * self.both + g.square() * self.slope + later.level,
            d * (self.both + g * self.slope) + later.both,
            d.square() * self.slope + later.slope,
        )


class JointBlock(NamedTuple):
    r"""Joint moments of a block of B rows and of the state after it, before any of its targets is known.

    Attributes:
        cross: Covariance of the values of the rows and the state after them, shape (\*batch, B, F).
        mean: Of the values, shape (\*batch, B).
        covariance: Of the values, without noise, shape (\*batch, B, B).
        drift: Variance that the walk of the states adds to each of them, shape (\*batch, F).
        after: The state after the block but for that and for what the targets teach.
    """

    cross: Tensor
    mean: Tensor
    covariance: Tensor
    drift: Tensor | None
    after: GaussianState


@final
class WalkingSlope:
    r"""How level and slope go on.

    Args:
        variance: q, in squared units of the level's state, shape (\*batch).
        damping: :math:`\phi`, shape (\*batch).
    """

    variance: Tensor
    damping: Tensor

    def __init__(self, variance: Tensor, damping: Tensor) -> None:
        self.variance, self.damping = variance, damping
        self._last: tuple[int, tuple[Passage, Passage]] | None = None  # of a block of rows one step apart

    def over(self, counts: Tensor) -> Passage:
        r"""The passage over so many steps, by repeated squaring.

        Shapes: ``counts`` (...); returns (\*batch, ...).
        """
        shape = (*self.damping.shape, *[1] * counts.ndim)
        damping, variance = self.damping.reshape(shape), self.variance.reshape(shape)
        one, zero = torch.ones_like(damping), torch.zeros_like(damping)
        whole = Passage(*(value + zero * counts for value in (zero, one, zero, zero, zero)))
        power, left = Passage(one, damping, zero, zero, variance), counts
        while bool((left > 0).any()):
            longer, odd = whole.then(power), left % 2 == 1
            whole = Passage(*(torch.where(odd, new, old) for new, old in zip(longer, whole, strict=True)))
            power, left = power.then(power), left // 2
        return whole

    def advance(self, state: GaussianState, count: Tensor) -> GaussianState:
        """The state so many steps later, a whole number (), without the walk of the states."""
        return _moved(state, self.over(count))

    def joint(self, state: GaussianState, design: Tensor, walk: Tensor, steps: Tensor, counts: Tensor) -> JointBlock:
        r"""Joint moments of a block before any of its targets.

        Shapes: ``design`` (\*batch, B, F), ``walk`` (\*batch, F), ``steps`` (B,), ``counts`` (B,).
        """
        to_rows, between = self._passages(counts)
        level = design[..., 0]
        seen = torch.cat([design[..., :-1], (level * to_rows.gain).unsqueeze(-1)], dim=-1)
        joint = seen @ state.moments
        cross, covariance, drift = joint_covariance(joint[..., :-1], seen, self.variance, walk, steps)
        shared = to_rows.level.unsqueeze(-1) + between.gain * to_rows.both.unsqueeze(-1)
        upper = level.unsqueeze(-1) * shared * level.unsqueeze(-2)
        covariance = covariance + torch.triu(upper) + torch.triu(upper, diagonal=1).mT
        end = Passage(*(value[..., -1] for value in to_rows))
        gain, decay, slope = end.gain[..., None, None], end.decay[..., None, None], cross[..., -1:]
        to_level = cross[..., :1] + gain * slope + (level * shared[..., -1]).unsqueeze(-1)
        to_slope = decay * slope + (level * between.decay[..., -1] * to_rows.both).unsqueeze(-1)
        cross = torch.cat([to_level, cross[..., 1:-1], to_slope], dim=-1)
        return JointBlock(cross, joint[..., -1], covariance, drift, _moved(state, end))

    def _passages(self, counts: Tensor) -> tuple[Passage, Passage]:
        r"""To each row, (\*batch, B), and from each row to each that is not before it, (\*batch, B, B)."""
        num_rows = counts.shape[0]
        is_regular = bool((counts == torch.arange(1, num_rows + 1, device=counts.device)).all())
        if is_regular and self._last is not None and self._last[0] == num_rows:
            return self._last[1]
        found = self.over(counts), self.over((counts - counts.unsqueeze(-1)).clamp_min(0))
        if is_regular:
            self._last = num_rows, found
        return found


def _moved(state: GaussianState, passage: Passage) -> GaussianState:
    r"""The state after a passage, (\*batch)."""
    gain, decay = passage.gain[..., None, None], passage.decay[..., None, None]
    slope = state.moments[..., -1:, :]
    rows = torch.cat([state.moments[..., :1, :] + gain * slope, state.moments[..., 1:-1, :], decay * slope], dim=-2)
    slope = rows[..., -2:-1]
    moments = torch.cat([rows[..., :1] + gain * slope, rows[..., 1:-2], decay * slope, rows[..., -1:]], dim=-1)
    moments[..., 0, 0] += passage.level
    moments[..., 0, -2] += passage.both
    moments[..., -1, 0] += passage.both
    moments[..., -1, -2] += passage.slope
    return GaussianState(moments)
