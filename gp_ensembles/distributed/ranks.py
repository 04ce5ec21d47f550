"""What processes tell one another: their parts of a tensor, in the order of their ranks."""

from collections.abc import Sequence
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor


class RankLostError(RuntimeError):
    """Another process has ended, or did not answer in the time that ``init_process_group`` was given."""


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
        said = torch.full((1,), float(flag), dtype=torch.float32, device="cpu")
        return bool(self.gather(said, [1] * self.size)[0] > 0)
