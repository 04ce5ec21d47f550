"""An ensemble whose experts lie on several processes: each runs its own, and all weigh all of them."""

import re
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from gp_ensembles.distributed.pieces import Piece, pieces_of, share_of
from gp_ensembles.distributed.ranks import Ranks
from gp_ensembles.ensembles.ensemble import Ensemble, evaluate
from gp_ensembles.ensembles.input_checks import check_inputs, check_targets, missing_rows
from gp_ensembles.ensembles.likeness import check_parts, parts_in_words
from gp_ensembles.ensembles.predictions import (
    AnyMixture,
    EnsemblePredictions,
    concatenate_predictions,
    flatten,
    make_mixture,
)
from gp_ensembles.ensembles.runners import make_runner
from gp_ensembles.ensembles.sizes import check_states_fit
from gp_ensembles.ensembles.spec_checks import check_made
from gp_ensembles.ensembles.state import EnsembleState, named_layers, way_back
from gp_ensembles.ensembles.weighing import beside, run_block
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.experts.student_t import StudentTExpert
from gp_ensembles.files.checkpoint import Kind, read_checkpoint, write_checkpoint
from gp_ensembles.files.operations import make_folder, remove_if_possible
from gp_ensembles.filters.states import FilterState, Predictions, StepPredictions, StudentTPredictions
from gp_ensembles.innovations import InnovationState
from gp_ensembles.meta_learners.base import MetaState
from gp_ensembles.numerics.cholesky import NumericalError

_KIND = Kind(
    "gp_ensembles distributed", 1, "a distributed ensemble", "give a folder that a DistributedEnsemble was saved in"
)
_HEAD = "ensemble.pt"
_NUMBERED = re.compile(r"experts-.*-at-\d+-(\d+)\.pt")


