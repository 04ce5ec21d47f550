"""Running sums of the scores and weights of external models, for reports on them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine.predictions import EnsemblePredictions


class ExternalCounts(NamedTuple):
    """Sums for each of G external models, double precision, shape (G,); in a state they are one tensor."""

    before: Tensor  # nats by which it was ahead of the mixture on the warm-up rows, if these count for the weights
    ahead: Tensor  # the same since then. Outliers count for their share
    own: Tensor  # its log densities of the targets of rows that it predicted
    mixed: Tensor  # the mixture's of the same targets
    num_targets: Tensor  # number of these targets
    num_answered: Tensor  # rows that it predicted, including those with a missing target
    num_absent: Tensor  # rows that it did not predict
    weight: Tensor  # its weights in the rows that it predicted
    is_awake: Tensor  # one if it predicted the last row or, before any row, can predict; else zero


def init_counts(awake: Sequence[bool], device: torch.device) -> Tensor:
    """Before any row, (9, G)."""
    zeros = torch.zeros(len(ExternalCounts._fields), len(awake), dtype=torch.float64, device=device)
    zeros[-1] = torch.tensor(awake, dtype=torch.float64, device=device)
    return zeros


def after_warm_up(tally: Tensor, *, keep_weights: bool) -> Tensor:
    """Sums reset after the warm-up: kept are who is awake and, if the rule keeps its weights, who was ahead."""
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
    """Sums (9, G) after a block of B rows that count ``share`` (B,)."""
    places = [place * num_copies for place in external_models]
    own = torch.stack([predictions.experts.log_prob[place] for place in places]).double()
    weights = torch.stack([predictions.log_weights[place : place + num_copies].exp().sum(0) for place in places])
    is_absent = torch.isnan(torch.stack([predictions.experts.mean[place] for place in places]))
    is_absent = is_absent.any(-1) if is_absent.ndim > own.ndim else is_absent  # of classes
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


def next_weights(log_weights: Tensor, tally: Tensor, external_models: Sequence[int], num_copies: int) -> Tensor:
    """Log weights (M K,) of the next row if the models that were absent from the last row are absent again."""
    inactive = torch.zeros_like(log_weights, dtype=torch.bool).unflatten(0, (-1, num_copies))
    inactive[list(external_models)] = (ExternalCounts(*tally).is_awake == 0).unsqueeze(-1)
    left = log_weights.masked_fill(inactive.flatten(), -torch.inf)
    total = left.logsumexp(0)
    return log_weights if bool(torch.isneginf(total)) else left - total
