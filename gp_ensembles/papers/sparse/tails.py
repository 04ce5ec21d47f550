r"""Predictions with the scale and tails of a model's leave-one-out errors.

A Gaussian likelihood gives normal predictions with average noise: if most errors are small and a few large,
a few targets cost most of the log score. Leave-one-out errors are available in
closed form (Rasmussen and Williams, 2006, section 5.4.2, in terms of the posterior at the rows): with the part v of the
posterior variance that the targets affect, the part d not explained by knots, and the noise :math:`D` in learning
and :math:`\tau^2` in predictions,

.. math:: h_i = v_i / D_i, \qquad
          y_i - m_{-i} = \frac{y_i - m_i}{1 - h_i}, \qquad s_{-i}^2 = \frac{v_i}{1 - h_i} + d_i + \tau^2

A Student's t is fitted to the standardized errors, and predictions are :math:`t_\nu` with the
posterior's mean and a multiple of its standard deviation as scale.
"""

import math
from typing import Any, NamedTuple, final

import torch
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.settings import min_variance
from scipy import stats
from torch import Tensor

from gp_ensembles.distributions import StudentTMixture
from gp_ensembles.numerics import student_t
from gp_ensembles.numerics.draws import permutation
from gp_ensembles.numerics.exact_gp import Conditioned
from gp_ensembles.papers.sparse.base import noise_of
from gp_ensembles.papers.sparse.initialization import distinct_rows
from gp_ensembles.papers.sparse.regression import ExactGP, SparseGP

_DEGREES_OF_FREEDOM = (3.0, 4.0, 5.0, 6.0, 8.0, 11.0, 16.0, 32.0, math.inf)
ROWS = 1000  # predicted at once
_STEPS = 100  # maximum for the fixed point of the scale
_SHARE = 0.9  # coverage of the interval that is matched if there is no noise
_NEAR = 1.01  # noise below this multiple of its lower bound counts as at the bound
_LEAST = 1e-8  # lower limit of 1 - h, for tiny noise


@final
class Tails(NamedTuple):
    """Student's t of standardized errors."""

    degrees_of_freedom: float  # above two; infinite for a normal distribution
    scale: float  # relative to the posterior's standard deviations of targets

    def predict(self, model: ExactGP | SparseGP, X: Tensor) -> StudentTMixture:
        """Marginal predictive distributions of targets at rows X (N, D), as one-component mixtures."""
        # GPyTorch rounds variances up to 1e-10, which may exceed those of small-scale targets.
        with torch.no_grad(), min_variance(0.0, 0.0, 0.0):
            parts: list[Any] = [model.posterior(rows, observation_noise=True) for rows in X.unsqueeze(-2).split(ROWS)]
            mean = torch.cat([part.mean.reshape(1, -1) for part in parts], -1)
            variance = torch.cat([part.variance.reshape(1, -1) for part in parts], -1)
        return self.mixture(mean.new_zeros(1), mean, variance)

    def mixture(self, log_weights: Tensor, mean: Tensor, variance: Tensor) -> StudentTMixture:
        """The mixture of components (M, N) with these tails instead of normal ones; ``log_weights`` (M,)."""
        df = self.degrees_of_freedom
        wider = self.scale**2 * (1.0 if math.isinf(df) else df / (df - 2))
        return StudentTMixture(log_weights, mean, wider * variance, torch.full_like(mean, df))


@torch.no_grad()
def leave_one_out(
    model: ExactGP | SparseGP, rows: Tensor, copies: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Leave-one-out errors of training rows (n,) and their variances, with fixed hyperparameters and knots.

    Copies of a row are left out with it: they count as their average, with reduced noise.
    """
    average, number = (model.train_y, torch.ones_like(model.train_y)) if copies is None else copies
    X, y = model.train_X[rows], average[rows]
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
    rest = (1 - number[rows] * learned / effective).clamp_min(_LEAST)
    return (y - model.mean_module(X) - mean) / rest, learned / rest + left_open + noise


def fit_tails(model: ExactGP | SparseGP, *, max_rows: int = 2000, generator: torch.Generator | None = None) -> Tails:
    """Maximum likelihood Student's t of the standardized leave-one-out errors.

    If there is no noise, so that predictions have its minimum value, errors are of any size below it, and no t
    fits their distribution: the scale is then that of the interval which contains 90 % of them. Copies of a row
    are left out together, as they determine its target, unless inputs are integers, which recur.
    """
    if max_rows < 1:
        raise ValueError(f"max_rows must be positive, got {max_rows}")
    num_rows, X = len(model.train_y), model.train_X
    places, copies, is_exact = torch.arange(num_rows, device=model.train_y.device), None, _has_least_noise(model)
    if is_exact and not bool((X.round() == X).all()):
        places, copies = distinct_rows(X), copies_of(model)
    if len(places) > max_rows:
        order = permutation(len(places), generator)
        places = places[order[:max_rows].to(places.device)]
    error, variance = leave_one_out(model, places, copies)
    return tails_of(error / variance.sqrt(), is_exact)


def tails_of(z: Tensor, is_exact: bool = False) -> Tails:
    """Maximum likelihood Student's t of standardized errors (n,); see :func:`fit_tails`."""
    fits = [(_fit_scale(z, df), df) for df in _DEGREES_OF_FREEDOM]
    scale, df = max(fits, key=lambda fit: _mean_log_prob(z, *fit))
    return Tails(df, _matched_scale(z, df) if is_exact else scale)


def _has_least_noise(model: ExactGP | SparseGP) -> bool:
    """Whether the noise is inferred and ended at its lower bound."""
    if not isinstance(model.likelihood, GaussianLikelihood):
        return False
    least = model.likelihood.noise_covar.raw_noise_constraint.lower_bound
    return bool((model.likelihood.noise <= _NEAR * least).all())


def copies_of(model: ExactGP | SparseGP) -> tuple[Tensor, Tensor]:
    """Average target and number of copies of every training row, itself included, (N,) each."""
    _, place, number = torch.unique(model.train_X, dim=0, return_inverse=True, return_counts=True)
    total = model.train_y.new_zeros(len(number)).index_add(0, place, model.train_y)
    return (total / number)[place], number[place].to(total)


def _matched_scale(z: Tensor, df: float) -> float:
    """The scale at which the interval contains the nominal share of errors, corrected for their number."""
    rank = min(len(z), math.ceil(_SHARE * (len(z) + 1)))
    reach = stats.t.ppf(0.5 + 0.5 * _SHARE, df)
    return float(z.abs().kthvalue(rank).values.clamp_min(torch.finfo(z.dtype).tiny)) / float(reach)


def _fit_scale(z: Tensor, df: float) -> float:
    """The maximum likelihood scale, by fixed-point iteration."""
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
