"""One run: a method on a problem from a seed; and many of them, each written as soon as it is done."""

import csv
import math
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from botorch.exceptions.warnings import BotorchWarning
from botorch.utils.sampling import manual_seed
from gpytorch.utils.warnings import NumericalWarning
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.cli.error_messages import EXPECTED, one_sentence
from gp_ensembles.cli.optimize.methods import initial_design, make_method
from gp_ensembles.cli.optimize.problems import Problem, make_problem
from gp_ensembles.cli.out_folder import make_folder
from gp_ensembles.cli.text_tables import as_csv
from gp_ensembles.files.replacing import write_text
from gp_ensembles.numerics.devices import check_device

_COLUMNS = ("evaluation", "value", "optimum", "seconds")


class Trace(NamedTuple):
    """What a run has done.

    Attributes:
        X: Inputs in the unit cube, in their order, shape (n, D).
        value: Values of the objective, shape (n,).
        optimum: Highest value there was at each evaluation, shape (n,); NaN if nobody knows.
        seconds: Wall time of each suggestion, the objective's own left out, shape (n,); NaN in the initial design.
    """

    X: Tensor
    value: Tensor
    optimum: Tensor
    seconds: Tensor

    @property
    def num_initial(self) -> int:
        """Points of the initial design."""
        return int(self.seconds.isnan().sum())


class Plan(NamedTuple):
    """The runs that are wanted.

    Attributes:
        problems: Names of problems.
        methods: Names of methods.
        num_seeds: Seeds 0, 1, ... of each pair.
        num_iterations: Suggestions of a run.
        num_initial: Points of the initial design; ``None`` for twice the dimensions plus two.
        device: Where models are, in float64; objectives are evaluated on the host.
    """

    problems: Sequence[str]
    methods: Sequence[str]
    num_seeds: int
    num_iterations: int
    num_initial: int | None = None
    device: str = "cpu"


class Results(NamedTuple):
    """Finished runs, and why others failed.

    Attributes:
        problems: The problems by name.
        traces: By problem, method and seed.
        failures: Reasons by problem, method and seed.
    """

    problems: dict[str, Problem]
    traces: dict[tuple[str, str, int], Trace]
    failures: dict[tuple[str, str, int], str]


def run_one(
    problem: Problem,
    method: str,
    seed: int,
    num_iterations: int,
    num_initial: int | None = None,
    device: str = "cpu",
) -> Trace:
    """Optimize; torch's global generator is left as it was.

    Args:
        problem: What is optimized.
        method: Name of the method.
        seed: Chooses the initial design, which methods share, and all that is random afterwards.
        num_iterations: Suggestions after the initial design.
        num_initial: See :class:`Plan`.
        device: See :class:`Plan`.

    Returns:
        The run, of the same numbers for the same arguments (times apart).

    Example:
        >>> trace = run_one(make_problem("branin"), "random", seed=0, num_iterations=3)
        >>> trace.X.shape, trace.num_initial
        (torch.Size([9, 2]), 6)
    """
    one = torch.ones(problem.dimension, dtype=torch.float64, device="cpu")
    bounds = torch.stack([torch.zeros_like(one), one])
    num_initial = 2 * problem.dimension + 2 if num_initial is None else num_initial
    with manual_seed(seed):
        X = initial_design(bounds, num_initial, seed)
        Y = problem.evaluate(X, 0)
        optimizer = make_method(method).start(bounds.to(device), seed)
        seconds = [math.nan] * num_initial
        for _ in range(num_iterations):
            began = time.perf_counter()
            with warnings.catch_warnings():  # of optimizers that were started again, of jitter that was added
                for category in (BotorchWarning, NumericalWarning):
                    warnings.simplefilter("ignore", category)
                warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
                x = optimizer.suggest(X.to(device), Y.to(device)).clamp(0.0, 1.0).cpu()
            seconds.append(time.perf_counter() - began)
            X, Y = torch.cat([X, x]), torch.cat([Y, problem.evaluate(x, Y.shape[0])])
    highest = [math.nan if problem.optimum is None else problem.optimum(t) for t in range(len(seconds))]
    return Trace(X, Y.squeeze(-1), X.new_tensor(highest), X.new_tensor(seconds))


