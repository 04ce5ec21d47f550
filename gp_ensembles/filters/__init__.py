"""Recursive Bayes for linear weights: the type of the state chooses the algebra."""

from gp_ensembles.filters.dispatch import predict, predict_joint, update_block
from gp_ensembles.filters.gaussian import textbook_filter, textbook_step
from gp_ensembles.filters.states import (
    FilterState,
    GaussianState,
    SquareRootState,
    StepPredictions,
    gaussian_state,
    square_root_state,
)
from gp_ensembles.filters.stream import choose_block_size

__all__ = [
    "FilterState",
    "GaussianState",
    "SquareRootState",
    "StepPredictions",
    "choose_block_size",
    "gaussian_state",
    "predict",
    "predict_joint",
    "square_root_state",
    "textbook_filter",
    "textbook_step",
    "update_block",
]
