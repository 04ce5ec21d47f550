r"""Transitions: how the weights change between rows, for every filter.

Each of them is a linear Gaussian transition before every row. Inside a block it becomes a random walk in rescaled
coordinates (:class:`~gp_ensembles.filters.transitions.Schedule`), so the exact block algebra of
:mod:`gp_ensembles.filters.block` serves them all.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import GaussianState, LinearState, SquareRootState, StepPredictions
from gp_ensembles.numerics import normal


class Schedule(NamedTuple):
    """A block of B rows in coordinates in which the weights only walk at random."""

    row_scale: Tensor | None = None  # α, shape (B,) or (*batch, B)
    target_scale: Tensor | None = None  # ρ, shape (B,) or (*batch, B)
    walk: Tensor | None = None  # Q: its diagonal (*batch, 1) or (*batch, F), or the matrix (*batch, F, F)
    steps: Tensor | None = None  # steps of the walk before each row, (B,) or (*batch, B); ``None`` for 1, 2, ..., B
    mean_scale: Tensor | None = None  # scale of the mean after the block, shape () or (*batch)
    covariance_scale: Tensor | None = None  # scale of the covariance after the block, shape () or (*batch)

    def with_class_axis(self, num_axes: int) -> "Schedule":
        """The same with an axis for classes behind those of the batch, what scales rows and targets excepted."""

        def behind(value: Tensor | None, own: int) -> Tensor | None:
            return value if value is None or value.ndim == own else value.unsqueeze(num_axes)

        scales = {"mean_scale": behind(self.mean_scale, 0), "covariance_scale": behind(self.covariance_scale, 0)}
        return self._replace(walk=behind(self.walk, -1), steps=behind(self.steps, 1), **scales)


def count_steps(Phi: Tensor) -> Tensor:
    """One step of the walk before every row: 1, 2, ..., B."""
    return torch.arange(1, Phi.shape[-2] + 1, dtype=Phi.dtype, device=Phi.device)


def is_full(walk: Tensor, noise: Tensor) -> bool:
    r"""Whether a walk is a matrix (\*batch, F, F) and not a diagonal (\*batch, 1) or (\*batch, F)."""
    return walk.ndim == noise.ndim + 2


def walk_rows(Phi: Tensor, walk: Tensor, noise: Tensor) -> Tensor:
    r"""The product :math:`\Phi Q`, shape (..., \*batch, N, F).

    Shapes: ``walk`` (\*batch, 1) or (\*batch, F), ``noise`` (\*batch).
    """
    return Phi @ walk if is_full(walk, noise) else Phi * walk.unsqueeze(-2)


def walk_variance(Phi: Tensor, walk: Tensor, noise: Tensor) -> Tensor:
    r"""Variance that one step of the walk adds to each row, :math:`\phi^\top Q \phi`, (..., \*batch, N)."""
    return (walk_rows(Phi, walk, noise) * Phi).sum(-1)


def total_walk(walk: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
    r"""Q times the number of steps, shape () or (\*batch), in the form that Q has."""
    missing = walk.ndim - steps.ndim
    return walk * steps.reshape(*steps.shape, *[1] * missing)


def scale_features(Phi: Tensor, schedule: Schedule) -> Tensor:
    r"""Features (..., \*batch, N, F) in the coordinates of a schedule: of N rows, or of one for N alternatives."""
    return Phi if schedule.row_scale is None else Phi * schedule.row_scale.unsqueeze(-1)


def scale_targets(y: Tensor, schedule: Schedule) -> Tensor:
    r"""Targets, (B,) or (\*batch, B), in the coordinates of a schedule."""
    return y if schedule.target_scale is None else y / schedule.target_scale


def walk_ahead(schedule: Schedule) -> Tensor | None:
    """Covariance that a schedule of one row adds, in the form of its walk."""
    if schedule.walk is None or schedule.steps is None:
        return schedule.walk
    count = schedule.steps.squeeze(-1)
    return schedule.walk * count.reshape(*count.shape, *[1] * (schedule.walk.ndim - count.ndim))


def scale_state(state: LinearState, schedule: Schedule) -> LinearState:
    """The state after a block, back in the coordinates of the weights."""
    if isinstance(state, GaussianState):
        scales = moment_scales(state.moments, schedule)
        return state if scales is None else GaussianState(state.moments * scales)
    (mean, factor), scale, spread = state, schedule.mean_scale, schedule.covariance_scale
    mean = mean if scale is None else mean * scale.unsqueeze(-1)
    return SquareRootState(mean, factor if spread is None else factor * spread.sqrt()[..., None, None])


def moment_scales(moments: Tensor, schedule: Schedule) -> Tensor | None:
    r"""Factors for [Σ | μ] after a block, shape (\*batch, 1, F + 1); ``None`` where all are one."""
    if schedule.mean_scale is None and schedule.covariance_scale is None:
        return None
    scales, one = (schedule.covariance_scale, schedule.mean_scale), moments.new_ones(())
    spread, mean = ((one if s is None else s).expand(moments.shape[:-2]).unsqueeze(-1) for s in scales)
    return torch.cat([spread.expand(moments.shape[:-1]), mean], dim=-1).unsqueeze(-2)


def unscale_steps(steps: StepPredictions, y: Tensor, schedule: Schedule) -> StepPredictions:
    r"""Predictions of the scaled targets as predictions of the targets y, (B,) or (\*batch, B)."""
    if schedule.target_scale is None:
        return steps
    mean = steps.mean * schedule.target_scale
    missing = torch.isnan(y)
    log_prob = normal.log_prob(torch.where(missing, mean, y), mean, steps.variance)
    return steps._replace(mean=mean, log_prob=torch.where(missing, torch.nan, log_prob))


Numbers = NDArray[np.float64]
_SMALLEST_SCALE = 1e-4  # how far the coordinates of one block may shrink: four digits of sixteen


class Transition(nn.Module, ABC):
    """A linear Gaussian transition of the weights of a batch of experts, before every row.

    Attributes:
        needs_prior_variance: Whether the transition depends on the prior variance of the weights.
    """

    needs_prior_variance: ClassVar[bool] = False

    @abstractmethod
    def schedule(self, num_rows: int, prior_variance: Tensor, steps: Tensor | None = None) -> Schedule:
        r"""The transition over a block.

        Args:
            num_rows: Length B of the block, at most :attr:`max_rows`.
            prior_variance: Prior variance of the weights, shape (\*batch).
            steps: How many steps lie between the state and each row, not decreasing, (B,); ``None`` for 1, 2, ..., B.
        """

    @property
    @abstractmethod
    def max_rows(self) -> int | None:
        """Longest block whose coordinates stay numerically accurate; ``None`` for any."""

    @abstractmethod
    def slowest_walk(self) -> Tensor | None:
        r"""Smallest variance per step that the transition surely adds to any weight, (\*batch); ``None`` for none."""

    @abstractmethod
    def check_shape(self, batch_shape: torch.Size, num_features: int) -> None:
        """Raise a clear error unless the transition fits experts of this batch shape and number of features.

        Raises:
            ValueError: If it does not; the message names the shape.
        """

    @abstractmethod
    def take(self, batch_shape: torch.Size, index: Tensor) -> "Transition":
        r"""Independent copies for some experts of a batch, () or (M,): batch shape (S,) for ``index`` (S,)."""


def exact_tensor(value: Tensor | float) -> Tensor:
    """A tensor of a number that keeps all its digits."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")


