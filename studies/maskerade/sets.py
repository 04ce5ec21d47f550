"""The sets of the MASKERADE tables: how targets are undone, rows split and columns scaled."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.data import Table
from studies.harness.sources import FoundSet, PaperSet

_SOLAR_STARTS = (16, 92, 166, 242, 316)
_SOLAR_LENGTH = 20
_SOLAR_YEARS = 391
_CO2_END = 2020.6  # decimal year at which the authors' copy of the series ended
_SMALLEST_RESISTANCE = 0.01  # of the yacht set, in its own unit: what the distributor's logarithm is undone with


class Split(NamedTuple):
    """Training and test rows of a part; inputs scaled (several inputs only), targets standardized.

    Attributes:
        X: Training inputs, shape (N, D).
        y: Training targets, mean zero and population variance one, shape (N,).
        test_X: Test inputs, scaled by the training rows, shape (M, D).
        test_y: Test targets in the training targets' units, shape (M,).
        unit: Population standard deviation of the training targets, in the set's own unit.
        notes: What was done to the set that its reader should know.
    """

    X: Tensor
    y: Tensor
    test_X: Tensor
    test_y: Tensor
    unit: float
    notes: tuple[str, ...]


class Sample(NamedTuple):
    """A set as it is before it is split.

    Attributes:
        table: Inputs and targets.
        notes: What was done to it.
    """

    table: Table
    notes: tuple[str, ...]


class Holdout(NamedTuple):
    """A way to choose test rows.

    Attributes:
        key: What it is called in the name of a file.
        title: What it is called in a table.
        choose: Test rows, sorted, from the number of rows, the part and the seed.
        parts: How many parts are run if nothing is said.
        limit: How many parts there are; ``None`` where every further part is another draw.
    """

    key: str
    title: str
    choose: Callable[[int, int, int], Tensor]
    parts: int
    limit: int | None


def load_sample(found: FoundSet, max_rows: int | None = None, seed: int = 0) -> Sample:
    """A set with its target in the unit of the paper; a user's own table as it is.

    Args:
        found: The set.
        max_rows: Most rows: the first of a series, a draw of others; all if ``None``.
        seed: Seed of the draw.

    Raises:
        ValueError: If a target is missing.
    """
    table, notes = found.table._replace(name=found.name), (found.note,) if found.note else ()
    if found.file == "yacht":
        undone = f"{found.name}: the target is a logarithm less its mean; undone so that the smallest is 0.01"
        table, notes = table._replace(y=undone_logarithm(table.y)), (*notes, undone)
    if not bool(table.y.isfinite().all()):
        raise ValueError(f"{found.name} has rows without a target; leave them out of the file")
    if found.file == "co2_global_monthly":
        differenced = f"{found.name}: as in the authors' code, cut at {_CO2_END} and differences from month to month"
        table, notes = differences(table), (*notes, differenced)
    num_rows = len(table.y)
    if max_rows is not None and max_rows < num_rows:
        is_series = table.X.shape[1] == 1
        rows = torch.arange(max_rows, device="cpu") if is_series else _shuffled(num_rows, seed)[:max_rows].sort().values
        table = table._replace(X=table.X[rows], y=table.y[rows])
        notes = (*notes, f"{found.name}: {'the first' if is_series else 'a draw of'} {max_rows} of {num_rows} rows")
    return Sample(table, notes)


def undone_logarithm(y: Tensor) -> Tensor:
    """Resistances of the yacht set from their logarithms, whose mean was taken off and not said.

    The smallest resistance, 0.01, reveals it.

    Example:
        >>> undone_logarithm(torch.tensor([0.5, -1.0], dtype=torch.float64, device="cpu"))
        tensor([0.0448, 0.0100], dtype=torch.float64)
    """
    return (y - y.min()).exp() * _SMALLEST_RESISTANCE


def differences(table: Table) -> Table:
    """A series cut at the date of the authors' copy, as differences that stand at their later month."""
    kept = table.X[:, 0] < _CO2_END
    X, y = table.X[kept], table.y[kept]
    return table._replace(X=X[1:], y=y.diff())


