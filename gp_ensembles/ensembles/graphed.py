"""An ensemble on a GPU without a wait: blocks of fixed length, recorded once as CUDA graphs and replayed."""

from typing import final

from torch import Tensor

from gp_ensembles.ensembles.ensemble import Ensemble
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.predictions import AnyMixture, EnsemblePredictions
from gp_ensembles.ensembles.recorded import CannotRecordError, check_recordable
from gp_ensembles.ensembles.state import EnsembleState
from gp_ensembles.ensembles.turns import Turns, in_turns


@final
@in_turns(learning=["observe"], reading=["predict", "state"])
class GraphedEnsemble:
    """An ensemble and its state, as :class:`OnlineEnsemble`, for those whose blocks can be recorded on a GPU.

    There :class:`OnlineEnsemble` records them, too, and runs other ensembles as on the host; this refuses them. Of
    small experts a GPU computes a block faster than the host can ask for it. So the block is recorded once, as a CUDA
    graph, and replayed; the host asks every 32 blocks how they went. A block with an outlier in it, or with an expert
    that fails, teaches nothing, nor do those queued behind it: the host learns it as :class:`OnlineEnsemble` does on
    the host and goes on behind it. Numbers are those of :class:`OnlineEnsemble` up to round-off. On the CPU the same
    code runs without a graph, which serves tests and nothing else: :class:`OnlineEnsemble` is faster there.

    Args:
        ensemble: The ensemble.
        state: State to start from, such as that of an :class:`OnlineEnsemble`, which is also the way back:
            ``OnlineEnsemble(ensemble, graphed.state)``; before any data by default. It is copied.
        block_size: Rows of a block. What is left of a call is learned in blocks of eight rows and row by row.

    Raises:
        TypeError: If the state of an expert has no fixed size, a weight rule or an expert must read numbers on the
            host, or targets are not single numbers.
        ValueError: If the block size is not positive, or a GPU has no memory for it.

    Example:
        >>> import torch
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

    def __init__(self, ensemble: Ensemble, state: EnsembleState | None = None, *, block_size: int = 64) -> None:
        self.turns: Turns = Turns()
        self._online = OnlineEnsemble(ensemble, state, block_size)
        self._online.records = True
        try:
            check_recordable(ensemble, self._online.state)
        except CannotRecordError as error:
            raise TypeError(f"{error}; or use OnlineEnsemble") from error

    @property
    def ensemble(self) -> Ensemble:
        """The ensemble."""
        return self._online.ensemble

    @property
    def block_size(self) -> int:
        """Rows of a block."""
        return self._online.block_size

    @property
    def why_eager(self) -> str | None:
        """Why a GPU did not record them, if it refused: blocks then run as they do where nothing is recorded."""
        return self._online.why_eager

    @property
    def state(self) -> EnsembleState:
        """The state, by reference: copy it before you keep it."""
        return self._online.state

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
        return self._online.observe(X, y)

    def predict(self, X: Tensor) -> AnyMixture:
        """Predict one step ahead at each row of X (N, D) on its own, learning nothing.

        Raises:
            ValueError: As in :meth:`observe`.
            TypeError: As in :meth:`observe`.
        """
        return self._online.predict(X)
