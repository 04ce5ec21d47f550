"""Online embeddings: price of a row along a stream, of its neighbors, loss by blocks, and batch models beside it.

OMP_NUM_THREADS=1 python benchmarks/bench_gplvm.py [--parts flat neighbors blocks]
OMP_NUM_THREADS=1 python benchmarks/bench_gplvm.py --parts gpytorch usps --data FOLDER
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from gp_ensembles.data import load_folder
from gp_ensembles.gplvm import IEGPLVM, FaissSearch, LatentSettings, ie_gplvm
from gp_ensembles.gplvm.neighbors import keep_rows, nearest_rows, row_store
from studies.ie_gplvm.gpytorch_model import gpytorch_embedding
from studies.ie_gplvm.neighbors import neighbor_error


def seeded(seed: int = 0) -> torch.Generator:
    """A source of randomness."""
    return torch.Generator().manual_seed(seed)


def timed(work: Callable[[], object]) -> float:
    """Seconds on the wall."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def surface(num_rows: int, num_columns: int, seed: int = 0) -> Tensor:
    """Noisy rows of smooth functions of two hidden numbers."""
    source = seeded(seed)
    hidden = 2 * torch.rand(num_rows, 2, generator=source, dtype=torch.float64) - 1
    mixing = torch.randn(2, num_columns, generator=source, dtype=torch.float64)
    noise = torch.randn(num_rows, num_columns, generator=source, dtype=torch.float64)
    return torch.sin(2 * hidden @ mixing) + 0.05 * noise


