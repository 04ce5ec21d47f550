"""The knot-selection paper's pictures of one input: the bound against a sixth knot's place, and how knots move.

The paper's rows are not published; these are made up: smooth on the left and wiggly on the right.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.papers.sparse import (
    VFE,
    BayesianOptimization,
    OneAtATime,
    Simultaneous,
    SparseGP,
    kmeans_knots,
    select_knots,
)
from gp_ensembles.papers.sparse.strategies import Strategy
from studies.harness.experiment import Choices
from studies.harness.plan import check_range
from studies.harness.report import write_report
from studies.harness.text import aligned
from studies.knots.methods import fixed_mean, optimizer_of, start_values

NUM_ROWS = 300
_FIRST = 5  # knots before the one that is looked at, and of OAT-BO at the start
NUM_POINTS = 401
_STEPS = 12  # halvings of the way to a knot, where the spikes are
_QUANTILE = 1.6448536269514722  # of the standard normal distribution at 95 %


class _Curve(NamedTuple):
    """Predictions of targets at points: mean and the ends of the 90 % band."""

    mean: Tensor
    lower: Tensor
    upper: Tensor


def made_up_rows(seed: int) -> tuple[Tensor, Tensor]:
    """Noisy rows of a function that is smooth on the left and wiggly on the right, inputs (300, 1), targets (300,).

    Example:
        >>> X, y = made_up_rows(0)
        >>> X.shape, y.shape
        (torch.Size([300, 1]), torch.Size([300]))
    """
    generator = torch.Generator().manual_seed(seed)
    x = 10.0 * torch.rand(NUM_ROWS, generator=generator, dtype=torch.float64, device="cpu").sort().values
    noise = torch.randn(NUM_ROWS, generator=generator, dtype=torch.float64, device="cpu")
    y = (0.5 * x).sin() + 0.6 * (2.4 * x).sin() * torch.sigmoid(2.0 * (x - 5.0)) + 0.15 * noise
    return x.unsqueeze(-1), y


def new_knot(choices: Choices) -> str:
    """Figure 1: the fit with five knots, and the bound with a sixth against its place, hyperparameters as they are.

    The spikes are at the knots: there a sixth brings nothing. Files are ``knots_figure_1.csv`` (places, the bound with
    a knot there and without it), ``.txt``, ``.json`` and ``.png``.

    Raises:
        ValueError: If the seed is negative.
        OSError: If the results cannot be written.
    """
    X, y = _rows(choices)
    kernel, likelihood = start_values(y)
    knots = kmeans_knots(X, _FIRST, generator=torch.Generator().manual_seed(choices.seed))
    model = SparseGP(X, y, knots, kernel, likelihood, fixed_mean(y), approximation=VFE)
    optimizer_of(choices.as_published, 200).optimize(model)
    places = _places(X, model.knots.detach())
    with torch.no_grad():
        bounds = [model.with_knots(torch.cat([model.knots, place.reshape(1, 1)])).objective() for place in places]
        bound, without = torch.stack(bounds), float(model.objective())
    chosen = float(places[bound.argmax()])
    at_knots = bound[torch.isin(places, model.knots.detach().flatten())]
    lines = [
        ["bound with five knots", f"{without:.3f}"],
        ["best bound with a sixth", f"{float(bound.max()):.3f}"],
        ["its place", f"{chosen:.3f}"],
        ["most that a sixth at a knot gains", f"{float(at_knots.max()) - without:.2g}"],
        ["knots", ", ".join(f"{place:.3f}" for place in model.knots.detach().flatten().tolist())],
    ]
    text = f"{_title(1, 'a fit with five knots and its bound with a sixth', choices)}\n\n{aligned(['', 'nats'], lines)}"

    def draw(path: Path) -> None:
        from gp_ensembles.plots import save_figure
        from studies.knots.drawing import KnotFit, plot_new_knot

        points = _points(X)
        fit = points, KnotFit(model.knots, *_predicted(model, points))
        save_figure(plot_new_knot(places, bound, without=without, chosen=chosen, fit=fit, seen=(X, y)), path)

    header = ["place", "bound with a knot there", "bound without it"]
    rows = [[place, value, without] for place, value in zip(places.tolist(), bound.tolist(), strict=True)]
    content = {"knots": model.knots.flatten().tolist(), "without": without, "chosen": chosen}
    return _write(1, choices, text, (header, rows), content, draw)


def moves(choices: Choices) -> str:
    """Figure 2: OAT-BO from five knots to its last, and simultaneous refinement of as many from k-means.

    Files are ``knots_figure_2.csv`` (predictions), ``.json`` (where knots start and end), ``.txt`` and ``.png``.

    Raises:
        ValueError: If the seed is negative.
        OSError: If the results cannot be written.
    """
    X, y = _rows(choices)
    published = choices.as_published
    one_at_a_time = OneAtATime(BayesianOptimization(all_if_cheap=not published), optimizer_of(published), start=_FIRST)
    first = _select(X, y, one_at_a_time, choices.seed)
    both = Simultaneous(first[1].num_knots, optimizer_of(published, 200))
    models = {"OAT-BO": first, "simultaneous refinement": _select(X, y, both, choices.seed)}
    points = _points(X)
    curves = {name: _predicted(model, points) for name, (_, model) in models.items()}
    rows = [[name, len(start), model.num_knots, *_fitted(model)] for name, (start, model) in models.items()]
    table = aligned(["", "knots at the start", "at the end", "bound", "length scale", "noise variance"], rows)
    text = f"{_title(2, 'where knots start and end', choices)}\n\n{table}"

    def draw(path: Path) -> None:
        from gp_ensembles.plots import save_figure
        from studies.knots.drawing import KnotFit, plot_knot_moves

        fits = {name: KnotFit(model.knots, *curves[name]) for name, (_, model) in models.items()}
        starts = {name: start for name, (start, _) in models.items()}
        save_figure(plot_knot_moves(points, fits, starts=starts, seen=(X, y)), path)

    header = ["place", *(f"{name}, {what}" for name in curves for what in _Curve._fields)]
    columns = torch.stack([points[:, 0], *(part for curve in curves.values() for part in curve)], -1)
    content = {
        name: {"start": start.flatten().tolist(), "end": model.knots.flatten().tolist()}
        for name, (start, model) in models.items()
    }
    return _write(2, choices, text, (header, columns.tolist()), content, draw)


RUNNERS: dict[int, Callable[[Choices], str]] = {1: new_knot, 2: moves}


def _rows(choices: Choices) -> tuple[Tensor, Tensor]:
    check_range("seed", choices.seed, 0)
    make_folder(choices.out)
    return made_up_rows(choices.seed)


def _places(X: Tensor, knots: Tensor) -> Tensor:
    """A grid, the knots, and places ever nearer to them, rising."""
    step = float(X.max() - X.min()) / (NUM_POINTS - 1)
    near = step * 0.5 ** torch.arange(_STEPS, dtype=X.dtype, device=X.device)
    around = knots + torch.cat([-near, near.new_zeros(1), near])
    places: Tensor = torch.cat([_points(X).flatten(), around.flatten()]).unique()
    return places


def _points(X: Tensor) -> Tensor:
    return torch.linspace(float(X.min()), float(X.max()), NUM_POINTS, dtype=X.dtype, device=X.device).unsqueeze(-1)


def _select(X: Tensor, y: Tensor, strategy: Strategy, seed: int) -> tuple[Tensor, SparseGP]:
    """The knots at the start, and the model at the end."""
    start = strategy.initial_knots(X, generator=torch.Generator().manual_seed(seed))
    found = select_knots(
        X, y, *start_values(y), fixed_mean(y), strategy=strategy, generator=torch.Generator().manual_seed(seed)
    )
    return start, found.model


def _fitted(model: SparseGP) -> list[float]:
    with torch.no_grad():
        return [
            float(model.objective()),
            float(model.covar_module.base_kernel.lengthscale),
            float(model.likelihood.noise),
        ]


@torch.no_grad()
def _predicted(model: SparseGP, points: Tensor) -> _Curve:
    mean, variance = (part.flatten() for part in model.latent(points.unsqueeze(-2)))
    width = _QUANTILE * (variance + model.likelihood.noise).sqrt()
    return _Curve(mean, mean - width, mean + width)


def _title(number: int, what: str, choices: Choices) -> str:
    how = "AS PUBLISHED, by ADADELTA" if choices.as_published else "by L-BFGS"
    return f"Knots, figure {number}: {what}; {NUM_ROWS} made-up rows, seed {choices.seed}, {how}"


def _write(
    number: int,
    choices: Choices,
    text: str,
    table: tuple[list[str], list[list[float]]],
    content: Mapping[str, object],
    draw: Callable[[Path], object],
) -> str:
    stem = f"knots_figure_{number}{'_as_published' if choices.as_published else ''}"
    return write_report(choices.out / stem, text, table, {"seed": choices.seed, **content}, {"": draw})
