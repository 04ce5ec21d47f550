"""How the parameters of a fusion model are learned: one interface for all ways."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.fusion.draws import Draws
from gp_ensembles.fusion.model import FusionModel
from gp_ensembles.fusion.report import Report
from gp_ensembles.numerics.cholesky import NumericalError


class Inferred(NamedTuple):
    """Weighted draws of the parameters of a model.

    Args:
        theta: Draws, shape (S, P).
        log_weights: Log weights of the draws, summing to one, shape (S,).
        report: How they were found and how far to believe them.
        draws: The chains behind them, all of them and unweighted, with the state from which they go on; ``None`` if
            there are no chains.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.report import Report
        >>> theta = torch.zeros(2, 3)
        >>> inferred = Inferred(theta, theta[:, 0].log_softmax(0), Report("MAP", 0.1, 10, theta[:, 0]))
        >>> inferred.log_weights.exp()
        tensor([0.5000, 0.5000])
    """

    theta: Tensor
    log_weights: Tensor
    report: Report
    draws: Draws | None = None


class Inference(ABC):
    """A way to learn the parameters of a fusion model."""

    @abstractmethod
    def infer(self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = True) -> Inferred:
        """Draws of the parameters given the model's training data.

        Args:
            model: The model.
            generator: Source of randomness; torch's global one if ``None``.
            progress: Whether to show a progress bar.

        Raises:
            NumericalError: If the log joint density cannot be used where the search starts.
        """


def nothing_to_learn(model: FusionModel, method: str) -> Inferred:
    """The one possible draw of a model without parameters, such as the stacking of a single expert.

    Raises:
        NumericalError: If the log likelihood is not finite.
    """
    theta = model.prior_mean.unsqueeze(0)
    value = model.log_joint(theta)
    if not bool(value.isfinite().all()):
        raise NumericalError("the log likelihood is not finite: check the targets and the variances of the expert")
    return Inferred(theta, torch.zeros_like(value), Report(method, 0.0, 0, value, log_evidence=float(value)))


def complain(complaints: Sequence[str]) -> tuple[str, ...]:
    """Warn of each, on behalf of the caller of the caller; returns them.

    Example:
        >>> complain([])
        ()
    """
    for complaint in complaints:
        warnings.warn(complaint, stacklevel=4)
    return tuple(complaints)
