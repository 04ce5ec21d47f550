"""Weights whose past counts less and less: without limit, or back to the prior."""

import math

import torch
from torch import Tensor

from gp_ensembles.filters.adaptation import Adaptation, Schedule, exact_tensor

_SMALLEST_SCALE = 1e-4  # how far the coordinates of one block may shrink: four digits of sixteen


class ExponentialForgetting(Adaptation):
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
        >>> ExponentialForgetting(0.5).schedule(2, torch.tensor(1.0, dtype=torch.float64)).covariance_scale
        tensor(4.0000, dtype=torch.float64)
    """

    factor: Tensor

    def __init__(self, factor: Tensor | float) -> None:
        super().__init__()
        self.register_buffer("factor", _check_factor(factor))

    def schedule(self, num_rows: int, prior_variance: Tensor) -> Schedule:
        """See :meth:`Adaptation.schedule`."""
        factor = self.factor.to(prior_variance)
        half_powers = factor.sqrt().unsqueeze(-1) ** _count(num_rows, prior_variance)
        return Schedule(
            row_scale=1 / half_powers,
            target_scale=half_powers,
            covariance_scale=half_powers[..., -1] ** -2,
        )

    @property
    def max_rows(self) -> int | None:
        """Until the scale of the coordinates has fallen to 1e-4."""
        return _max_rows(self.factor)

    def slowest_walk(self) -> Tensor | None:
        """``None``: what is added is a share of what is there."""
        return None

    def check_shape(self, batch_shape: torch.Size, num_features: int) -> None:
        """See :meth:`Adaptation.check_shape`."""
        _check_factor_shape(self.factor, batch_shape)

    def take(self, batch_shape: torch.Size, index: Tensor) -> "ExponentialForgetting":
        """See :meth:`Adaptation.take`."""
        return ExponentialForgetting(self.factor if self.factor.ndim == 0 else self.factor[index])


class StabilizedForgetting(Adaptation):
    r"""What was learned fades back to the prior, so the covariance never exceeds it.

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
        >>> StabilizedForgetting(0.5).schedule(2, torch.tensor(1.0, dtype=torch.float64)).steps
        tensor([1.0000, 3.0000], dtype=torch.float64)
    """

    factor: Tensor

    def __init__(self, factor: Tensor | float) -> None:
        super().__init__()
        self.register_buffer("factor", _check_factor(factor))

    def schedule(self, num_rows: int, prior_variance: Tensor) -> Schedule:
        """See :meth:`Adaptation.schedule`."""
        factor = self.factor.to(prior_variance)
        half_powers = factor.sqrt().unsqueeze(-1) ** _count(num_rows, prior_variance)
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
        """See :meth:`Adaptation.check_shape`."""
        _check_factor_shape(self.factor, batch_shape)

    def take(self, batch_shape: torch.Size, index: Tensor) -> "StabilizedForgetting":
        """See :meth:`Adaptation.take`."""
        return StabilizedForgetting(self.factor if self.factor.ndim == 0 else self.factor[index])


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


def _count(num_rows: int, like: Tensor) -> Tensor:
    return torch.arange(1, num_rows + 1, dtype=like.dtype, device=like.device)


def _max_rows(factor: Tensor) -> int | None:
    smallest = float(factor.min())
    return None if smallest == 1 else max(1, int(math.log(_SMALLEST_SCALE) / math.log(smallest)))
