"""Recursive Bayes for linear weights: the type of the state chooses the algebra."""

from gp_ensembles.filters.adaptation import Adaptation, Schedule
from gp_ensembles.filters.dispatch import predict, predict_joint, update_block
from gp_ensembles.filters.forgetting import ExponentialForgetting, StabilizedForgetting
from gp_ensembles.filters.gaussian import textbook_filter, textbook_step
from gp_ensembles.filters.states import (
    FilterState,
    GaussianState,
    LatentPredictions,
    LinearState,
    MultiOutputState,
    Predictions,
    SquareRootState,
    StepPredictions,
    StudentTPredictions,
    StudentTState,
    concatenate_steps,
    gaussian_state,
    square_root_state,
)
from gp_ensembles.filters.stream import choose_block_size
from gp_ensembles.filters.walking import CorrelatedWalk, RandomWalk

__all__ = [
    "Adaptation",
    "CorrelatedWalk",
    "ExponentialForgetting",
    "FilterState",
    "GaussianState",
    "LatentPredictions",
    "LinearState",
    "MultiOutputState",
    "Predictions",
    "RandomWalk",
    "Schedule",
    "SquareRootState",
    "StabilizedForgetting",
    "StepPredictions",
    "StudentTPredictions",
    "StudentTState",
    "choose_block_size",
    "concatenate_steps",
    "gaussian_state",
    "predict",
    "predict_joint",
    "square_root_state",
    "textbook_filter",
    "textbook_step",
    "update_block",
]
