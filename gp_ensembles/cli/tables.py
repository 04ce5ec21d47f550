"""Where the rows of a run come from: a file, a folder with a manifest, or a table that travels with a package."""

from pathlib import Path

import torch

from gp_ensembles.cli.preparation import check_targets
from gp_ensembles.cli.session import Session
from gp_ensembles.data import Table, constant_columns, load, load_folder, read_csv

_PREFIX = "name:"


def read_table(data: str, target: str | None, features: str | None, folder: Path | None = None) -> Table:
    """The table that a command line names.

    Args:
        data: A CSV file, or ``name:SET`` for a table that travels with a package, or with ``folder`` the name of
            a table in its manifest.
        target: Column to predict; a file needs one, a named table knows its own.
        features: Input columns, comma-separated; by default all but the target.
        folder: A folder with a manifest.

    Raises:
        ValueError: If a column is unknown, a cell is malformed, or the target is not given.
        OSError: If a file cannot be read.
    """
    names = None if features is None else [name.strip() for name in features.split(",") if name.strip()]
    if folder is None and not data.startswith(_PREFIX):
        if target is None:
            raise ValueError("which column is to be predicted? name it with --target")
        return read_csv(data, target, names)
    table = load_folder(folder, data) if folder is not None else load(data.removeprefix(_PREFIX))
    if target not in (None, table.target_name):
        raise ValueError(f"the target of {data} is {table.target_name}, not {target}; leave --target out")
    return table if names is None else _select(table, names)


def without_constant(table: Table, num_rows: int) -> Table:
    """The table without the inputs that are constant in its first rows."""
    constant = set(constant_columns(table.X[:num_rows]))
    names = [name for k, name in enumerate(table.feature_names) if k not in constant]
    if not names:
        raise ValueError(f"all inputs are constant in the {num_rows} warm-up rows; choose a larger --warmup")
    return _select(table, names)


def read_more(data: str, session: Session, skip_seen: bool = False, folder: Path | None = None) -> Table:
    """The rows with which a stream goes on, with the columns it began with.

    Args:
        data: As in :func:`read_table`.
        session: The stream.
        skip_seen: The table starts with the rows that the stream has read, warm-up included; they are left out.
        folder: As in :func:`read_table`.

    Raises:
        ValueError: If a column is missing, a target is not of the kind that the stream predicts, no row is left, or
            the rows to skip are not those the stream has read.
    """
    warm = session.warm
    if folder is None and not data.startswith(_PREFIX):
        table = read_csv(data, warm.target_name, warm.feature_names)
    else:
        table = read_table(data, warm.target_name, ",".join(warm.feature_names), folder)
    check_targets(table, session.config.ensemble.target)
    if not skip_seen:
        return table
    seen = session.num_read
    if table.y.shape[0] <= seen:
        raise ValueError(f"{data} has {table.y.shape[0]} rows and the stream has read {seen}; there is nothing to add")
    last = torch.cat([table.X[seen - 1], table.y[seen - 1 : seen]])
    if not torch.equal(torch.nan_to_num(last), torch.nan_to_num(session.progress.last_row)):
        raise ValueError(
            f"row {seen} of {data} is not the row {seen} that the stream has read; give the same file, or leave out "
            f"--skip-seen if it holds new rows only"
        )
    return table._replace(X=table.X[seen:], y=table.y[seen:], source=None)


def _select(table: Table, names: list[str]) -> Table:
    unknown = [name for name in names if name not in table.feature_names]
    if unknown:
        raise ValueError(f"{table.name} has no input {unknown[0]!r}; it has {', '.join(table.feature_names)}")
    places = [table.feature_names.index(name) for name in names]
    return table._replace(X=table.X[:, places], feature_names=tuple(names))
