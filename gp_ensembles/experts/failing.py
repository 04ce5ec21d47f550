"""Why an external model was absent from a row, and how that is mended: numbers in a state, words for its reader."""

from typing import NamedTuple

import torch
from torch import Tensor

(
    SILENT,
    ILLEGAL_MEAN,
    ILLEGAL_DEVIATION,
    WRONG_LENGTH,
    FAILED_PREDICTION,
    FAILED_TRAINING,
    UNTRAINED,
) = range(1, 8)
_NUM_BYTES = 200


class Failure(NamedTuple):
    """A reason for absence.

    Attributes:
        reason: What it was, a clause.
        mend: What to do about it, another.
    """

    reason: str
    mend: str


FAILURES = {
    SILENT: Failure(
        "it said nothing (NaN)",
        "nothing needs to be done where there is no forecast to be had; else fill the gaps in what it reads",
    ),
    ILLEGAL_MEAN: Failure("its mean was infinite or beyond 1e30", "have it predict targets of mean 0 and deviation 1"),
    ILLEGAL_DEVIATION: Failure(
        "its deviation was not positive and finite",
        "return standard deviations, or None in their place; quantiles have to rise with their levels",
    ),
    WRONG_LENGTH: Failure(
        "its answer had the wrong shape", "return means (N,) and deviations (N,), or means alone, for inputs (N, D)"
    ),
    FAILED_PREDICTION: Failure("it failed to predict", "try guest.fit(rows)(X) by itself on inputs X of such a row"),
    FAILED_TRAINING: Failure(
        "it failed to train", "try guest.fit(rows) by itself; it is trained again when that is due"
    ),
    UNTRAINED: Failure("it is not trained yet", "it needs ten targets, and the row at which it is to be trained"),
}


def described(reason: int, words: Tensor) -> Failure:
    """What the numbers in a state say."""
    found, text = FAILURES[reason], bytes(words.tolist()).rstrip(b"\0").decode(errors="ignore")
    return found._replace(reason=f"{found.reason} ({text})") if text else found


def encoded(text: str, num_bytes: int = _NUM_BYTES) -> Tensor:
    """The first bytes of a text, zeros behind it."""
    data = " ".join(text.split()).encode()[:num_bytes].ljust(num_bytes, b"\0")
    return torch.tensor(list(data), dtype=torch.uint8, device="cpu")
