"""From a table to a stream: targets checked, warm-up rows cut, an ensemble and its baselines made, nothing streamed."""

import torch
from torch import Tensor

from gp_ensembles.cli.baselines import Baselines, DiscreteBaselines
from gp_ensembles.cli.config import StreamConfig
from gp_ensembles.data import Standardizer, Table, constant_columns
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.targets import Target
from gp_ensembles.likelihoods.response import IllegalTargetError


def check_targets(table: Table, kind: Target) -> None:
    """Raise unless each target of a table, those after the warm-up included, is of a kind; NaN is missing and legal.

    Args:
        table: The table, as it was read.
        kind: What the config predicts.

    Raises:
        ValueError: If a target is not of the kind, or true and false are to be predicted as numbers.

    Example:
        >>> import torch
        >>> from gp_ensembles.ensembles.targets import RealTarget
        >>> X = torch.zeros(2, 1, dtype=torch.float64)
        >>> check_targets(Table(X, X.squeeze(-1) - 1, ("time",), "height", "wave"), RealTarget())
    """
    if kind.num_labels is None and table.source is not None and table.source.has_words:
        raise ValueError(
            f"{table.source.path}, column {table.target_name}: true and false are classes, and "
            f"{type(kind).__name__} predicts numbers; choose a config for classes (its target is BinaryTarget), or "
            f"write numbers"
        )
    error = first_illegal(kind, table.y)
    if error is not None:
        raise ValueError(f"{table.where(error.row)}, column {table.target_name}: the target is {_why(error, kind)}")


def first_illegal(kind: Target, y: Tensor) -> IllegalTargetError | None:
    """The first of the targets (N,) that is not of a kind, if there is one.

    Example:
        >>> import torch
        >>> from gp_ensembles.ensembles.targets import BinaryTarget
        >>> first_illegal(BinaryTarget(), torch.tensor([1.0, torch.nan, 2.0])).row
        2
        >>> first_illegal(BinaryTarget(), torch.tensor([1.0, torch.nan, 1.0])) is None
        True
    """
    try:
        kind.check(y)
    except IllegalTargetError as error:
        return error
    except ValueError:
        pass  # too few or too similar: that matters to a fit only, and the warm-up is checked for it
    return None


def complaint(error: IllegalTargetError, kind: Target, number: int) -> str:
    """What to say of an illegal target in row ``number`` of a stream, counted from 1."""
    return f"the target of row {number} is {_why(error, kind)}"


def _why(error: IllegalTargetError, kind: Target) -> str:
    num = kind.num_labels
    rule = error.rule if num is None else f"the classes are {'0 and 1' if num == 2 else f'0 to {num - 1}'}"
    return (
        f"{error.value:.10g}, but {rule} ({type(kind).__name__}); {error.remedy}, or leave the cell empty if it is "
        f"missing"
    )


def warm_up_rows(table: Table, num_rows: int) -> Table:
    """The first rows of a table, checked.

    Raises:
        ValueError: If there are too few rows or targets, or the target is constant in them.
    """
    total = table.y.shape[0]
    if total <= num_rows:
        raise ValueError(
            f"{table.name} has {total} rows, and the warm-up takes {num_rows}; nothing is left to predict: "
            f"choose a smaller --warmup"
        )
    warm = table._replace(X=table.X[:num_rows], y=table.y[:num_rows])
    seen = warm.y[~torch.isnan(warm.y)]
    if seen.shape[0] < 10:
        raise ValueError(
            f"only {seen.shape[0]} of the {num_rows} warm-up rows of {table.name} have a target; at least 10 are "
            f"needed: choose a larger --warmup"
        )
    if bool((seen == seen[0]).all()):
        gaps = "" if seen.shape[0] == num_rows else f" (in the {seen.shape[0]} that have one)"
        raise ValueError(
            f"the target {table.target_name!r} is constant in the {num_rows} warm-up rows of {table.name}: always "
            f"{float(seen[0]):.10g}{gaps}; choose a larger --warmup or another target"
        )
    constant = constant_columns(warm.X)
    if constant:
        names = ", ".join(repr(table.feature_names[k]) for k in constant)
        raise ValueError(
            f"constant in the {num_rows} warm-up rows of {table.name}: {names}; leave such columns out with "
            f"--drop-constant, or choose a larger --warmup"
        )
    return warm


def build_ensemble(
    config: StreamConfig, warm: Table, *, structure_only: bool, progress: bool = False
) -> OnlineEnsemble:
    """The config's ensemble for these warm-up rows, on its device in its dtype."""
    device, dtype = config.torch_device, config.torch_dtype
    X, y = prepare(config, fit_standardizer(config, warm), warm.X, warm.y)
    generator = torch.Generator().manual_seed(config.seed)  # on the CPU: the same draws whatever the device
    X, y = X.to(device, dtype), y.to(device, dtype)
    if structure_only:
        online = config.ensemble.unfitted(X, y, generator=generator)
    else:
        online = config.ensemble.fit(X, y, generator=generator, progress=progress)
    if config.block_size is not None:
        online.block_size = config.block_size
    return online


def build_baselines(config: StreamConfig, warm: Table, *, structure_only: bool) -> Baselines | DiscreteBaselines:
    """The baselines for these warm-up rows."""
    X, y = prepare(config, fit_standardizer(config, warm), warm.X, warm.y)
    if config.ensemble.target.is_real:
        return Baselines(X, y, structure_only=structure_only)
    return DiscreteBaselines(X, y, config.ensemble.target, structure_only=structure_only)


def prepare(config: StreamConfig, standardizer: Standardizer, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as the ensemble sees them: standardized, and the inputs clipped if the config says so."""
    inputs, targets = standardizer.transform(X, y)
    return inputs if config.clip is None else inputs.clamp(-config.clip, config.clip), targets


def fit_standardizer(config: StreamConfig, warm: Table) -> Standardizer:
    """Shifts and scales of the warm-up rows; classes and counts stay as they are.

    Raises:
        ValueError: If a target is not of the config's kind, or the target or a column is constant.
    """
    if config.ensemble.target.is_real:
        return Standardizer.fit(warm.X, warm.y)
    config.ensemble.target.check(warm.y)
    return Standardizer.fit_inputs(warm.X, warm.y)
