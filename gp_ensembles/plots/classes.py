"""Are predicted class probabilities honest? Reliability of every probability, and how sure the predictions are."""

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from gp_ensembles.plots.canvas import BAND, FAINT, INK, MEAN, as_array, label, new_figure

_BINS = 10


def plot_class_calibration(probabilities: Tensor | ArrayLike, y: Tensor | ArrayLike) -> Figure:
    """Share of targets against predicted probability (left) and histogram of the largest probability (right).

    Every class of every row gives one pair of a predicted probability and whether the target was of that class. The
    bars are 95 % intervals of the shares if the predictions are honest and targets independent.

    Args:
        probabilities: Class probabilities, shape (N, C).
        y: Targets, class numbers, shape (N,); NaN where missing.

    Returns:
        The figure; it says so if no target was observed.

    Example:
        >>> import torch
        >>> figure = plot_class_calibration(torch.full((40, 2), 0.5), torch.arange(40) % 2)
        >>> [axis.get_title(loc="left") for axis in figure.axes]
        ['probabilities of classes', 'confidence in 40 targets']
    """
    shares, labels = as_array(probabilities, 2, "probabilities"), as_array(y, 1, "y")
    seen = ~np.isnan(labels)
    shares, labels = shares[seen], labels[seen].astype(int)
    figure, (left, right) = new_figure(1, 2, 9.0, 4.0)
    left.plot([0, 1], [0, 1], color=FAINT, linewidth=1.0, linestyle="--", label="honest")
    if labels.size:
        hits = (labels[:, None] == np.arange(shares.shape[1])).ravel()
        flat = shares.ravel()
        number = np.clip((flat * _BINS).astype(int), 0, _BINS - 1)
        filled = [b for b in range(_BINS) if (number == b).any()]
        center = np.array([flat[number == b].mean() for b in filled])
        share = np.array([hits[number == b].mean() for b in filled])
        count = np.array([(number == b).sum() for b in filled])
        spread = 1.96 * np.sqrt(center * (1 - center) / count)
        left.errorbar(
            center, center, spread, fmt="none", ecolor=BAND, elinewidth=6, alpha=0.6, label="95 % of honest ones"
        )
        left.plot(center, share, color=MEAN, marker="o", markersize=4, linewidth=1.8, label="these predictions")
        right.hist(shares.max(-1), bins=20, range=(0.0, 1.0), color=MEAN, alpha=0.85, edgecolor="white")
    else:
        for axis in (left, right):
            axis.text(0.5, 0.5, "no target observed", transform=axis.transAxes, ha="center", color=INK)
    left.set_xlim(0, 1)
    left.set_ylim(0, 1)
    left.set_aspect("equal")
    left.legend(loc="upper left", frameon=False, fontsize=9)
    label(left, "probabilities of classes", "predicted probability", "share of targets")
    right.set_xlim(0, 1)
    label(right, f"confidence in {labels.size} targets", "largest probability", "rows")
    return figure