def make_schedule(
    transition: Transition | None, num_rows: int, prior_variance: Tensor, ages: Tensor | None = None
) -> Schedule:
    """The schedule of a block whose rows come so many steps after the state, (B,); empty for static weights."""
    if transition is None:
        return Schedule()
    return transition.schedule(num_rows, prior_variance, None if ages is None else ages.to(prior_variance))


def split_rows(Phi: Tensor, rows: Rows, transition: Transition | None) -> list[tuple[Tensor, Rows]]:
    r"""The block in pieces that are short enough for the transition; Phi (\*batch, B, F)."""
    limit = None if transition is None or rows.steps is not None else transition.max_rows
    num_rows = Phi.shape[-2]
    if limit is None or num_rows <= limit:
        return [(Phi, rows)]
    parts = [slice(start, start + limit) for start in range(0, num_rows, limit)]
    return [(Phi[..., part, :], rows.part(part)) for part in parts]


class RandomWalk(Transition):
    r"""Weights walk at random: :math:`\theta_t = \theta_{t-1} + w_t`, :math:`w_t \sim N(0, Q)`.

    (Lu et al. 2022, equation 44; Waxman and Djuric 2024, equation 26.) Where nothing is learned the variance of the
    weights grows without limit.

    Args:
        variance: Q per step, in squared units of the weights: a number or a tensor () for all; a tensor with an
            explicit last axis, (1,), (F,), (\*batch, 1) or (\*batch, F), for its diagonal.

    Raises:
        ValueError: If a variance is negative or not finite.

    Example:
        >>> import torch
        >>> RandomWalk(0.1).schedule(3, torch.tensor(1.0)).walk
        tensor([0.1000])
    """

    variance: Tensor

    def __init__(self, variance: Tensor | float) -> None:
        super().__init__()
        value = exact_tensor(variance)
        value = value.unsqueeze(-1) if value.ndim == 0 else value
        if value.device.type != "meta" and not bool(((value >= 0) & torch.isfinite(value)).all()):
            raise ValueError("the variance of a random walk must be finite and not negative; use None for no walk")
        self.register_buffer("variance", value.detach().clone())

    def schedule(self, num_rows: int, prior_variance: Tensor, steps: Tensor | None = None) -> Schedule:
        batch_shape = prior_variance.shape
        return Schedule(
            walk=self.variance.to(prior_variance).expand(*batch_shape, self.variance.shape[-1]), steps=steps
        )

    @property
    def max_rows(self) -> int | None:
        """Any length."""
        return None

    def slowest_walk(self) -> Tensor | None:
        """The smallest variance on the diagonal."""
        return self.variance.amin(-1)

    def check_shape(self, batch_shape: torch.Size, num_features: int) -> None:
        wanted = (*batch_shape, num_features)
        if self.variance.ndim > len(wanted) or not _broadcasts(self.variance.shape, wanted):
            raise ValueError(
                f"a random walk variance of shape {tuple(self.variance.shape)} does not broadcast to {wanted}; give a "
                f"number, or shape (*batch, 1) or (*batch, F)"
            )

    def of_each(self, shape: tuple[int, int]) -> Numbers:
        """Variances of a step of each weight of E experts, on plain arrays, (E, F)."""
        return np.broadcast_to(self.variance.detach().reshape(-1, self.variance.shape[-1]).numpy(), shape)

    def take(self, batch_shape: torch.Size, index: Tensor) -> "RandomWalk":
        if self.variance.ndim == 1:
            return RandomWalk(self.variance)
        return RandomWalk(_take(self.variance, batch_shape, index, 1))


