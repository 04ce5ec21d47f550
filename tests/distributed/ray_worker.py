"""What a test of Ray does in a process of its own: a cluster of two machines on this one, and what became of it."""

import argparse
import pickle
import warnings
from pathlib import Path

import torch
from torch import Tensor

from gp_ensembles import Fleet
from gp_ensembles.distributed.ray_fleet import RayFleet, divide_fleet
from gp_ensembles.distributed.ray_tasks import FleetColumns, observe_dataset, score, sweep
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.streaming.config import StreamConfig

NUM_SERIES = 6


def rows(num_rows: int, seed: int) -> tuple[list[str], Tensor, Tensor]:
    """So many rows of each of some series, with gaps; a series that is new comes last."""
    draw = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    X = torch.randn(num_rows * NUM_SERIES, 2, **draw)
    y = X[:, 0].sin() + 0.1 * torch.randn(len(X), **draw)
    y[::11] = torch.nan
    return [f"series {row % NUM_SERIES}" for row in range(len(X))], X, y


def begun() -> Fleet:
    """A fleet after its warm-up."""
    fleet = Fleet(warmup=50)
    fleet.fit(*rows(60, 0))
    return fleet


def numbers(said) -> list[Tensor]:
    """All that was said."""
    return [said.mean, said.variance, said.log_prob, said.covered, *said.interval()]


def steady(ray, cluster, folder: Path) -> object:
    """What two shards say when nothing happens, and what fleets of the same shards say without Ray."""
    divide_fleet(begun(), folder / "fleet", 2)
    shards = [Fleet.load(folder / "fleet" / f"0-{number}") for number in range(2)]
    fleet = RayFleet(folder / "fleet")
    found, expected = [], []
    for call in range(3):
        names, X, y = rows(20, 1 + call)
        found.append(numbers(fleet.observe(names, X, y)))
        whole = [torch.full_like(part, torch.nan) for part in found[-1]]
        for shard in shards:
            mine = torch.tensor([row for row, name in enumerate(names) if name in shard.names])
            for old, new in zip(
                whole, numbers(shard.observe([names[row] for row in mine], X[mine], y[mine])), strict=True
            ):
                old[..., mine] = new
        expected.append(whole)
    return found, expected


def lost(ray, cluster, folder: Path) -> object:
    """The same calls undisturbed, and with an actor killed, then a machine, then a save and an actor again."""
    found = []
    for is_quiet in (True, False):
        divide_fleet(begun(), folder / f"fleet {is_quiet}", 2)
        fleet = RayFleet(folder / f"fleet {is_quiet}")
        said = []
        for call in range(5):
            if call == 3:
                fleet.save()
            if not is_quiet and call in (1, 4):
                ray.kill(fleet.actors[call % 2])
            if not is_quiet and call == 2:
                cluster.add_node(num_cpus=2)
                cluster.remove_node(cluster.second, allow_graceful=False)
            said += numbers(fleet.observe(*rows(20, 1 + call)))
        names, X, _ = rows(1, 9)
        said.append(fleet.predict(names, X).mean)
        found.append(said)
        for actor in fleet.actors:
            ray.kill(actor)
    again = RayFleet(folder / "fleet True")
    return (*found, numbers(again.observe(*rows(20, 4))), found[0][18:24])


def refused(ray, cluster, folder: Path) -> object:
    """Rows that are refused: nothing is learned, and what was said."""
    divide_fleet(begun(), folder / "fleet", 2)
    fleet = RayFleet(folder / "fleet")
    names, X, y = rows(20, 1)
    messages = []
    wild = y.clone()
    wild[7] = torch.inf
    for what in (lambda: fleet.observe(names, X, wild), lambda: fleet.predict(["nobody"], X[:1])):
        try:
            what()
        except (ValueError, KeyError) as error:
            messages.append(f"{type(error).__name__}: {error}")
    other = RayFleet(folder / "fleet")
    return messages, numbers(fleet.observe(names, X, y)), numbers(other.observe(names, X, y))


def tasks(ray, cluster, folder: Path) -> object:
    """A data set through a fleet, and a sweep, with and without Ray."""
    names, X, y = rows(20, 1)
    table = [
        {"who": name, "a": float(a), "b": float(b), "target": float(target)}
        for name, (a, b), target in zip(names, X.tolist(), y.tolist(), strict=True)
    ]
    columns = FleetColumns("who", ("a", "b"), "target")
    done = observe_dataset(
        begun(), ray.data.from_items(table, override_num_blocks=4), columns, batch_size=50
    ).take_all()
    said = begun()
    expected = [said.observe(names[part], X[part], y[part]) for part in (slice(0, 50), slice(50, 100), slice(100, 120))]
    configs = {name: StreamConfig(oebe, warmup=num) for name, num in (("short", 50), ("long", 80))}
    scores = sweep(configs, X, y.nan_to_num(0.0), seeds=(0, 1))
    alone = [score(name, config, seed, X, y.nan_to_num(0.0)) for name, config in configs.items() for seed in (0, 1)]
    return done, [part.mean for part in expected], names, scores, alone


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    import ray
    from ray.cluster_utils import Cluster

    torch.set_num_threads(1)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.second = cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    found = {"steady": steady, "lost": lost, "refused": refused, "tasks": tasks}[given.what](ray, cluster, given.folder)
    (given.folder / "found").write_bytes(pickle.dumps(found))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
