r"""Predictions whose spread and tails are those of the errors that a model makes on rows it has not seen.

A Gaussian likelihood gives normal predictions, whose noise is an average: where most errors are small and a few large,
a few targets cost most of the log score. The errors that each row would have had, had it been left out, are known in
closed form (Rasmussen and Williams, 2006, section 5.4.2, written by the posterior at the rows): with the part v of the
posterior variance that comes from the targets, what the knots leave open d, and the noise :math:`D` under which targets
are learned and :math:`\tau^2` that predictions have,

.. math:: h_i = v_i / D_i, \qquad
          y_i - m_{-i} = \frac{y_i - m_i}{1 - h_i}, \qquad s_{-i}^2 = \frac{v_i}{1 - h_i} + d_i + \tau^2

Divided by their deviations they are fitted by Student's t, and predictions are :math:`t_\nu` with the posterior's mean
and so many of its deviations as scale.
"""

import math
from typing import Any, NamedTuple, final

import torch
from gpytorch.settings import min_variance
from torch import Tensor

from gp_ensembles.distributions import StudentTMixture
from gp_ensembles.numerics import student_t
from gp_ensembles.numerics.draws import permutation
from gp_ensembles.numerics.exact_gp import Conditioned
from gp_ensembles.papers.sparse.base import noise_of
from gp_ensembles.papers.sparse.regression import ExactGP, SparseGP

_DEGREES_OF_FREEDOM = (3.0, 4.0, 5.0, 6.0, 8.0, 11.0, 16.0, 32.0, math.inf)
ROWS = 1000  # that are predicted at a time
_STEPS = 100  # of the fixed point of the scale
_LEAST = 1e-8  # of 1 - h, where the noise is next to nothing


@final
class Tails(NamedTuple):
    """Student's t of standardized errors."""

    degrees_of_freedom: float  # above two; infinite for a normal distribution
    scale: float  # in the posterior's deviations of a target

    def predict(self, model: ExactGP | SparseGP, X: Tensor) -> StudentTMixture:
        """Predictive distributions of targets at rows X (N, D), each on its own, a mixture of one."""
        # GPyTorch rounds variances up to 1e-10, which may be more than those of targets in small units.
        with torch.no_grad(), min_variance(0.0, 0.0, 0.0):
            parts: list[Any] = [model.posterior(rows, observation_noise=True) for rows in X.unsqueeze(-2).split(ROWS)]
            mean = torch.cat([part.mean.reshape(1, -1) for part in parts], -1)
            variance = torch.cat([part.variance.reshape(1, -1) for part in parts], -1)
        df = self.degrees_of_freedom
        wider = self.scale**2 * (1.0 if math.isinf(df) else df / (df - 2))
        return StudentTMixture(mean.new_zeros(1), mean, wider * variance, torch.full_like(mean, df))


@torch.no_grad()
def leave_one_out(model: ExactGP | SparseGP, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Errors of training rows by the model of all others, and their variances; hyperparameters and knots stay.

    Returns shape (n,).
    """
    X, y = model.train_X[rows], model.train_y[rows]
    noise = noise_of(model.likelihood).reshape(-1).expand(len(model.train_y))[rows]
    known = model.knots_posterior()
    loadings = known.whiten(model.kernel_matrix(model.knots, X))
    prior, explained = model.kernel_diagonal(X), loadings.square().sum(0)
    left_open = model.approximation.predictive(prior[:, None, None], explained[:, None, None]).flatten()
    if isinstance(known, Conditioned):
        mean, learned, left_open, effective = known.mean(loadings), left_open, torch.zeros_like(left_open), noise
    else:
        assert isinstance(model, SparseGP)
        posterior = torch.linalg.solve_triangular(known.factor, loadings, upper=False)
        mean, learned = known.mean @ posterior, posterior.square().sum(0)
        effective = model.approximation.diagonal(model.projection()).expand(len(model.train_y))[rows]
    rest = (1 - learned / effective).clamp_min(_LEAST)
    return (y - model.mean_module(X) - mean) / rest, learned / rest + left_open + noise


def fit_tails(model: ExactGP | SparseGP, *, max_rows: int = 2000, generator: torch.Generator | None = None) -> Tails:
    """The Student's t that gives the standardized errors of rows left out the largest likelihood."""
    if max_rows < 1:
        raise ValueError(f"max_rows must be positive, got {max_rows}")
    num_rows = len(model.train_y)
    places = torch.arange(num_rows, device=model.train_y.device)
    if num_rows > max_rows:
        order = permutation(num_rows, generator)
        places = order[:max_rows].to(places.device)
    error, variance = leave_one_out(model, places)
    z = error / variance.sqrt()
    fits = [(_fit_scale(z, df), df) for df in _DEGREES_OF_FREEDOM]
    scale, df = max(fits, key=lambda fit: _mean_log_prob(z, *fit))
    return Tails(df, scale)


def _fit_scale(z: Tensor, df: float) -> float:
    """The scale of largest likelihood, by the fixed point of its equation."""
    squares = z.square()
    square = squares.mean().clamp_min(torch.finfo(z.dtype).tiny)
    if math.isinf(df):
        return float(square.sqrt())
    for _ in range(_STEPS):
        square = ((df + 1) / (df + squares / square) * squares).mean()
    return float(square.sqrt())


def _mean_log_prob(z: Tensor, scale: float, df: float) -> float:
    every = torch.full_like(z, df)
    return float(student_t.log_prob(z, torch.zeros_like(z), torch.full_like(z, scale**2), every).mean())
