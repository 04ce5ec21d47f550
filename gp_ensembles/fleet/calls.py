"""Validation of a fleet's settings and of the rows of a call, and partitioning of rows over several fleets."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import light
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.fleet.ensemble_fleet import Names, listed
from gp_ensembles.numerics.arguments import check_device, check_made
from gp_ensembles.streaming.checks import IllegalRow, arrive, clean_arrivals, earliest, illegal_input, illegal_target
from gp_ensembles.streaming.config import StreamConfig


class RefusedRowError(ValueError):
    """A row of a series that cannot be learned."""

    def __init__(self, series: Hashable, wrong: IllegalRow) -> None:
        super().__init__(series, wrong)
        self.series, self.wrong = series, wrong

    def __str__(self) -> str:
        return f"series {self.series!r}: {self.wrong.message(0, None)}"


Owner = TypeVar("Owner", bound=Hashable)


class CallRows(NamedTuple):
    """Rows of a call."""

    names: Sequence[Hashable]  # the series of each row
    X: Tensor  # inputs, shape (N, D)
    y: Tensor  # targets, shape (N,)


def checked_rows(config: StreamConfig, names: Names, X: Tensor, y: Tensor | None, num_inputs: int | None) -> CallRows:
    """Validate names, inputs X (N, D) and targets y (N,), missing by default, as for a stream."""
    given, rows = listed(names), arrive(X, y, None, num_inputs, config)
    if len(given) != len(rows.y):
        raise ValueError(f"names must have one entry per row of X, got {len(given)} names and {len(rows.y)} rows")
    if config.on_bad_row == "refuse":
        refuse(earliest(illegal_input(rows.X), illegal_target(config.ensemble.target, rows.y)), given)
    return CallRows(given, rows.X, rows.y)


def refuse(wrong: IllegalRow | None, names: Sequence[Hashable], rows: Tensor | None = None) -> None:
    """Raise if a row cannot be learned, given names (N,) and, for a part of a call, its row numbers (N,)."""
    if wrong is not None:
        number = wrong.row if rows is None else int(rows[wrong.row])
        raise RefusedRowError(names[wrong.row], wrong._replace(row=number))


def arrived(config: StreamConfig, rows: CallRows, numbers: Tensor | None = None) -> tuple[CallRows, tuple[int, ...]]:
    """Warm-up rows after ``on_bad_row``, and the indices of the rows it changed; ``numbers`` are for errors."""
    clean = clean_arrivals(rows.X, rows.y, config)
    refuse(clean.refused, rows.names, numbers)
    return rows._replace(X=clean.X, y=clean.y), clean.bad


def divided(rows: CallRows, owners: Sequence[Owner]) -> tuple[dict[Owner, Tensor], dict[Owner, CallRows]]:
    """Row numbers by owner, in order, and the rows themselves."""
    numbers: dict[Owner, list[int]] = {}
    for row, owner in enumerate(owners):
        numbers.setdefault(owner, []).append(row)
    places = {owner: torch.tensor(here, dtype=torch.int64, device=rows.y.device) for owner, here in numbers.items()}
    parts = {
        owner: CallRows([rows.names[row] for row in numbers[owner]], rows.X[here], rows.y[here])
        for owner, here in places.items()
    }
    return places, parts


_BASIS = FourierBasis(num_features=50, starts=(0.7,), name="rff")
# ``light`` with few features: 80 kilobytes per series.
SMALL: EnsembleSpec = replace(light, name="small", bases=(_BASIS,), lags=TargetLags(bases=(_BASIS,)), extra_experts=())


def fleet_settings(spec: EnsembleSpec, dtype: torch.dtype, device: str | torch.device, **settings: Any) -> StreamConfig:
    """The settings of a fleet as a ``StreamConfig``, which validates the rest."""
    check_made("spec", spec, EnsembleSpec, "gpe.light or gpe.e_doebe")
    if not spec.target.is_real or spec.target.num_outputs is not None:
        raise ValueError(f"a fleet needs scalar real targets, got {spec.target!r}")
    if not spec.learns_warm_up:
        raise ValueError("a fleet learns the warm-up rows of its series; use a spec with learns_warm_up=True")
    if dtype not in (torch.float64, torch.float32):
        raise TypeError(f"dtype must be torch.float64 or torch.float32, got {dtype!r}")
    precision: Any = str(dtype).removeprefix("torch.")
    return StreamConfig(spec, device=str(check_device(device)), dtype=precision, **settings)
