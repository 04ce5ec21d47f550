"""Fleets in files: shards of bounded size with the series, and a head file with the shards' names and digests.

A shard is a safetensors file with the states of its series, and their names in the metadata.
Every save uses new shard names and replaces the head last, atomically: a reader finds either the old fleet or
the new one, never a mixture of both.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from gp_ensembles.files.checkpoint import Kind, fitting, read_checkpoint, read_tensors, write_checkpoint, write_tensors
from gp_ensembles.files.operations import make_folder, remove_folder, remove_if_possible

HEAD = "fleet.pt"
REMEDY = "fit the fleet again"
_ADVICE = "give a folder in which a fleet was saved"
_KIND = Kind("gp_ensembles fleet", 8, "a fleet", _ADVICE)
SHARD_BYTES = 256_000_000
_SHARD = re.compile(r"shard-(\d+)-(\d+)\.safetensors")

Name = str | int


def save_fleet(
    folder: Path,
    about: Mapping[str, Any],
    names: Sequence[Hashable],
    places: Tensor,
    tensors: Mapping[str, Tensor],
    *,
    progress: bool = False,
) -> None:
    """Write a fleet with series at places (S,); if this fails, the previous save remains readable."""
    for name in names:
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise TypeError(f"names of saved series must be strings or integers, got {name!r}")
    make_folder(folder)
    earlier = [(path, match) for path in folder.iterdir() if (match := _SHARD.fullmatch(path.name))]
    number = 1 + max((int(match[1]) for _, match in earlier), default=0)
    each = sum(value[0].numel() * value.element_size() for value in tensors.values()) if len(places) else 1
    size = max(1, SHARD_BYTES // max(1, each))
    shards = []
    for part, some in enumerate(tqdm(places.split(size), desc="saving", unit="shard", disable=not progress)):
        if len(some) == 0:
            continue
        file, start = f"shard-{number}-{part}.safetensors", part * size
        content = {name: value[some].clone().cpu() for name, value in tensors.items()}
        digest = write_tensors(folder / file, content, list(names[start : start + len(some)]))
        shards.append({"file": file, "num_series": len(some), "digest": digest})
    write_checkpoint(folder / HEAD, _KIND, {"about": dict(about), "shards": shards})
    for path, _ in earlier:
        remove_if_possible(path)


def read_about(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The head, with what all series share, and the file, number of series and digest of each shard."""
    if not (folder / HEAD).exists():
        raise FileNotFoundError(f"{folder} contains no saved fleet (no {HEAD}); {_ADVICE}")
    head = read_checkpoint(folder / HEAD, _KIND)
    with fitting(folder, REMEDY):
        return head["about"], head["shards"]


def read_shard(folder: Path, shard: Mapping[str, Any]) -> tuple[list[Name], dict[str, Tensor]]:
    """Names of the series of a shard, and their states (S, ...)."""
    path, num_series = folder / shard["file"], int(shard["num_series"])
    states, names = read_tensors(path, shard["digest"])
    if len(names) != num_series or any(len(value) != num_series for value in states.values()):
        raise ValueError(f"{path} contains {len(names)} series instead of {num_series}; it belongs to another fleet")
    return names, states


def part_folder(folder: Path, generation: int, number: int) -> Path:
    """The folder of one of several fleets within a folder, for one of its saves."""
    return folder / f"{generation}-{number}"


def remove_part(folder: Path) -> None:
    """Remove a fleet's folder and its files, as far as possible."""
    for path in folder.iterdir():
        remove_if_possible(path)
    with suppress(OSError):
        remove_folder(folder)
