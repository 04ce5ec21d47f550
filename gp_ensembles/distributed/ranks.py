"""What processes tell one another: their parts of a tensor, in the order of their ranks."""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous


class RankLostError(RuntimeError):
    """Another process has ended, did not come, or did not answer in the time that all wait for one another."""


def begin_group(backend: str, seconds: float) -> None:
    """Begin the default group of the processes that torchrun's variables describe.

    Args:
        backend: As for ``init_process_group``.
        seconds: How long this process waits for the others, here and later.

    Raises:
        RankLostError: If they do not come.
    """
    rank, size = os.environ.get("RANK", "0"), os.environ["WORLD_SIZE"]
    # One that connects to the first process tries twice.
    waits = timedelta(seconds=seconds if rank == "0" else seconds / 2)
    try:
        store, own, num = next(rendezvous("env://", timeout=waits))
        store.set_timeout(timedelta(seconds=seconds))
        dist.init_process_group(backend, store=store, rank=own, world_size=num, timeout=timedelta(seconds=seconds))
    except RuntimeError as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise RankLostError(
            f"rank {rank} of {size} did not meet the others within {seconds:g} s: {why}; start {size} processes that "
            f"reach one another, or give them more time"
        ) from error


@final
class Ranks:
    """The processes of a group; one alone where no group was begun.

    Args:
        group: A process group of ``torch.distributed``; the default one if ``None``.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        is_alone = not (dist.is_available() and dist.is_initialized())
        self.rank: int = 0 if is_alone else dist.get_rank(group)
        self.size: int = 1 if is_alone else dist.get_world_size(group)

    def gather(self, part: Tensor, sizes: Sequence[int]) -> Tensor:
        """The parts of all ranks, one after the other along the first axis.

        Args:
            part: That of this rank, (m, ...).
            sizes: How many rows the part of each rank has.

        Raises:
            RankLostError: If another process is not there any more.
        """
        if self.size == 1:
            return part
        most = max(sizes)
        padded = part.new_zeros(most, *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in sizes]
        try:
            dist.all_gather(parts, padded.contiguous(), group=self._group)
        except RuntimeError as error:
            raise RankLostError(
                f"rank {self.rank} of {self.size} waits for another one that has ended or does not answer; the state "
                f"is that before the block: begin again from the last checkpoint"
            ) from error
        return torch.cat([whole[:size] for whole, size in zip(parts, sizes, strict=True)])

    def wait(self) -> None:
        """Until all ranks are here.

        Raises:
            RankLostError: As :meth:`gather`.
        """
        self.gather(torch.zeros(1, dtype=torch.float32, device="cpu"), [1] * self.size)

    def first(self, flag: bool) -> bool:
        """What the first rank says, for all.

        Raises:
            RankLostError: As :meth:`gather`.
        """
        return bool(self.agreed(int(flag)))

    def agreed(self, number: int) -> int:
        """The number of the first rank, for all.

        Raises:
            RankLostError: As :meth:`gather`.
        """
        said = torch.full((1,), number, dtype=torch.int64, device="cpu")
        return int(self.gather(said, [1] * self.size)[0])
