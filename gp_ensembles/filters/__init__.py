"""Recursive Bayes for linear weights: the types of state and observation choose the algebra.

``update_block(state, Phi, y, transition, observation)`` predicts and learns a block of targets whatever the state, and
``predict(state, Phi, transition, observation)`` predicts rows that all come next (``predict_joint`` with their
covariance). A transition describes how the weights change before every row, an observation how
targets depend on them.

=================  ====================================================================================================
``update``         the one signature, and which algebra serves which state
``rows``           targets, how much of each counts, further noise, uneven steps: one record
``states``         states, first states and predictions
``transitions``    random walks and forgetting; over a block, random walks in rescaled coordinates
``block``          the exact block filter in covariance form, and under any transition
``square_root``    the same in square-root form, for float32 and tiny noise
``stream``         the same in place on scratch memory, for long streams and for many series; ``choose_block_size``
``student_t``      unknown noise variance (normal-inverse-gamma)
``multi_output``   outputs that share a covariance
``window``         the exact Gaussian process of the last rows: no weights, covariances of rows
``latent``         targets that are not Gaussian: blocks of latent values or vectors
``sites``          one such target as a Gaussian factor: Laplace, moment matching, robust
``textbook``       one row at a time as the textbooks have it: the reference of the tests
=================  ====================================================================================================
"""

from gp_ensembles.filters.states import gaussian_state
from gp_ensembles.filters.textbook import textbook_filter
from gp_ensembles.filters.transitions import CorrelatedWalk, ExponentialForgetting, RandomWalk, StabilizedForgetting
from gp_ensembles.filters.update import predict, update_block

__all__ = [
    "CorrelatedWalk",
    "ExponentialForgetting",
    "RandomWalk",
    "StabilizedForgetting",
    "gaussian_state",
    "predict",
    "textbook_filter",
    "update_block",
]
