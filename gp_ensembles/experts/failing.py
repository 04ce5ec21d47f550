"""Reasons for missing predictions of an external model: numbers in the state, messages for the user."""

from typing import NamedTuple

import torch
from torch import Tensor

SILENT, ILLEGAL_MEAN, ILLEGAL_DEVIATION, WRONG_LENGTH, FAILED_PREDICTION, FAILED_TRAINING, UNTRAINED = range(1, 8)
_NUM_BYTES = 200


class Failure(NamedTuple):
    """A reason for a missing prediction and a remedy, a clause each."""

    reason: str
    fix: str


FAILURES = {
    SILENT: Failure(
        "it gave no prediction (NaN)",
        "nothing needs to be done if no forecast exists for such rows; else fill the gaps in its inputs",
    ),
    ILLEGAL_MEAN: Failure("its mean was infinite or beyond 1e30", "let it predict targets of mean 0 and variance 1"),
    ILLEGAL_DEVIATION: Failure(
        "its deviation was not positive and finite",
        "return standard deviations or None; quantiles must increase with their levels",
    ),
    WRONG_LENGTH: Failure(
        "its answer had the wrong shape", "return means (N,) and deviations (N,), or means alone, for inputs (N, D)"
    ),
    FAILED_PREDICTION: Failure("it failed to predict", "try model.fit(rows)(X) on inputs X of such a row"),
    FAILED_TRAINING: Failure(
        "it failed to train", "try model.fit(rows) on its own; the next training is tried as scheduled"
    ),
    UNTRAINED: Failure("it is not trained yet", "it needs ten targets, and the row of its first scheduled training"),
}


def described(reason: int, words: Tensor) -> Failure:
    """The failure that a state records."""
    found, text = FAILURES[reason], bytes(words.tolist()).rstrip(b"\0").decode(errors="ignore")
    return found._replace(reason=f"{found.reason} ({text})") if text else found


def encoded(text: str, num_bytes: int = _NUM_BYTES) -> Tensor:
    """The first bytes of a text, padded with zeros."""
    data = " ".join(text.split()).encode()[:num_bytes].ljust(num_bytes, b"\0")
    return torch.tensor(list(data), dtype=torch.uint8, device="cpu")
