"""Priors from the inputs: what frequencies they can tell, from the range to the Nyquist frequency."""

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.marginals import HalfNormal, LogNormal

_SHARE = 5.0  # Nyquist frequency in standard deviations of the prior of the means
_UNIT_LOG_SD = 0.35
_ON_GRID = 1e-3  # gaps that differ from whole multiples of the smallest by less than this share are on a grid


def mean_spacing_nyquist(X: Tensor) -> Tensor:
    r"""Nyquist frequency of each input from its mean spacing, (N - 1) / (2 range), shape (D,).

    (Hamid et al., 2022, section 3.1.1.)

    Raises:
        ValueError: If an input is constant.

    Example:
        >>> import torch
        >>> mean_spacing_nyquist(torch.arange(50.0, dtype=torch.float64).unsqueeze(-1))
        tensor([0.5000], dtype=torch.float64)
    """
    return 0.5 * (X.shape[0] - 1) / input_range(X)


def grid_nyquist(X: Tensor) -> Tensor:
    r"""Half of one over the step of the grid that each input lies on, gaps or not; from the mean spacing off grids.

    A series with missing rows has the Nyquist frequency of the complete one; its mean spacing says too little.

    Raises:
        ValueError: If an input is constant.

    Example:
        >>> import torch
        >>> with_gap = torch.tensor([0.0, 1.0, 2.0, 10.0, 11.0], dtype=torch.float64).unsqueeze(-1)
        >>> float(grid_nyquist(with_gap)), round(float(mean_spacing_nyquist(with_gap)), 3)
        (0.5, 0.182)
    """
    mean = mean_spacing_nyquist(X)
    return torch.stack([_grid_or(X[:, d], mean[d]) for d in range(X.shape[1])])


def smallest_gap_nyquist(X: Tensor) -> Tensor:
    r"""Nyquist frequency of each input from its smallest gap, at least one Nth of its range, shape (D,).

    For designs with many inputs, whose columns repeat a few levels.

    Raises:
        ValueError: If an input is constant.

    Example:
        >>> import torch
        >>> levels = torch.tensor([[0.0], [0.25], [0.25], [1.0], [0.5], [0.0]], dtype=torch.float64)
        >>> float(smallest_gap_nyquist(levels))
        2.0
    """
    extent = input_range(X)
    gaps = torch.stack([X[:, d].unique().diff().min() for d in range(X.shape[1])])
    return 0.5 / torch.maximum(gaps, extent / X.shape[0])


def nyquist_scales(X: Tensor, nyquist: Tensor) -> LogNormal:
    r"""Prior of the scales in which one over the range and the Nyquist frequency are five deviations from the median.

    (Hamid et al., 2022, section 3.1.1.) Meant for one input: in several, length scales this short fit nothing.

    Example:
        >>> import torch
        >>> x = torch.arange(50.0, dtype=torch.float64).unsqueeze(-1) / 49.0
        >>> nyquist_scales(x, mean_spacing_nyquist(x)).location
        tensor([1.5993], dtype=torch.float64)
    """
    lower, upper = -input_range(X).log(), nyquist.log()
    return LogNormal(0.5 * (lower + upper), (upper - lower).abs().clamp_min(1e-3) / (2.0 * _SHARE))


def unit_scales(X: Tensor, log_sd: float = _UNIT_LOG_SD) -> LogNormal:
    """Prior of the scales whose median is one cycle over the range of each input.

    Example:
        >>> import torch
        >>> unit_scales(torch.tensor([[0.0], [1.0]]))
        LogNormal(location=tensor([-0.]), scale=tensor([0.3500]))
    """
    location = -input_range(X).log()
    return LogNormal(location, torch.full_like(location, log_sd))


def nyquist_means(nyquist: Tensor) -> HalfNormal:
    """Prior of the mean frequencies: half-normal, its scale a fifth of the Nyquist frequency.

    Example:
        >>> import torch
        >>> nyquist_means(torch.tensor([5.0])).scale
        tensor([1.])
    """
    return HalfNormal(nyquist / _SHARE)


def input_range(X: Tensor) -> Tensor:
    """Range of each input, shape (D,).

    Example:
        >>> import torch
        >>> input_range(torch.tensor([[0.0, 1.0], [2.0, 1.0]]))
        Traceback (most recent call last):
        ...
        ValueError: input 1 is constant and tells nothing about frequencies; leave it out
    """
    extent = X.amax(0) - X.amin(0)
    constant = (extent <= 0).nonzero()
    if constant.numel():
        raise ValueError(f"input {int(constant[0])} is constant and tells nothing about frequencies; leave it out")
    return extent


def _grid_or(x: Tensor, mean: Tensor) -> Tensor:
    gaps = x.unique().diff()
    step = gaps.min()
    multiples = gaps / step
    on_grid = bool(((multiples - multiples.round()).abs() < _ON_GRID * multiples).all())
    fine_enough = bool(0.5 / step < 10.0 * mean)  # a step far below the mean spacing is a coincidence, not a grid
    return 0.5 / step if on_grid and fine_enough else mean
