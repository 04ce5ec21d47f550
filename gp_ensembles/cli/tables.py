"""Rows of a run from a file, a pipe, a folder or a package, and checks that a config can run on them."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from gp_ensembles.cli.named_configs import config_titles
from gp_ensembles.data import Table, load, load_folder
from gp_ensembles.data.folder import folder_file
from gp_ensembles.ensembles.targets import Target
from gp_ensembles.files.structure import Table as Kinds
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.streaming.columns import constant_columns, forecast_places
from gp_ensembles.streaming.config import MIN_WARM_UP
from gp_ensembles.streaming.content import STREAMS
from gp_ensembles.tables import RowStream, TableOptions, columns, open_rows
from gp_ensembles.tables.clock import Clock
from gp_ensembles.tables.encoder import TableEncoder
from gp_ensembles.tables.frames import array_source
from gp_ensembles.tables.raw import RawSource
from gp_ensembles.tables.rows import Rows
from gp_ensembles.tables.stream import reopen_rows

_PREFIX = "name:"
TABLES: Kinds = STREAMS.with_kinds(  # what files of runs on a table hold
    TableEncoder, Clock, columns.TargetColumn, columns.NumberColumn, columns.BooleanColumn, columns.CategoryColumn,
    columns.HashedColumn, columns.DateColumn, columns.DroppedColumn,
)  # fmt: skip


@dataclass(frozen=True)
class TableRequest:
    """The table named on a command line."""

    # A file, ``-`` for the standard input, ``name:SET`` for a bundled table, or with ``folder`` the name of a set in
    # its manifest
    data: str
    target: str | None = None  # Column to predict; a file needs one, a named table knows its own
    folder: Path | None = None  # A folder with a manifest
    options: TableOptions = field(default_factory=TableOptions)  # Dialect and columns

    def open(self, num_warm_up: int | None = None, forecasts: Sequence[str] = ()) -> RowStream:
        """Its rows, from the first."""
        source, target, name, options = self._source()
        if target is None:
            raise ValueError("name the column to predict with --target")
        if forecasts:
            options = replace(options, gaps=tuple(forecasts))
        rows = open_rows(source, target, options, num_warm_up=num_warm_up)
        rows.name = name or rows.name
        return rows

    def reopen(self, encoder: TableEncoder) -> RowStream:
        """More rows of a table with this encoder; targets may be missing."""
        source, _, name, options = self._source()
        rows = reopen_rows(source, encoder, options)
        rows.name = name or rows.name
        return rows

    def _source(self) -> tuple[str | RawSource, str | None, str | None, TableOptions]:
        """Source, target, name of the table, and options with its inputs."""
        if self.folder is None and not self.data.startswith(_PREFIX):
            return self.data, self.target, None, self.options
        if self.folder is None:
            table = load(self.data.removeprefix(_PREFIX))
            self._check_target(table.target_name)
            return source_of(table), table.target_name, table.name, self.options
        found = folder_file(self.folder, self.data)
        if found is None:
            table = load_folder(self.folder, self.data)
            self._check_target(table.target_name)
            return source_of(table), table.target_name, self.data, self.options
        path, target, features = found
        self._check_target(target)
        options = self.options if self.options.features is not None else replace(self.options, features=features)
        return str(path), target, self.data, options

    def _check_target(self, known: str) -> None:
        if self.target not in (None, known):
            raise ValueError(f"the target of {self.data} is {known}, not {self.target}; leave --target out")


def source_of(table: Table) -> RawSource:
    """A table of numbers as a source of rows."""
    columns = dict(zip(table.feature_names, table.X.T.numpy(), strict=True))
    return array_source({**columns, table.target_name: table.y.numpy()}, table.name)


def split_names(names: str | None) -> tuple[str, ...] | None:
    """Names that are separated by commas; those with commas are in double quotes."""
    if names is None:
        return None
    try:
        parts = next(csv.reader([names], skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"{names!r} is not a list of names separated by commas: {error}") from None
    return tuple(name for part in parts if (name := part.strip()))


def split_kinds(kinds: str | None) -> dict[str, str]:
    """Column types, as ``name=kind`` separated by commas."""
    found = {}
    for part in split_names(kinds) or ():
        name, mark, kind = part.rpartition("=")
        if not mark:
            raise ValueError(f"--kinds {part} has no type; write NAME=KIND, as in hour=category,note=drop")
        found[name.strip()] = kind.strip()
    return found


def check_table(rows: RowStream, config: StreamConfig) -> None:
    """Raise unless a config can run on a table, as far as is known before any row is read."""
    config.to_plain()
    if config.ensemble.target.num_outputs is not None:
        raise ValueError(
            f"the config predicts {config.ensemble.target.num_outputs} targets, but commands predict one; leave "
            f"num_outputs out, or use OnlineModel in Python"
        )
    if rows.num_rows is not None and rows.num_rows <= config.warmup:
        raise ValueError(
            f"{rows.name} has {rows.num_rows} rows, and the warm-up takes {config.warmup}, leaving none to predict: "
            f"choose a smaller --warmup"
        )
    check_kind(rows, config.ensemble.target)
    forecast_places(config.ensemble, rows.feature_names)
    config.torch_device  # noqa: B018 (raises if it does not exist)


def check_kind(rows: RowStream, target: Target) -> None:
    """Raise if targets are named classes and a config predicts numbers or another number of classes."""
    where, kind = f"{rows.path}, column {rows.target_name}", type(target).__name__
    if target.num_labels is None and rows.encoder.target.has_words:
        raise ValueError(
            f"{where}: the target is true/false, but {kind} predicts numbers; give --classes false,true, choose a "
            f"config for classes (its target is BinaryTarget), or write numbers"
        )
    if rows.classes is not None and target.num_labels != len(rows.classes):
        what = "numbers" if target.num_labels is None else f"{target.num_labels} classes"
        known = ", ".join(name for name in config_titles() if name.endswith("_classes"))
        advice = f", or choose one for them ({known} are for two)" if len(rows.classes) == 2 else ""
        raise ValueError(
            f"{where}: --classes names {len(rows.classes)} classes, but {kind} predicts {what}; "
            f"leave out the config{advice}"
        )


def check_warm_up_rows(rows: Rows, table: RowStream, config: StreamConfig) -> None:
    """Raise unless a config can be fitted to the warm-up rows of a table."""
    num_rows, X, y = rows.num_rows, rows.X, rows.y
    seen = y[~torch.isnan(y)]
    if seen.shape[0] < MIN_WARM_UP:
        raise ValueError(
            f"only {seen.shape[0]} of the {num_rows} warm-up rows of {table.name} have a target; at least "
            f"{MIN_WARM_UP} are needed: choose a larger --warmup"
        )
    if not config.ensemble.target.may_be_constant and bool((seen == seen[0]).all()):
        gaps = "" if seen.shape[0] == num_rows else f" ({seen.shape[0]} have one)"
        raise ValueError(
            f"the target {table.target_name!r} is constant in the {num_rows} warm-up rows of {table.name}: always "
            f"{float(seen[0]):.10g}{gaps}; choose a larger --warmup or another target"
        )
    forecasts = forecast_places(config.ensemble, table.feature_names)
    constant = [place for place in constant_columns(X) if place not in forecasts]
    if len(constant) == X.shape[1] - len(forecasts):
        raise ValueError(f"all inputs are constant in the {num_rows} warm-up rows; choose a larger --warmup")
