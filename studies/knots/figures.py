"""The knot-selection paper's pictures of one input: the objective against a new knot's place, and its refinement."""

import math
from pathlib import Path
from typing import NamedTuple

import torch
from gpytorch.means import ConstantMean
from torch import Tensor

from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.cli.text_tables import aligned, as_csv
from gp_ensembles.files.replacing import write_text
from gp_ensembles.sparse import FIC, VFE, GreedyBlocks, RandomSubset, SparseGP, fit_sparse, kmeans_knots, select_knots
from gp_ensembles.sparse.optimizers import LBFGSB
from studies.knots.methods import start_values

FIGURES = (1, 2)
_ROWS = 120
_FIRST = 9  # knots before the one that is looked at
_POINTS = 401
_QUANTILE = 1.6448536269514722  # of the standard normal distribution at 95 %


class _Curve(NamedTuple):
    """Predictions of targets at points: mean and the ends of the 90 % band."""

    mean: Tensor
    lower: Tensor
    upper: Tensor


def run_figure(number: int, out: Path, seed: int) -> str:
    """Make a figure on made-up rows of one input; write its numbers as CSV and its pictures as PNG.

    Figure 1 is ``knots_figure_1.csv`` and ``.png``: VFE and FIC with one further knot, against its place. Figure 2 is
    ``knots_figure_2.csv`` and ``.png``, the fit with the best row as a knot before and after both it and the
    hyperparameters moved, and ``knots_figure_2_selected.png``, the finished selection.

    Args:
        number: 1 or 2.
        out: Folder of the results; it is made if need be.
        seed: Seed of the rows.

    Returns:
        What came of it, as text.

    Raises:
        ValueError: If there is no such figure, or the seed is negative.
        OSError: If ``out`` cannot be written.

    Example:
        >>> run_figure(3, Path("nowhere"), 0)
        Traceback (most recent call last):
        ValueError: --figure of knots must be one of 1, 2, got 3
    """
    if number not in FIGURES:
        raise ValueError(f"--figure of knots must be one of {', '.join(map(str, FIGURES))}, got {number}")
    if seed < 0:
        raise ValueError(f"--seed must be zero or positive, got {seed}")
    make_folder(out)
    X, y = made_up_rows(seed)
    stem = out / f"knots_figure_{number}"
    return _new_knot(X, y, stem) if number == 1 else _refined(X, y, stem, seed)


def made_up_rows(seed: int) -> tuple[Tensor, Tensor]:
    """Noisy rows of a function that is smooth on the left and wiggly on the right, inputs (120, 1), targets (120,).

    Example:
        >>> X, y = made_up_rows(0)
        >>> X.shape, y.shape
        (torch.Size([120, 1]), torch.Size([120]))
    """
    generator = torch.Generator().manual_seed(seed)
    x = 10.0 * torch.rand(_ROWS, generator=generator, dtype=torch.float64, device="cpu").sort().values
    noise = torch.randn(_ROWS, generator=generator, dtype=torch.float64, device="cpu")
    y = (0.5 * x).sin() + 0.6 * (2.4 * x).sin() * torch.sigmoid(2.0 * (x - 5.0)) + 0.15 * noise
    return x.unsqueeze(-1), y


def _few_knots(X: Tensor, y: Tensor) -> SparseGP:
    """The model before the knot that is looked at: a few knots, hyperparameters fitted with them."""
    kernel, likelihood = start_values(y)
    knots = kmeans_knots(X, _FIRST, generator=torch.Generator().manual_seed(0))
    mean = ConstantMean().to(y)
    mean.constant.data.fill_(float(y.mean()))
    mean.requires_grad_(False)
    model = SparseGP(X, y, knots, kernel, likelihood, mean, approximation=VFE())
    fit_sparse(model)
    return model


