"""The pictures of a run, for whoever has matplotlib."""

from collections.abc import Sequence
from pathlib import Path

import torch

from gp_ensembles.cli.predictions import Chunk

PICTURES = ("bands.png", "weights.png", "calibration.png", "score.png")


class RunPictures:
    """Keeps what the pictures show while a stream is read, 16 bytes and more a row and expert.

    Args:
        model_name: Name of the model.
        names: Names of the experts.
        target_name: Name of the target.
    """

    def __init__(self, model_name: str, names: Sequence[str], target_name: str) -> None:
        self._model_name = model_name
        self._names = list(names)
        self._target_name = target_name
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        """Keep a chunk."""
        self._chunks.append(chunk._replace(log_weights=chunk.log_weights.float()))

    def save(self, folder: Path) -> list[Path]:
        """Draw and save the pictures.

        Returns:
            Their paths; none if there is no row.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        from gp_ensembles.plots import plot_bands, plot_calibration, plot_score, plot_weights, save_figure
        from gp_ensembles.plots.calibration import plot_class_calibration

        if not self._chunks:
            return []
        first = self._chunks[0].first_row
        y, mean, _, lower, upper, log_prob, pit = (
            torch.cat(parts) for parts in list(zip(*self._chunks, strict=True))[1:8]
        )
        log_weights = torch.cat([chunk.log_weights for chunk in self._chunks], dim=1)
        scores = {self._model_name: log_prob}
        for name in self._chunks[0].baselines:
            scores[name] = torch.cat([chunk.baselines[name] for chunk in self._chunks])
        figures = {
            "weights.png": plot_weights(log_weights, self._names, first_row=first),
            "score.png": plot_score(scores, first_row=first),
        }
        parts = [chunk.probabilities for chunk in self._chunks if chunk.probabilities is not None]
        if parts:
            figures["calibration.png"] = plot_class_calibration(torch.cat(parts), y)
        else:
            figures["bands.png"] = plot_bands(y, mean, lower, upper, target_name=self._target_name, first_row=first)
            if not bool(torch.isnan(pit).all()):
                figures["calibration.png"] = plot_calibration(pit.clamp(0.0, 1.0))
        return [save_figure(figures[name], folder / name) for name in PICTURES if name in figures]
