"""Figure 4 of the paper: the carbon dioxide of Mauna Loa, fitted and extrapolated by several methods."""

import time

import torch

from gp_ensembles.bo.posterior import MixturePosterior
from studies.harness.experiment import Choices, found_sets
from studies.harness.parts import Record
from studies.maskerade.figures import make_plan, run_figure, write_figure
from studies.maskerade.fits import Curve, draw_curve, drawn_fit, places_between
from studies.maskerade.methods import METHODS, PUBLISHED
from studies.maskerade.predictions import scored
from studies.maskerade.sets import CO2, Split, load_sample, split_sample, tenth_rows

SHOWN = ("maskerade-i", "maskerade-r", "fkl", "sm", "vssgp")
_RECENT, _BEYOND = 0.2, 0.15  # shares of the range that are drawn: its end, and what follows it
_SCORES = ("rmse", "rmse_standardized", "log_prob_sum", "log_prob_joint", "evaluations", "seconds")
_REMARK = (
    "A tenth of the rows is held out at random, as in the authors' code. Pictures show the last fifth of the series "
    "and what each method says of the years after it."
)


def run(choices: Choices, evaluations: int) -> str:
    """Make the figure: ``maskerade_figure-4.txt``, ``.csv``, ``.json``, and a fit of each method as PNG.

    Args:
        choices: What may be chosen of every experiment; a trial is a draw of the test rows.
        evaluations: Likelihoods of each method.

    Raises:
        ValueError: If a method is unknown, a number is out of range, or the set is not publicly available or has
            several inputs.
        OSError: If the set cannot be read, or the results cannot be written.
    """
    known = [name for name in SHOWN if name in PUBLISHED] if choices.as_published else SHOWN
    plan = make_plan(choices, known, evaluations)
    (found,), notes = found_sets(choices, [CO2])
    if found.table.X.shape[1] != 1:
        raise ValueError(f"figure 4 is of a series: {found.name} must have one input, got {found.table.X.shape[1]}")
    sample = load_sample(found, choices.max_rows, choices.seed)
    tests = [tenth_rows(len(sample.table.y), trial, choices.seed) for trial in range(choices.trials)]
    splits = [split_sample(sample, rows) for rows in tests]
    results = run_figure(choices, plan, 4, splits, "split", run_part)
    results.notes += [*notes, *(note for note in sample.notes if note not in notes)]
    is_test = torch.zeros_like(sample.table.y, dtype=torch.bool)
    is_test[tests[0]] = True
    center = float(sample.table.y[~is_test].mean())
    names = sample.table.feature_names[0], sample.table.target_name
    pictures = {
        f"_{method}": draw_curve(Curve(method, results.records[method, 0].curves, splits[0], center, names))
        for method in plan.methods
        if (method, 0) in results.records
    }
    title = f"Mauna Loa; {evaluations} evaluations, {choices.trials} split(s)"
    return write_figure(results, choices.out, 4, title, _REMARK, _SCORES, pictures)


def run_part(method: str, split: Split, settings: dict[str, object]) -> Record:
    """Scores of the test rows, and the fit of the end of the series and of what follows it."""
    clock = time.perf_counter()
    first, last = float(split.X.min()), float(split.X.max())
    extent = last - first
    grid = places_between(split.X, last - _RECENT * extent, last + _BEYOND * extent)
    everything = split._replace(test_X=torch.cat([split.test_X, grid]))
    known = PUBLISHED if settings["as_published"] else METHODS
    generator = torch.Generator().manual_seed(int(str(settings["seed"])))
    answer = known[method].run(everything, int(str(settings["evaluations"])), generator)
    num_tests = len(split.test_y)
    scores = scored(_part(answer.posterior, slice(None, num_tests)), split) | answer.diagnostics
    cost = {"evaluations": float(answer.evaluations), "seconds": time.perf_counter() - clock}
    return Record(settings, scores | cost, drawn_fit(_part(answer.posterior, slice(num_tests, None)), grid))


def _part(posterior: MixturePosterior, rows: slice) -> MixturePosterior:
    """The mixture at some of its points."""
    covariance = posterior.component_covariance[..., rows, rows]
    return MixturePosterior(posterior.log_weights, posterior.component_mean[..., rows, :], covariance)
