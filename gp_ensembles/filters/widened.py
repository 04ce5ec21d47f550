"""Predictions of rows with further noise, by experts that learn such rows as any other."""

from typing import TypeVar

import torch
from torch import Tensor

from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import StepPredictions, StudentTPredictions
from gp_ensembles.numerics import normal, student_t

P = TypeVar("P", bound=StepPredictions | StudentTPredictions)


def widened(steps: P, rows: Rows) -> P:
    """Predictions (..., B) with the further noise of their rows added, and log densities of targets (B,)."""
    return steps if rows.extra is None else ahead(steps, rows.extra, rows.y)


def ahead(steps: P, extra: Tensor, y: Tensor) -> P:
    """Predictions (..., B) with further noise variance (B,) added, and log densities of targets y (B,)."""
    variance, df = steps.variance + extra, getattr(steps, "degrees_of_freedom", None)
    if df is None:
        log_prob = normal.log_prob(y, steps.mean, variance)
    else:
        log_prob = student_t.log_prob(y, steps.mean, variance, df)
    kept = (extra == 0) | torch.isinf(steps.log_prob)  # a dead expert stays dead
    changed = {"variance": variance, "log_prob": torch.where(kept, steps.log_prob, log_prob)}
    return type(steps)(**{**steps._asdict(), **changed})
