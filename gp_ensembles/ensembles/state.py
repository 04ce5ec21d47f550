"""The state of an ensemble, and the names of its tensors."""

from typing import NamedTuple

from torch import Tensor

from gp_ensembles.filters.states import FilterState
from gp_ensembles.innovations import InnovationState
from gp_ensembles.meta_learners.base import MetaState


class EnsembleState(NamedTuple):
    """Everything that changes while a stream is read.

    Attributes:
        experts: State of each expert object.
        meta: State of the weight rule.
        innovations: State of the innovation models; ``None`` where there are none.
        history: Last targets, gaps filled, shape (L,); ``None`` where no target is remembered.
        guests: What is counted of each of G models from outside, a
            :class:`~gp_ensembles.ensembles.guest_tally.GuestTally` in one tensor, shape (9, G); ``None`` for none.
    """

    experts: tuple[FilterState, ...]
    meta: MetaState
    innovations: InnovationState | None = None
    history: Tensor | None = None
    guests: Tensor | None = None


def named_tensors(state: EnsembleState) -> list[tuple[str, Tensor]]:
    """Every tensor of a state with the name of its buffer."""
    named = [
        (f"expert_{number}_{field}", value)
        for number, part in enumerate(state.experts)
        for field, value in part._asdict().items()
    ]
    return named + named_layers(state)


def named_layers(state: EnsembleState) -> list[tuple[str, Tensor]]:
    """The tensors of a state that are not the experts' own, with the names of their buffers."""
    named = [(f"meta_{field}", value) for field, value in state.meta._asdict().items()]
    if state.innovations is not None:
        named += [(f"innovations_{field}", value) for field, value in state.innovations._asdict().items()]
    further = (("history", state.history), ("guests", state.guests))
    return [*named, *((name, value) for name, value in further if value is not None)]
