"""The rows of a run: from a file, a folder with a manifest or a package, and whether a config can run on them."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from gp_ensembles.data import Table, load, load_folder, read_csv
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.targets import Target
from gp_ensembles.streaming import StreamConfig, constant_columns
from gp_ensembles.streaming.checks import illegal_target
from gp_ensembles.streaming.config import MIN_WARM_UP
from gp_ensembles.streaming.forecasts import forecast_places

_PREFIX = "name:"


def read_table(
    data: str, target: str | None, features: str | None, folder: Path | None = None, forecasts: Sequence[str] = ()
) -> Table:
    """The table that a command line names.

    Args:
        data: A CSV file, or ``name:SET`` for a table that travels with a package, or with ``folder`` the name of
            a table in its manifest.
        target: Column to predict; a file needs one, a named table knows its own.
        features: Input columns, comma-separated; by default all but the target.
        folder: A folder with a manifest.
        forecasts: Columns of forecasts, in which cells may be missing; they are read whatever ``features`` says.

    Raises:
        ValueError: If a column is unknown, a cell is malformed, or the target is not given.
        OSError: If a file cannot be read.
    """
    names = split_names(features)
    if names is not None:
        names = tuple(dict.fromkeys((*names, *forecasts)))
    if folder is None and not data.startswith(_PREFIX):
        if target is None:
            raise ValueError("which column is to be predicted? name it with --target")
        return read_csv(data, target, names, gaps=forecasts)
    named = data.removeprefix(_PREFIX)
    table = load(named) if folder is None else load_folder(folder, data, gaps=forecasts)
    if target not in (None, table.target_name):
        raise ValueError(f"the target of {data} is {table.target_name}, not {target}; leave --target out")
    return table if names is None else _select(table, names)


def split_names(features: str | None) -> tuple[str, ...] | None:
    """Names that are separated by commas.

    Example:
        >>> split_names("flow, heat")
        ('flow', 'heat')
    """
    names: Sequence[str] = [] if features is None else [name.strip() for name in features.split(",")]
    return None if features is None else tuple(name for name in names if name)


def read_more(
    data: str, target_name: str, feature_names: Sequence[str], ensemble: EnsembleSpec, folder: Path | None = None
) -> Table:
    """The rows with which a stream goes on, with the columns it began with.

    Args:
        data: As in :func:`read_table`.
        target_name: The stream's target.
        feature_names: The stream's inputs.
        ensemble: What it is predicted with.
        folder: As in :func:`read_table`.

    Raises:
        ValueError: If a column is missing, or a target is not of the kind that the stream predicts.
    """
    if folder is None and not data.startswith(_PREFIX):
        table = read_csv(data, target_name, feature_names, gaps=ensemble.forecast_columns)
    else:
        table = read_table(data, target_name, ",".join(feature_names), folder, ensemble.forecast_columns)
    check_targets(table, ensemble.target)
    return table


def without_seen(table: Table, num_seen: int, last_row: Tensor) -> Table:
    """A table that starts with the rows that a stream has read, without them.

    Args:
        table: The table.
        num_seen: How many rows the stream has read, warm-up included.
        last_row: The last of them, inputs and target, shape (D + 1,).

    Raises:
        ValueError: If no row is left, or the rows are not those the stream has read.
    """
    if table.y.shape[0] <= num_seen:
        raise ValueError(
            f"{table.name} has {table.y.shape[0]} rows and the stream has read {num_seen}; there is nothing to add"
        )
    last = torch.cat([table.X[num_seen - 1], table.y[num_seen - 1 : num_seen]])
    if not torch.equal(torch.nan_to_num(last), torch.nan_to_num(last_row)):
        raise ValueError(
            f"row {num_seen} of {table.name} is not the row {num_seen} that the stream has read; give the same file, "
            f"or leave out --skip-seen if it holds new rows only"
        )
    return table._replace(X=table.X[num_seen:], y=table.y[num_seen:], source=None)


def check_table(table: Table, config: StreamConfig) -> None:
    """Raise unless a config can run on a table; the warm-up rows and all targets are looked at.

    Raises:
        TypeError: If the config has a part without a name in files, so that no checkpoint could be written.
        ValueError: If there are too few rows or targets, the target or a column is constant in the warm-up rows, a
            target anywhere is not of the config's kind, or the device is not there.
    """
    config.to_plain()
    if config.ensemble.target.num_outputs is not None:
        raise ValueError(
            f"the config predicts {config.ensemble.target.num_outputs} targets and a command has one; leave "
            f"num_outputs out, or use OnlineModel in Python"
        )
    check_warm_up_rows(table, config)
    check_targets(table, config.ensemble.target)
    config.torch_device  # noqa: B018 (raises if it is not there)


def check_targets(table: Table, target: Target) -> None:
    """Raise unless each target of a table, those after the warm-up included, is of a kind; NaN is missing and legal.

    Raises:
        ValueError: If a target is not of the kind, or true and false are to be predicted as numbers.

    Example:
        >>> from gp_ensembles.ensembles.targets import RealTarget
        >>> X = torch.zeros(2, 1, dtype=torch.float64)
        >>> check_targets(Table(X, X.squeeze(-1) - 1, ("time",), "height", "wave"), RealTarget())
    """
    if target.num_labels is None and table.source is not None and table.source.has_words:
        raise ValueError(
            f"{table.source.path}, column {table.target_name}: true and false are classes, and "
            f"{type(target).__name__} predicts numbers; choose a config for classes (its target is BinaryTarget), or "
            f"write numbers"
        )
    wrong = illegal_target(target, table.y)
    if wrong is not None:
        raise ValueError(f"{table.where(wrong.row)}, column {table.target_name}: the target is {wrong.problem}")


def check_warm_up_rows(table: Table, config: StreamConfig) -> None:
    """Raise unless a config can be fitted to the first rows of a table.

    Raises:
        ValueError: If there are too few rows or targets, or a column is constant in them, or the target is and does not
            tell classes, or a column of forecasts is not there.
    """
    num_rows, total = config.warmup, table.y.shape[0]
    if total <= num_rows:
        raise ValueError(
            f"{table.name} has {total} rows, and the warm-up takes {num_rows}; nothing is left to predict: "
            f"choose a smaller --warmup"
        )
    X, y = table.X[:num_rows], table.y[:num_rows]
    seen = y[~torch.isnan(y)]
    if seen.shape[0] < MIN_WARM_UP:
        raise ValueError(
            f"only {seen.shape[0]} of the {num_rows} warm-up rows of {table.name} have a target; at least "
            f"{MIN_WARM_UP} are needed: choose a larger --warmup"
        )
    if not config.ensemble.target.may_be_constant and bool((seen == seen[0]).all()):
        gaps = "" if seen.shape[0] == num_rows else f" (in the {seen.shape[0]} that have one)"
        raise ValueError(
            f"the target {table.target_name!r} is constant in the {num_rows} warm-up rows of {table.name}: always "
            f"{float(seen[0]):.10g}{gaps}; choose a larger --warmup or another target"
        )
    forecasts = forecast_places(config.ensemble, table.feature_names)
    constant = [place for place in constant_columns(X) if place not in forecasts]
    if constant and config.drop_constant and len(constant) == X.shape[1] - len(forecasts):
        raise ValueError(f"all inputs are constant in the {num_rows} warm-up rows; choose a larger --warmup")
    if constant and not config.drop_constant:
        names = ", ".join(repr(table.feature_names[k]) for k in constant)
        raise ValueError(
            f"constant in the {num_rows} warm-up rows of {table.name}: {names}; leave such columns out with "
            f"--drop-constant, or choose a larger --warmup"
        )


def without_others(table: Table, ensemble: EnsembleSpec, features: Sequence[str] | None) -> Table:
    """A table without the forecasts of other ensembles, unless they were named among the inputs, or nothing was.

    Args:
        table: The table.
        ensemble: The ensemble that is run on it.
        features: Inputs that were named.
    """
    if features is None:
        return table
    known = (*features, *ensemble.forecast_columns)
    return _select(table, [name for name in table.feature_names if name in known])


def _select(table: Table, names: Sequence[str]) -> Table:
    unknown = [name for name in names if name not in table.feature_names]
    if unknown:
        raise ValueError(f"{table.name} has no input {unknown[0]!r}; it has {', '.join(table.feature_names)}")
    places = [table.feature_names.index(name) for name in names]
    return table._replace(X=table.X[:, places], feature_names=tuple(names))
