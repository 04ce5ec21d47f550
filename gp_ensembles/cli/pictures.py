"""Pictures of a run as files, drawn by matplotlib."""

from pathlib import Path

import numpy as np

from gp_ensembles.cli.report.history import RunHistory

PICTURES = ("bands.png", "weights.png", "calibration.png", "score.png")
_MOST_RUNS, _LAST_ROWS = 500, 200


def save_pictures(
    history: RunHistory, folder: Path, *, time_name: str | None = None, is_date: bool = False
) -> list[Path]:
    """Draw and save the pictures of a run; needs matplotlib."""
    from gp_ensembles.plots import plot_bands, plot_weights, save_figure
    from gp_ensembles.plots.calibration import plot_class_counts, plot_pit_counts
    from gp_ensembles.plots.canvas import show_times
    from gp_ensembles.plots.stream import Runs, plot_long_bands, plot_score_sums

    if not history.num_rows:
        return []
    bins, first = history.bins, history.first_row
    assert first is not None
    sums = {history.model_name: bins["sum log_prob"]}
    sums |= {name: bins[f"sum baseline {name}"] for name in history.baselines}
    weights, rows = history.weights(), history.mean("row")
    layers = np.stack(list(weights.values()))
    with np.errstate(divide="ignore"):  # a family without weight
        log_weights = np.log(layers / layers.sum(0))
    figures = {
        "weights.png": plot_weights(log_weights, list(weights), rows=rows),
        "score.png": plot_score_sums(first - 1 + np.cumsum(bins["count row"]), bins["count y"], sums),
    }
    if history.is_class:
        figures["calibration.png"] = plot_class_counts(history.reliability, history.confidence_counts)
    else:
        target = history.target_name
        y, mean, lower, upper = (history.mean(name) for name in ("y", "mean", "lower", "upper"))
        if bins.width == 1:
            figures["bands.png"] = plot_bands(y, mean, lower, upper, target_name=target, first_row=first)
        else:
            recent = history.recent()
            last = {name: recent[name][-_LAST_ROWS:] for name in ("y", "mean", "lower", "upper")}
            runs = Runs(**history.runs(_MOST_RUNS))
            figures["bands.png"] = plot_long_bands(runs, last, target_name=target, last_row=history.last_row)
        if history.pit_counts.sum():
            figures["calibration.png"] = plot_pit_counts(history.pit_counts)
    if time_name is not None and history.has_times:
        for name in figures.keys() - {"calibration.png"}:
            show_times(figures[name], rows, history.mean("time"), time_name, is_date=is_date)
    return [save_figure(figures[name], folder / name) for name in PICTURES if name in figures]
