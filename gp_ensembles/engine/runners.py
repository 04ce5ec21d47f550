"""Runners of all expert objects of an ensemble: one for Gaussian experts on one basis, one for each other object.

Experts on one basis that differ in how fast their weights walk, not at all for static ones, share their features, so
the fixed cost of a block is paid once for all of them. Their states are parts of one piece of memory. Objects of which
some experts are not run have runners of their own.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import final

import torch
from torch import Tensor

from gp_ensembles.engine.input_checks import missing_rows
from gp_ensembles.engine.predictions import flatten
from gp_ensembles.experts.base import BoundExpert, Expert, Runner, StagedRunner
from gp_ensembles.experts.gaussian import BoundGaussian, GaussianExpert
from gp_ensembles.experts.laplace import LatentGroup, LatentRunner, condition_latent
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import FilterState, GaussianState, Predictions
from gp_ensembles.filters.transitions import RandomWalk

# Numbers of expert objects on one basis, ascending, and the memory of their states, shape (K, *batch, F, F + 1).
SharedBases = Mapping[tuple[int, ...], Tensor]
# Numbers of expert objects and their runner, whose predictions have a leading axis for them if there are several.
RunnerBatch = tuple[tuple[int, ...], Runner]


def silent_runner(bound: BoundExpert, state: FilterState) -> StagedRunner:
    """No expert of an object: predictions are NaN, with log density minus infinity, and nothing is learned."""
    num_experts = bound.prior_variance.numel()

    def run(Phi: Tensor, rows: Rows, has_gaps: bool) -> tuple[Predictions, Callable[[], object]]:
        example = bound.predict(state, Phi[..., :1, :])
        axis, size = example.log_prob.ndim - 1, (num_experts, Phi.shape[-2])
        shapes = {name: (*size, *value.shape[axis + 1 :]) for name, value in example._asdict().items()}
        fields = {name: example.log_prob.new_full(shape, torch.nan) for name, shape in shapes.items()}
        return type(example)(**{**fields, "log_prob": impossible(rows.y, num_experts)}), lambda: None

    return StagedRunner(run)


class CompactRunner(Runner):
    """Runs only the living experts of a batch, at least one, on a copy of their states until :meth:`scatter`."""

    def __init__(self, bound: BoundExpert, state: FilterState, alive: Tensor) -> None:
        batch_shape = bound.prior_variance.shape
        num_axes = len(batch_shape)
        self._num_experts = batch_shape.numel()
        self._full = tuple(field.view(self._num_experts, *field.shape[num_axes:]) for field in state)
        self._alive = alive
        self._parts = type(state)(*(field[alive] for field in self._full))
        self._runner = bound.take(alive).runner(self._parts)

    def set_block(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> None:
        self._runner.set_block(Phi.reshape(self._num_experts, *Phi.shape[-2:])[self._alive], rows, has_gaps)

    def condition(self, rows: Rows) -> Predictions:
        living = self._runner.condition(rows)
        full = {name: self._scattered(value) for name, value in living._asdict().items()}
        full["log_prob"] = impossible(rows.y, self._num_experts).index_copy(0, self._alive, living.log_prob)
        return type(living)(**full)

    def commit(self) -> None:
        self._runner.commit()

    def scatter(self) -> None:
        """Write the living experts' states back."""
        for full, part in zip(self._full, self._parts, strict=True):
            full[self._alive] = part

    def _scattered(self, living: Tensor) -> Tensor:
        full = living.new_full((self._num_experts, *living.shape[1:]), torch.nan)
        full[self._alive] = living
        return full


def impossible(y: Tensor, num_experts: int) -> Tensor:
    """Log densities of minus infinity, (M, B); NaN where there is no target."""
    row = y.new_full(y.shape[:1], -torch.inf).masked_fill(missing_rows(y), torch.nan)
    return row.repeat(num_experts, 1)


