"""Spectra of kernels that were marginalized over."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from gp_ensembles.plots.canvas import MEAN, Array, as_array, label, new_figure

_POINTS = 600
_REACH = 5.0  # deviations of a component that are drawn
_AROUND = _REACH * np.linspace(
    -1.0, 1.0, 49
)  # places around a peak, in its deviations, so that narrow ones are drawn whole
_FAINTEST = 0.04
_FLOOR = 1e-6  # heights below this share of the highest are not shown


def plot_spectra(
    weights: Tensor | ArrayLike,
    means: Tensor | ArrayLike,
    scales: Tensor | ArrayLike,
    log_weights: Tensor | ArrayLike,
    *,
    max_kernels: int = 30,
    input_name: str = "x",
) -> Figure:
    r"""Spectral densities of the heaviest kernels over frequency, the heavier the more opaque.

    A kernel's density over frequencies :math:`f \ge 0` is that of its mixture and its mirror image,
    :math:`S(f) = \sum_q w_q [N(f; m_q, s_q^2) + N(f; -m_q, s_q^2)]`. The height is logarithmic. For several inputs give
    one column of the means and scales: the components' marginal densities in that input.

    Args:
        weights: Weights w of the components, shape (K, Q); zero where a component is absent.
        means: Mean frequencies m in cycles per unit of the input, shape (K, Q).
        scales: Standard deviations s of the frequencies, shape (K, Q); ignored where the weight is zero.
        log_weights: Log posterior weights of the kernels, shape (K,), up to a constant.
        max_kernels: How many of the heaviest are drawn.
        input_name: Name of the input, with its unit if it has one.

    Returns:
        The figure, a line for each kernel, the heaviest on top.

    Raises:
        ValueError: If shapes do not fit, ``max_kernels`` is not positive, a weight or a scale of a component that is
            there is not a positive number, or no kernel has a weight.

    Example:
        >>> figure = plot_spectra([[0.7, 0.3]], [[0.0, 1.0]], [[0.1, 0.02]], [0.0], input_name="years")
        >>> figure.axes[0].get_xlabel()
        'frequency, cycles per unit of years'
    """
    named = {"weights": weights, "means": means, "scales": scales}
    w, m, s = (as_array(values, 2, name) for name, values in named.items())
    heavy = as_array(log_weights, 1, "log_weights")
    if not (w.shape == m.shape == s.shape) or len(heavy) != len(w):
        raise ValueError(
            f"weights, means and scales (K, Q) and log_weights (K,) do not fit: {w.shape}, {m.shape}, {s.shape} and "
            f"{heavy.shape}"
        )
    if max_kernels < 1:
        raise ValueError(f"max_kernels must be positive, got {max_kernels}")
    present = w != 0
    if not ((w >= 0) & np.isfinite(w) & np.isfinite(m)).all() or not ((s[present] > 0) & np.isfinite(s[present])).all():
        raise ValueError("components need finite means, weights that are not negative, and positive finite scales")
    if np.isnan(heavy).any() or not np.isfinite(heavy.max()):
        raise ValueError("no kernel has a weight: log_weights must be numbers, at least one of them finite")
    order = np.argsort(-heavy, kind="stable")[:max_kernels]
    share = np.exp(heavy[order] - heavy[order].max())
    places = _frequencies(m[order][present[order]], s[order][present[order]])
    curves = [_density(places, w[k][present[k]], m[k][present[k]], s[k][present[k]]) for k in order]
    figure, (axis,) = new_figure(1, 1, 9.0, 3.6)
    for rank in reversed(range(len(order))):
        axis.plot(places, curves[rank], color=MEAN, alpha=max(_FAINTEST, float(share[rank])), linewidth=1.3)
    several = f"spectra of the {len(order)} heaviest kernels, the heavier the more opaque"
    title = several if len(order) > 1 else "spectrum of one kernel"
    label(axis, title, f"frequency, cycles per unit of {input_name}", "density")
    highest = max(float(curve.max()) for curve in curves)
    axis.set_yscale("log")
    axis.set_ylim(_FLOOR * highest, 2.0 * highest)
    axis.set_xlim(0.0, float(places[-1]))
    return figure


def _frequencies(means: Array, scales: Array) -> Array:
    """Where the densities are drawn: evenly up to the end of the last component, and closely around every peak."""
    last = float((np.abs(means) + _REACH * scales).max())
    around = (np.abs(means)[:, None] + scales[:, None] * _AROUND).ravel()
    return np.unique(np.concatenate([np.linspace(0.0, last, _POINTS), around[(around >= 0) & (around <= last)]]))


def _density(places: Array, weights: Array, means: Array, scales: Array) -> Array:
    """The density of a mixture and its mirror image at frequencies of shape (P,)."""
    total = np.zeros_like(places)
    for w, m, s in zip(weights, means, scales, strict=True):
        for center in (m, -m):
            total += w * np.exp(-0.5 * ((places - center) / s) ** 2) / (s * np.sqrt(2.0 * np.pi))
    return total
