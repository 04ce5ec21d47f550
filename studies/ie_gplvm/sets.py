"""The labeled sets that latent variable models are compared on: shuffled by a seed, a first part of each to start."""

from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from gp_ensembles.data import Table
from gp_ensembles.streaming.columns import constant_columns
from studies.harness.experiment import Choices, check_own
from studies.harness.plan import chosen
from studies.harness.sources import PaperSet

BUNDLED = "digits"  # comes with scikit-learn; the others need a folder
# Share of the rows that an online model starts from (Lu et al. 2022, section 7.3); digits is not a set of the paper.
START_SHARES = {BUNDLED: 0.1, "oil_flow": 0.1, "usps_0to4": 0.1, "mnist_5k": 0.05}
SETS = {name: PaperSet(name) for name in START_SHARES}
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


def latent_sets(choices: Choices) -> tuple[dict[str, Table], list[str]]:
    """The sets that were chosen and can be had, in the order of the table, and sentences on those that cannot.

    Args:
        choices: Which sets, and where they come from; the digits come with scikit-learn.

    Raises:
        ValueError: If there is no such set, or none can be had.
        FileNotFoundError: If a file does not exist.
    """
    wanted = [SETS[name] for name in chosen(choices.sets, SETS, "set")]
    check_own(choices.sources, list(SETS.values()))
    tables: dict[str, Table] = {}
    notes: list[str] = []
    for one in wanted:
        found = choices.sources.find(one)
        if found is not None:
            tables[one.name] = found.table
            notes += [found.note] * bool(found.note)
        elif one.name == BUNDLED:
            tables[one.name] = _digits()
    absent = [one for one in wanted if one.name not in tables]
    notes += choices.sources.missing(absent)
    if not tables:
        raise ValueError(notes[0])
    return tables, notes


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
