"""Experts on one basis that differ in how fast their weights walk, static ones among them, are run as one batch.

A static expert is one whose weights walk by nothing. Such twins have one set of features, so what a block costs
whatever its size is paid once for all of them. Their states lie side by side in one piece of memory, of which the state
of each is a part.
"""

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.engine.latent_runner import LatentGroup, LatentRunner, stage_latent
from gp_ensembles.engine.predictions import flatten
from gp_ensembles.engine.row_noise import noise_of, row_counts, unscaled, widened
from gp_ensembles.engine.runner import Runner
from gp_ensembles.engine.runners import make_runner
from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.gaussian import BoundGaussian, GaussianExpert
from gp_ensembles.filters.states import FilterState, GaussianState, Predictions, StepPredictions
from gp_ensembles.filters.stream import BlockStream
from gp_ensembles.filters.transitions import RandomWalk

_KEPT = 4  # block lengths whose scratch memory is kept: streams have few, odd ones must not pile up


class SharedBasisBatch(NamedTuple):
    r"""Some expert objects on one basis.

    Attributes:
        places: Their numbers, ascending.
        moments: Their states [covariance | mean], K of them, shape (K, \*batch, F, F + 1); the memory of their states.
    """

    places: tuple[int, ...]
    moments: Tensor


class RunnerBatch(NamedTuple):
    """What runs some expert objects together.

    Attributes:
        places: Their numbers.
        runner: Its predictions have an axis for them in front if they are more than one.
    """

    places: tuple[int, ...]
    runner: Runner


def find_shared_bases(experts: Sequence[Expert], kinds: Sequence[type[FilterState]]) -> list[tuple[int, ...]]:
    """Numbers of the expert objects that can be run together, two or more each."""
    by_features: dict[int, list[int]] = {}
    for number, (expert, kind) in enumerate(zip(experts, kinds, strict=True)):
        walks = expert.transition is None or isinstance(expert.transition, RandomWalk)
        if isinstance(expert, GaussianExpert) and kind is GaussianState and walks:
            by_features.setdefault(id(expert.features), []).append(number)
    return [tuple(places) for places in by_features.values() if len(places) > 1]


def lay_together(buffers: MutableMapping[str, Tensor | None], names: Sequence[str]) -> Tensor:
    """Some tensors of one shape as one, with an axis for them in front; put side by side in memory if they are not."""
    values = _present(buffers, names)
    first, size = values[0], values[0].numel()
    memory, start = first.untyped_storage().data_ptr(), first.storage_offset()
    places = [(v.untyped_storage().data_ptr(), v.storage_offset(), v.is_contiguous()) for v in values]
    if places == [(memory, start + k * size, True) for k in range(len(values))]:
        return first.as_strided((len(values), *first.shape), (size, *first.stride()))
    whole = torch.stack(values)
    for name, part in zip(names, whole.unbind(0), strict=True):
        buffers[name] = part
    return whole


def _present(buffers: Mapping[str, Tensor | None], names: Sequence[str]) -> list[Tensor]:
    found = [value for value in (buffers[name] for name in names) if value is not None]
    assert len(found) == len(names)
    return found


@final
class SharedBasisRunner(Runner):
    r"""Gaussian experts in covariance form on one basis, static or with weights that walk at random.

    Shapes: ``moments`` (K, \*batch, F, F + 1).
    """

    def __init__(self, bound: Sequence[BoundGaussian], moments: Tensor) -> None:
        self._moments = moments
        self._noise = torch.stack([b.noise.detach() for b in bound])
        self._walk = _walks(bound, moments.shape[-2])
        self._streams: dict[int, BlockStream] = {}
        self._staged: BlockStream | None = None

    def stage(self, Phi: Tensor, y: Tensor, has_gaps: bool) -> StepPredictions:
        r"""Predictions (K, \*batch, B) of a block from its features (\*batch, B, F); the state is not touched."""
        num_rows = y.shape[0]
        if num_rows not in self._streams:
            if len(self._streams) >= _KEPT:
                self._streams.clear()
            self._streams[num_rows] = BlockStream(self._moments, self._noise, self._walk, num_rows)
        self._staged = None
        stream = self._streams[num_rows]
        predictions = stream.stage(Phi.expand(len(self._moments), *Phi.shape), y, has_gaps)
        self._staged = stream
        return predictions

    def uneven(self, steps: Tensor) -> "SharedBasisRunner":
        """See :meth:`Runner.uneven`."""
        other = copy.copy(self)
        ages = steps.cumsum(0).to(self._moments)
        num_rows = steps.shape[0]
        other._streams = {num_rows: BlockStream(self._moments, self._noise, self._walk, num_rows, ages)}
        return other

    def commit(self) -> None:
        """Learn the staged block."""
        if self._staged is not None:
            self._staged.commit()
            self._staged = None


