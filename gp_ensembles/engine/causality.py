"""Causality check of external models: predictions depend on past rows and the inputs of their own row only."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import evaluate
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.weighing import with_lags
from gp_ensembles.experts.adapters import ModelAdapter
from gp_ensembles.experts.external import BoundExternal, ExternalExpert, TrainedModels
from gp_ensembles.features.linear import InputFeatures
from gp_ensembles.filters.states import ExternalState

_PLACES = 7  # rows at which the rest of the stream is changed

# Means and variances (2, N) of rows X (N, D) and y (N,) that come in blocks of so many.
_Run = Callable[[Tensor, Tensor, int], Tensor]


@torch.no_grad()
def check_causal(external_models: ModelAdapter | OnlineEnsemble, X: Tensor, y: Tensor) -> None:
    """Raise if an external model peeks: if its prediction depends on the row's own target or on later rows.

    Shapes: ``X`` (N, D), ``y`` (N,).

    Raises:
        TypeError: If the argument is neither an adapter nor an ensemble.
        ValueError: Naming the model, the row, and what its prediction must not depend on.
    """
    if not isinstance(external_models, ModelAdapter | OnlineEnsemble):
        raise TypeError(
            f"check_causal takes a RegressorAdapter(...) or another adapter, or an OnlineEnsemble (model.online), "
            f"got {type(external_models).__name__}"
        )
    for name, run in _runs(external_models, X):
        size = len(y)
        whole = run(X, y, size)
        if bool(whole[:, size // 2 :].isnan().any(0).all()):  # by then it is trained
            raise ValueError(f"{name} predicted no row, so it cannot be checked; call it directly to see why")
        again = run(X, y, size)
        _compare(whole, again, f"{name} is not reproducible: a second training on the same rows predicts otherwise", "")
        _compare(run(X, y, 1), whole, f"{name} peeks", "the rows that are predicted with it")
        for place in range(len(y) // _PLACES, len(y), max(len(y) // _PLACES, 1)):
            before = X.clone(), y.clone()
            try:
                y[place:] = 3 - 2 * y[place:].flip(0)
                X[place + 1 :] = X[place + 1 :].flip(0) + 0.5
                changed = run(X, y, size)
            finally:
                X.copy_(before[0])
                y.copy_(before[1])
            stop = place + 1
            _compare(changed[:, :stop], whole[:, :stop], f"{name} peeks", "the row's target or on later rows")


def _runs(external_models: ModelAdapter | OnlineEnsemble, X: Tensor) -> Iterator[tuple[str, _Run]]:
    """The name of each external model, and a function that predicts and learns rows from its current state."""
    if isinstance(external_models, ModelAdapter):
        features = InputFeatures(X.shape[1], X.new_ones(()))
        alone = ExternalExpert(external_models, features, max(X.shape[0] // 8, 1), max(X.shape[0] // 4, 1), X.shape[0])
        yield (
            type(external_models).__name__,
            lambda X, y, size: _predicted(alone, alone.init(), alone.features(X), y, size),
        )
        return
    ensemble, state, start = external_models.ensemble, external_models.state, 0
    for number, (expert, part) in enumerate(zip(ensemble.experts, state.experts, strict=True)):
        if isinstance(expert, ExternalExpert) and isinstance(part, ExternalState):

            def run(
                X: Tensor,
                y: Tensor,
                size: int,
                number: int = number,
                expert: ExternalExpert = expert,
                before: ExternalState = part,
            ) -> Tensor:
                Phi = evaluate(ensemble.bind(), with_lags(ensemble.memory, state.history, X, y)[1])[number]
                return _predicted(expert, before, Phi, y, size)

            yield f"external model {ensemble.expert_names[start]!r}", run
        start += expert.num_experts


def _predicted(expert: ExternalExpert, state: ExternalState, Phi: Tensor, y: Tensor, size: int) -> Tensor:
    """Means and variances (2, N) of rows in blocks, from newly trained models."""
    kept, parts = expert.models, []
    expert.models = TrainedModels()
    try:
        for rows, targets in zip(Phi.split(size, dim=-2), y.split(size), strict=True):
            state, steps = BoundExternal(expert).update_block(state, rows, targets)
            parts.append(torch.stack([part.reshape(-1, len(targets))[0] for part in (steps.mean, steps.variance)]))
    finally:
        expert.models = kept
    return torch.cat(parts, dim=-1)


def _compare(first: Tensor, second: Tensor, complaint: str, cause: str) -> None:
    """Raise where predictions (2, N) differ."""
    same = (first == second) | (first.isnan() & second.isnan())
    near = torch.isclose(first, second, rtol=1e-9, atol=1e-9)
    wrong = ~(same | near).all(0)
    if bool(wrong.any()):
        row = int(wrong.int().argmax())
        depends = f": its prediction of row {row} depends on {cause}" if cause else f" at row {row}"
        raise ValueError(f"{complaint}{depends}")
