"""Runners of all expert objects of an ensemble: one for Gaussian experts on one basis, one for each other object.

Experts on one basis that differ in how fast their weights walk, not at all for static ones, share their features, so
the fixed cost of a block is paid once for all of them. Their states are parts of one piece of memory.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.engine.predictions import flatten
from gp_ensembles.experts.base import BoundExpert, Expert, Runner
from gp_ensembles.experts.gaussian import BoundGaussian, GaussianExpert
from gp_ensembles.experts.laplace import LatentGroup, LatentRunner, stage_latent
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import (
    FilterState,
    GaussianState,
    Predictions,
)
from gp_ensembles.filters.transitions import RandomWalk


class SharedBasisBatch(NamedTuple):
    r"""Expert objects on one basis, or a single one.

    Attributes:
        places: Their numbers, ascending.
        moments: The memory of their states [covariance | mean], shape (K, \*batch, F, F + 1).
    """

    places: tuple[int, ...]
    moments: Tensor


class RunnerBatch(NamedTuple):
    """A runner of one or more expert objects.

    Attributes:
        places: Their numbers.
        runner: Its predictions have a leading axis for them if there are several.
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


def make_contiguous(buffers: MutableMapping[str, Tensor | None], names: Sequence[str]) -> Tensor:
    """Tensors of one shape as one, with a leading axis; moved to one piece of memory if they are not in one."""
    values = [value for value in (buffers[name] for name in names) if value is not None]
    assert len(values) == len(names)
    first, size = values[0], values[0].numel()
    memory, start = first.untyped_storage().data_ptr(), first.storage_offset()
    places = [(v.untyped_storage().data_ptr(), v.storage_offset(), v.is_contiguous()) for v in values]
    if places == [(memory, start + k * size, True) for k in range(len(values))]:
        return first.as_strided((len(values), *first.shape), (size, *first.stride()))
    whole = torch.stack(values)
    for name, part in zip(names, whole.unbind(0), strict=True):
        buffers[name] = part
    return whole


def _joined(bound: Sequence[BoundGaussian], moments: Tensor) -> Runner:
    r"""A runner of K Gaussian objects on one basis, static or walking; moments (K, \*batch, F, F + 1)."""
    prior, noise = (
        torch.stack(parts).detach() for parts in zip(*((b.prior_variance, b.noise) for b in bound), strict=True)
    )
    walk = _walks(bound, moments.shape[-2])
    whole = BoundGaussian(bound[0].features, prior, None if walk is None else RandomWalk(walk), noise)
    return whole.runner(GaussianState(moments))


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
    """Runners of all expert objects of an ensemble."""

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
        """Experts on a shared basis together, each other object by itself."""
        joined = {places[0]: (places, moments) for places, moments in shared_bases}
        taken = {place for places, _ in shared_bases for place in places}
        batches = []
        for number, (expert, state) in enumerate(zip(bound, states, strict=True)):
            if number in joined:
                places, moments = joined[number]
                gaussian = [b for b in (bound[place] for place in places) if isinstance(b, BoundGaussian)]
                batches.append(RunnerBatch(places, _joined(gaussian, moments)))
            elif number not in taken:
                batches.append(RunnerBatch((number,), expert.runner(state)))
        return cls(bound, states, batches)

    def single(self, number: int) -> Runner:
        """A runner of one expert object alone."""
        alone = (runner for places, runner in self.batches if places == (number,))
        return next(alone, None) or self._bound[number].runner(self._states[number])

    def replaced(self, runners: Mapping[int, Runner]) -> "RunnerBatches":
        """The same with other runners for some expert objects; others on the same basis then run alone, too."""
        batches: list[RunnerBatch] = []
        for batch in self.batches:
            if runners.keys().isdisjoint(batch.places):
                batches.append(batch)
            else:
                batches += [RunnerBatch((place,), runners.get(place) or self.single(place)) for place in batch.places]
        return RunnerBatches(self._bound, self._states, batches)

    def stage(self, group: LatentGroup | None, features: Sequence[Tensor], rows: Rows, has_gaps: bool) -> Predictions:
        r"""Predictions (M, B) of a block by all expert objects, each (\*batch, B, F); states are not touched."""
        latent = [runner for _, runner in self.batches if isinstance(runner, LatentRunner)]
        if group is not None and len(latent) == len(self.batches):
            return stage_latent(group, latent, features, rows)
        parts = []
        for places, runner in self.batches:
            Phi = features[places[0]]
            Phi = Phi if len(places) == 1 else Phi.expand(len(places), *Phi.shape)
            parts.append(runner.stage(Phi, rows, has_gaps))
        steps = flatten(parts)
        return steps if self._order is None else type(steps)(*(field[self._order] for field in steps))

    def commit(self) -> None:
        """Learn the staged block."""
        for _, runner in self.batches:
            runner.commit()


def _order(batches: Sequence[RunnerBatch], bound: Sequence[BoundExpert]) -> Tensor | None:
    """Place of each expert among the predictions of all batches, (M,); ``None`` if they are in order."""
    places = [place for batch in batches for place in batch.places]
    if places == sorted(places):
        return None
    sizes = [b.prior_variance.numel() for b in bound]
    starts, at = {}, 0
    for place in places:
        starts[place] = at
        at += sizes[place]
    order = [starts[place] + m for place, size in enumerate(sizes) for m in range(size)]
    return torch.tensor(order, dtype=torch.int64, device=bound[0].prior_variance.device)
