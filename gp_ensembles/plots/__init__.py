"""Pictures of a stream, its weights, its calibration and its score; needs the extra ``plots`` (matplotlib).

Every function returns a :class:`matplotlib.figure.Figure` and touches no global state of matplotlib, so it works
without a display, in threads and in notebooks alike.
"""

try:
    import matplotlib as _matplotlib  # noqa: F401
except ImportError as error:
    raise ImportError(
        "pictures need matplotlib, which is not installed; add it with: pip install 'gp_ensembles[plots]'"
    ) from error

from gp_ensembles.plots.bands import plot_bands
from gp_ensembles.plots.calibration import plot_calibration
from gp_ensembles.plots.classes import plot_class_calibration
from gp_ensembles.plots.embedding import plot_embedding
from gp_ensembles.plots.fusion import Band, Density, FusionView, plot_fusion, plot_score_boxes
from gp_ensembles.plots.growth import plot_growth
from gp_ensembles.plots.knots import KnotFit, plot_knots, plot_new_knot, plot_refinement
from gp_ensembles.plots.saving import save_figure
from gp_ensembles.plots.score import plot_score
from gp_ensembles.plots.spectra import plot_evidence, plot_fit, plot_spectra
from gp_ensembles.plots.weights import plot_weights

__all__ = [
    "Band",
    "Density",
    "FusionView",
    "KnotFit",
    "plot_bands",
    "plot_calibration",
    "plot_class_calibration",
    "plot_embedding",
    "plot_evidence",
    "plot_fit",
    "plot_fusion",
    "plot_growth",
    "plot_knots",
    "plot_new_knot",
    "plot_refinement",
    "plot_score",
    "plot_score_boxes",
    "plot_spectra",
    "plot_weights",
    "save_figure",
]
