"""Predictions of all kinds of experts and forecasts as one table; a warning where experts were trained on the rows."""

from collections.abc import Sequence

from torch import Tensor

from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.papers.fusion.experts import ExpertPredictions, predict_expert, predict_experts
from gp_ensembles.papers.fusion.regressors import Regressor, RegressorExpert, known_rows, scale_numbered

Experts = ExpertPredictions | Sequence[object]
# Mean squared errors, in variances stated, below which an expert is suspected to have seen the rows; rows it takes.
_SUSPECT, _ENOUGH = 0.2, 20


def gather_predictions(experts: Experts, X: Tensor | None) -> ExpertPredictions:
    """Predictions of all experts at inputs. Shapes: ``X`` (N, D); returns (K, N)."""
    if isinstance(experts, ExpertPredictions):
        return experts
    if not experts:
        raise ValueError("at least one expert is needed, got none")
    if X is None:
        first = experts[0]
        if not all(isinstance(expert, ExpertPredictions) for expert in experts):
            raise ValueError("experts that are not forecasts need inputs X at which to predict")
        assert isinstance(first, ExpertPredictions)
        X = first.mean.new_zeros(first.mean.shape[-1], 1)
    return ExpertPredictions.joined([_one(expert, k, X) for k, expert in enumerate(experts)])


def gather_experts(experts: Experts, X: Tensor, y: Tensor) -> tuple[ExpertPredictions, tuple[object, ...]]:
    """Predictions (K, N) of rows with known targets, from which weights are learned, and the experts themselves.

    Regressors get scales of their errors; there are no experts if all came as one table. Shapes: ``X`` (N, D), ``y``
    (N,).
    """
    if isinstance(experts, ExpertPredictions):
        predictions, known = experts, []
    else:
        known = [_scaled(expert, k, X, y) for k, expert in enumerate(experts)]
        predictions = gather_predictions([rows for _, rows in known], X)
        for k, expert in enumerate(experts):
            _warn_of_rows(expert, k, X, y)
    _warn_of_errors(predictions, y)
    return predictions, tuple(expert for expert, _ in known)


def _one(expert: object, number: int, X: Tensor) -> ExpertPredictions:
    if not isinstance(expert, ExpertPredictions):
        if _is_bare(expert):
            raise TypeError(
                f"expert {number}, a {type(expert).__name__}, gives no variance: pass it through "
                "scale_regressors or cross_fit"
            )
        return predict_experts([expert], X)
    if expert.mean.ndim != 2 or expert.mean.shape[0] != 1:
        raise ValueError(
            f"expert {number} must be a forecast of one expert, (1, {X.shape[0]}), got {tuple(expert.mean.shape)}"
        )
    if expert.mean.shape[1] != X.shape[0]:
        raise ValueError(
            f"expert {number} is a forecast of {expert.mean.shape[1]} row(s), but there are {X.shape[0]} rows: "
            "give all for the same rows, in the same order"
        )
    return ExpertPredictions(*(part.to(X).expand_as(expert.mean) for part in expert))


def _is_bare(expert: object) -> bool:
    """Whether an expert is a regressor of which nothing but its predictions is known."""
    return predict_expert.dispatch(type(expert)) is predict_expert.dispatch(object) and isinstance(expert, Regressor)


def _scaled(expert: object, number: int, X: Tensor, y: Tensor) -> tuple[object, ExpertPredictions]:
    if _is_bare(expert):
        assert isinstance(expert, Regressor)
        found = scale_numbered({number: expert}, X, y)
        return found.experts[0], found.predictions
    return expert, _one(expert, number, X)


def _warn_of_rows(expert: object, number: int, X: Tensor, y: Tensor) -> None:
    """Warn of an expert that was trained on some of these rows, as far as that can be seen."""
    shared = known_rows(expert.regressor if isinstance(expert, RegressorExpert) else expert, X, y)
    if shared:
        warn_caller(
            f"expert {number} was trained on {shared} of the {len(X)} rows from which its weight is learned, and looks "
            "better there than it is: give other rows, or predictions by leave_one_out or cross_fit"
        )


def _warn_of_errors(predictions: ExpertPredictions, y: Tensor) -> None:
    """Warn of experts whose errors are far below what they say themselves."""
    if predictions.mean.ndim != 2 or predictions.mean.shape[1:] != y.shape or len(y) < _ENOUGH:
        return
    ratio = ((y - predictions.mean).square() / predictions.target_variance).mean(1)
    for k in (ratio < _SUSPECT).nonzero().squeeze(-1).tolist():
        warn_caller(
            f"the errors of expert {k} on these rows are {float(ratio[k].sqrt()):.2g} of its stated standard "
            "deviations: if it was trained on them, give rows that it has not seen, or predictions by leave_one_out or "
            "cross_fit"
        )
