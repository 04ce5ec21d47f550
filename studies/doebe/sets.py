"""The sets of the DOEBE paper, replacements of those not publicly available, and the streams made of them."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from gp_ensembles.data import Table, friedman1, friedman2
from gp_ensembles.streaming.columns import Standardizer
from studies.harness.experiment import Choices, check_own
from studies.harness.plan import chosen
from studies.harness.protocol import Stream, split_stream
from studies.harness.sources import PaperSet

NUM_WARMUP = 1000
DRIFT = "static_then_drifting"
_ARM = "another arm of seven joints at its full sampling rate"
_THIN = "every tenth row of the published recording"
_SARCOS = PaperSet("sarcos", ("sarcos", "sarcos_ias", "sarcos_thin10"), "a recording of the same arm, fewer rows")
_KUKA = PaperSet("kuka1", ("kuka1", "barrett_wam"), _ARM)
MAIN_SETS = (
    PaperSet("friedman1", made_up=True),
    PaperSet("friedman2", made_up=True),
    PaperSet("elevators"),
    _SARCOS,
    _KUKA,
    PaperSet("cadata"),
    PaperSet("cpusmall"),
)
SAMPLES_SETS = tuple(one for one in MAIN_SETS if one.name in ("elevators", "sarcos", "cpusmall"))
# Besides Kuka #1, which is not public: another arm, two recordings of SARCOS, a stream that begins to drift.
COLLAPSE_SETS = (
    _KUKA,
    PaperSet("sarcos", ("sarcos", "sarcos_thin10"), _THIN),
    PaperSet("sarcos_ias"),
    PaperSet(DRIFT, made_up=True),
)
_SMALL = ("autos", "servo", "machine", "yacht", "autompg", "housing", "stock", "energy", "concrete", "airfoil", "gas")
_LARGE = ("skillcraft", "sml", "pol", "bike")
UCI_SETS = (
    *(PaperSet(name) for name in (*_SMALL, *_LARGE)),
    PaperSet("kin40k", ("kin40k", "kin8nm"), "a simulated arm of eight joints, as kin40k, with 8 192 rows"),
)
BANANA_SETS = (
    PaperSet("banana_shuffled", ("banana",), "rows in random order"),
    PaperSet("banana_sorted", ("banana",), "rows by their first input, from left to right"),
)
# Noise as in the authors' experiments: small against the function's own deviation of 4.9 and 380.
_DRAWN: dict[str, Callable[[int, torch.Generator], Table]] = {
    "friedman1": lambda num_rows, generator: friedman1(num_rows, 0.1, generator=generator).table,
    "friedman2": lambda num_rows, generator: friedman2(num_rows, 1.0, generator=generator).table,
    DRIFT: lambda num_rows, generator: static_then_drifting(num_rows, generator=generator),
}
_ROWS_DRAWN = {"friedman1": 40_000, "friedman2": 40_000, DRIFT: 6000}
_LARGEST_INPUT = 1e3


class SourceSet(NamedTuple):
    """A set of the paper that can be had.

    Attributes:
        name: Its name.
        table: Its rows; ``None`` for one that is drawn.
    """

    name: str
    table: Table | None

    @property
    def differs(self) -> bool:
        """Whether its rows, or their order, depend on the seed."""
        return self.table is None or self.name == "banana_shuffled"


def source_sets(choices: Choices, sets: Sequence[PaperSet]) -> tuple[list[SourceSet], list[str]]:
    """The sets of an experiment that were chosen and can be had, and sentences on replacements and missing sets.

    Args:
        choices: Which sets, and where they come from.
        sets: Those of the experiment.

    Raises:
        ValueError: If a set is unknown, none can be had, or a file is malformed.
        FileNotFoundError: If a file does not exist.
    """
    names = chosen(choices.sets, [one.name for one in sets], "set")
    check_own(choices.sources, sets)
    wanted = [one for one in sets if one.name in names]
    found, notes = [], []
    for one in wanted:
        there = choices.sources.find(one)
        if there is not None:
            found.append(SourceSet(one.name, there.table))
            notes += [there.note] if there.note else []
        elif one.made_up:
            found.append(SourceSet(one.name, None))
    notes += choices.sources.missing([one for one in wanted if not one.made_up])
    if not found:
        raise ValueError(notes[0])
    return found, notes


def load_stream(source: SourceSet, max_rows: int | None, seed: int, num_warmup: int = NUM_WARMUP) -> Stream:
    """The first rows of a set, standardized by the warm-up rows (a quarter of a set with less than four times them).

    Classes stay 0 and 1.

    Args:
        source: The set.
        max_rows: Most rows, warm-up included; ``None`` for all (of a drawn set, 40 000 as in the paper).
        seed: Seed of what is drawn or shuffled.
        num_warmup: Rows of the warm-up.

    Raises:
        ValueError: If the set is too short.

    Example:
        >>> stream = load_stream(SourceSet("friedman1", None), 200, seed=0)
        >>> stream.warm_X.shape, stream.X.shape
        (torch.Size([50, 10]), torch.Size([150, 10]))
    """
    if max_rows is not None and max_rows < 100:
        raise ValueError(f"max_rows={max_rows} leaves too few rows to fit and to score; give at least 100")
    generator = torch.Generator().manual_seed(seed)
    if source.table is None:
        most = _ROWS_DRAWN[source.name]
        table = _DRAWN[source.name](most if max_rows is None else max_rows, generator)
    else:
        table = source.table
    is_classes = source.name.startswith("banana")
    if is_classes:
        table = _ordered(table, source.name, generator)
    table = table._replace(X=table.X[:max_rows], y=table.y[:max_rows])
    num_rows = table.y.shape[0]
    num_warm = num_warmup if num_rows >= 4 * num_warmup or num_warmup <= 100 else num_rows // 4
    if not is_classes:
        return split_stream(table, num_warm, drop_constant=True, clip=_LARGEST_INPUT)
    standardizer = Standardizer.fit(table.X[:num_warm], table.y[:num_warm], table.feature_names)
    X, y = standardizer.transform(table.X, table.y)[0].double(), (table.y > 0).double()
    return Stream(X[:num_warm], y[:num_warm], X[num_warm:], y[num_warm:], standardizer, table.feature_names)


def _ordered(table: Table, name: str, generator: torch.Generator) -> Table:
    """Rows in random order, or by their first input."""
    is_shuffled = name == "banana_shuffled"
    order = (
        torch.randperm(len(table.y), generator=generator, device="cpu")
        if is_shuffled
        else table.X[:, 0].argsort(stable=True)
    )
    return table._replace(X=table.X[order], y=table.y[order])


def static_then_drifting(num_rows: int, *, generator: torch.Generator | None = None) -> Table:
    r"""An additive function of two inputs that stands still for three fifths of the rows, then walks away.

    .. math:: y_t = a_t \sin(2 x_{t1}) + b_t \cos(3 x_{t2}) + \varepsilon_t

    with inputs uniform on [-1, 1], noise of deviation 0.3, :math:`a = b = 1` at first, and steps of deviation 0.03 in
    both after that.

    Args:
        num_rows: N.
        generator: Source of randomness.

    Returns:
        Inputs (N, 2) and targets (N,), float64.

    Raises:
        ValueError: If there is no row.

    Example:
        >>> static_then_drifting(50, generator=torch.Generator().manual_seed(0)).X.shape
        torch.Size([50, 2])
    """
    if num_rows < 1:
        raise ValueError(f"{num_rows} rows were requested; at least one is needed")
    X = 2 * torch.rand(num_rows, 2, dtype=torch.float64, device="cpu", generator=generator) - 1
    normals = torch.randn(num_rows, 3, dtype=torch.float64, device="cpu", generator=generator)
    moves = torch.arange(num_rows, device="cpu") >= math.ceil(0.6 * num_rows)
    gains = 1 + (0.03 * normals[:, :2] * moves.unsqueeze(-1)).cumsum(0)
    y = gains[:, 0] * (2 * X[:, 0]).sin() + gains[:, 1] * (3 * X[:, 1]).cos() + 0.3 * normals[:, 2]
    return Table(X, y, ("x1", "x2"), "y", DRIFT)
