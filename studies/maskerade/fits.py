"""Pictures of a fitted series: predictive mean and band over training and test rows, in the target's own unit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bo.posterior import MixturePosterior
from studies.maskerade.sets import Split

_LEVELS = (0.05, 0.95)
_NUM_PLACES = 500
_COLUMNS = ("x", "mean", "lower", "upper")


class Curve(NamedTuple):
    """A fit to be drawn.

    Attributes:
        title: What made it.
        curves: Places and predictions of :func:`drawn_fit`.
        split: The rows.
        center: Mean of the training targets, in the set's own unit.
        names: Names of the input and the target.
    """

    title: str
    curves: Mapping[str, Sequence[float]]
    split: Split
    center: float
    names: tuple[str, str]


def places_between(X: Tensor, first: float, last: float) -> Tensor:
    """Places (P, 1) at which a fit is drawn, evenly between two inputs, of the inputs' dtype."""
    return torch.linspace(first, last, _NUM_PLACES, dtype=X.dtype, device=X.device).unsqueeze(-1)


def drawn_fit(posterior: MixturePosterior, X: Tensor) -> dict[str, list[float]]:
    """Mean and 5 % and 95 % quantiles at the places (P, 1) of a posterior, for a file."""
    low, high = posterior.quantile(X.new_tensor(_LEVELS)).squeeze(-1)
    named = {"x": X.squeeze(-1), "mean": posterior.mean.squeeze(-1), "lower": low, "upper": high}
    return {name: values.tolist() for name, values in named.items()}


def draw_curve(curve: Curve) -> Callable[[Path], None]:
    """What draws the fit into a file."""

    def draw(path: Path) -> None:
        from gp_ensembles.plots import save_figure
        from gp_ensembles.plots.canvas import ALARM, FAINT, as_array, draw_band, label, new_figure

        columns = {name: torch.tensor(curve.curves[name], dtype=torch.float64, device="cpu") for name in _COLUMNS}
        x = columns.pop("x")
        split, lowest = curve.split, float(x.min())
        mean, lower, upper = (as_array(_own_unit(values, curve), 1, name) for name, values in columns.items())
        figure, (axis,) = new_figure(1, 1, 9.0, 3.6)
        draw_band(axis, as_array(x, 1, "x"), mean, lower, upper)
        for X, y, name, color in (
            (split.X, split.y, "seen", FAINT),
            (split.test_X, split.test_y, "not seen", ALARM),
        ):
            shown = X[:, 0] >= lowest
            height = _own_unit(y[shown], curve).cpu()
            axis.plot(X[shown, 0].cpu(), height, "o", markersize=3.0, color=color, alpha=0.9, label=name)
        label(axis, f"{curve.title}: predictions and rows", *curve.names)
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        save_figure(figure, path)

    return draw


def _own_unit(values: Tensor, curve: Curve) -> Tensor:
    return curve.center + curve.split.unit * values