def run_all(plan: Plan, folder: Path, *, progress: bool = False) -> Results:
    """Run what is not yet in a folder; every finished run is in ``PROBLEM-METHOD-SEED.csv`` there at once.

    A run that fails is reported and the others go on; so does another call after an interruption. A run of as many
    initial points and no fewer iterations than are wanted is not made again.

    Args:
        plan: The runs.
        folder: Where they are kept; it is made if need be.
        progress: Show a progress bar.

    Raises:
        ValueError: If a name is unknown or given twice, or a number is too small.
        ImportError: If a package is missing that a method needs.
        OSError: If the folder cannot be made.
    """
    check_plan(plan)
    problems = {name: make_problem(name) for name in plan.problems}
    make_folder(folder)
    results = Results(problems, {}, {})
    # Seeds outermost: after an interruption every pair has about as many runs.
    runs = [(p, m, seed) for seed in range(plan.num_seeds) for p in plan.problems for m in plan.methods]
    with tqdm(runs, unit="run", disable=not progress) as bar:
        for run in bar:
            problem, method, seed = problems[run[0]], run[1], run[2]
            bar.set_postfix_str(f"{problem.name} {method} {seed}")
            path = folder / f"{problem.name}-{method}-{seed}.csv"
            num_initial = 2 * problem.dimension + 2 if plan.num_initial is None else plan.num_initial
            trace = read_trace(path, problem.dimension, num_initial, plan.num_iterations)
            if trace is None:
                try:
                    objective = make_problem(problem.name, seed)
                    trace = run_one(objective, method, seed, plan.num_iterations, num_initial, plan.device)
                except Exception as error:  # one run that fails must not cost the others theirs
                    kind = "" if isinstance(error, EXPECTED) else f"{type(error).__name__}: "
                    results.failures[run] = kind + one_sentence(error)
                    bar.write(f"gp-ensembles: {path.stem} failed: {results.failures[run]}", file=sys.stderr)
                    continue
                write_text(path, trace_csv(trace))
            results.traces[run] = trace
    return results


def check_plan(plan: Plan) -> None:
    """Raise ValueError or ImportError for a plan that cannot be run, in one sentence."""
    for kind, names in (("problem", plan.problems), ("method", plan.methods)):
        if not names:
            raise ValueError(f"name at least one {kind}")
        twice = [name for name in names if list(names).count(name) > 1]
        if twice:
            raise ValueError(f"the {kind} {twice[0]} is named twice; name it once")
    for name in plan.problems:
        make_problem(name)
    for name in plan.methods:
        make_method(name)
    if check_device(plan.device).type != "cpu":
        on_host = [name for name in plan.methods if not make_method(name).runs_anywhere]
        if on_host:
            raise ValueError(
                f"{', '.join(on_host)}: not on {plan.device}, where BoTorch's part does not run or was not tried; "
                f"leave --device out, or choose other --methods"
            )
    for option, number, least in (("seeds", plan.num_seeds, 1), ("iterations", plan.num_iterations, 1)):
        if number < least:
            raise ValueError(f"--{option} must be at least {least}, got {number}")
    if plan.num_initial is not None and plan.num_initial < 2:
        raise ValueError(f"--num-initial must be at least 2, got {plan.num_initial}: models need two observations")


def trace_csv(trace: Trace) -> str:
    """A run as CSV, a row for each evaluation; numbers that are not known are empty cells."""
    columns = [trace.value.tolist(), trace.optimum.tolist(), trace.seconds.tolist(), *trace.X.T.tolist()]
    header = [*_COLUMNS, *(f"x{number}" for number in range(1, trace.X.shape[1] + 1))]
    return as_csv(header, [[t, *row] for t, row in enumerate(zip(*columns, strict=True))])


def read_trace(path: Path, dimension: int, num_initial: int, num_iterations: int) -> Trace | None:
    """A run from its file, cut to the iterations wanted; ``None`` if there is none that serves.

    Example:
        >>> read_trace(Path("no such file"), 2, 6, 10) is None
        True
    """
    names = [*_COLUMNS, *(f"x{number}" for number in range(1, dimension + 1))]
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file))
            numbers = [[float(cell) if cell else math.nan for cell in row] for row in rows]
    except (OSError, ValueError):
        return None
    num_rows = num_initial + num_iterations
    if header != names or len(numbers) < num_rows or any(len(row) != len(names) for row in numbers):
        return None
    table = torch.tensor(numbers[:num_rows], dtype=torch.float64, device="cpu")
    trace = Trace(table[:, 4:], table[:, 1], table[:, 2], table[:, 3])
    return trace if trace.num_initial == num_initial else None