def solar_rows(num_rows: int, part: int, seed: int) -> Tensor:
    """Five blocks of twenty of 391 years, or of the same shares of another series; the same in every part.

    Example:
        >>> solar_rows(391, 0, 0)[[0, 19, 20, 99]]
        tensor([ 16,  35,  92, 335])
        >>> solar_rows(40, 0, 0)
        tensor([ 2,  3,  9, 10, 17, 18, 25, 26, 32, 33])
    """
    length = max(1, _SOLAR_LENGTH * num_rows // _SOLAR_YEARS)
    starts = [round(start * num_rows / _SOLAR_YEARS) for start in _SOLAR_STARTS]
    return torch.cat([torch.arange(start, start + length, device="cpu") for start in starts]).clamp_max(num_rows - 1)


def middle_third(num_rows: int, part: int, seed: int) -> Tensor:
    """The middle third of the rows, as in the authors' test of whether a kernel is recovered.

    Example:
        >>> middle_third(9, 0, 0)
        tensor([3, 4, 5])
    """
    return torch.arange(num_rows // 3, num_rows - num_rows // 3, device="cpu")


def fold_rows(num_folds: int) -> Callable[[int, int, int], Tensor]:
    """Cross-validation: part p is fold p of the first shuffle, then of the next, and so on.

    Example:
        >>> choose = fold_rows(3)
        >>> torch.cat([choose(7, part, 0) for part in range(3)]).sort().values
        tensor([0, 1, 2, 3, 4, 5, 6])
    """

    def choose(num_rows: int, part: int, seed: int) -> Tensor:
        shuffle, fold = divmod(part, num_folds)
        return _shuffled(num_rows, seed + shuffle).tensor_split(num_folds)[fold].sort().values

    return choose


def tenth_rows(num_rows: int, part: int, seed: int) -> Tensor:
    """A tenth of the rows, another draw for each part; nine tenths, rounded down, are left for training.

    Example:
        >>> len(tenth_rows(144, 0, 0)), bool((tenth_rows(144, 0, 0) == tenth_rows(144, 1, 0)).all())
        (15, False)
    """
    return _shuffled(num_rows, seed + part)[9 * num_rows // 10 :].sort().values


def last_fifth(num_rows: int, part: int, seed: int) -> Tensor:
    """The last fifth of the rows, as in the authors' test of the number of nodes.

    Example:
        >>> last_fifth(10, 0, 0)
        tensor([8, 9])
    """
    return torch.arange(num_rows - num_rows // 5, num_rows, device="cpu")


BLOCKS = Holdout("blocks", "five blocks of twenty years", solar_rows, 1, None)
TEN_FOLDS = Holdout("10fold", "10 folds", fold_rows(10), 10, 10)
FIFTEEN_FOLDS = Holdout("3x5fold", "5 folds of 3 shuffles", fold_rows(5), 15, 15)
TENTHS = Holdout("tenth", "90/10", tenth_rows, 10, None)

SOLAR = PaperSet("solar", ("solar_lean2004",))
YACHT = PaperSet("yacht", ("yacht_raw", "yacht"))
MPG = PaperSet("mpg", ("autompg_raw",))
CONCRETE = PaperSet("concrete", ("concrete_raw",))
AIRFOIL = PaperSet("airfoil", ("airfoil_raw",))
STERLING = PaperSet(
    "sterling", ("sterling_eri",), "the narrow index of 7 779 days, where the paper has the broad one of 7 781"
)
ROAD = PaperSet("road", ("road3d_5k",), "its first 5 000 rows, where the paper has 10 000")
AIRLINE = PaperSet("airline", ("airline_passengers",))
CO2 = PaperSet("co2", ("co2_mauna_loa_monthly",))
CO2_GLOBAL = PaperSet("co2_global", ("co2_global_monthly",))


def split_sample(sample: Sample, test_rows: Tensor) -> Split:
    """Scale by the training rows: several inputs to [0, 1], one input not at all; targets to mean 0 and variance 1.

    Args:
        sample: The set.
        test_rows: Rows that are not for training, sorted.

    Raises:
        ValueError: If the training targets, or all inputs, are constant.
    """
    table, notes = sample
    is_test = torch.zeros_like(table.y, dtype=torch.bool)
    is_test[test_rows] = True
    X, y, test_X, test_y = table.X[~is_test], table.y[~is_test], table.X[is_test], table.y[is_test]
    lowest, highest = X.amin(0), X.amax(0)
    varies = highest > lowest
    if not bool(varies.any()):
        raise ValueError(
            f"all inputs of {table.name} are constant in the training rows; there is nothing to learn from"
        )
    if not bool(varies.all()):
        constant = ", ".join(name for name, v in zip(table.feature_names, varies.tolist(), strict=True) if not v)
        notes = (*notes, f"{table.name}: {constant} constant in the training rows and left out")
    if X.shape[1] > 1:
        X, test_X = ((rows - lowest)[:, varies] / (highest - lowest)[varies] for rows in (X, test_X))
    mean, unit = y.mean(), y.std(unbiased=False)
    if not bool(unit > 0):
        raise ValueError(
            f"the targets of {table.name} are constant in the training rows; there is nothing to learn from"
        )
    return Split(X, (y - mean) / unit, test_X, (test_y - mean) / unit, float(unit), notes)


def _shuffled(num_rows: int, seed: int) -> Tensor:
    return torch.randperm(num_rows, generator=torch.Generator().manual_seed(seed), device="cpu")
