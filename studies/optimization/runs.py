"""One run: a method on a problem from a seed."""

import math
import time
import warnings
from typing import NamedTuple

import torch
from botorch.exceptions.warnings import BotorchWarning
from botorch.utils.sampling import manual_seed
from gpytorch.utils.warnings import NumericalWarning
from torch import Tensor

from studies.harness.parts import Record
from studies.optimization.methods import initial_design, make_method
from studies.optimization.problems import Problem


class Trace(NamedTuple):
    """What a run has done.

    Attributes:
        X: Inputs in the unit cube, in their order, shape (n, D).
        value: Values of the objective, shape (n,).
        optimum: Highest value there was at each evaluation, shape (n,); NaN if nobody knows.
        seconds: Processor time of each suggestion, the objective's own left out, shape (n,); NaN in the initial design.
    """

    X: Tensor
    value: Tensor
    optimum: Tensor
    seconds: Tensor

    @property
    def num_initial(self) -> int:
        """Points of the initial design."""
        return int(self.seconds.isnan().sum())


class Runs(NamedTuple):
    """Finished runs.

    Attributes:
        problems: The problems by name.
        traces: By problem, method and trial.
    """

    problems: dict[str, Problem]
    traces: dict[tuple[str, str, int], Trace]


def run_one(
    problem: Problem,
    method: str,
    seed: int,
    num_iterations: int,
    num_initial: int,
    device: str = "cpu",
) -> Trace:
    """Optimize; torch's global generator is left as it was.

    Args:
        problem: What is optimized.
        method: Name of the method.
        seed: Chooses the initial design, which methods share, and all that is random afterwards.
        num_iterations: Suggestions after the initial design.
        num_initial: Points of the initial design.
        device: Where models are, in float64; objectives are evaluated on the host.

    Returns:
        The run, of the same numbers for the same arguments (times apart).

    Example:
        >>> from studies.optimization.problems import make_problem
        >>> trace = run_one(make_problem("branin"), "random", seed=0, num_iterations=3, num_initial=6)
        >>> trace.X.shape, trace.num_initial
        (torch.Size([9, 2]), 6)
    """
    one = torch.ones(problem.dimension, dtype=torch.float64, device="cpu")
    bounds = torch.stack([torch.zeros_like(one), one])
    with manual_seed(seed):
        X = initial_design(bounds, num_initial, seed)
        Y = problem.evaluate(X, 0)
        optimizer = make_method(method).start(bounds.to(device), seed)
        seconds = [math.nan] * num_initial
        for _ in range(num_iterations):
            began = time.process_time()
            with warnings.catch_warnings():  # of optimizers that were started again, of jitter that was added
                for category in (BotorchWarning, NumericalWarning):
                    warnings.simplefilter("ignore", category)
                warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
                x = optimizer.suggest(X.to(device), Y.to(device)).clamp(0.0, 1.0).cpu()
            seconds.append(time.process_time() - began)
            X, Y = torch.cat([X, x]), torch.cat([Y, problem.evaluate(x, Y.shape[0])])
    highest = [math.nan if problem.optimum is None else problem.optimum(t) for t in range(len(seconds))]
    return Trace(X, Y.squeeze(-1), X.new_tensor(highest), X.new_tensor(seconds))


def as_record(trace: Trace, settings: dict[str, object]) -> Record:
    """A run as a finished part of a study; it has no scores by itself, as an optimum may be known from other runs."""
    inputs = {f"x{number}": column.tolist() for number, column in enumerate(trace.X.mT, 1)}
    curves = {"value": trace.value, "optimum": trace.optimum, "seconds": trace.seconds}
    return Record(settings, {}, {**{name: curve.tolist() for name, curve in curves.items()}, **inputs})


def as_trace(record: Record) -> Trace:
    """The run of a finished part."""
    columns = {name: torch.tensor(curve, dtype=torch.float64, device="cpu") for name, curve in record.curves.items()}
    value, optimum, seconds = (columns.pop(name) for name in ("value", "optimum", "seconds"))
    return Trace(torch.stack(list(columns.values()), dim=-1), value, optimum, seconds)
