"""Quarantine of experts that failed: weight zero for a while, then a return from their priors.

An expert whose predictive variance vanishes, or whose numbers overflow, cannot be weighed. Like an external model that
is absent (see :mod:`~gp_ensembles.engine.weighing`), it lends its weight to the others, and that neither rises nor
falls. Its state is reset to its prior at once. It returns after ``QUARANTINE_ROWS`` rows, after twice as many when it
has failed a second time, and so on.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.experts.adapters import encoded

QUARANTINE_ROWS = 1000
_MOST_DOUBLINGS = 20
_NUM_BYTES = 300


class Quarantine(NamedTuple):
    """Failures of E experts; rows are counted as the weight rule counts them."""

    until: Tensor  # the row before which an expert returns, shape (E,); zero for those that are not in quarantine
    row: Tensor  # the row at which it last failed, shape (E,)
    times: Tensor  # how often it has failed, shape (E,)
    words: Tensor  # why it last failed, 300 bytes of text each, shape (E, 300)


class QuarantineReport(NamedTuple):
    """An expert that has failed.

    Attributes:
        name: The expert.
        times: How often it has failed.
        row: The row at which it last failed, counted from 1.
        reason: Why it last failed.
        returns: The row at which it returns; ``None`` if it has returned.
    """

    name: str
    times: int
    row: int
    reason: str
    returns: int | None

    def __str__(self) -> str:
        """The report as one line."""
        often = f", {self.times} times so far," if self.times > 1 else ""
        now = "it has returned from its prior"
        if self.returns is not None:
            now = f"it is out until row {self.returns}, when it returns from its prior"
        return f"{self.name} failed{often} at row {self.row} ({self.reason}); {now}"

    def later(self, num_rows: int) -> "QuarantineReport":
        """The same with rows counted from ``num_rows`` rows earlier."""
        returns = None if self.returns is None else self.returns + num_rows
        return self._replace(row=self.row + num_rows, returns=returns)


def init_quarantine(num_experts: int, device: torch.device) -> Quarantine:
    """No expert has failed."""
    none = torch.zeros(num_experts, dtype=torch.int64, device=device)
    words = torch.zeros(num_experts, _NUM_BYTES, dtype=torch.uint8, device=device)
    return Quarantine(none, none.clone(), none.clone(), words)


def places_out(quarantine: Quarantine | None) -> tuple[int, ...]:
    """Places of the experts in quarantine."""
    return () if quarantine is None else tuple(quarantine.until.nonzero().flatten().tolist())


def shut_out_(quarantine: Quarantine, places: Sequence[int], num_seen: int, reason: str) -> None:
    """Put some experts into quarantine, in place."""
    index = torch.tensor(list(places), dtype=torch.int64, device=quarantine.until.device)
    quarantine.times[index] += 1
    doubled = (quarantine.times[index] - 1).clamp_max(_MOST_DOUBLINGS)
    quarantine.until[index] = num_seen + QUARANTINE_ROWS * 2**doubled
    quarantine.row[index] = num_seen
    quarantine.words[index] = encoded(reason, _NUM_BYTES).to(index.device)


def let_in_(quarantine: Quarantine, num_seen: int) -> None:
    """Release the experts that are due after so many rows, in place."""
    quarantine.until[quarantine.until <= num_seen] = 0


def next_return(quarantine: Quarantine) -> int:
    """Number of rows learned when the next expert returns; at least one must be in quarantine."""
    return int(quarantine.until[quarantine.until > 0].min())


def rebased(quarantine: Quarantine | None, num_seen: int) -> Quarantine | None:
    """The same with rows counted from ``num_seen`` rows later."""
    if quarantine is None:
        return None
    until = torch.where(quarantine.until > 0, quarantine.until - num_seen, quarantine.until)
    return quarantine._replace(until=until, row=quarantine.row - num_seen)


def grown(quarantine: Quarantine | None, num_new: int) -> Quarantine | None:
    """The same with ``num_new`` more experts, none of which has failed."""
    if quarantine is None:
        return None
    new = init_quarantine(num_new, quarantine.until.device)
    return Quarantine(*(torch.cat([old, more]) for old, more in zip(quarantine, new, strict=True)))


def weights_without(log_weights: Tensor, quarantine: Quarantine | None, num_copies: int) -> Tensor:
    """Log weights (..., E K), renormalized over the experts that are not in quarantine."""
    if quarantine is None:
        return log_weights
    is_out = (quarantine.until > 0).repeat_interleave(num_copies, -1)
    left = log_weights.masked_fill(is_out, -torch.inf)
    return torch.where(is_out.any(-1, keepdim=True), left - left.logsumexp(-1, keepdim=True), log_weights)


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