def _walks(bound: Sequence[BoundGaussian], num_features: int) -> Tensor | None:
    r"""Variances of a step of each expert's weights, zero for static ones, (K, \*batch, 1) or (K, \*batch, F)."""
    walks = [b.transition.variance for b in bound if isinstance(b.transition, RandomWalk)]
    if not walks:
        return None
    width = num_features if any(walk.shape[-1] > 1 for walk in walks) else 1
    shape = (*bound[0].prior_variance.shape, width)
    like = bound[0].prior_variance.detach()
    none = like.new_zeros(())
    of_each = (none if not isinstance(b.transition, RandomWalk) else b.transition.variance.to(like) for b in bound)
    return torch.stack([walk.expand(shape) for walk in of_each])


@final
class RunnerBatches:
    """What runs the expert objects of an ensemble over a stream."""

    def __init__(
        self, bound: Sequence[BoundExpert], states: Sequence[FilterState], batches: Sequence[RunnerBatch]
    ) -> None:
        self._bound, self._states = bound, states
        self.batches: tuple[RunnerBatch, ...] = tuple(batches)
        self._order = _order(batches, bound)

    @classmethod
    def of(
        cls, bound: Sequence[BoundExpert], states: Sequence[FilterState], shared_bases: Sequence[SharedBasisBatch]
    ) -> "RunnerBatches":
        """SharedBasisBatch together, the others each by itself."""
        joined = {places[0]: (places, moments) for places, moments in shared_bases}
        taken = {place for places, _ in shared_bases for place in places}
        batches = []
        for number, (expert, state) in enumerate(zip(bound, states, strict=True)):
            if number in joined:
                places, moments = joined[number]
                gaussian = [b for b in (bound[place] for place in places) if isinstance(b, BoundGaussian)]
                batches.append(RunnerBatch(places, SharedBasisRunner(gaussian, moments)))
            elif number not in taken:
                batches.append(RunnerBatch((number,), make_runner(expert, state)))
        return cls(bound, states, batches)

    def single(self, number: int) -> Runner:
        """What runs one expert object alone."""
        alone = (runner for places, runner in self.batches if places == (number,))
        return next(alone, None) or make_runner(self._bound[number], self._states[number])

    def uneven(self, steps: Tensor) -> "RunnerBatches":
        """The same for one block whose rows are so many steps after the row before each, (B,)."""
        batches = [RunnerBatch(places, runner.uneven(steps)) for places, runner in self.batches]
        return RunnerBatches(self._bound, self._states, batches)

    def replaced(self, runners: Mapping[int, Runner]) -> "RunnerBatches":
        """The same with other runners for some expert objects; their twins are then run alone too."""
        batches: list[RunnerBatch] = []
        for lane in self.batches:
            if runners.keys().isdisjoint(lane.places):
                batches.append(lane)
            else:
                batches += [RunnerBatch((place,), runners.get(place) or self.single(place)) for place in lane.places]
        return RunnerBatches(self._bound, self._states, batches)

    def stage(
        self,
        group: LatentGroup | None,
        features: Sequence[Tensor],
        y: Tensor,
        has_gaps: bool,
        extra: Tensor | None = None,
    ) -> Predictions:
        r"""Predict a block with all expert objects; states are not touched.

        Shapes: ``features`` (\*batch, B, F), ``y`` (B,) or (B, O), ``extra`` (B,); returns (M, B).
        """
        latent = [runner for _, runner in self.batches if isinstance(runner, LatentRunner)]
        if group is not None and len(latent) == len(self.batches):
            return stage_latent(group, latent, features, y)
        if extra is None:
            parts = [runner.stage(features[places[0]], y, has_gaps) for places, runner in self.batches]
        else:
            parts = [self._noisier(lane, features[lane.places[0]], y, has_gaps, extra) for lane in self.batches]
        steps = flatten(parts)
        return steps if self._order is None else type(steps)(*(field[self._order] for field in steps))

    def _noisier(self, lane: RunnerBatch, Phi: Tensor, y: Tensor, has_gaps: bool, extra: Tensor) -> Predictions:
        noise = noise_of([self._bound[place] for place in lane.places])
        counts = None if noise is None else row_counts(noise, extra)
        if noise is None or counts is None:
            return widened(lane.runner.stage(Phi, y, has_gaps), y, extra)
        steps = lane.runner.stage(Phi * counts.unsqueeze(-1), y * counts, has_gaps)
        return unscaled(steps, y, counts, noise, extra)

    def commit(self) -> None:
        """Learn the staged block."""
        for _, runner in self.batches:
            runner.commit()


def _order(batches: Sequence[RunnerBatch], bound: Sequence[BoundExpert]) -> Tensor | None:
    """Where each expert stands among the predictions of all lanes, (M,); ``None`` where they are in order."""
    places = [place for lane in batches for place in lane.places]
    if places == sorted(places):
        return None
    sizes = [b.prior_variance.numel() for b in bound]
    starts, at = {}, 0
    for place in places:
        starts[place] = at
        at += sizes[place]
    order = [starts[place] + m for place, size in enumerate(sizes) for m in range(size)]
    return torch.tensor(order, dtype=torch.int64, device=bound[0].prior_variance.device)
