"""The labeled sets that latent variable models are compared on: shuffled by a seed, a first part of each to start."""

from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from gp_ensembles.data import Table, folder_names, load_folder
from gp_ensembles.streaming import constant_columns

BUNDLED = "digits"  # comes with scikit-learn; the others need a folder
# Share of the rows that an online model starts from (Lu et al. 2022, section 7); digits is not among the paper's sets.
START_SHARES = {BUNDLED: 0.1, "oil_flow": 0.1, "usps_0to4": 0.1, "mnist_5k": 0.05}
_FEWEST_TO_START = 3  # two directions need three rows


class LatentRows(NamedTuple):
    """Rows of a set in the order of one run, and their labels, which no method sees.

    Attributes:
        Y: Rows in the file's units, without the columns that are constant in the first ``num_start`` rows, (N, D).
        label: Labels, shape (N,).
        num_start: How many rows an online model starts from.
        num_dropped: How many columns were left out.
    """

    Y: Tensor
    label: Tensor
    num_start: int
    num_dropped: int


def load_sets(data: Path | None, dataset: str | None) -> tuple[dict[str, Table], list[str]]:
    """The sets that can be had, in the order of the table, and the names of those that cannot.

    Args:
        data: A folder with a manifest; ``None`` for what needs no folder.
        dataset: The only set wanted; all by default.

    Raises:
        ValueError: If there is no such set, or the one wanted is not to be had.
        FileNotFoundError: If the folder has no manifest, or not the file that its manifest names.
    """
    if dataset is not None and dataset not in START_SHARES:
        raise ValueError(f"--dataset of figure 7 must be one of {', '.join(START_SHARES)}, got {dataset}")
    wanted = list(START_SHARES) if dataset is None else [dataset]
    there = [BUNDLED] if data is None else [BUNDLED, *folder_names(data)]
    absent = [name for name in wanted if name not in there]
    if absent == wanted:
        where = "give a folder that has it with --data" if data is None else f"the folder {data} does not have it"
        raise ValueError(f"the set {absent[0]} is not here: {where}")
    tables = {}
    for name in wanted:
        if name not in absent:
            tables[name] = _digits() if name == BUNDLED or data is None else load_folder(data, name)
    return tables, absent


def shuffled_rows(table: Table, start_share: float, seed: int, max_rows: int | None = None) -> LatentRows:
    """The rows of a run in random order, cut to the first ``max_rows``.

    Args:
        table: The set; its targets are the labels.
        start_share: Share of the rows to start from, rounded down.
        seed: Seed of the order.
        max_rows: Most rows; all by default.

    Raises:
        ValueError: If fewer than three rows are left to start from, or fewer than two columns vary in them.

    Example:
        >>> Y = torch.arange(120.0, dtype=torch.float64, device="cpu").reshape(40, 3)
        >>> Y[:, 1] = 7.0
        >>> rows = shuffled_rows(Table(Y, Y[:, 0] % 2, ("a", "b", "c"), "label", "tiny"), 0.1, seed=0)
        >>> rows.Y.shape, rows.num_start, rows.num_dropped
        (torch.Size([40, 2]), 4, 1)
    """
    order = torch.randperm(len(table.y), generator=torch.Generator().manual_seed(seed), device="cpu")[:max_rows]
    Y, label = table.X[order], table.y[order].long()
    num_start = int(start_share * len(Y) + 1e-9)  # a whole number that rounding has put just below itself is meant
    if num_start < _FEWEST_TO_START:
        raise ValueError(
            f"{table.name}: {start_share:.0%} of {len(Y)} rows are too few to start from; at least {_FEWEST_TO_START} "
            f"are needed, so give a larger --max_rows"
        )
    constant = constant_columns(Y[:num_start])
    varies = torch.ones_like(Y[0], dtype=torch.bool)
    varies[constant] = False
    if int(varies.sum()) < 2:
        raise ValueError(f"{table.name}: fewer than two columns vary in the first {num_start} rows of seed {seed}")
    return LatentRows(Y[:, varies].contiguous(), label, num_start, int((~varies).sum()))


def _digits() -> Table:
    found = load_digits()
    Y = torch.tensor(found.data.tolist(), dtype=torch.float64, device="cpu")
    label = torch.tensor(found.target.tolist(), dtype=torch.float64, device="cpu")
    return Table(Y, label, tuple(found.feature_names), "digit", BUNDLED)