class CorrelatedWalk(Transition):
    r"""Weights walk at random with correlated steps: any positive semidefinite Q.

    Args:
        covariance: Q per step, shape (F, F) or (\*batch, F, F).

    Raises:
        TypeError: If Q is not a floating point tensor.
        ValueError: If Q is not square, symmetric and positive semidefinite (to round-off).

    Example:
        >>> import torch
        >>> CorrelatedWalk(torch.ones(2, 2, dtype=torch.float64)).covariance.shape
        torch.Size([2, 2])
    """

    covariance: Tensor

    def __init__(self, covariance: Tensor) -> None:
        super().__init__()
        if not isinstance(covariance, Tensor) or not covariance.is_floating_point():
            raise TypeError(
                f"the covariance of a walk must be a floating point tensor of shape (..., F, F), got "
                f"{_described(covariance)}; for independent steps use RandomWalk(variance)"
            )
        if covariance.ndim < 2 or covariance.shape[-1] != covariance.shape[-2]:
            raise ValueError(
                f"the covariance of a walk must have shape (..., F, F), got {tuple(covariance.shape)}; for independent "
                f"steps use RandomWalk(variance)"
            )
        if covariance.device.type != "meta":
            scale = covariance.abs().amax()
            tolerance = 8 * covariance.shape[-1] * torch.finfo(covariance.dtype).eps * scale
            if not bool(((covariance - covariance.mT).abs() <= tolerance).all()):
                raise ValueError("the covariance of a walk is not symmetric (or not finite); use (Q + Q.mT) / 2")
            smallest = torch.linalg.eigvalsh(covariance).amin()
            if bool(smallest < -tolerance):
                raise ValueError(
                    f"the covariance of a walk has the eigenvalue {float(smallest):.3g}; it must have none below zero"
                )
        self.register_buffer("covariance", covariance.detach().clone())

    def schedule(self, num_rows: int, prior_variance: Tensor, steps: Tensor | None = None) -> Schedule:
        size = self.covariance.shape[-2:]
        return Schedule(walk=self.covariance.to(prior_variance).expand(*prior_variance.shape, *size), steps=steps)

    @property
    def max_rows(self) -> int | None:
        """Any length."""
        return None

    def slowest_walk(self) -> Tensor | None:
        """The smallest eigenvalue."""
        values: Tensor = torch.linalg.eigvalsh(self.covariance)
        return values.amin(-1).clamp_min(0.0)

    def check_shape(self, batch_shape: torch.Size, num_features: int) -> None:
        wanted = (*batch_shape, num_features, num_features)
        shape = self.covariance.shape
        if shape[-1] != num_features or len(shape) > len(wanted) or not _broadcasts(shape, wanted):
            raise ValueError(f"a walk's covariance of shape {tuple(shape)} does not fit experts of shape {wanted}")

    def take(self, batch_shape: torch.Size, index: Tensor) -> "CorrelatedWalk":
        if self.covariance.ndim == 2:
            return CorrelatedWalk(self.covariance)
        return CorrelatedWalk(_take(self.covariance, batch_shape, index, 2))


