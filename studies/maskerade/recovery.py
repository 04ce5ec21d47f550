"""Figure 3 of the paper: is a kernel of five components recovered, by one spectral mixture and by marginalization?

As in the authors' code: 150 rows on [-5, 5] of a process whose spectrum has five components, noise of deviation 0.01,
the middle third for testing. One spectral mixture of up to five components is fitted by gradient; marginalization has
one to three components, and one to eight.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gp_ensembles.data import Table
from gp_ensembles.papers.quadrature import InformationPolicy, KernelMixtureModel, RegressionProblem, Search
from gp_ensembles.papers.quadrature.prior import default_prior
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures, covariance
from studies.harness.comparison import paired
from studies.harness.experiment import Choices
from studies.harness.parts import Record, Results
from studies.harness.sources import PaperSet
from studies.harness.text import aligned
from studies.maskerade.baselines import likeliest_mixture
from studies.maskerade.figures import Plan, make_plan, run_figure, write_figure
from studies.maskerade.fits import Curve, draw_curve, drawn_fit, places_between
from studies.maskerade.methods import published_search, search_kernels
from studies.maskerade.predictions import asked, scored
from studies.maskerade.problems import published_problem_of
from studies.maskerade.sets import Sample, Split, middle_third, split_sample

RECOVERY = PaperSet("recovery", remark="a process with five spectral components", made_up=True)
METHODS = {"sm": 5, "maskerade-3": 3, "maskerade-8": 8}  # components at most
WEIGHTS, MEANS = (0.35, 0.65, 0.1, 0.6, 0.3), (0.5, 1.0, 0.25, 1.6, 0.9)
SCALES = (0.1, 0.05, 0.075, 0.15, 0.4)
NUM_ROWS, _EDGE, _NOISE_SD = 150, 5.0, 0.01
_HIGHEST, _PLACES = 4.0, 801  # frequencies at which spectra are compared
_LONGEST = 40  # kernels of which spectra are drawn
_SCORES = ("rmse_standardized", "log_prob_joint", "distance", "best_log_likelihood", "kernels", "seconds")
_REMARK = (
    "distance: total variation between the mean spectrum under the kernels' weights, scaled to one, and the true one "
    "(0 where they are equal, 1 where they are apart; frequencies up to 4). The paper shows pictures and no number."
)


def true_mixture() -> SpectralMixtures:
    """The authors' spectrum, shape ()."""
    weights, means, scales = (
        torch.tensor(values, dtype=torch.float64, device="cpu") for values in (WEIGHTS, MEANS, SCALES)
    )
    return SpectralMixtures(weights, means.unsqueeze(-1), scales.unsqueeze(-1))


def draw_series(seed: int) -> Table:
    """A draw of the process with the authors' spectrum and noise.

    Example:
        >>> draw_series(0).X.shape
        torch.Size([150, 1])
    """
    X = torch.linspace(-_EDGE, _EDGE, NUM_ROWS, dtype=torch.float64, device="cpu").unsqueeze(-1)
    noise = _NOISE_SD**2 * torch.eye(NUM_ROWS, dtype=torch.float64, device="cpu")
    factor = torch.linalg.cholesky(covariance(true_mixture(), X, X) + noise)
    generator = torch.Generator().manual_seed(seed)
    y = factor @ torch.randn(NUM_ROWS, generator=generator, dtype=torch.float64, device="cpu")
    return Table(X, y, ("x",), "y", "recovery")


def run(choices: Choices, evaluations: int) -> str:
    """Make the figure: ``maskerade_figure-3.txt``, ``.csv``, ``.json``, and spectra and fits of each method as PNG.

    Args:
        choices: What may be chosen of every experiment; a trial is a draw of the series.
        evaluations: Likelihoods of each method.

    Raises:
        ValueError: If a method is unknown, a number is out of range, or a user's own table has several inputs.
        OSError: If a user's own table cannot be read, or the results cannot be written.
    """
    plan = make_plan(choices, list(METHODS), evaluations)
    found = choices.sources.find(RECOVERY)
    if found is not None and found.table.X.shape[1] != 1:
        raise ValueError(f"figure 3 is of a series: recovery must have one input, got {found.table.X.shape[1]}")
    drawn = (draw_series(choices.seed + trial) for trial in range(choices.trials))
    tables = list(drawn) if found is None else [found.table]
    splits = [split_sample(Sample(table, ()), middle_third(len(table.y), 0, 0)) for table in tables]
    make = partial(run_part, is_made_up=found is None)
    results = run_figure(choices, plan, 3, splits, "draw", make)
    return _written(results, choices.out, splits[0], is_made_up=found is None)


