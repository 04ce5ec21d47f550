"""Cost per row, measured on this machine, of a model and of random features, and the size that meets a price."""

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.stream import choose_block_size

T = TypeVar("T")
_MOST_SECONDS = 0.1  # for the repetitions of one measurement, whatever their number
_FEWEST, _MOST = 2, 20  # repetitions


class Observer(Protocol):
    """Model that learns rows: :class:`~gp_ensembles.streaming.OnlineModel` or an online ensemble."""

    def observe(self, X: Tensor, y: Tensor, /) -> object:
        """Predict each target of y (N,) from X (N, D), then learn it."""


def price_of_row(
    model: Observer, X: Tensor, y: Tensor, *, rows_per_call: int | None = None, repetitions: int = 3
) -> float:
    """Microseconds per row that a model takes to predict and learn, the fastest of several runs over the same rows.

    Runs use copies of the model. Rare work, such as retraining, counts if it falls on these rows. The fastest run is
    the one least disturbed by other work on the machine.

    Args:
        model: The model, after its warm-up.
        X: Inputs of the next rows, shape (N, D).
        y: Their targets, shape (N,).
        rows_per_call: Rows given to ``observe`` at once, for instance 1; all by default.
        repetitions: Runs.

    Raises:
        ValueError: If there is no row, a number is below one, or the model is still in its warm-up.

    Example:
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> X = torch.linspace(-1, 1, 80, dtype=torch.float64).unsqueeze(-1)
        >>> y = X.squeeze(-1).exp()
        >>> online = replace(oebe, bases=(LinearBasis(),)).fit(X[:40], y[:40])
        >>> price_of_row(online, X[40:], y[40:], rows_per_call=1) > 0.0
        True
    """
    if X.shape[0] < 1 or (rows_per_call is not None and rows_per_call < 1) or repetitions < 1:
        raise ValueError(
            f"price_of_row needs at least one row, one row per call and one repetition, got {X.shape[0]} rows, "
            f"rows_per_call={rows_per_call} and repetitions={repetitions}"
        )
    length = X.shape[0] if rows_per_call is None else rows_per_call
    blocks = list(zip(X.split(length), y.split(length), strict=True))

    def run(other: Observer) -> None:
        for rows, targets in blocks:
            predicted: Any = other.observe(rows, targets)
            if predicted is not None and predicted.mean.shape[0] < targets.shape[0]:
                raise ValueError("the model is still in its warm-up and predicts nothing; let it observe more rows")

    return 1e6 * min(_seconds(lambda: copy.deepcopy(model), run, X.device) for _ in range(repetitions)) / X.shape[0]


@torch.no_grad()
def price_of_features(num_features: int, num_experts: int, like: Tensor) -> float:
    """Microseconds per row, in blocks, of static experts with random Fourier features of inputs ``like`` (N, D)."""
    one = like.new_ones(num_experts)
    kernel = ScaleKernel(RBFKernel(batch_shape=one.shape), batch_shape=one.shape).to(like)
    generator = torch.Generator().manual_seed(0)
    features = RandomFourierFeatures.from_kernel(kernel, like.shape[1], num_features, generator=generator)
    expert = GaussianExpert(features.to(like.device))
    bound = expert.bind()
    runner = bound.runner(expert.init())
    num_rows = choose_block_size(num_features, num_experts)
    X, y = like.new_ones(num_rows, like.shape[1]), like.new_zeros(num_rows)

    def run(_: None) -> None:
        runner.stage(bound.features(X), Rows(y), has_gaps=False)
        runner.commit()

    def nothing() -> None:
        return None

    _seconds(nothing, run, like.device)  # allocates memory
    times: list[float] = []
    spent = 0.0
    while len(times) < _FEWEST or (spent < _MOST_SECONDS and len(times) < _MOST):
        times.append(_seconds(nothing, run, like.device))
        spent += times[-1]
    return 1e6 * min(times) / num_rows


def largest_size(price: float, sizes: Sequence[int], price_of: Callable[[int], float], what: str) -> int:
    """The largest of some ascending sizes that meets a price; stops at the first that costs more."""
    chosen = None
    for size in sizes:
        measured = price_of(size)
        if measured > price:
            if chosen is None:
                raise ValueError(
                    f"a price of {price:g} microseconds per row cannot be met: {size} {what}, the smallest size, cost "
                    f"{measured:.3g} on this machine; raise the price, or give the number of {what}"
                )
            break
        chosen = size
    assert chosen is not None
    return chosen


def _seconds(prepare: Callable[[], T], run: Callable[[T], None], device: torch.device) -> float:
    """Wall time of a run, including the work on the device."""
    prepared = prepare()
    _finish(device)
    started = time.perf_counter()
    run(prepared)
    _finish(device)
    return time.perf_counter() - started


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
