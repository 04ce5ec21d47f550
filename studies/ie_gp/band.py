"""Mean and 95 % band of IE-GP on 30 rows: figure 9 of Lu et al. (2022)."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.ensembles.presets import ie_gp
from studies.harness.report import write_report
from studies.harness.text import aligned

_NUM_ROWS, _NOISE = 30, 0.1
_NEAR = 0.2  # of a row, where a place counts as near
_COLUMNS = ("draw", "RMSE", "cover 95 %", "deviation near rows", "deviation elsewhere")


class Band(NamedTuple):
    """A draw of the rows, and what IE-GP says of the function on a grid."""

    X: Tensor  # (N,)
    y: Tensor  # (N,)
    grid: Tensor  # (G,)
    truth: Tensor  # (G,)
    mean: Tensor  # (G,)
    stddev: Tensor  # of the targets, (G,)

    def scores(self) -> list[float]:
        """Error and share of targets within the band between the outermost rows; deviations near rows and elsewhere."""
        inside = (self.grid > self.X.amin()) & (self.grid < self.X.amax())
        near = (self.grid.unsqueeze(-1) - self.X).abs().amin(-1) < _NEAR
        error = self.mean - self.truth
        upper = (1.96 * self.stddev - error) / _NOISE
        lower = (-1.96 * self.stddev - error) / _NOISE
        normal = torch.distributions.Normal(torch.zeros_like(error), torch.ones_like(error))
        cover = normal.cdf(upper) - normal.cdf(lower)
        found = error[inside].square().mean().sqrt(), cover[inside].mean(), self.stddev[near].mean()
        return [float(value) for value in (*found, self.stddev[~near].mean())]


@torch.no_grad()
def draw(seed: int) -> Band:
    """Rows as the paper's, hyperparameters and weights of ``ie_gp`` by their evidence.

    Example:
        >>> error, cover, near, elsewhere = draw(0).scores()
        >>> error < 0.5, near < elsewhere
        (True, True)
    """
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(_NUM_ROWS, dtype=torch.float64, device="cpu", generator=generator)
    noise = _NOISE * torch.randn(_NUM_ROWS, dtype=X.dtype, device="cpu", generator=generator)
    y = _waves(X) + noise
    online = ie_gp.fit(X.unsqueeze(-1), y, generator=generator)
    grid = torch.linspace(-4, 4, 401, dtype=X.dtype, device="cpu")
    predicted = online.predict(grid.unsqueeze(-1))
    return Band(X, y, grid, _waves(grid), predicted.mean, predicted.variance.sqrt())


def run(out: Path, draws: int) -> str:
    """Make the figure: scores of each draw, a picture of the first."""
    bands = [draw(seed) for seed in range(draws)]
    rows: list[list[object]] = [[number, *band.scores()] for number, band in enumerate(bands)]
    text = "\n".join(["Lu et al. 2022, figure 9: IE-GP on 30 rows", aligned(list(_COLUMNS), rows)])
    content = {"figure": 9, "draws": draws, "scores": rows}
    return write_report(out / "figure_9", text, (list(_COLUMNS), rows), content, {"": partial(_picture, bands[0])})


def _waves(x: Tensor) -> Tensor:
    return (2 * x).sin() + (3 * x).sin()


def _picture(band: Band, path: Path) -> None:
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import INK, as_array, draw_band, label, new_figure

    figure, (axis,) = new_figure(1, 1, 7.5, 3.8)
    half = 1.96 * band.stddev
    parts = (band.grid, band.mean, band.mean - half, band.mean + half)
    draw_band(axis, *(as_array(part, 1, "band") for part in parts))
    axis.plot(band.grid, band.truth, color=INK, linewidth=0.8, linestyle="--")
    axis.plot(band.X, band.y, ".", color=INK)
    label(axis, "IE-GP on 30 rows: mean, 95 % band, the function (dashed)", "x", "y")
    save_figure(figure, path)
