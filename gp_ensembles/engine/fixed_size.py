"""Which ensembles have a state of fixed size, of which nothing has to be read while it learns."""

import torch

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.state import EnsembleState
from gp_ensembles.experts.laplace import BoundLaplace
from gp_ensembles.filters.states import GaussianState, SquareRootState, StudentTState


def check_fixed_size(ensemble: Ensemble, start: EnsembleState, what: str) -> None:
    """Raise unless many states of an ensemble could be learned at once, or one without a wait.

    Raises:
        TypeError: If an expert's state has no fixed size, or the rule reads numbers.
        ValueError: If there are several targets, or forecasts of others among the inputs.
    """
    if ensemble.num_outputs is not None or ensemble.forecasts:
        raise ValueError(f"ensembles of {what} have one target, and no forecasts of others among their inputs")
    try:
        meta = type(start.meta)(*(part.unsqueeze(0) for part in start.meta))
        zero = start.meta.log_weights.new_zeros(1, ensemble.num_experts, 1)
        torch.func.vmap(ensemble.meta_learner.update_block)(meta, zero)
    except RuntimeError:
        rule = type(ensemble.meta_learner).__name__
        raise TypeError(f"{rule} cannot be the rule of {what}; take FixedShare() or another rule") from None
    for expert, bound, state in zip(ensemble.experts, ensemble.bind(), start.experts, strict=True):
        if isinstance(bound, BoundLaplace) and bound.num_latent > 1:
            raise TypeError(f"ensembles of {what} have one latent value: two classes, levels or counts, not classes")
        if not isinstance(state, GaussianState | SquareRootState | StudentTState):
            raise TypeError(
                f"{type(expert).__name__} cannot be an expert of {what}, whose states have a fixed size; leave it "
                f"out, as the preset light does"
            )