class ExponentialForgetting(Transition):
    r"""Old rows count less: before every row the covariance is divided by :math:`\lambda`, the mean stays.

    A row that is n rows old counts :math:`\lambda^n`, an effective memory of :math:`1 / (1 - \lambda)` rows. In
    directions that are not excited the covariance grows exponentially and without limit (it winds up); use
    :class:`StabilizedForgetting` where inputs may stand still.

    Args:
        factor: :math:`\lambda`, from 0.5 to 1: a number, or a tensor () or (\*batch).

    Raises:
        ValueError: If a factor is outside [0.5, 1].

    Example:
        >>> import torch
        >>> ExponentialForgetting(0.5).schedule(2, torch.ones(()).double()).covariance_scale
        tensor(4.0000, dtype=torch.float64)
    """

    factor: Tensor

    def __init__(self, factor: Tensor | float) -> None:
        super().__init__()
        self.register_buffer("factor", _check_factor(factor))

    def schedule(self, num_rows: int, prior_variance: Tensor, steps: Tensor | None = None) -> Schedule:
        half_powers = _half_powers(self.factor.to(prior_variance), num_rows, steps)
        return Schedule(
            row_scale=1 / half_powers, target_scale=half_powers, covariance_scale=half_powers[..., -1] ** -2
        )

    @property
    def max_rows(self) -> int | None:
        """Until the scale of the coordinates has fallen to 1e-4."""
        return _max_rows(self.factor)

    def slowest_walk(self) -> Tensor | None:
        """``None``: what is added is a share of what is there."""
        return None

    def check_shape(self, batch_shape: torch.Size, num_features: int) -> None:
        _check_factor_shape(self.factor, batch_shape)

    def take(self, batch_shape: torch.Size, index: Tensor) -> "ExponentialForgetting":
        return ExponentialForgetting(self.factor if self.factor.ndim == 0 else self.factor[index])


class StabilizedForgetting(Transition):
    r"""Forgetting towards the prior, so that the covariance never exceeds it.

    .. math:: \theta_t = \sqrt{\lambda}\, \theta_{t-1} + w_t, \qquad
              w_t \sim N(0, (1 - \lambda)\, \sigma_\theta^2 I)

    Before every row :math:`\mu \leftarrow \sqrt\lambda \mu` and :math:`\Sigma \leftarrow \lambda \Sigma +
    (1 - \lambda) \sigma_\theta^2 I` ("back to the prior", Van Vaerenbergh, Lazaro-Gredilla and Santamaria 2012): the
    function is a Gaussian process whose covariance in time is :math:`\lambda^{|s - t| / 2}`. From the prior on,
    :math:`\Sigma \preceq \sigma_\theta^2 I` whatever is observed, so nothing can wind up.

    Args:
        factor: :math:`\lambda`, from 0.5 to 1: a number, or a tensor () or (\*batch).

    Raises:
        ValueError: If a factor is outside [0.5, 1].

    Example:
        >>> import torch
        >>> StabilizedForgetting(0.5).schedule(2, torch.ones(()).double()).steps
        tensor([1.0000, 3.0000], dtype=torch.float64)
    """

    needs_prior_variance = True
    factor: Tensor

    def __init__(self, factor: Tensor | float) -> None:
        super().__init__()
        self.register_buffer("factor", _check_factor(factor))

    def schedule(self, num_rows: int, prior_variance: Tensor, steps: Tensor | None = None) -> Schedule:
        half_powers = _half_powers(self.factor.to(prior_variance), num_rows, steps)
        return Schedule(
            row_scale=half_powers,
            walk=prior_variance.unsqueeze(-1),
            steps=half_powers**-2 - 1,
            mean_scale=half_powers[..., -1],
            covariance_scale=half_powers[..., -1] ** 2,
        )

    @property
    def max_rows(self) -> int | None:
        """Until the scale of the coordinates has fallen to 1e-4."""
        return _max_rows(self.factor)

    def slowest_walk(self) -> Tensor | None:
        """``None``: what is added is a share of the prior variance."""
        return None

    def check_shape(self, batch_shape: torch.Size, num_features: int) -> None:
        _check_factor_shape(self.factor, batch_shape)

    def take(self, batch_shape: torch.Size, index: Tensor) -> "StabilizedForgetting":
        return StabilizedForgetting(self.factor if self.factor.ndim == 0 else self.factor[index])


