"""Ray data sets through a fleet, and sweeps of configs and seeds on one stream as Ray tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.fleet.model import Fleet
from gp_ensembles.scale.ray_fleet import RayFleet, import_ray
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.model import OnlineModel


class Score(NamedTuple):
    """Scores of a config on the rows after its warm-up."""

    config: str  # its name
    seed: int  # the seed that replaced its own
    log_score: float  # mean log density of the targets, in nats
    rmse: float  # root mean squared error, in units of the target


def observe_dataset(
    fleet: Fleet | RayFleet, dataset: Any, series: str, inputs: Sequence[str], target: str, *, batch_size: int = 10_000
) -> Any:
    """Stream a data set of Ray through a fleet, in its order.

    Args:
        fleet: The fleet, which learns.
        dataset: A ``ray.data.Dataset`` whose rows of one series are in the order of time.
        series: Its column with the name of the series of each row.
        inputs: Its numeric columns that are inputs, at least one; NaN where a number is missing.
        target: Its numeric column to predict; NaN where missing.
        batch_size: Rows at a time.

    Returns:
        A ``ray.data.Dataset`` with as many rows in the same order. Its columns are the series, ``mean``, ``std``,
        ``lower`` and ``upper`` of the fleet's first coverage, ``log_prob`` and ``target``; NaN without a prediction.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If a column does not exist, or rows are malformed; earlier batches are learned.

    Example:
        >>> dataset = ray.data.read_parquet("/shared/march")  # doctest: +SKIP
        >>> observe_dataset(fleet, dataset, series="meter", inputs=["hour"], target="load")  # doctest: +SKIP
    """
    ray, arrow = import_ray(), _import_arrow()
    missing = {series, *inputs, target} - set(dataset.schema().names)
    if missing:
        raise ValueError(f"the data set has no columns {sorted(missing)}; it has {list(dataset.schema().names)}")
    options = ray.data.DataContext.get_current().execution_options
    before, options.preserve_order = options.preserve_order, True
    parts = []
    try:
        for batch in dataset.iter_batches(batch_size=batch_size, batch_format="numpy"):
            X = torch.stack([_numbers(batch, name) for name in inputs], dim=-1)
            names, y = batch[series].tolist(), _numbers(batch, target)
            predicted = fleet.observe(names, X, y)
            lower, upper = predicted.interval(predicted.coverages[0])
            mean, variance = predicted.moments()
            found = {"mean": mean, "std": variance.sqrt(), "lower": lower, "upper": upper}
            found |= {"log_prob": predicted.log_prob, "target": y}
            parts.append(arrow.table({series: batch[series], **{name: value.numpy() for name, value in found.items()}}))
    finally:
        options.preserve_order = before
    return ray.data.from_arrow(parts)


def sweep(configs: Mapping[str, StreamConfig], X: Tensor, y: Tensor, seeds: Sequence[int] = (0,)) -> list[Score]:
    """Run every config with every seed on a stream, each as a task of Ray's; the numbers are those of :func:`score`.

    Args:
        configs: Configs by name.
        X: Inputs in the order of time, shape (N, D).
        y: Targets, shape (N,).
        seeds: Seeds.

    Returns:
        Scores, those of one config side by side.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: As :meth:`OnlineModel.observe`.

    Example:
        >>> sweep({"light": StreamConfig()}, X, y, seeds=range(10))  # doctest: +SKIP
    """
    ray = import_ray()
    rows = ray.put((X, y))
    task = ray.remote(_score_on_one_thread)
    asked = [task.remote(name, config, seed, rows) for name, config in configs.items() for seed in seeds]
    try:
        found: list[Score] = ray.get(asked)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    return found


def score(name: str, config: StreamConfig, seed: int, X: Tensor, y: Tensor) -> Score:
    """Run one config on a stream."""
    predicted = OnlineModel(replace(config, seed=seed)).observe(X, y)
    error = predicted.mean - y[predicted.first_row :]
    return Score(name, seed, float(predicted.log_prob.nanmean()), float(error.square().nanmean().sqrt()))


def _score_on_one_thread(name: str, config: StreamConfig, seed: int, rows: tuple[Tensor, Tensor]) -> Score:
    torch.set_num_threads(1)
    return score(name, config, seed, *rows)


def _numbers(batch: Mapping[str, Any], name: str) -> Tensor:
    return torch.as_tensor(batch[name].astype("float64"), dtype=torch.float64, device="cpu").clone()


def _import_arrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ImportError("Ray Datasets need pyarrow; install gp_ensembles[ray]") from None
    return pyarrow
