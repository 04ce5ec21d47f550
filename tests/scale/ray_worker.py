"""What tests of Ray do in a process of their own: a cluster of two machines on this one, and what became of it."""

import argparse
import os
import pickle
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from gp_ensembles import Fleet
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.scale.ray_fleet import RayFleet, ShardLostError, divide_fleet, shard_of
from gp_ensembles.scale.ray_tasks import observe_dataset, score, sweep
from gp_ensembles.streaming.config import StreamConfig

NUM_SERIES = 6


def rows(num_rows: int, seed: int) -> tuple[list[str], Tensor, Tensor]:
    """So many rows of each of some series, with gaps; a series that is new comes last."""
    draw = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    X = torch.randn(num_rows * NUM_SERIES, 2, **draw)
    y = X[:, 0].sin() + 0.1 * torch.randn(len(X), **draw)
    y[::11] = torch.nan
    return [f"series {row % NUM_SERIES}" for row in range(len(X))], X, y


def prepared() -> Fleet:
    """A fleet after its warm-up."""
    fleet = Fleet(warmup=50, on_bad_row="refuse")
    fleet.fit(*rows(60, 0))
    return fleet


def numbers(predicted) -> list[Tensor]:
    """All that was said."""
    return [predicted.mean, predicted.variance, predicted.log_prob, predicted.covered, *predicted.interval()]