def step_ahead(
    mean: Tensor, covariance: Tensor, transition: Transition | None, prior_variance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Moments of the weights before the next row.

    Shapes: ``mean`` (\*batch, F), ``covariance`` (\*batch, F, F), ``prior_variance`` (\*batch). Returns: factor of
    the mean, shape () or (\*batch, 1); covariance (\*batch, F, F); and the factor, () or (\*batch, 1), of a square
    root of whatever has been taken from the covariance.
    """
    one = mean.new_ones(())
    if transition is None:
        return one, covariance, one
    schedule = transition.schedule(1, prior_variance)
    walk = walk_ahead(schedule)
    if walk is not None:
        is_matrix = walk.ndim == covariance.ndim
        covariance = covariance + (walk if is_matrix else torch.diag_embed(walk.expand_as(mean)))
    rows = one if schedule.row_scale is None else schedule.row_scale
    targets = one if schedule.target_scale is None else schedule.target_scale
    return rows * targets, covariance * rows.square().unsqueeze(-1), rows


def _described(value: object) -> str:
    return f"one of {value.dtype}" if isinstance(value, Tensor) else repr(value)


def _broadcasts(shape: torch.Size, wanted: tuple[int, ...]) -> bool:
    try:
        return bool(torch.broadcast_shapes(shape, wanted) == torch.Size(wanted))
    except RuntimeError:
        return False


def _take(value: Tensor, batch_shape: torch.Size, index: Tensor, num_own_axes: int) -> Tensor:
    own = value.shape[-num_own_axes:]
    return value.expand(*batch_shape, *own).reshape(batch_shape.numel(), *own)[index.to(value.device)]


def _check_factor(factor: Tensor | float) -> Tensor:
    value = exact_tensor(factor).detach().clone()
    if value.device.type != "meta" and not bool(((value >= 0.5) & (value <= 1)).all()):
        raise ValueError(
            f"a forgetting factor must lie in [0.5, 1], got {value.tolist()}; 0.99 remembers about 100 rows, 0.999 a "
            f"thousand"
        )
    return value


def _check_factor_shape(factor: Tensor, batch_shape: torch.Size) -> None:
    if factor.ndim and factor.shape != batch_shape:
        raise ValueError(
            f"forgetting factors of shape {tuple(factor.shape)} do not fit experts of shape {tuple(batch_shape)}"
        )


def _half_powers(factor: Tensor, num_rows: int, steps: Tensor | None) -> Tensor:
    r"""Powers 1/2, 1, ..., B/2 of a factor, or half of some steps (B,), shape (\*batch, B)."""
    if steps is not None:  # one long gap forgets all that a block can tell
        return (factor.sqrt().unsqueeze(-1) ** steps.to(factor)).clamp_min(_SMALLEST_SCALE)
    return factor.sqrt().unsqueeze(-1) ** torch.arange(1, num_rows + 1, dtype=factor.dtype, device=factor.device)


def _max_rows(factor: Tensor) -> int | None:
    smallest = float(factor.min())
    return None if smallest == 1 else max(1, int(math.log(_SMALLEST_SCALE) / math.log(smallest)))
