"""An ensemble on a GPU without a wait: blocks of fixed length, recorded once as CUDA graphs and replayed."""

import copy
from typing import final

import torch
from torch import Tensor

from gp_ensembles.ensembles.ensemble import Ensemble
from gp_ensembles.ensembles.fixed_block import FixedBlock, Progress, with_tensors
from gp_ensembles.ensembles.fixed_size import check_fixed_size
from gp_ensembles.ensembles.interrupts import uninterrupted
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.predictions import AnyMixture, EnsemblePredictions, concatenate_predictions
from gp_ensembles.ensembles.quarantine import places_out
from gp_ensembles.ensembles.state import EnsembleState, named_tensors, way_back
from gp_ensembles.ensembles.turns import Turns, in_turns
from gp_ensembles.numerics.reductions import readable_all

_AHEAD = 32  # blocks that are queued before the host asks how they went
_SHORT = (8, 1)  # further lengths, for what is left


@final
@in_turns(learning=["observe"], reading=["predict", "state"])
class GraphedEnsemble:
    """An ensemble and its state, as :class:`OnlineEnsemble`, for long streams on a GPU.

    Of small experts a GPU computes a block faster than the host can ask for it. So the block is recorded once, as a
    CUDA graph, and replayed; the host asks every 32 blocks how they went. A block with an outlier in it, or with an
    expert that fails, teaches nothing, nor do those queued behind it: the host learns it as :class:`OnlineEnsemble`
    does and goes on behind it. Numbers are those of :class:`OnlineEnsemble` up to round-off. On the CPU the same code
    runs without a graph, which serves tests and nothing else: :class:`OnlineEnsemble` is faster there.

    Args:
        ensemble: The ensemble. Its hyperparameters are read here and not again.
        state: State to start from, such as that of an :class:`OnlineEnsemble`, which is also the way back:
            ``OnlineEnsemble(ensemble, graphed.state)``; before any data by default. It is copied.
        block_size: Rows of a block. What is left of a call is learned in blocks of eight rows and row by row.

    Raises:
        TypeError: If the state of an expert has no fixed size, or a weight rule or an expert must read numbers on the
            host.
        ValueError: If the block size is not positive, or targets are not single numbers.

    Example:
        >>> from gp_ensembles.experts import GaussianExpert
        >>> from gp_ensembles.features import LinearFeatures
        >>> from gp_ensembles.meta_learners import FixedShare
        >>> expert = GaussianExpert(LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64)))
        >>> ensemble = Ensemble([expert], FixedShare())
        >>> X = torch.linspace(0, 1, 100, dtype=torch.float64).unsqueeze(-1)
        >>> graphed, online = GraphedEnsemble(ensemble), OnlineEnsemble(ensemble)
        >>> one, other = graphed.observe(X, 3 * X.squeeze(-1)), online.observe(X, 3 * X.squeeze(-1))
        >>> torch.allclose(one.mean, other.mean)
        True
    """

    ensemble: Ensemble
    block_size: int

    def __init__(self, ensemble: Ensemble, state: EnsembleState | None = None, *, block_size: int = 64) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be positive, got {block_size}")
        self.turns: Turns = Turns()
        self.ensemble, self.block_size = ensemble, block_size
        online = OnlineEnsemble(ensemble, state)  # copies the state
        check_fixed_size(ensemble, online.state, "a graph")
        self._state = online.state
        like = self._state.meta.num_seen
        self._progress = Progress(torch.zeros_like(like, dtype=torch.bool), torch.zeros_like(like))
        self._blocks: dict[tuple[int, bool], _Recorded] = {}
        _check_reads(ensemble, self._state)

    @property
    def state(self) -> EnsembleState:
        """The state, by reference: copy it before you keep it."""
        return self._state

    @torch.no_grad()
    def observe(self, X: Tensor, y: Tensor) -> EnsemblePredictions:
        """Predict each target, then learn it; a call that is rejected or interrupted leaves everything as it was.

        Args:
            X: Inputs in the order of time, shape (N, D).
            y: Targets, shape (N,); NaN where missing.

        Returns:
            Predictions made before each target.

        Raises:
            ValueError: If a shape is wrong, an input is not finite, or a target is infinite.
            TypeError: If a dtype is wrong.
            NumericalError: If no expert is left.
        """
        self.ensemble.check_block(X, y)
        restore = way_back(self._state, len(y))
        try:
            return self._observe(X, y, has_gaps=not readable_all(~y.isnan()))
        except BaseException:
            with uninterrupted():
                restore()
            raise

    @torch.no_grad()
    def predict(self, X: Tensor) -> AnyMixture:
        """Predict one step ahead at each row of X (N, D) on its own, learning nothing.

        Raises:
            ValueError: As in :meth:`observe`.
            TypeError: As in :meth:`observe`.
        """
        return self.ensemble.predict(self._state, X)

    def _observe(self, X: Tensor, y: Tensor, has_gaps: bool) -> EnsemblePredictions:
        parts, row = list[EnsemblePredictions](), 0
        someone_is_out = bool(places_out(self._state.quarantine))
        while row < len(y):
            length = next(size for size in (self.block_size, *_SHORT) if size <= len(y) - row)
            if not someone_is_out:
                queued = min((len(y) - row) // length, _AHEAD)
                num_done = self._replay(self._block(length, has_gaps), X[row:], y[row:], queued, parts)
                row += num_done * length
                if num_done == queued:
                    continue
            here = slice(row, row + length)
            parts.append(self._by_host(X[here], y[here]))
            someone_is_out = bool(places_out(self._state.quarantine))
            row += length
        return concatenate_predictions(parts)

    def _replay(self, block: "_Recorded", X: Tensor, y: Tensor, queued: int, parts: list[EnsemblePredictions]) -> int:
        """Learn so many blocks, or those before the first that is left to the host, and tell how many these are."""
        length, progress = len(block.fixed.y), self._progress
        progress.stopped.zero_()
        progress.num_done.zero_()
        said = block.fixed.said.new_empty(len(block.fixed.said), queued * length)
        for first in range(0, queued * length, length):
            here = slice(first, first + length)
            block.fixed.X.copy_(X[here])
            block.fixed.y.copy_(y[here])
            block.run()
            said[:, here].copy_(block.fixed.said)
        num_done = int(progress.num_done)  # the only wait
        if num_done:
            parts.append(block.fixed.predictions(said[:, : num_done * length]))
        return num_done

    def _by_host(self, X: Tensor, y: Tensor) -> EnsemblePredictions:
        """Learn rows as :class:`OnlineEnsemble` does, which looks after outliers and failures."""
        online = OnlineEnsemble(self.ensemble, self._state)
        predictions = online.observe(X, y)
        for (_, old), (_, new) in zip(named_tensors(self._state), named_tensors(online.state), strict=True):
            old.copy_(new)
        return predictions

    def _block(self, length: int, has_gaps: bool) -> "_Recorded":
        key = length, has_gaps
        if key not in self._blocks:
            fixed = FixedBlock(self.ensemble, self._state._replace(quarantine=None), *key, self._progress)
            self._blocks[key] = _Recorded(fixed, self._progress)
        return self._blocks[key]


def _check_reads(ensemble: Ensemble, state: EnsembleState) -> None:
    """Raise if a block needs a number on the host: on the meta device there are none.

    Raises:
        TypeError: Saying so.
    """
    twin, like = copy.deepcopy(ensemble).to("meta"), state._replace(quarantine=None)
    there = with_tensors(like, (torch.zeros_like(value, device="meta") for _, value in named_tensors(like)))
    progress = Progress(there.meta.num_seen.bool(), there.meta.num_seen.clone())
    try:
        FixedBlock(twin, there, 2, True, progress).run()
    except (RuntimeError, NotImplementedError) as error:
        raise TypeError(
            f"an expert or the rule of this ensemble reads numbers while it learns, which no graph can record "
            f"({error}); use OnlineEnsemble"
        ) from error


@final
class _Recorded:
    """A block that is replayed from a CUDA graph, or run as it is on other devices.

    Args:
        fixed: The block.
        progress: Where it tells whether it learned.
    """

    def __init__(self, fixed: FixedBlock, progress: Progress) -> None:
        self.fixed = fixed
        self._graph: torch.cuda.CUDAGraph | None = None
        if fixed.y.device.type == "cuda":
            progress.stopped.fill_(True)  # the runs that warm up learn nothing
            stream = torch.cuda.Stream(fixed.y.device)
            stream.wait_stream(torch.cuda.current_stream(fixed.y.device))
            with torch.cuda.stream(stream):
                for _ in range(3):
                    fixed.run()
            torch.cuda.current_stream(fixed.y.device).wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                fixed.run()

    def run(self) -> None:
        """Predict and learn what stands in the block's memory."""
        if self._graph is None:
            self.fixed.run()
        else:
            self._graph.replay()