@final
class DistributedEnsemble:
    """An ensemble and its state, over the processes of a group of ``torch.distributed``.

    Every process makes the same ensemble and is given the same rows. It keeps the states of its share of the experts;
    a block costs one exchange of the experts' predictions, after which all weigh all experts alike. Experts are
    computed in pieces that do not depend on the number of processes, so weights and mixture have the same bits on any
    number of them. Without a group it runs alone.

    An expert that fails on one process fails on all: the call is refused on each, and nothing is learned. Where a
    process ends, the others raise :class:`RankLostError` within the timeout of the group.

    Args:
        ensemble: The ensemble: experts with Gaussian noise, known or not.
        group: The process group; the default one if ``None``.
        state: The state to go on from, that of an ensemble that is whole; by default, the one before any data.
        block_size: Rows learned at once.
        piece_size: Experts of an object that are computed together.

    Raises:
        TypeError: If this is no ensemble, or an expert is of another kind.
        ValueError: If there are more processes than pieces, a number is not positive, or a GPU has no memory for it.

    Example:
        >>> import torch
        >>> from gp_ensembles.features import LinearFeatures
        >>> from gp_ensembles.meta_learners import FixedShare
        >>> expert = GaussianExpert(LinearFeatures(1, torch.ones(3, dtype=torch.float64)))
        >>> online = DistributedEnsemble(Ensemble([expert], FixedShare()))
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> online.observe(X, X.squeeze(-1)).log_weights.shape
        torch.Size([3, 50])
    """

    ensemble: Ensemble
    block_size: int

    def __init__(
        self,
        ensemble: Ensemble,
        group: dist.ProcessGroup | None = None,
        *,
        state: EnsembleState | None = None,
        block_size: int = 32,
        piece_size: int = 8,
    ) -> None:
        if block_size < 1 or piece_size < 1:
            raise ValueError(f"block_size and piece_size must be positive, got {block_size} and {piece_size}")
        check_made("ensemble", ensemble, Ensemble, "Ensemble([expert], FixedShare())")
        for expert in ensemble.experts:
            if not isinstance(expert, GaussianExpert | StudentTExpert):
                raise TypeError(
                    f"{type(expert).__name__} cannot lie on several processes yet; take experts with Gaussian noise"
                )
        self.ensemble, self.block_size = ensemble, block_size
        self.ranks: Ranks = Ranks(group)
        self._pieces = pieces_of(ensemble.experts, piece_size)
        num = self.ranks.size
        if num > len(self._pieces):
            raise ValueError(
                f"{num} processes for {len(self._pieces)} pieces of experts; take fewer processes, or a smaller "
                f"piece_size than {piece_size}"
            )
        costs = [piece.size * ensemble.experts[piece.number].features.num_features ** 2.0 for piece in self._pieces]
        shares = [[self._pieces[place] for place in share_of(costs, rank, num)] for rank in range(num)]
        self._sizes = [sum(piece.size for piece in share) for share in shares]
        self._own = shares[self.ranks.rank]
        experts = [piece.of(ensemble.experts) for piece in self._own]
        whole = ensemble.init_layers() if state is None else state
        check_states_fit(experts, block_size, whole.meta.log_weights)
        if whole.quarantine is not None and bool((whole.quarantine.until != 0).any()):
            raise ValueError("some experts of this state are in quarantine; observe on until they are back")
        if state is None:
            own = tuple(expert.init() for expert in experts)
        else:
            own = tuple(piece.of_states(ensemble.experts, state.experts) for piece in self._own)
        self._state = _copied(EnsembleState(own, whole.meta, whole.innovations, whole.history))
        with torch.no_grad():
            self._bound = [expert.bind() for expert in experts]
            self._runners = [make_runner(b, state) for b, state in zip(self._bound, self._state.experts, strict=True)]
        self._has_df = any(isinstance(expert, StudentTExpert) for expert in ensemble.experts)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the M experts."""
        return self.ensemble.names

    @property
    def num_own(self) -> int:
        """Number of experts of this process."""
        return self._sizes[self.ranks.rank]

    @property
    def own_states(self) -> tuple[FilterState, ...]:
        """States of the pieces of this process, by reference."""
        return self._state.experts

    @property
    def log_weights(self) -> Tensor:
        """Log weights in force for the next target, shape (M,), the same on all processes."""
        return self.ensemble.layers.rule.log_weights(self._state.meta)

    @torch.no_grad()
    def observe(self, X: Tensor, y: Tensor) -> EnsemblePredictions:
        """Predict each target, then learn it; a rejected call leaves everything as it was, on all processes.

        Args:
            X: Inputs in the order of time, shape (N, D), the same on all processes.
            y: Targets, shape (N,); NaN where missing.

        Returns:
            Predictions made before each target, of all experts, the same on all processes.

        Raises:
            ValueError: If a shape is wrong, an input is not finite or outside a feature map's domain, or a target is
                infinite.
            TypeError: If a dtype or device is wrong.
            NumericalError: If an expert fails, on any process.
            RankLostError: If another process is not there any more.
        """
        self._check(X)
        check_targets(X, y, None)
        for expert in self.ensemble.experts:
            expert.check_targets(y)
        restore = way_back(self._state, len(y)) if len(y) > self.block_size else _nothing
        try:
            parts = zip(X.split(self.block_size), y.split(self.block_size), strict=True)
            return concatenate_predictions([self._block(rows, targets) for rows, targets in parts])
        except BaseException:
            restore()
            raise

    @torch.no_grad()
    def predict(self, X: Tensor) -> AnyMixture:
        """Predict one step ahead at each row of X (N, D) on its own, learning nothing; arguments as in observe."""
        self._check(X)
        layers, state = self.ensemble.layers, self._state
        rows = X
        if layers.memory is not None and state.history is not None:
            rows = torch.cat([X, layers.memory.next_columns(state.history, len(X))], dim=-1)
        features = evaluate(self._bound, rows)
        steps = self._gathered(
            [b.predict(own, Phi) for b, own, Phi in zip(self._bound, state.experts, features, strict=True)]
        )
        if layers.bank is not None and state.innovations is not None:
            steps = beside(steps, layers.bank.predict(state.innovations, steps.mean, steps.variance))
        return make_mixture(self.log_weights.clone(), steps, ())

    def save(self, folder: str | Path) -> None:
        """Write all states into a folder: each process its own, then one of them what is common, which names them.

        A save that does not come to its end leaves the one before. All processes write into the same folder.

        Raises:
            OSError: If a file cannot be written.
            RankLostError: If another process is not there any more.
        """
        place = Path(folder)
        make_folder(place)
        at = f"{int(self._state.meta.num_seen)}-{self.ranks.agreed(_next_number(place))}"
        for piece, state in zip(self._own, self._state.experts, strict=True):
            write_checkpoint(place / _file(piece, at), _KIND, {"state": dict(state._asdict()), "at": at})
        self.ranks.wait()
        if self.ranks.rank == 0:
            layers = {name: value.cpu() for name, value in named_layers(self._state)}
            pieces = [list(piece) for piece in self._pieces]
            head = {"layers": layers, "ensemble": dict(self.ensemble.state_dict()), "pieces": pieces, "at": at}
            write_checkpoint(place / _HEAD, _KIND, {**head, "parts": parts_in_words(self.ensemble)})
            known = {_file(piece, at) for piece in self._pieces}
            for path in place.glob("experts-*.pt"):
                if path.name not in known:
                    remove_if_possible(path)
        self.ranks.wait()

    def load(self, folder: str | Path) -> None:
        """Go on from a folder that any number of processes wrote, to the bit.

        Raises:
            OSError: If a file cannot be read.
            ValueError: If a file is damaged, or of another ensemble, or in other pieces; then nothing changes.
        """
        place = Path(folder)
        head = read_checkpoint(place / _HEAD, _KIND)
        check_parts(self.ensemble, head.get("parts", {}), place)
        if head["pieces"] != [list(piece) for piece in self._pieces]:
            raise ValueError(f"{place} holds an ensemble in other pieces; take the same experts and piece_size")
        own = {name: tuple(value.shape) for name, value in self.ensemble.state_dict().items()}
        if own != {name: tuple(value.shape) for name, value in head["ensemble"].items()}:
            raise ValueError(f"{place} holds another ensemble; build it as it was built then")
        parts = [read_checkpoint(place / _file(piece, head["at"]), _KIND) for piece in self._own]
        self.ensemble.load_state_dict(head["ensemble"])
        kinds = [type(piece.of(self.ensemble.experts).init()) for piece in self._own]  # which hyperparameters decide
        layers = {name: value.to(self._like.device) for name, value in head["layers"].items()}
        experts = [
            kind(**{name: value.to(self._like.device) for name, value in part["state"].items()})
            for kind, part in zip(kinds, parts, strict=True)
        ]
        self._take(experts, layers)

    def _take(self, experts: list[FilterState], layers: dict[str, Any]) -> None:
        state = self._state
        meta = MetaState(*(layers[f"meta_{name}"] for name in MetaState._fields))
        innovations = None
        if state.innovations is not None:
            innovations = InnovationState(*(layers[f"innovations_{name}"] for name in InnovationState._fields))
        self._state = EnsembleState(tuple(experts), meta, innovations, layers.get("history"))
        with torch.no_grad():
            self._bound = [piece.of(self.ensemble.experts).bind() for piece in self._own]
            self._runners = [make_runner(b, own) for b, own in zip(self._bound, self._state.experts, strict=True)]

    @property
    def _like(self) -> Tensor:
        return self._state.meta.log_weights

    def _check(self, X: Tensor) -> None:
        check_inputs(X, self.ensemble.num_inputs, self._like, self.ensemble.bounded_features())

    def _block(self, X: Tensor, y: Tensor) -> EnsemblePredictions:
        has_gaps = bool(torch.isnan(y).any())

        def stage(inputs: Tensor, targets: Tensor, root: Tensor | None) -> Predictions:
            features = evaluate(self._bound, inputs)
            if root is not None:
                features, targets = [Phi * root.unsqueeze(-1) for Phi in features], targets * root
            parts = []
            for runner, Phi, piece in zip(self._runners, features, self._own, strict=True):
                try:
                    parts.append(runner.stage(Phi, targets, has_gaps))
                except NumericalError:  # the others shall hear of it
                    none = torch.full((piece.size, len(targets)), torch.nan, dtype=y.dtype, device=y.device)
                    parts.append(StepPredictions(none, none, none))
            return self._gathered(parts)

        missing = missing_rows(y) if has_gaps else None
        done = run_block(self.ensemble.layers, self._state, X, y, stage, missing=missing)
        for runner in self._runners:
            runner.commit()
        self._state = self._state._replace(meta=done.meta, innovations=done.innovations, history=done.history)
        return done.predictions

    def _gathered(self, parts: list[Predictions]) -> Predictions:
        """The predictions of all processes, (M, B) each."""
        own = flatten(parts)
        if self._has_df and not isinstance(own, StudentTPredictions):
            own = StudentTPredictions(own.mean, own.variance, own.log_prob, torch.full_like(own.mean, torch.inf))
        whole = self.ranks.gather(torch.stack(list(own), dim=1), self._sizes)
        return type(own)(*whole.unbind(1))


def _copied(state: EnsembleState) -> EnsembleState:
    experts = tuple(type(part)(*(value.detach().clone() for value in part)) for part in state.experts)
    return state._replace(experts=experts)


def _file(piece: Piece, at: str | int) -> str:
    """The file of a piece, saved when the weight rule had seen so many rows, and which of the saves in a folder it was.

    No save writes into files of another one, which may be of another run: files of earlier versions have no number.
    """
    return f"experts-{piece.start}-{piece.start + piece.size}-at-{at}.pt"


def _next_number(place: Path) -> int:
    numbers = [int(found[1]) for path in place.iterdir() if (found := _NUMBERED.fullmatch(path.name))]
    return 1 + max(numbers, default=0)


def _nothing() -> None:
    pass