def _new_knot(X: Tensor, y: Tensor, stem: Path) -> str:
    model = _few_knots(X, y)
    positions = torch.linspace(float(X.min()), float(X.max()), _POINTS, dtype=X.dtype, device=X.device)
    curves = {}
    for name, approximation in (("VFE", VFE()), ("FIC", FIC())):
        with torch.no_grad():
            curves[name] = torch.stack(
                [
                    approximation.objective(model.projection(torch.cat([model.knots, place.reshape(1, 1)])))
                    for place in positions
                ]
            )
    chosen = {name: float(positions[values.argmax()]) for name, values in curves.items()}
    with torch.no_grad():
        before = {name: float(part.objective(model.projection())) for name, part in (("VFE", VFE()), ("FIC", FIC()))}
    lines = [[float(place), *(float(values[k]) for values in curves.values())] for k, place in enumerate(positions)]
    write_text(stem.with_suffix(".csv"), as_csv(["place", *curves], lines))
    rows = [[name, before[name], float(values.max()), chosen[name]] for name, values in curves.items()]
    text = aligned(["objective", f"{_FIRST} knots", f"{_FIRST + 1} knots", "best place"], rows)
    try:
        from gp_ensembles.plots import plot_new_knot, save_figure

        figure = plot_new_knot(positions, curves, knots=model.knots, seen=(X, y), chosen=chosen)
        save_figure(figure, stem.with_suffix(".png"))
    except ImportError as error:
        text += f"\nno picture: {error}"
    return f"One further knot beside {_FIRST}, hyperparameters as they are; nats\n\n{text}"


def _refined(X: Tensor, y: Tensor, stem: Path, seed: int) -> str:
    model = _few_knots(X, y)
    points = torch.linspace(float(X.min()), float(X.max()), _POINTS, dtype=X.dtype, device=X.device).unsqueeze(-1)
    proposed = RandomSubset(num_rows=len(X)).propose(model, generator=torch.Generator().manual_seed(seed))
    if proposed is None:
        raise ValueError("every row is a knot already; choose another --seed")
    before = model.with_knots(torch.cat([model.knots.detach(), X[proposed.row : proposed.row + 1]]))
    after = before.with_knots(before.knots)
    LBFGSB().optimize(after, slice(model.num_knots, None))
    kernel, likelihood = start_values(y)
    found = select_knots(X, y, kernel, likelihood, strategy=GreedyBlocks())
    models = {"before refinement": before, "after refinement": after, f"{len(found.knots)} knots": found.model}
    curves = {name: _predicted(one, points) for name, one in models.items()}
    header = ["place", *(f"{name}, {what}" for name in curves for what in _Curve._fields)]
    columns = [points[:, 0], *(values for curve in curves.values() for values in curve)]
    write_text(stem.with_suffix(".csv"), as_csv(header, torch.stack(columns, dim=-1).tolist()))
    rows = []
    for name, one in models.items():
        new = float(one.knots[-1].detach()) if name.endswith("refinement") else math.nan
        noise = float(one.likelihood.noise.detach())
        lengthscale = float(one.covar_module.base_kernel.lengthscale.detach())
        rows.append([name, float(one.objective().detach()), new, lengthscale, noise])
    text = aligned(["model", "VFE", "new knot", "length scale", "noise variance"], rows)
    try:
        from gp_ensembles.plots import KnotFit, plot_knots, plot_refinement, save_figure

        first, second, last = (KnotFit(m.knots, *c) for m, c in zip(models.values(), curves.values(), strict=True))
        save_figure(plot_refinement(points, first, second, seen=(X, y)), stem.with_suffix(".png"))
        title = f"{len(found.knots)} knots, greedy blocks: {found.stop_reason}"
        figure = plot_knots(points, last, seen=(X, y), title=title)
        save_figure(figure, stem.with_name(f"{stem.name}_selected.png"))
    except ImportError as error:
        text += f"\nno picture: {error}"
    return f"A knot at the best row beside {_FIRST}, before and after it and the hyperparameters moved\n\n{text}"


@torch.no_grad()
def _predicted(model: SparseGP, points: Tensor) -> _Curve:
    mean, variance = (part.flatten() for part in model.latent(points.unsqueeze(-2)))
    width = _QUANTILE * (variance + model.likelihood.noise).sqrt()
    return _Curve(mean, mean - width, mean + width)
