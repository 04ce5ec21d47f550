"""What is counted of external models as rows come: a few sums, of which reports are made."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.engine.predictions import EnsemblePredictions

Numbers = NDArray[np.float64]


class ExternalCounts(NamedTuple):
    """Sums for each of G external models, double precision, shape (G,); in a state they are one tensor.

    Attributes:
        before: Nats by which it was ahead of the mixture on the warm-up rows, where these count for the weights.
        ahead: The same since then. Outliers count for their share.
        own: Its log densities of the targets that it predicted.
        mixed: The mixture's of the same targets.
        num_targets: How many these are.
        num_answered: Rows that it answered, those with a missing target among them.
        num_absent: Rows that it did not.
        weight: Its weights in the rows that it answered.
        is_awake: One if it answered the last row, or would before any; else zero.
    """

    before: Tensor
    ahead: Tensor
    own: Tensor
    mixed: Tensor
    num_targets: Tensor
    num_answered: Tensor
    num_absent: Tensor
    weight: Tensor
    is_awake: Tensor


def init_tally(awake: Sequence[bool], device: torch.device) -> Tensor:
    """Before any row, (9, G).

    Args:
        awake: Which models answer without having been trained.
        device: Where the state lives.

    Example:
        >>> ExternalCounts(*init_tally([True, False], torch.device("cpu"))).is_awake
        tensor([1., 0.], dtype=torch.float64)
    """
    zeros = torch.zeros(len(ExternalCounts._fields), len(awake), dtype=torch.float64, device=device)
    zeros[-1] = torch.tensor(awake, dtype=torch.float64, device=device)
    return zeros


def after_warm_up(tally: Tensor, *, keep_weights: bool) -> Tensor:
    """Sums begin anew: who is awake is remembered, and how far each was ahead if the rule keeps its weights.

    Example:
        >>> seen = torch.arange(9.0).unsqueeze(1)
        >>> after_warm_up(seen, keep_weights=True).flatten()
        tensor([1., 0., 0., 0., 0., 0., 0., 0., 8.])
    """
    counted = ExternalCounts(*tally)
    start = torch.zeros_like(tally)
    start[-1] = counted.is_awake
    if keep_weights:
        start[0] = counted.before + counted.ahead
    return start


def count_block(
    tally: Tensor,
    external_models: Sequence[int],
    num_copies: int,
    predictions: EnsemblePredictions,
    share: Tensor | None,
) -> Tensor:
    """After a block of B rows.

    Args:
        tally: Before it, shape (9, G).
        external_models: Places of the models among the experts.
        num_copies: Predictions that the rule weighs for each expert, its own first.
        predictions: What was predicted, NaN for the absent.
        share: What counts of each target, shape (B,); ``None`` for all of it.
    """
    places = [place * num_copies for place in external_models]
    own = torch.stack([predictions.experts.log_prob[place] for place in places]).double()
    weights = torch.stack([predictions.log_weights[place : place + num_copies].exp().sum(0) for place in places])
    is_absent = torch.isnan(torch.stack([predictions.experts.mean[place] for place in places]))
    mixed, one = predictions.log_prob.double().expand_as(own), torch.ones_like(own)
    ahead = own - mixed if share is None else (own - mixed) * share
    scored = torch.stack([ahead, own, mixed, one]).masked_fill(torch.isnan(own), 0.0).sum(-1)
    answered = torch.stack([one, weights.double()]).masked_fill(is_absent, 0.0).sum(-1)
    return torch.cat(  # in the order of ExternalCounts
        [
            tally[:1],
            tally[1:5] + scored,
            tally[5:6] + answered[:1],
            tally[6:7] + (own.shape[1] - answered[:1]),
            tally[7:8] + answered[1:],
            (~is_absent[:, -1:].mT).double(),
        ]
    )


def count_row(tally: Numbers, own: Numbers, weights: Numbers, mixed: float) -> Numbers:
    """After one row that counts in full and that all have answered, on plain arrays.

    Args:
        tally: Before it, shape (9, G).
        own: Log densities of the target under each model, shape (G,).
        weights: Their weights, with those of their innovation models, shape (G,).
        mixed: Log density of the target under the mixture.

    Example:
        >>> tally = count_row(np.zeros((9, 1)), np.array([-1.0]), np.array([0.25]), -3.0)
        >>> tally[:, 0].tolist()
        [0.0, 2.0, -1.0, -3.0, 1.0, 1.0, 0.0, 0.25, 1.0]
    """
    one, zero = np.ones_like(own), np.zeros_like(own)
    after: Numbers = tally + np.stack([zero, own - mixed, own, mixed * one, one, one, zero, weights, zero])
    after[-1] = 1.0
    return after


def next_weights(log_weights: Tensor, tally: Tensor, external_models: Sequence[int], num_copies: int) -> Tensor:
    """Log weights (M K,) of the next row if those who were absent from the last one are absent from it, too.

    The others share the weight of the absent, as in :func:`~gp_ensembles.engine.absence.awake_weights`; where nobody
    else has any weight all keep theirs.

    Example:
        >>> weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
        >>> next_weights(weights, init_tally([False], torch.device("cpu")), [2], 1).exp()
        tensor([0.6667, 0.3333, 0.0000], dtype=torch.float64)
    """
    inactive = torch.zeros_like(log_weights, dtype=torch.bool).unflatten(0, (-1, num_copies))
    inactive[list(external_models)] = (ExternalCounts(*tally).is_awake == 0).unsqueeze(-1)
    left = log_weights.masked_fill(inactive.flatten(), -torch.inf)
    total = left.logsumexp(0)
    return log_weights if bool(torch.isneginf(total)) else left - total