def message_of(what) -> str:
    """The error that a call ends with."""
    try:
        what()
    except (ValueError, KeyError, ShardLostError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def steady(ray, cluster, folder: Path) -> object:
    """What two shards say when nothing happens, and what fleets of the same shards say without Ray."""
    divide_fleet(prepared(), folder / "fleet", 2)
    shards = [Fleet.load(folder / "fleet" / f"0-{number}") for number in range(2)]
    fleet = RayFleet(folder / "fleet")
    found, expected = [], []
    for call in range(3):
        names, X, y = rows(20, 1 + call)
        found.append(numbers(fleet.observe(names, X, y)))
        whole = [torch.full_like(part, torch.nan) for part in found[-1]]
        for shard in shards:
            mine = torch.tensor([row for row, name in enumerate(names) if name in shard.names])
            parts = numbers(shard.observe([names[row] for row in mine], X[mine], y[mine]))
            for old, new in zip(whole, parts, strict=True):
                old[..., mine] = new
        expected.append(whole)
    return found, expected


def lost(ray, cluster, folder: Path) -> object:
    """The same calls undisturbed, and with an actor killed, then a machine, then a save and an actor again."""
    found = []
    for is_quiet in (True, False):
        divide_fleet(prepared(), folder / f"fleet {is_quiet}", 2)
        fleet = RayFleet(folder / f"fleet {is_quiet}")
        predicted = []
        for call in range(5):
            if call == 3:
                fleet.save()
            if not is_quiet and call in (1, 4):
                ray.kill(fleet.actors[call % 2])
            if not is_quiet and call == 2:
                cluster.add_node(num_cpus=2)
                cluster.remove_node(cluster.second, allow_graceful=False)
            predicted += numbers(fleet.observe(*rows(20, 1 + call)))
        names, X, _ = rows(1, 9)
        predicted.append(fleet.predict(names, X).mean)
        found.append(predicted)
        for actor in fleet.actors:
            ray.kill(actor)
    again = RayFleet(folder / "fleet True")
    return (*found, numbers(again.observe(*rows(20, 4))), found[0][18:24])


def verbs(ray, cluster, folder: Path) -> object:
    """Series that leave, come and go out, with an actor lost behind that, and the same on the shards' fleets."""
    divide_fleet(prepared(), folder / "fleet", 2)
    fleet = RayFleet(folder / "fleet")
    shards = [Fleet.load(folder / "fleet" / f"0-{number}") for number in range(2)]
    names, X, y = rows(20, 1)
    fleet.observe(names, X, y)
    fleet.add(["copy", "another copy"], fleet.export("series 3"))
    fleet.retire(["series 0", "series 1"])
    copy = fleet.export("copy")
    wrong = (lambda: fleet.retire(["series 2", "series 0"]), lambda: fleet.add(["copy", "third"], copy))
    messages = [*map(message_of, wrong)]
    for actor in fleet.actors:
        ray.kill(actor)
    asked = ["copy", "series 2", "another copy"]
    found = numbers(fleet.observe(asked, X[:3], y[:3]))
    for number, shard in enumerate(shards):
        mine = [row for row, name in enumerate(names) if shard_of(name, 2) == number]
        shard.observe([names[row] for row in mine], X[mine], y[mine])
    model = shards[shard_of("series 3", 2)].export("series 3")
    for name in asked[::2]:
        shards[shard_of(name, 2)].add([name], model)
    expected = [shards[shard_of(name, 2)].predict([name], X[row : row + 1]) for row, name in enumerate(asked)]
    return messages, found, torch.cat([one.mean for one in expected])


def fits(ray, cluster, folder: Path) -> object:
    """A fleet whose shards are fitted by tasks, and one that is fitted here and divided; a fit that fails."""
    names, X, y = rows(60, 0)
    names[-1] = "only one row"
    fleet = Fleet(warmup=50)
    running = RayFleet.fit(fleet, names, X, y, folder / "tasks", 3)
    mean = running.predict(["series 1"], X[:1]).mean
    for actor in running.actors:
        ray.kill(actor)
    fleet.fit(names, X, y)
    divide_fleet(fleet, folder / "here", 3)
    predicted = []
    for kind in ("tasks", "here"):
        shards = [Fleet.load(folder / kind / f"0-{number}") for number in range(3)]
        own, later, targets = rows(20, 1)
        parts = []
        for number, shard in enumerate(shards):
            mine = [row for row, name in enumerate(own) if shard_of(name, 3) == number]
            if mine:
                parts += numbers(shard.observe([own[row] for row in mine], later[mine], targets[mine]))
        predicted.append(([(sorted(shard.names), shard.waiting) for shard in shards], parts))
    still = (fleet, ["a"] * 60, X[:60], torch.zeros(60, dtype=torch.float64), folder / "still", 3)
    message = message_of(lambda: RayFleet.fit(*still))
    return predicted, (mean, fleet.predict(["series 1"], X[:1]).mean), message, (folder / "still").exists()


def killed(ray, cluster, folder: Path) -> object:
    """A fit one of whose tasks is killed before its shard is written, one undisturbed, one killed again and again.

    Of the first and the second what their shards say, of the last the error and what is left in its folder.
    """
    names, X, y = rows(60, 0)
    predicted, killers = [], []
    for name, times in (("disturbed", 1), ("quiet", 0)):
        with killer(folder / name, times) as killer_of_this:
            RayFleet.fit(Fleet(warmup=50), names, X, y, folder / name, 2)
        killers.append(killer_of_this)
        shards = [Fleet.load(folder / name / f"0-{number}") for number in range(2)]
        later, own_X, own_y = rows(20, 1)
        for number, shard in enumerate(shards):
            mine = [row for row, series in enumerate(later) if shard_of(series, 2) == number]
            predicted.append(numbers(shard.observe([later[row] for row in mine], own_X[mine], own_y[mine])))
    with killer(folder / "hopeless", 1000) as killer_of_this:
        message = message_of(lambda: RayFleet.fit(Fleet(warmup=50), names, X, y, folder / "hopeless", 1))
    left = [path.name for path in (folder / "hopeless").iterdir()]
    return predicted[:2], predicted[2:], [len(one) for one in (*killers, killer_of_this)], message, left


@contextmanager
def killer(folder: Path, times: int) -> Iterator[list[int]]:
    """Meanwhile kill processes of this one's cluster that begin a shard, so many times, while none is written there."""
    done, pids = threading.Event(), list[int]()

    def kill() -> None:
        while not done.wait(0.005) and len(pids) < times:
            for pid, title in descendants(os.getpid()):
                if title.startswith("ray::_fit_shard") and pid not in pids and not any(folder.glob("0-*/fleet.pt")):
                    os.kill(pid, signal.SIGKILL)
                    pids.append(pid)
                    break

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield pids
    finally:
        done.set()
        thread.join()


def descendants(pid: int) -> list[tuple[int, str]]:
    """Processes that a process has started, they and theirs, with their titles."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found, new = list[int](), [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found += new
    titles = []
    for one in found:
        with suppress(OSError):
            titles.append((one, Path(f"/proc/{one}/cmdline").read_text(errors="replace")))
    return titles


def refused(ray, cluster, folder: Path) -> object:
    """Rows that are refused: nothing is learned, and what was said."""
    divide_fleet(prepared(), folder / "fleet", 2)
    fleet = RayFleet(folder / "fleet")
    names, X, y = rows(20, 1)
    wild = y.clone()
    wild[7] = torch.inf
    wrong = (lambda: fleet.observe(names, X, wild), lambda: fleet.predict(["nobody"], X[:1]))
    messages = [*map(message_of, wrong)]
    other = RayFleet(folder / "fleet")
    return messages, numbers(fleet.observe(names, X, y)), numbers(other.observe(names, X, y))


def tasks(ray, cluster, folder: Path) -> object:
    """A data set through a fleet, and a sweep, with and without Ray."""
    names, X, y = rows(20, 1)
    table = [
        {"who": name, "a": float(a), "b": float(b), "target": float(target)}
        for name, (a, b), target in zip(names, X.tolist(), y.tolist(), strict=True)
    ]
    items = ray.data.from_items(table, override_num_blocks=4)
    given = {"series": "who", "inputs": ("a", "b"), "target": "target"}
    done, predicted = observe_dataset(prepared(), items, **given, batch_size=50).take_all(), prepared()
    parts = (slice(0, 50), slice(50, 100), slice(100, 120))
    expected = [predicted.observe(names[part], X[part], y[part]) for part in parts]
    configs = {name: StreamConfig(oebe, warmup=num) for name, num in (("short", 50), ("long", 80))}
    scores = sweep(configs, X, y.nan_to_num(0.0), seeds=(0, 1))
    alone = [score(name, config, seed, X, y.nan_to_num(0.0)) for name, config in configs.items() for seed in (0, 1)]
    return done, [part.mean for part in expected], names, scores, alone


# The last one takes a machine out.
JOBS = {job.__name__: job for job in (steady, verbs, fits, killed, refused, tasks, lost)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--jobs", nargs="*", default=list(JOBS), choices=list(JOBS))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    import ray
    from ray.cluster_utils import Cluster

    torch.set_num_threads(1)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
    cluster.second = cluster.add_node(num_cpus=4)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    for name in given.jobs:
        folder, start = given.folder / name, time.monotonic()
        folder.mkdir()
        try:
            found = JOBS[name](ray, cluster, folder)
        except Exception:
            found = traceback.format_exc()
        (given.folder / f"{name}.pickle").write_bytes(pickle.dumps(found))
        print(f"{name}: {time.monotonic() - start:.1f} s")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
