"""The streams of the DOEBE paper's experiments, and a synthetic one that begins to drift."""

import math
from collections.abc import Callable
from pathlib import Path

import torch

from gp_ensembles.data import Table, folder_names, friedman1, friedman2, load_folder
from studies.harness.protocol import Stream, split_stream

NUM_WARMUP = 1000
# kin8nm stands for kin40k, sarcos_ias for the full SARCOS recording.
FOLDER_SETS = ("elevators", "pol", "bike", "kin8nm", "cadata", "cpusmall", "sarcos_ias")
DRIFT = "static_then_drifting"
# Noise as in the authors' experiments: small against the function's own deviation of 4.9 and 380.
_DRAWN: dict[str, Callable[[int, torch.Generator], Table]] = {
    "friedman1": lambda num_rows, generator: friedman1(num_rows, 0.1, generator=generator).table,
    "friedman2": lambda num_rows, generator: friedman2(num_rows, 1.0, generator=generator).table,
}
_LARGEST_INPUT = 1e3


def set_names(data: Path | None) -> list[str]:
    """Names of the sets of experiments 1 and 3 that can be had: those of the folder, then the synthetic ones.

    Args:
        data: A folder with a manifest; ``None`` for the synthetic sets alone.

    Raises:
        FileNotFoundError: If the folder has no manifest.

    Example:
        >>> set_names(None)
        ['friedman1', 'friedman2']
    """
    present = set() if data is None else set(folder_names(data))
    return [name for name in FOLDER_SETS if name in present] + list(_DRAWN)


def load_stream(name: str, data: Path | None, max_rows: int | None, seed: int) -> Stream:
    """The first rows of a set in the order of its file, standardized by the first 1 000 (a quarter of a short set).

    Args:
        name: Name of the set.
        data: Folder with a manifest, for sets that are not drawn.
        max_rows: Most rows, warm-up included; ``None`` for all (of a drawn set, 40 000 as in the paper).
        seed: Seed of the sets that are drawn.

    Raises:
        ValueError: If the set is unknown, or too short.

    Example:
        >>> stream = load_stream("friedman1", None, 200, seed=0)
        >>> stream.warm_X.shape, stream.X.shape
        (torch.Size([50, 10]), torch.Size([150, 10]))
    """
    if max_rows is not None and max_rows < 100:
        raise ValueError(f"max_rows={max_rows} leaves too few rows to fit and to score; give at least 100")
    generator = torch.Generator().manual_seed(seed)
    if name in _DRAWN:
        table = _DRAWN[name](40_000 if max_rows is None else max_rows, generator)
    elif name == DRIFT:
        table = static_then_drifting(6000 if max_rows is None else max_rows, generator=generator)
    elif data is None:
        raise ValueError(f"the set {name} is read from a folder; name the folder with --data")
    else:
        table = load_folder(data, name)
        table = table._replace(X=table.X[:max_rows], y=table.y[:max_rows])
    num_rows = table.y.shape[0]
    num_warmup = NUM_WARMUP if num_rows >= 4 * NUM_WARMUP else num_rows // 4
    return split_stream(table, num_warmup, drop_constant=True, clip=_LARGEST_INPUT)


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
        raise ValueError(f"{num_rows} rows were asked for; at least one is needed")
    X = 2 * torch.rand(num_rows, 2, dtype=torch.float64, device="cpu", generator=generator) - 1
    normals = torch.randn(num_rows, 3, dtype=torch.float64, device="cpu", generator=generator)
    moves = torch.arange(num_rows, device="cpu") >= math.ceil(0.6 * num_rows)
    gains = 1 + (0.03 * normals[:, :2] * moves.unsqueeze(-1)).cumsum(0)
    y = gains[:, 0] * (2 * X[:, 0]).sin() + gains[:, 1] * (3 * X[:, 1]).cos() + 0.3 * normals[:, 2]
    return Table(X, y, ("x1", "x2"), "y", DRIFT)