def runners_without(
    experts: Sequence[Expert], bound: Sequence[BoundExpert], states: Sequence[FilterState], silent: Tensor, out: Tensor
) -> dict[int, Runner]:
    """Runners of the expert objects of which some experts are not run: those that are dead or in quarantine.

    Shapes: ``silent`` (L,), and ``out``, of those in quarantine among them.
    """
    runners: dict[int, Runner] = {}
    sizes = [expert.num_experts for expert in experts]
    parts = zip(experts, bound, states, silent.split(sizes), out.split(sizes), strict=True)
    for number, (expert, b, state, part, own) in enumerate(parts):
        runs_apart = expert.traits.runs_apart and (len(part) == 1 or not expert.traits.shares_state)
        if bool(part.all()) and (runs_apart or bool(own.any())):
            runners[number] = silent_runner(b, state)
        elif bool(part.any()) and runs_apart:
            runners[number] = CompactRunner(b, state, (~part).nonzero().squeeze(-1))
    return runners


def scatter(runners: Mapping[int, Runner]) -> None:
    """Write states back of which runners have copies."""
    for runner in runners.values():
        if isinstance(runner, CompactRunner):
            runner.scatter()


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
        cls, bound: Sequence[BoundExpert], states: Sequence[FilterState], shared_bases: SharedBases
    ) -> "RunnerBatches":
        """Experts on a shared basis together, each other object by itself."""
        joined = {places[0]: (places, moments) for places, moments in shared_bases.items()}
        taken = {place for places in shared_bases for place in places}
        batches = list[RunnerBatch]()
        for number, (expert, state) in enumerate(zip(bound, states, strict=True)):
            if number in joined:
                places, moments = joined[number]
                gaussian = [b for b in (bound[place] for place in places) if isinstance(b, BoundGaussian)]
                batches.append((places, _joined(gaussian, moments)))
            elif number not in taken:
                batches.append(((number,), expert.runner(state)))
        return cls(bound, states, batches)

    def single(self, number: int) -> Runner:
        """A runner of one expert object alone."""
        alone = (runner for places, runner in self.batches if places == (number,))
        return next(alone, None) or self._bound[number].runner(self._states[number])

    def replaced(self, runners: Mapping[int, Runner]) -> "RunnerBatches":
        """The same with other runners for some expert objects; others on the same basis then run alone, too."""
        batches: list[RunnerBatch] = []
        for places, runner in self.batches:
            if runners.keys().isdisjoint(places):
                batches.append((places, runner))
            else:
                batches += [((place,), runners.get(place) or self.single(place)) for place in places]
        return RunnerBatches(self._bound, self._states, batches)

    def set_block(self, features: Sequence[Tensor], rows: Rows, has_gaps: bool) -> None:
        r"""Take the features of a block, (\*batch, B, F) of each expert object; states are not touched."""
        for places, runner in self.batches:
            Phi = features[places[0]]
            runner.set_block(Phi if len(places) == 1 else Phi.expand(len(places), *Phi.shape), rows, has_gaps)

    def condition(self, group: LatentGroup | None, rows: Rows) -> Predictions:
        """Predictions (M, B) of the block by all expert objects; states are not touched."""
        parts, others = list[Predictions](), self.batches
        latent = [runner for _, runner in others if isinstance(runner, LatentRunner)]
        if group is not None and len(latent) == group.num_objects:
            parts.append(condition_latent(group, latent, rows))
            others = others[len(latent) :]
        steps = flatten([*parts, *(runner.condition(rows) for _, runner in others)])
        return steps if self._order is None else type(steps)(*(field[self._order] for field in steps))

    def commit(self) -> None:
        """Learn the staged block."""
        for _, runner in self.batches:
            runner.commit()


def _order(batches: Sequence[RunnerBatch], bound: Sequence[BoundExpert]) -> Tensor | None:
    """Place of each expert among the predictions of all batches, (M,); ``None`` if they are in order."""
    places = [place for places, _ in batches for place in places]
    if places == sorted(places):
        return None
    sizes = [b.prior_variance.numel() for b in bound]
    starts, at = {}, 0
    for place in places:
        starts[place] = at
        at += sizes[place]
    order = [starts[place] + m for place, size in enumerate(sizes) for m in range(size)]
    return torch.tensor(order, dtype=torch.int64, device=bound[0].prior_variance.device)
