"""State of an ensemble, the names and shapes of its tensors, and snapshots of it."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from gp_ensembles.engine.quarantine import Quarantine
from gp_ensembles.filters.states import FilterState, WindowState
from gp_ensembles.filters.window import cut_, num_used
from gp_ensembles.innovations.bank import InnovationState
from gp_ensembles.meta_learners.base import MetaState
from gp_ensembles.numerics.display import prints_fields


@prints_fields
class EnsembleState(NamedTuple):
    """Everything that changes while a stream is read.

    Attributes:
        experts: State of each expert object.
        meta: State of the weight rule.
        innovations: State of the innovation models; ``None`` where there are none.
        history: Last targets with gaps filled, shape (L,); ``None`` without lagged targets.
        external_models: Counts of G external models, an
            :class:`~gp_ensembles.engine.external_counts.ExternalCounts` in one tensor, shape (9, G); ``None`` for none.
        quarantine: Failures of experts; ``None`` in a state that no :class:`OnlineEnsemble` owns.
        outliers: Tally of the targets beyond the outlier threshold, see :mod:`~gp_ensembles.engine.outliers`, shape
            (3,); ``None`` where there is none.
    """

    experts: tuple[FilterState, ...]
    meta: MetaState
    innovations: InnovationState | None = None
    history: Tensor | None = None
    external_models: Tensor | None = None
    quarantine: Quarantine | None = None
    outliers: Tensor | None = None


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
    if state.quarantine is not None:
        named += [(f"quarantine_{field}", value) for field, value in state.quarantine._asdict().items()]
    optional = (("history", state.history), ("external_models", state.external_models), ("outliers", state.outliers))
    return [*named, *((name, value) for name, value in optional if value is not None)]


def write_layers_(state: EnsembleState, after: EnsembleState) -> None:
    """Take the tensors that are not the experts' own from another state, in place."""
    for (_, old), (_, new) in zip(named_layers(state), named_layers(after), strict=True):
        if new is not old:
            old.copy_(new)


def state_from(
    kinds: Sequence[type[FilterState]], names: Container[str], read: Callable[[str], Tensor]
) -> EnsembleState:
    """The state with experts of these kinds, of tensors that are read by the names of :func:`named_tensors`."""

    def part(kind: Any, prefix: str) -> Any:
        return kind(*[read(f"{prefix}_{field}") for field in kind._fields])

    return EnsembleState(
        tuple(part(kind, f"expert_{number}") for number, kind in enumerate(kinds)),
        part(MetaState, "meta"),
        part(InnovationState, "innovations") if "innovations_scale" in names else None,
        read("history") if "history" in names else None,
        read("external_models") if "external_models" in names else None,
        part(Quarantine, "quarantine") if "quarantine_until" in names else None,
        read("outliers") if "outliers" in names else None,
    )


def snapshot(state: EnsembleState, num_rows: int) -> Callable[[], None]:
    """A function that restores the present state in place, after at most ``num_rows`` rows were learned."""
    ends: list[tuple[WindowState, Tensor]] = []
    copies = [(value, value.clone()) for _, value in named_layers(state)]
    for part in state.experts:
        if isinstance(part, WindowState) and _only_appends(part, num_rows):
            ends.append((part, part.num_used.clone()))
        else:
            copies += [(value, value.clone()) for value in part]

    def restore() -> None:
        for value, old in copies:
            value.copy_(old)
        for window, end in ends:
            cut_(window, end)

    return restore


def _only_appends(state: WindowState, num_rows: int) -> bool:
    """Whether no row is dropped within ``num_rows`` rows and nothing is ever refitted."""
    return state.hyperparameters.shape[-1] == 0 and num_used(state) + num_rows < state.targets.shape[-1]


def check_shapes(module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, kind: str = "ensemble") -> None:
    """Raise before anything is loaded if a tensor is missing or has another shape: something else was saved."""
    own = module.state_dict()
    saved = {name: state_dict[prefix + name].shape for name in own if prefix + name in state_dict}
    wrong = [name for name, value in own.items() if saved.get(name) != value.shape]
    if wrong:
        raise RuntimeError(
            f"this state_dict belongs to another {kind}: {len(wrong)} of {len(own)} tensors are missing or of "
            f"another shape, the first is {wrong[0]!r}; build the {kind} as it was when it was saved"
        )
