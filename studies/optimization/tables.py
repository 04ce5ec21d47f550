"""Regrets of finished runs, their means and intervals over seeds, and the tables of them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.special import stdtrit
from torch import Tensor

from studies.optimization.problems import Problem
from studies.optimization.runs import Runs, Trace

_LEVEL = 0.95
# Regrets below count as this much on a log scale: the best run of a problem without a known optimum has none.
FLOOR = 1e-6


class Interval(NamedTuple):
    """A mean and its Student-t interval at 95 %; no interval (NaN) from one number."""

    mean: Tensor
    low: Tensor
    high: Tensor


class Summary(NamedTuple):
    """A method on a problem.

    Attributes:
        problem: Name of the problem.
        method: Name of the method.
        num_seeds: Runs.
        simple: Simple regret at the end; NaN where the objective moves.
        cumulative: Cumulative regret at the end, initial design included.
        seconds: Processor time of a suggestion, averaged over a run.
        simple_curve: Decimal logarithm of the simple regret after every evaluation, shape (n,).
        cumulative_curve: Cumulative regret after every evaluation, shape (n,).
    """

    problem: str
    method: str
    num_seeds: int
    simple: Interval
    cumulative: Interval
    seconds: Interval
    simple_curve: Interval
    cumulative_curve: Interval


class Difference(NamedTuple):
    """A method less a reference.

    Attributes:
        problem: Name of the problem.
        method: Name of the method.
        num_seeds: Seeds that both have run.
        simple: Simple regret at the end; NaN where the objective moves.
        cumulative: Cumulative regret at the end.
        won: Seeds on which the method has less simple regret, or less cumulative regret where the objective moves.
        tied: Seeds on which it has the same.
    """

    problem: str
    method: str
    num_seeds: int
    simple: Interval
    cumulative: Interval
    won: int
    tied: int


def regrets(value: Tensor, optimum: Tensor) -> tuple[Tensor, Tensor]:
    r"""Simple and cumulative regret after each evaluation.

    .. math:: r_t = f^* - \max_{s \le t} f(x_s), \qquad R_t = \sum_{s \le t} \big(f^*_s - f_s(x_s)\big)

    Args:
        value: Values, shape (..., n).
        optimum: Highest value there was at each, shape (..., n).

    Returns:
        Both, shape (..., n); the first means something only if the optimum stands still.

    Example:
        >>> import torch
        >>> regrets(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([4.0, 4.0, 4.0]))
        (tensor([3., 1., 1.]), tensor([3., 4., 6.]))
    """
    return optimum - value.cummax(-1).values, (optimum - value).cumsum(-1)


def interval(samples: Tensor) -> Interval:
    """Mean and 95 % Student-t interval over the first dimension.

    Example:
        >>> import torch
        >>> found = interval(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
        >>> round(found.mean.item(), 3), round(found.low.item(), 3), round(found.high.item(), 3)
        (2.0, -0.484, 4.484)
    """
    mean, num_samples = samples.mean(0), samples.shape[0]
    if num_samples < 2:
        return Interval(mean, torch.full_like(mean, math.nan), torch.full_like(mean, math.nan))
    quantile = float(stdtrit(num_samples - 1, 0.5 + _LEVEL / 2))
    half = quantile * samples.std(0) / math.sqrt(num_samples)
    return Interval(mean, mean - half, mean + half)


def best_known(problem: Problem, traces: Sequence[Trace]) -> float | None:
    """The best value that any of these runs has found, if nobody knows the optimum; ``None`` if somebody does."""
    return None if problem.optimum is not None else max(float(trace.value.max()) for trace in traces)


def summarize(runs: Runs) -> list[Summary]:
    """Every pair of problem and method with a finished run, problem by problem."""
    summaries = []
    for name, problem in runs.problems.items():
        of_problem = {run: trace for run, trace in runs.traces.items() if run[0] == name}
        best = best_known(problem, list(of_problem.values())) if of_problem else None
        for method in dict.fromkeys(run[1] for run in of_problem):
            traces = [trace for run, trace in of_problem.items() if run[1] == method]
            value, optimum = (torch.stack(part) for part in zip(*[trace[1:3] for trace in traces], strict=True))
            optimum = optimum if best is None else torch.full_like(optimum, best)
            simple, cumulative = regrets(value, optimum)
            simple = torch.full_like(simple, math.nan) if problem.moves else simple
            seconds = torch.stack([trace.seconds.nanmean() for trace in traces])
            summaries.append(
                Summary(
                    name, method, len(traces),
                    interval(simple[:, -1]), interval(cumulative[:, -1]), interval(seconds),
                    interval(simple.clamp_min(FLOOR).log10()), interval(cumulative),
                )
            )  # fmt: skip
    return summaries


def differences(runs: Runs, reference: str) -> list[Difference]:
    """Regrets of every other method less those of a reference on the same seeds, problem by problem.

    Methods of a seed share the initial design, so that much of the chance cancels.
    """
    found = []
    for name, problem in runs.problems.items():
        of_problem = {run[1:]: trace for run, trace in runs.traces.items() if run[0] == name}
        best = best_known(problem, list(of_problem.values())) if of_problem else None
        for method in dict.fromkeys(method for method, _ in of_problem if method != reference):
            seeds = [s for m, s in of_problem if m == method and (reference, s) in of_problem]
            if not seeds:
                continue
            ends = []
            for who in (method, reference):
                value, optimum = (torch.stack([of_problem[who, seed][part] for seed in seeds]) for part in (1, 2))
                optimum = optimum if best is None else torch.full_like(optimum, best)
                ends.append([regret[:, -1] for regret in regrets(value, optimum)])
            simple, cumulative = (own - other for own, other in zip(*ends, strict=True))
            less = cumulative if problem.moves else simple
            won, tied = int((less < 0).sum()), int((less == 0).sum())
            simple = torch.full_like(simple, math.nan) if problem.moves else simple
            found.append(Difference(name, method, len(seeds), interval(simple), interval(cumulative), won, tied))
    return found


def differences_markdown(found: Sequence[Difference], reference: str) -> str:
    """The table of differences, below zero where a method is better than the reference; empty if there are none."""
    if not found:
        return ""
    lines = [
        f"| problem | method less {reference} | simple regret | cumulative regret | pairs won |",
        "|---|---|---:|---:|---:|",
        *(f"| {d.problem} | {d.method} | {_cell(d.simple)} | {_cell(d.cumulative)} | {_pairs([d])} |" for d in found),
    ]
    for method in dict.fromkeys(d.method for d in found):
        own = [d for d in found if d.method == method]
        lines.append(f"| all | {method} | | | {_pairs(own)} |")
    note = (
        f"Mean and 95 % t-interval over the same seeds; below zero where a method is better than {reference}. A pair "
        f"is won by the lower simple regret, where the objective moves by the lower cumulative regret."
    )
    return "\n".join([*lines, "", note])


def _pairs(found: Sequence[Difference]) -> str:
    won, tied, num_seeds = (sum(counts) for counts in zip(*((d.won, d.tied, d.num_seeds) for d in found), strict=True))
    return f"{won} of {num_seeds}" + (f", {tied} tied" if tied else "")


def table_lines(summaries: Sequence[Summary]) -> tuple[list[str], list[list[object]]]:
    """The table with all digits: its header and its lines."""
    quantities = ("simple_regret", "cumulative_regret", "seconds_per_iteration")
    header = ["problem", "method", "seeds", *(f"{q}{end}" for q in quantities for end in ("", "_low", "_high"))]
    rows: list[list[object]] = [
        [s.problem, s.method, s.num_seeds, *(v.item() for i in (s.simple, s.cumulative, s.seconds) for v in i)]
        for s in summaries
    ]
    return header, rows


def table_markdown(summaries: Sequence[Summary], runs: Runs) -> str:
    """The table for the eye, the lowest mean of each problem in bold, with what the numbers mean."""
    lines = [
        "| problem | method | seeds | simple regret | cumulative regret | seconds per iteration |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for s in summaries:
        rivals = [other for other in summaries if other.problem == s.problem]
        simple = _cell(s.simple, [other.simple for other in rivals])
        cumulative = _cell(s.cumulative, [other.cumulative for other in rivals])
        seconds = f"{s.seconds.mean.item():.3g}"
        lines.append(f"| {s.problem} | {s.method} | {s.num_seeds} | {simple} | {cumulative} | {seconds} |")
    notes = [
        "Mean and 95 % t-interval over seeds, at the last evaluation; lower is better. Cumulative regret counts the "
        "initial design, which is the same for all methods of a seed. Seconds are processor time of a suggestion, "
        "without the objective's own."
    ]
    for name, problem in runs.problems.items():
        traces = [trace for run, trace in runs.traces.items() if run[0] == name]
        if traces and (best := best_known(problem, traces)) is not None:
            notes.append(
                f"The optimum of {name} is not known: its regrets are counted from {best:.6g}, the best value that any "
                f"run of this table has found."
            )
        if problem.moves:
            notes.append(f"The objective of {name} moves, so its cumulative regret counts, from each moment's optimum.")
    return "\n".join([*lines, "", *notes])


def _cell(found: Interval, rivals: Sequence[Interval] = ()) -> str:
    mean, low, high = (part.item() for part in found)
    if math.isnan(mean):
        return "-"
    text = f"{mean:.4g}"
    if len(rivals) > 1 and mean == min(rival.mean.item() for rival in rivals):
        text = f"**{text}**"
    return text if math.isnan(low) else f"{text} ({low:.4g} to {high:.4g})"
