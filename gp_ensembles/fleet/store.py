"""States of many series, one tensor per part of a state, and the places of series in them, by name."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gp_ensembles.engine.quarantine import Quarantine, init_quarantine
from gp_ensembles.engine.state import EnsembleState, named_layers, named_tensors, state_from
from gp_ensembles.experts.base import Variances
from gp_ensembles.files.operations import OpenFile, make_folder, remove_if_possible
from gp_ensembles.filters.states import FilterState, GaussianState, gaussian_state, square_root_state
from gp_ensembles.numerics.arguments import check_memory

FAILED = "failed"  # rows learned before a series failed, -1 if it did not
_LEAST_ROOM = 16


class Store:
    """States of series by place, in memory or in files."""

    def __init__(
        self, start: EnsembleState, folder: Path | None = None, notes: Mapping[str, Tensor] | None = None
    ) -> None:
        start = _with_quarantine(start)
        self.kinds: tuple[type[FilterState], ...] = tuple(type(part) for part in start.experts)
        self._folder = folder
        self._start = dict(named_tensors(start))
        self._start[FAILED] = start.meta.num_seen.new_full((), -1)
        self._start |= {f"note_{name}": value for name, value in (notes or {}).items()}
        self._start = {name: value.detach() for name, value in self._start.items()}
        self._tensors = {name: self._room(name, value, 0) for name, value in self._start.items()}
        self.on_move: Callable[[], None] = lambda: None

    @property
    def begin(self) -> dict[str, Any]:
        """The initial state of a series, the kinds of its experts, and its initial notes."""
        of_states = {name: value for name, value in self._start.items() if name != FAILED and name[:5] != "note_"}
        notes = {name[5:]: value for name, value in self._start.items() if name[:5] == "note_"}
        return {"start": state_from(self.kinds, of_states, of_states.__getitem__), "notes": notes}

    def remove_files(self) -> None:
        """Remove the files of states that live in a folder; the store cannot be used afterwards."""
        if self._folder is not None:
            for name in self._start:
                remove_if_possible(self._path(name))

    def prepare_with_variances(self, number: int, places: Tensor, own: Variances) -> None:
        """Restart series for one expert object, with their own variances (S, ...)."""
        state, kind = self.expert(number), self.kinds[number]
        num_features = state[0].shape[-2] if kind is GaussianState else state[0].shape[-1]
        first = (gaussian_state if kind is GaussianState else square_root_state)(own.prior, num_features)
        for old, new in zip(state, first, strict=True):
            old[places] = new.to(old)
        self.put_variances(number, places, own)

    def put_variances(self, number: int, places: Tensor, own: Variances) -> None:
        """Write variances (S, ...) of series for one expert object; states are unchanged."""
        for name, value in own._asdict().items():
            note = self.note(f"{name}_{number}")
            note[places] = value.to(note)

    @property
    def room(self) -> int:
        """Number of places."""
        return len(self._tensors[FAILED])

    @property
    def bytes_each(self) -> int:
        """Size of the state of one series."""
        return sum(value.numel() * value.element_size() for value in self._start.values())

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All states by name, (T, ...) each."""
        return self._tensors

    def expert(self, number: int) -> FilterState:
        """The states of one expert object, by reference."""
        kind = self.kinds[number]
        return kind(*(self._tensors[f"expert_{number}_{field}"] for field in kind._fields))

    @property
    def failed(self) -> Tensor:
        """Rows that each series had learned when it failed, -1 if it did not, (T,), by reference."""
        return self._tensors[FAILED]

    def variances(self, number: int, places: Tensor) -> Variances | None:
        """Variances of some series for one expert object; ``None`` if all share the expert's."""
        if f"note_noise_{number}" not in self._tensors:
            return None
        return Variances(*(self.note(f"{kind}_{number}")[places] for kind in Variances._fields))

    def note(self, name: str) -> Tensor:
        """One note of every series, (T, ...), by reference."""
        return self._tensors[f"note_{name}"]

    def quarantine(self, places: Tensor) -> Quarantine:
        """Copies of the quarantine states of some series, (S, ...) each."""
        return Quarantine(*(self._tensors[f"quarantine_{field}"][places] for field in Quarantine._fields))

    def is_left_out(self, places: Tensor) -> Tensor:
        """Mask (S,) of series to exclude from batches: with a quarantined expert, or set aside."""
        return (self._tensors["quarantine_until"][places] > 0).any(-1) | (self.failed[places] >= 0)

    def has_failed(self, place: int) -> bool:
        """Whether a series is set aside."""
        return bool(self.failed[place] >= 0)

    def set_aside(self, place: int) -> None:
        """Set aside a series whose experts have all failed."""
        self.failed[place] = self._tensors["meta_num_seen"][place]

    def layers(self, places: Tensor) -> EnsembleState:
        """Copies of the states of the layers around the experts, (S, ...) each, without the experts' own."""
        names = {name for name in self._start if not name.startswith("quarantine_")}
        return state_from((), names, lambda name: self._tensors[name][places])

    def put_layers(self, places: Tensor, state: EnsembleState, some: Tensor) -> None:
        """Write the states that :meth:`layers` reads, for the series with indices ``some`` of a state (S, ...)."""
        for name, value in named_layers(state):
            self._tensors[name].index_copy_(0, places, value if len(some) == len(value) else value[some])

    def write(self, place: int, state: EnsembleState) -> None:
        """Replace the state of a series; its notes are unchanged."""
        for name, value in named_tensors(state):
            self._tensors[name][place] = value

    def state(self, place: int) -> EnsembleState:
        """A copy of the state of one series."""
        return state_from(self.kinds, self._start, lambda name: self._tensors[name][place].clone())

    def put(self, places: Tensor, state: EnsembleState | None = None) -> None:
        """Set the state of series, by default that before any data; grows the store if needed."""
        self._grow(int(places.max()) + 1 if len(places) else 0)
        values = self._start if state is None else {**self._start, **self.checked(state)}
        for name, value in values.items():
            self._tensors[name][places] = value.detach().to(self._tensors[name])

    def put_tensors(self, places: Tensor, states: Mapping[str, Tensor]) -> None:
        """Set the states of series in the form of :attr:`tensors`, (S, ...) each; grows the store if needed."""
        self._grow(int(places.max()) + 1 if len(places) else 0)
        for name, value in states.items():
            self._tensors[name][places] = value.to(self._tensors[name].device)

    def check_tensors(self, states: Mapping[str, Tensor]) -> None:
        """Raise unless states (S, ...) match this kind of ensemble."""
        wanted = {name: (value.shape, value.dtype) for name, value in self._start.items()}
        got = {name: (value.shape[1:], value.dtype) for name, value in states.items()}
        for name in [*wanted, *got]:
            if wanted.get(name) != got.get(name):
                raise ValueError(
                    f"the states are from another ensemble: {name} is {got.get(name)}, in this fleet {wanted.get(name)}"
                )

    def checked(self, state: EnsembleState) -> dict[str, Tensor]:
        """A state by name; raises unless it matches this kind of ensemble."""
        values = dict(named_tensors(_with_quarantine(state)))
        wanted = {name: value.shape for name, value in self._start.items() if name != FAILED and name[:5] != "note_"}
        got = {name: value.shape for name, value in values.items()}
        for name in [*wanted, *got]:
            if wanted.get(name) != got.get(name):
                raise ValueError(
                    f"the state belongs to another ensemble: {name} has shape {_shape(got.get(name))}, in this fleet "
                    f"{_shape(wanted.get(name))}"
                )
        return values

    def reserve(self, least: int) -> None:
        """Reserve space for this many series."""
        self.check_growth(least)
        self._grow(least)

    def check_growth(self, least: int) -> None:
        """Raise unless this many series fit: on disk, or in memory with old and new arrays at once."""
        room = self._next_room(least)
        if self._folder is not None:
            free, more = shutil.disk_usage(self._folder).free, (room - self.room) * self.bytes_each
            if more > free:
                raise ValueError(
                    f"{room} series would take {more / 1e9:.3g} GB more on the disk of {self._folder}, but "
                    f"{free / 1e9:.3g} GB are free; add fewer, or use another folder"
                )
        elif room > self.room:
            device = self.failed.device
            old = self.room if device.type == "cpu" else 0  # on a GPU, free memory excludes it already
            what = f"{room} series, with the {self.room} places that are copied,"
            check_memory((room + old) * self.bytes_each, device, what, "add fewer, or give a folder")

    def _next_room(self, least: int) -> int:
        if least <= self.room:
            return self.room
        return max(least, min(2 * self.room, self.room + 10_000), _LEAST_ROOM)

    def _grow(self, least: int) -> None:
        if least <= self.room:
            return
        room = self._next_room(least)
        grown = {}
        for name, value in self._start.items():
            grown[name] = self._room(name, value, room)
            if self._folder is None:
                grown[name][: self.room] = self._tensors[name]
        self._tensors = grown
        self.on_move()

    def _room(self, name: str, like: Tensor, room: int) -> Tensor:
        if self._folder is None or room == 0:
            return like.new_empty(room, *like.shape)
        # An existing file is extended and keeps its contents.
        path, numbers = self._path(name), room * like.numel()
        size = numbers * like.element_size()
        with OpenFile(path, os.O_RDWR | os.O_CREAT) as file:
            file.truncate(max(size, path.stat().st_size))
        if like.numel() == 0:
            return like.new_empty(room, *like.shape)
        return torch.from_file(str(path), shared=True, size=numbers, dtype=like.dtype).reshape(room, *like.shape)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles live in memory: files belong to one store."""
        return {**self.__dict__, "_folder": None}

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.bin"


def _with_quarantine(state: EnsembleState) -> EnsembleState:
    """A state with a quarantine, empty if it had none."""
    if state.quarantine is not None:
        return state
    like = state.meta.log_weights if state.innovations is None else state.innovations.last_error
    num_experts = like.shape[-1]
    return state._replace(quarantine=init_quarantine(num_experts, state.meta.num_seen.device))


def _shape(shape: Sequence[int] | None) -> str:
    return "none" if shape is None else str(tuple(shape))


def next_folder(folder: Path | None) -> Path | None:
    """A new subfolder of a folder for the states of successive fleets."""
    if folder is None:
        return None
    numbers = (int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    return folder / str(1 + max(numbers, default=-1))


def new_folder(folder: str | Path | None, device: torch.device) -> Path | None:
    """Create the folder of states, if one is given."""
    if folder is None:
        return None
    if device.type != "cpu":
        raise ValueError(
            f"states in memory-mapped files are on the host, not on {device}; omit the folder, or use the device cpu"
        )
    path = Path(folder)
    make_folder(path)
    if any(path.iterdir()):
        raise ValueError(f"the folder {path} for the states of a fleet is not empty; give a new one")
    return path


class Slots:
    """Places of series by name; places of retired series are reused."""

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._num_used = 0

    @property
    def names(self) -> tuple[Hashable, ...]:
        """Names of all series in the order of their places; files preserve it, as rounding may depend on it."""
        return tuple(sorted(self._places, key=self._places.__getitem__))

    @property
    def size(self) -> int:
        """Number of places in use, and free ones between them."""
        return self._num_used

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._places

    def places(self, names: Sequence[Hashable]) -> Tensor:
        """Places of series (integers), in the order of the names, which may repeat."""
        try:
            return torch.tensor([self._places[name] for name in names], dtype=torch.int64, device="cpu")
        except KeyError:
            unknown = list(dict.fromkeys(name for name in names if name not in self._places))
        raise KeyError(f"unknown series {_few(unknown)}; add them first with fleet.add([...])")

    def size_with(self, num_new: int) -> int:
        """The size after adding a number of series."""
        return self._num_used + max(0, num_new - len(self._free))

    def check_new(self, names: Sequence[Hashable]) -> None:
        """Raise unless series are new and distinct."""
        known = [name for name in names if name in self._places]
        if known:
            raise ValueError(f"series {_few(known)} are in the fleet already; retire them first, or omit them")
        if len(set(names)) < len(names):
            twice = [name for name, count in Counter(names).items() if count > 1]
            raise ValueError(f"series {_few(twice)} are named twice; add every series once")

    def add(self, names: Sequence[Hashable]) -> Tensor:
        """Assign places to new series; raises as :meth:`check_new`."""
        self.check_new(names)
        taken = [self._free.pop() for _ in range(min(len(names), len(self._free)))]
        more = len(names) - len(taken)
        taken += range(self._num_used, self._num_used + more)
        self._num_used += more
        self._places.update(zip(names, taken, strict=True))
        return torch.tensor(taken, dtype=torch.int64, device="cpu")

    def retire(self, names: Iterable[Hashable]) -> None:
        """Remove series; none is removed if one is unknown."""
        names = list(dict.fromkeys(names))
        self.places(names)
        self._free += [self._places.pop(name) for name in names][::-1]


def _few(names: Sequence[Hashable]) -> str:
    """The first names of a list, and the number of the others."""
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
