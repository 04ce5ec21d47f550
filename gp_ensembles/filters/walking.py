"""Weights that walk at random, with independent or with correlated steps."""

import torch
from torch import Tensor

from gp_ensembles.filters.adaptation import Adaptation, Schedule, exact_tensor


class RandomWalk(Adaptation):
    r"""Weights walk at random: :math:`\theta_t = \theta_{t-1} + w_t`, :math:`w_t \sim N(0, Q)`.

    (Lu et al. 2022, section 5; Waxman and Djuric 2024, section 3.) Where nothing is learned the variance of the
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

    def schedule(self, num_rows: int, prior_variance: Tensor) -> Schedule:
        """See :meth:`Adaptation.schedule`."""
        batch_shape = prior_variance.shape
        return Schedule(walk=self.variance.to(prior_variance).expand(*batch_shape, self.variance.shape[-1]))

    @property
    def max_rows(self) -> int | None:
        """Any length."""
        return None

    def slowest_walk(self) -> Tensor | None:
        """The smallest variance on the diagonal."""
        return self.variance.amin(-1)

    def check_shape(self, batch_shape: torch.Size, num_features: int) -> None:
        """See :meth:`Adaptation.check_shape`."""
        wanted = (*batch_shape, num_features)
        if self.variance.ndim > len(wanted) or not _broadcasts(self.variance.shape, wanted):
            raise ValueError(
                f"a random walk variance of shape {tuple(self.variance.shape)} does not broadcast to {wanted}; give a "
                f"number, or shape (*batch, 1) or (*batch, F)"
            )

    def take(self, batch_shape: torch.Size, index: Tensor) -> "RandomWalk":
        """See :meth:`Adaptation.take`."""
        if self.variance.ndim == 1:
            return RandomWalk(self.variance)
        return RandomWalk(_take(self.variance, batch_shape, index, 1))


class CorrelatedWalk(Adaptation):
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

    def schedule(self, num_rows: int, prior_variance: Tensor) -> Schedule:
        """See :meth:`Adaptation.schedule`."""
        size = self.covariance.shape[-2:]
        return Schedule(walk=self.covariance.to(prior_variance).expand(*prior_variance.shape, *size))

    @property
    def max_rows(self) -> int | None:
        """Any length."""
        return None

    def slowest_walk(self) -> Tensor | None:
        """The smallest eigenvalue."""
        values: Tensor = torch.linalg.eigvalsh(self.covariance)
        return values.amin(-1).clamp_min(0.0)

    def check_shape(self, batch_shape: torch.Size, num_features: int) -> None:
        """See :meth:`Adaptation.check_shape`."""
        wanted = (*batch_shape, num_features, num_features)
        shape = self.covariance.shape
        if shape[-1] != num_features or len(shape) > len(wanted) or not _broadcasts(shape, wanted):
            raise ValueError(f"a walk's covariance of shape {tuple(shape)} does not fit experts of shape {wanted}")

    def take(self, batch_shape: torch.Size, index: Tensor) -> "CorrelatedWalk":
        """See :meth:`Adaptation.take`."""
        if self.covariance.ndim == 2:
            return CorrelatedWalk(self.covariance)
        return CorrelatedWalk(_take(self.covariance, batch_shape, index, 2))


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