def run_part(method: str, split: Split, settings: dict[str, object], *, is_made_up: bool) -> Record:
    """What a method finds: scores of the middle third, its fit of the whole series, and its kernels' spectra."""
    clock = time.perf_counter()
    generator = torch.Generator().manual_seed(int(str(settings["seed"])))
    evaluations = int(str(settings["evaluations"]))
    model, best = _found(method, split, evaluations, generator, as_published=bool(settings["as_published"]))
    seconds = time.perf_counter() - clock
    scores = scored(asked(model, split.test_X), split)
    if is_made_up:
        scores["distance"] = distance(mean_spectrum(model), spectrum(true_mixture()))
    kernels = model.hyperparameters.mixtures
    order = model.log_weights.argsort(descending=True, stable=True)[:_LONGEST]
    curves = {
        "log_weights": model.log_weights[order].tolist(),
        "weights": kernels.weights[order].flatten().tolist(),
        "means": kernels.means[order].flatten().tolist(),
        "scales": kernels.scales[order].flatten().tolist(),
    }
    grid = places_between(split.X, float(split.X.min()), float(split.X.max()))
    curves |= drawn_fit(asked(model, grid), grid)
    extra = {"best_log_likelihood": best, "kernels": float(model.num_experts), "seconds": seconds}
    return Record(settings, scores | extra, curves)


def _found(
    method: str, split: Split, evaluations: int, generator: torch.Generator, *, as_published: bool
) -> tuple[KernelMixtureModel, float]:
    size = METHODS[method]
    if as_published:
        problem = published_problem_of(split, size)
        search = published_search(InformationPolicy())
    else:
        problem = RegressionProblem(split.X, split.y, default_prior(split.X, split.y, size))
        search = Search()
    if method == "sm":
        model, found, _ = likeliest_mixture(problem, evaluations, generator)
        return model, found["best_log_likelihood"]
    result = search_kernels(problem, evaluations, search, generator)
    if result.num_evaluations < evaluations:
        raise KeyboardInterrupt  # cut short: no finished part
    return result.model(), result.history[-1].best_log_likelihood


def frequencies(like: Tensor) -> Tensor:
    """Frequencies at which spectra are compared, shape (P,)."""
    return torch.linspace(0.0, _HIGHEST, _PLACES, dtype=like.dtype, device=like.device)


def spectrum(mixtures: SpectralMixtures) -> Tensor:
    """Densities over positive frequencies up to 4, of integral one over all, shape (..., P)."""
    places = frequencies(mixtures.weights)
    means, scales = mixtures.means, mixtures.scales  # one input: the last axis is the places'
    scales = torch.where(mixtures.weights.unsqueeze(-1) > 0, scales, 1.0)  # an absent component has any
    each = sum((-0.5 * ((places - sign * means) / scales).square()).exp() for sign in (1.0, -1.0))
    shares = (mixtures.weights / mixtures.weights.sum(-1, keepdim=True)).unsqueeze(-1)
    total: Tensor = (shares * each / (scales * math.sqrt(2.0 * math.pi))).sum(-2)
    return total


def mean_spectrum(model: KernelMixtureModel) -> Tensor:
    """The spectra of a model's kernels, averaged with their weights, shape (P,)."""
    return (model.log_weights.softmax(-1).unsqueeze(-1) * spectrum(model.hyperparameters.mixtures)).sum(0)


def distance(first: Tensor, second: Tensor) -> float:
    """Total variation between two spectra, half the integral of their difference.

    Example:
        >>> distance(spectrum(true_mixture()), spectrum(true_mixture()))
        0.0
    """
    return float(0.5 * torch.trapezoid((first - second).abs(), dx=_HIGHEST / (_PLACES - 1)))


def _written(results: Results[Plan], out: Path, split: Split, *, is_made_up: bool) -> str:
    methods = results.plan.methods
    tests: list[list[object]] = []
    for kind in _SCORES[:3]:
        for other in methods[1:]:
            found = paired(results.values(kind, other), results.values(kind, methods[0]))
            if found.num > 1:
                tests.append(
                    [kind, other, f"{found.mean:.3g}", f"{found.num_larger}/{found.num}", f"{found.t_p_value:.3g}"]
                )
    header = ["score", f"less that of {methods[0]}", "mean", "larger", "p, paired t"]
    pictures: dict[str, Callable[[Path], object]] = {}
    for method in methods:
        record = results.records.get((method, 0))
        if record is not None:
            pictures[f"_{method}_spectra"] = partial(_draw_spectra, record.curves, is_made_up)
            pictures[f"_{method}_fit"] = draw_curve(Curve(method, record.curves, split, 0.0, ("x", "y")))
    title = f"recovery of a kernel; {results.plan.evaluations} evaluations, {results.num_repetitions} draw(s)"
    below = aligned(header, tests) if tests else ""
    return write_figure(results, out, 3, title, _REMARK, _SCORES, pictures, below)


def _draw_spectra(curves: dict[str, list[float]], is_made_up: bool, path: Path) -> None:
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import ALARM
    from studies.maskerade.spectra import plot_spectra

    log_weights = torch.tensor(curves["log_weights"], dtype=torch.float64, device="cpu")
    weights, means, scales = (
        log_weights.new_tensor(curves[name]).reshape(len(log_weights), -1) for name in ("weights", "means", "scales")
    )
    figure = plot_spectra(weights, means, scales, log_weights)
    if is_made_up:
        (axis,) = figure.axes
        truth = spectrum(true_mixture())
        axis.plot(
            frequencies(truth),
            truth,
            color=ALARM,
            linestyle="--",
            label="true spectrum",
        )
        axis.set_xlim(0.0, _HIGHEST)
        axis.set_ylim(top=max(axis.get_ylim()[1], 1.5 * float(truth.max())))
        axis.legend(frameon=False, fontsize=9)
    save_figure(figure, path)
