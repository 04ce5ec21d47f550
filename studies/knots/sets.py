"""The three sets of the knot-selection papers: which rows and inputs, how many are for training, how X is scaled."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.data import Table
from studies.harness.sources import PaperSet, Sources


class KnotSet(NamedTuple):
    """A set of the papers.

    Attributes:
        paper_set: Its name, and those it may have in a folder.
        features: Its inputs; all that the manifest names if ``None``.
        below: Rows with a target of at least this are left out (censored); none if ``None``.
        train_share: Share of the rows for training, rounded down.
        nugget: The authors' nugget, a variance in the targets' unit, squared.
    """

    paper_set: PaperSet
    features: tuple[str, ...] | None
    below: float | None
    train_share: float
    nugget: float


class KnotSplit(NamedTuple):
    """Training and test rows of a split: inputs standardized by the training rows, targets in their own unit.

    Attributes:
        X: Training inputs, mean zero and sample standard deviation one, shape (N, D).
        y: Training targets, shape (N,).
        test_X: Test inputs, scaled by the training rows, shape (M, D).
        test_y: Test targets, shape (M,).
    """

    X: Tensor
    y: Tensor
    test_X: Tensor
    test_y: Tensor


SETS = {
    # medv = 50 stands for "50 or more": 490 rows stay
    "boston": KnotSet(PaperSet("boston", ("boston_raw",)), ("rm", "ptratio", "lstat"), 50.0, 0.8, 1e-6),
    "airfoil": KnotSet(PaperSet("airfoil", ("airfoil_raw", "airfoil")), None, None, 0.8, 1e-4),
    "ccpp": KnotSet(PaperSet("ccpp"), None, None, 0.5, 1e-3),
}


def load_set(sources: Sources, name: str) -> Table:
    """The rows of a set that the papers use; of the user's own table that replaces it, all rows and all columns.

    Args:
        sources: Where it comes from.
        name: One of :data:`SETS`.

    Raises:
        ValueError: If it is not publicly available, a target is missing, or fewer than ten rows are left.
        FileNotFoundError: If its file does not exist.
    """
    kind = SETS[name]
    found = sources.find(kind.paper_set, features=kind.features)
    if found is None:
        raise ValueError(sources.missing([kind.paper_set])[0])
    table, called = found.table, found.file or name
    if not bool(table.y.isfinite().all()):
        raise ValueError(f"{called} has rows without a target; leave them out of the file")
    if kind.below is not None and not found.is_own:
        kept = table.y < kind.below
        table = table._replace(X=table.X[kept], y=table.y[kept])
    if len(table.y) < 10:
        raise ValueError(f"{called} has {len(table.y)} usable rows; at least 10 are needed")
    return table


def split_rows(table: Table, train_share: float, seed: int, max_rows: int | None = None) -> KnotSplit:
    """A random split, training rows first in the order drawn; the same seed is the same split.

    Args:
        table: The set.
        train_share: Share of the rows for training, rounded down.
        seed: Seed of the draw.
        max_rows: Most rows of both parts together, the first that are drawn; all if ``None``.

    Raises:
        ValueError: If an input or the target is constant in the training rows.

    Example:
        >>> X = torch.arange(10.0, dtype=torch.float64, device="cpu").unsqueeze(-1)
        >>> split = split_rows(Table(X, X.squeeze(-1), ("x",), "y", "line"), 0.8, 0)
        >>> split.X.shape, split.test_X.shape, round(float(split.X.std()), 6)
        (torch.Size([8, 1]), torch.Size([2, 1]), 1.0)
    """
    order = torch.randperm(len(table.y), generator=torch.Generator().manual_seed(seed), device="cpu")[:max_rows]
    # A whole number of rows that rounding has put just below itself is meant.
    num_train = int(train_share * len(order) + 1e-9)
    X, y = table.X[order], table.y[order]
    mean, unit = X[:num_train].mean(0), X[:num_train].std(0)
    constant = [name for name, one in zip(table.feature_names, unit.tolist(), strict=True) if not one > 0]
    if constant or not bool(y[:num_train].std() > 0):
        what = ", ".join(constant) or table.target_name
        raise ValueError(f"{what} of {table.name} is constant in the training rows; choose another --seed, or fix it")
    X = (X - mean) / unit
    return KnotSplit(X[:num_train], y[:num_train], X[num_train:], y[num_train:])
