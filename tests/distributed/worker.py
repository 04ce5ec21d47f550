"""What a process of a group does in the tests: run as ``python -m tests.distributed.worker``."""

import argparse
import os
import pickle
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gp_ensembles.distributed import DistributedEnsemble, ensemble
from tests.fleet.instances import ENSEMBLES, rows

CUT = 90


def observe(online: DistributedEnsemble, part: slice) -> list[torch.Tensor]:
    """What is said of some rows of a stream, with what is said of rows to come."""
    _, X, y = rows(180, torch.Generator().manual_seed(5))
    said = online.observe(X[part], y[part])
    to_come = online.predict(X[:3])
    return [*said[:4], *said.experts, to_come.mean, to_come.variance, online.log_weights]


def die(online: DistributedEnsemble, own: int, folder: Path, rank: int, num_files: int) -> object:
    observe(online, slice(0, CUT))
    online.save(folder)
    observe(online, slice(CUT, None))
    left, write = num_files, ensemble.write_checkpoint

    def broken(*what: object) -> None:
        nonlocal left
        if left == 0:
            os._exit(7)
        left -= 1
        write(*what)

    if own == rank:
        ensemble.write_checkpoint = broken
    try:
        online.save(folder)
        return "nothing"
    except Exception as error:
        return [type(error).__name__, online.log_weights]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--what", required=True)
    parser.add_argument("--kind", required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.size > 1:
        store = f"file://{given.folder / 'store'}"
        timeout = timedelta(seconds=20)
        dist.init_process_group("gloo", init_method=store, rank=given.rank, world_size=given.size, timeout=timeout)
    online = DistributedEnsemble(ENSEMBLES[given.kind](), block_size=16, piece_size=1)
    if given.what == "stream":
        found = observe(online, slice(0, CUT))
        online.save(given.folder / "state")
        found += observe(online, slice(CUT, None))
    elif given.what == "go on":
        online.load(given.folder / "state")
        found = observe(online, slice(CUT, None))
    elif given.what.startswith("die"):  # in its second save, after so many files
        found = die(online, given.rank, given.folder / "state", *map(int, given.what.split()[1:]))
    else:  # one of the processes ends, or has a broken expert
        observe(online, slice(0, CUT))
        if given.rank == 1 and given.what == "end":
            os._exit(7)
        if given.rank == given.size - 1 and given.what == "break":
            online.own_states[0][0].fill_(torch.nan)
        try:
            observe(online, slice(CUT, None))
            found = "nothing"
        except Exception as error:
            found = [type(error).__name__, online.log_weights]
    with (given.folder / f"{given.what}-{given.rank}").open("wb") as file:
        pickle.dump(found, file)
    if given.what == "end" or given.what.startswith("die"):
        os._exit(0)  # what is left of the group would wait for the one that has ended


if __name__ == "__main__":
    main()
