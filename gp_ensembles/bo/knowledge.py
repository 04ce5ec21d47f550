"""What a model knows: its ensemble's state after all rows, and what follows for the next one."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bo.data import Observations
from gp_ensembles.bo.inference import Beliefs, believed, fantasise, learn, select_outputs
from gp_ensembles.ensembles.ensemble import Ensemble, EnsembleState
from gp_ensembles.experts.base import BoundExpert


class Knowledge(NamedTuple):
    """What a model knows.

    Attributes:
        bound: The experts' numbers.
        stamp: The hyperparameters it was learned with, flattened.
        state: The ensemble's state after all rows; ``None`` where the rows are a batch of fantasies.
        beliefs: What follows for the next row.
    """

    bound: tuple[BoundExpert, ...]
    stamp: Tensor
    state: EnsembleState | None
    beliefs: Beliefs


def stamp_of(parameters: Sequence[Tensor]) -> Tensor:
    """All hyperparameters, flattened: what knowledge is good for."""
    parts = [p.detach().reshape(-1) for p in parameters]
    return torch.cat(parts) if parts else torch.empty(0, device="cpu", dtype=torch.float64)


@torch.no_grad()
def learn_all(ensemble: Ensemble, rows: Observations, stamp: Tensor) -> Knowledge:
    """Learn all rows, (n, D) and (n, O), from the prior on; the stamp is that of the hyperparameters."""
    bound = ensemble.bind()
    state = learn(ensemble, bound, ensemble.init(), rows)
    return Knowledge(bound, stamp, state, believed(ensemble, bound, state))


@torch.no_grad()
def learn_more(ensemble: Ensemble, before: Knowledge, rows: Observations) -> Knowledge:
    """Learn further rows, (n, D) and (n, O), at the same cost whatever came before."""
    assert before.state is not None
    state = learn(ensemble, before.bound, before.state, rows)
    return before._replace(state=state, beliefs=believed(ensemble, before.bound, state))


def suppose(ensemble: Ensemble, before: Knowledge, rows: Observations) -> Knowledge:
    r"""Learn rows, (\*t, q, D) and (\*y, q, O), in every fantasy of a batch."""
    beliefs = fantasise(ensemble.meta_learner, before.bound, before.beliefs, rows)
    return before._replace(state=None, beliefs=beliefs)


def about(before: Knowledge, outputs: list[int]) -> Knowledge:
    """What is known about some of the outputs."""
    return before._replace(state=None, beliefs=select_outputs(before.beliefs, outputs))
