"""Ensemble with its hyperparameters read once, which ``OnlineEnsemble`` uses until one of them changes."""

from collections.abc import Mapping
from functools import cached_property
from operator import attrgetter, is_

import torch
from torch import Tensor

from gp_ensembles.distributions.latent_mixture import Response
from gp_ensembles.engine.ensemble import Ensemble, responses_of
from gp_ensembles.engine.one_row import RowEnsemble
from gp_ensembles.engine.quarantine import places_out
from gp_ensembles.engine.recorded import Recording
from gp_ensembles.engine.runners import RunnerBatches, SharedBases
from gp_ensembles.engine.state import EnsembleState, named_tensors
from gp_ensembles.engine.weighing import with_lags
from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.laplace import LatentGroup, join_latent
from gp_ensembles.features.base import FeatureMap

_VERSION = attrgetter("_version")


class BoundEnsemble:
    """Experts bound to their hyperparameters, their runners, and whether these are still up to date."""

    def __init__(self, ensemble: Ensemble, state: EnsembleState, shared_bases: SharedBases) -> None:
        self._parameters = list(ensemble.parameters())
        self._as_bytes = all(p.device.type == "cpu" and p.is_contiguous() for p in self._parameters)
        self._memories = [p.detach().numpy().data for p in self._parameters] if self._as_bytes else []
        self._pointers = [p.data_ptr() for p in self._parameters] if self._as_bytes else []
        self._values = self._read()
        self._buffers = list(ensemble.buffers())
        self._versions = list(map(_VERSION, self._buffers))
        names, tensors = zip(*named_tensors(state), strict=True)
        self._names: tuple[str, ...] = names
        self._tensors: tuple[Tensor, ...] = tensors
        self._ensemble, self._shared_bases = ensemble, shared_bases
        self.state = state
        self.out: tuple[int, ...] = places_out(state.quarantine)  # rebuilt when an expert enters or leaves quarantine
        self.like: Tensor = state.meta.log_weights
        self.bounded: tuple[FeatureMap, ...] = ensemble.bounded_features()
        self.experts: tuple[BoundExpert, ...] = ensemble.bind()
        self.latent_group: LatentGroup | None = join_latent(self.experts)  # None unless all experts share a likelihood
        if self.latent_group is None:
            self.responses: tuple[Response, ...] = tuple(response.frozen() for response in responses_of(self.experts))
        else:
            group, shape = self.latent_group, torch.Size([ensemble.num_experts])
            self.responses = (Response(group.likelihood, group.predictive, ensemble.num_experts, shape),)
        self.checkers: tuple[Expert, ...] = ensemble.experts[:1] if self.latent_group is not None else ensemble.experts
        limits = (e.transition.max_rows for e in ensemble.experts if e.transition is not None)
        self.limits: list[int] = [limit for limit in limits if limit is not None]  # longest blocks of transitions
        self.recording: Recording | None = None  # made on first use
        self.batches: RunnerBatches = RunnerBatches.of(self.experts, state.experts, shared_bases)

    def inputs(self, X: Tensor, y: Tensor) -> Tensor:
        """Inputs of a block as the experts see them, (B, D + P)."""
        return with_lags(self._ensemble.memory, self.state.history, X, y)[1]

    def is_fresh(self, buffers: Mapping[str, Tensor | None]) -> bool:
        """Whether nothing that was read has changed since, and the state is still in these buffers."""
        # Without a Python loop over tensors: this runs for every row.
        return (
            all(map(is_, map(buffers.get, self._names), self._tensors))
            and self._versions == list(map(_VERSION, self._buffers))
            and self._is_equal()
        )

    @cached_property
    def row(self) -> RowEnsemble | None:
        """The fast path for single rows, to be flushed afterwards; ``None`` where only blocks can run."""
        return RowEnsemble.of(self._ensemble, self.experts, self.state, self._shared_bases)

    def flush(self) -> None:
        """Complete the state after single rows."""
        row = self.__dict__.get("row")  # do not build it here
        if row is not None:
            row.flush()

    def _is_equal(self) -> bool:
        """Whether no hyperparameter has changed."""
        if self._as_bytes and self._pointers != list(map(Tensor.data_ptr, self._parameters)):
            return False
        now, then = self._read(), self._values
        return torch.equal(now, then) if isinstance(now, Tensor) and isinstance(then, Tensor) else now == then

    def _read(self) -> bytes | Tensor:
        """The hyperparameters; as bytes on the CPU, where rows may come one at a time."""
        if self._as_bytes:
            return b"".join(self._memories)
        return torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
