"""Plots; needs the extra ``plots`` (matplotlib).

- :mod:`~gp_ensembles.plots.stream`: targets and the predictions made before them, log scores, weights, forecasts.
- :mod:`~gp_ensembles.plots.calibration`: PIT and intervals of predictive distributions, class probabilities.
- :mod:`~gp_ensembles.plots.canvas`: colors, blank figures and :func:`save_figure`, for custom plots.

Every ``plot_`` function returns a :class:`matplotlib.figure.Figure`; ``draw_`` functions draw on given axes. None
touches global state of matplotlib, so they work without a display, in threads and in notebooks alike.
"""

try:
    import matplotlib as _matplotlib  # noqa: F401
except ImportError as error:
    raise ImportError(
        "plots need matplotlib, which is not installed; add it with: pip install 'gp_ensembles[plots]'"
    ) from error

from gp_ensembles.plots.calibration import plot_calibration
from gp_ensembles.plots.canvas import save_figure
from gp_ensembles.plots.stream import plot_bands, plot_score, plot_weights

__all__ = ["plot_bands", "plot_calibration", "plot_score", "plot_weights", "save_figure"]
