r"""Experts that failed are kept out for a while: the others share their weight, and they return from their priors.

An expert whose predictive variance has vanished, or whose numbers overflow, says nothing that can be weighed. It
sleeps, as an external model does that has no answer (see :mod:`~gp_ensembles.engine.absence`): to the rule its
density is the mixture's, so that it neither gains nor loses. Its state becomes its prior at once. It is in again after
``QUARANTINE_ROWS`` rows, after twice as many when it has failed a second time, and so on.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.experts.failing import encoded

QUARANTINE_ROWS = 1000
_MOST_DOUBLINGS = 20
_NUM_BYTES = 300


class Quarantine(NamedTuple):
    """What is known of the failures of E experts; rows are counted as the weight rule counts them.

    Attributes:
        until: The row before which an expert is in again, shape (E,); zero for those that are in.
        row: The row at which it failed the last time, shape (E,).
        times: How often it has failed, shape (E,).
        words: Why, the last time, 300 bytes of text each, shape (E, 300).
    """

    until: Tensor
    row: Tensor
    times: Tensor
    words: Tensor


class QuarantineReport(NamedTuple):
    """An expert that has failed.

    Attributes:
        name: The expert.
        times: How often it has failed.
        row: The row at which it failed the last time, counted from 1.
        reason: Why, the last time.
        returns: The row at which it is in again; ``None`` if it is in.
    """

    name: str
    times: int
    row: int
    reason: str
    returns: int | None

    def __str__(self) -> str:
        """A line for the eye."""
        often = f", {self.times} times so far," if self.times > 1 else ""
        now = "it has returned from its prior"
        if self.returns is not None:
            now = f"it is out until row {self.returns}, when it returns from its prior"
        return f"{self.name} failed{often} at row {self.row} ({self.reason}); {now}"

    def later(self, num_rows: int) -> "QuarantineReport":
        """With rows counted from so many rows before."""
        returns = None if self.returns is None else self.returns + num_rows
        return self._replace(row=self.row + num_rows, returns=returns)


def init_quarantine(num_experts: int, device: torch.device) -> Quarantine:
    """Nobody has failed."""
    none = torch.zeros(num_experts, dtype=torch.int64, device=device)
    words = torch.zeros(num_experts, _NUM_BYTES, dtype=torch.uint8, device=device)
    return Quarantine(none, none.clone(), none.clone(), words)


def places_out(quarantine: Quarantine | None) -> tuple[int, ...]:
    """Places of the experts that are out."""
    return () if quarantine is None else tuple(quarantine.until.nonzero().flatten().tolist())


def shut_out_(quarantine: Quarantine, places: Sequence[int], num_seen: int, reason: str) -> None:
    """Keep some experts out, in place."""
    index = torch.tensor(list(places), dtype=torch.int64, device=quarantine.until.device)
    quarantine.times[index] += 1
    doubled = (quarantine.times[index] - 1).clamp_max(_MOST_DOUBLINGS)
    quarantine.until[index] = num_seen + QUARANTINE_ROWS * 2**doubled
    quarantine.row[index] = num_seen
    quarantine.words[index] = encoded(reason, _NUM_BYTES).to(index.device)


def let_in_(quarantine: Quarantine, num_seen: int) -> None:
    """Let those in whose time has come, in place, after so many rows."""
    quarantine.until[quarantine.until <= num_seen] = 0


def next_return(quarantine: Quarantine) -> int:
    """Rows that will have been learned when the next expert returns; some must be out."""
    return int(quarantine.until[quarantine.until > 0].min())


def counted_anew(quarantine: Quarantine | None, num_seen: int) -> Quarantine | None:
    """The same where so many rows count no more."""
    if quarantine is None:
        return None
    until = torch.where(quarantine.until > 0, quarantine.until - num_seen, quarantine.until)
    return quarantine._replace(until=until, row=quarantine.row - num_seen)


def grown(quarantine: Quarantine | None, num_new: int) -> Quarantine | None:
    """With so many more experts, none of which has failed."""
    if quarantine is None:
        return None
    new = init_quarantine(num_new, quarantine.until.device)
    return Quarantine(*(torch.cat([old, more]) for old, more in zip(quarantine, new, strict=True)))


def weights_without(log_weights: Tensor, quarantine: Quarantine | None, num_copies: int) -> Tensor:
    """Log weights (E K,) in which the experts that are out have none and the others theirs, summing to one."""
    if quarantine is None:
        return log_weights
    is_out = (quarantine.until > 0).repeat_interleave(num_copies)
    left = log_weights.masked_fill(is_out, -torch.inf)
    return torch.where(is_out.any(), left - left.logsumexp(0), log_weights)


def quarantine_reports(quarantine: Quarantine, names: Sequence[str]) -> tuple[QuarantineReport, ...]:
    """A report on each expert that has failed."""
    return tuple(
        QuarantineReport(
            names[place],
            int(quarantine.times[place]),
            int(quarantine.row[place]) + 1,
            bytes(quarantine.words[place].tolist()).rstrip(b"\0").decode(errors="ignore"),
            int(quarantine.until[place]) + 1 if int(quarantine.until[place]) else None,
        )
        for place in quarantine.times.nonzero().flatten().tolist()
    )