def shuffled(X: Tensor, label: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows in random order and their labels."""
    order = torch.randperm(len(label), generator=seeded(seed))
    return X[order], label[order]


def flat() -> None:
    """A row costs the same at the end of 20 000 as at the beginning; neighbors have a part of their own."""
    for num_columns in (12, 256):
        Y = surface(20_200, num_columns)
        # A small memory, so that the search for neighbors does not count.
        model = ie_gplvm(num_columns, generator=seeded(), settings=LatentSettings(capacity=500))
        start = timed(lambda Y=Y, model=model: model.start(Y[:200]))
        parts = [timed(lambda rows=rows, model=model: model.update(rows)) for rows in Y[200:].split(2000)]
        shown = "  ".join(f"{1e3 * part / 2000:.2f}" for part in parts)
        print(f"D={num_columns:4}: start from 200 rows {start:.1f} s; ms a row by 2000 rows: {shown}")
        print(f"        last over first: {parts[-1] / parts[0]:.2f}")


def neighbors() -> None:
    """One search among so many rows, exact and by faiss, whose error is the share of rows that are not the nearest."""
    for num_rows in (20_000, 100_000, 400_000):
        rows = surface(num_rows, 256)
        store = row_store(rows, num_rows, 256, (1, 1))
        for block in rows.split(10_000):
            keep_rows(store, block, block.new_zeros(len(block), 1, 1), seed=0)
        wanted = surface(200, 256, seed=0)[:200] + 0.1
        exact = timed(lambda store=store, wanted=wanted: [nearest_rows(store, row) for row in wanted[:20].split(1)])
        search = FaissSearch()
        built = timed(lambda store=store, wanted=wanted, search=search: search.nearest(store, wanted[:1]))
        found = timed(
            lambda store=store, wanted=wanted, search=search: [search.nearest(store, row) for row in wanted.split(1)]
        )
        missed = (search.nearest(store, wanted) != nearest_rows(store, wanted)).double().mean()
        print(
            f"{num_rows:7} rows of 256: exact {1e3 * exact / 20:.2f} ms, faiss {1e3 * found / 200:.2f} ms "
            f"(built in {built:.1f} s), not the nearest {float(missed):.1%}"
        )


def blocks(X: Tensor, label: Tensor, name: str) -> None:
    """What is lost when the rows of a block do not know one another, and what is gained in time."""
    Y, label = shuffled(X, label)
    first = len(Y) // 10
    Y = Y[:, Y[:first].std(0) > 0]
    for block_size in (1, 10, 50, 200):
        model = ie_gplvm(Y.shape[1], generator=seeded())
        begin = time.perf_counter()
        start = model.start(Y[:first])
        found = model.update(Y[first:], block_size)
        seconds = time.perf_counter() - begin
        places = torch.cat([start.by_expert, found.by_expert], 1)[model.best_expert]
        reported = torch.cat([start.embedding, found.embedding])
        print(
            f"{name}, blocks of {block_size:3}: {seconds:6.1f} s, log density {float(found.log_prob.mean()):9.3f}, "
            f"1-NN error {neighbor_error(places, label):.2%} in one space, {neighbor_error(reported, label):.2%} as "
            f"reported"
        )


class Goal(NamedTuple):
    """An error of ours and the seconds it took."""

    name: str
    error: float
    seconds: float


def against_gpytorch(folder: Path, limit: int = 20_000) -> None:
    """Seconds of GPyTorch's Bayesian GPLVM until its error is that of the ensemble, on the same rows in one run."""
    table = load_folder(folder, "oil_flow")
    for seed in range(3):
        Y, label = shuffled(table.X, table.y, seed)
        goals = []
        for block_size in (1, 10):
            begin = time.perf_counter()
            model = ie_gplvm(Y.shape[1], generator=seeded(seed))
            start = model.start(Y[:100])
            found = model.update(Y[100:], block_size)
            seconds = time.perf_counter() - begin
            places = torch.cat([start.by_expert, found.by_expert], 1)[model.best_expert]
            reported = torch.cat([start.embedding, found.embedding])
            goals.append(Goal(f"blocks of {block_size}, one space", neighbor_error(places, label), seconds))
            goals.append(Goal(f"blocks of {block_size}, as reported", neighbor_error(reported, label), seconds))
        race(Y, label, goals, seed, limit)


def race(Y: Tensor, label: Tensor, goals: list[Goal], seed: int, limit: int) -> None:
    """Run GPyTorch's model until it has reached all goals, or for so many steps."""
    reached: dict[str, float] = {}
    errors = [1.0]
    begin = time.perf_counter()

    def watch(_: int, X: Tensor) -> bool:
        seconds = time.perf_counter() - begin
        errors.append(neighbor_error(X, label))
        reached.update({goal.name: seconds for goal in goals if errors[-1] <= goal.error and goal.name not in reached})
        return len(reached) == len(goals)

    gpytorch_embedding(Y, limit, seed=seed, every=250, watch=watch)
    spent = time.perf_counter() - begin
    for goal in goals:
        seconds = reached.get(goal.name)
        said = f"not in {spent:.0f} s, best {min(errors):.1%}" if seconds is None else f"{seconds:.0f} s"
        ratio = (spent if seconds is None else seconds) / goal.seconds
        print(
            f"oil flow, seed {seed}, {goal.name}: {goal.error:.1%} in {goal.seconds:.1f} s; GPyTorch's to that: "
            f"{said}; ratio {'at least ' if seconds is None else ''}{ratio:.0f}",
            flush=True,
        )


def usps(folder: Path) -> None:
    """Digits 0-4 of USPS with the paper's settings, row by row."""
    table = load_folder(folder, "usps_0to4")
    Y, label = shuffled(table.X, table.y)
    first = len(Y) // 10
    model: IEGPLVM = ie_gplvm(Y.shape[1], generator=seeded())
    begin = time.perf_counter()
    start = model.start(Y[:first])
    middle = time.perf_counter()
    found = model.update(Y[first:])
    end = time.perf_counter()
    places = torch.cat([start.by_expert, found.by_expert], 1)[model.best_expert]
    print(
        f"USPS 0-4: start {middle - begin:.1f} s, stream {end - middle:.1f} s "
        f"({1e3 * (end - middle) / (len(Y) - first):.1f} ms a row), in all {end - begin:.0f} s; 1-NN error "
        f"{neighbor_error(places, label):.2%} in one space"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("flat", "neighbors", "blocks", "gpytorch", "usps")
    parser.add_argument("--parts", nargs="+", choices=parts, default=["blocks"])
    parser.add_argument("--data", type=Path, help="a folder with a manifest; needed by gpytorch and usps")
    arguments = parser.parse_args()
    if arguments.data is None and {"gpytorch", "usps"} & set(arguments.parts):
        parser.error("gpytorch and usps need the folder of the data: --data FOLDER")
    torch.set_num_threads(1)
    for part in arguments.parts:
        print(f"-- {part}", flush=True)
        if part == "flat":
            flat()
        elif part == "neighbors":
            neighbors()
        elif part == "blocks":
            digits = load_digits()
            blocks(torch.tensor(digits.data, dtype=torch.float64), torch.tensor(digits.target), "digits")
            if arguments.data is not None:
                oil = load_folder(arguments.data, "oil_flow")
                blocks(oil.X, oil.y, "oil flow")
        elif part == "gpytorch":
            against_gpytorch(arguments.data)
        else:
            usps(arguments.data)


if __name__ == "__main__":
    main()
