r"""The best normal posterior of whitened knots for any likelihood of one latent value, by natural gradients.

The posterior is the one that normal sites of the rows would give, :math:`S^{-1} = I + V W V^\top` and
:math:`S^{-1} m = V W z`. A natural-gradient step of length one of the evidence lower bound replaces the sites by those
of the expected derivatives of the log density under the present marginals (Khan and Lin, 2017; Adam et al., 2021); it
is Newton's method where variances do not matter, and a single exact step where the likelihood is normal. Sites belong
to rows, so that they serve as a start for other hyperparameters and other knots.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.sparse.local_gains import Sites

ExpectedLogProb = Callable[[Tensor, Tensor], Tensor]
_HALVINGS = 40
_STEPS = 100
_SLACK = 1e-6  # share of the bound that a last step may still add


class Rows(NamedTuple):
    """The data as the whitened knots see it.

    Args:
        projected: V, shape (K, N).
        mean: Prior means, shape (N,).
        unexplained: Prior variances that the knots leave open, not negative, shape (N,).
    """

    projected: Tensor
    mean: Tensor
    unexplained: Tensor


class WhitenedPosterior(NamedTuple):
    """A normal distribution of the whitened knots.

    Args:
        mean: m, shape (K,).
        root: Cholesky factor T of the covariance, shape (K, K).

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1)
        >>> WhitenedPosterior(one[0], one).divergence()
        tensor(0.5000)
    """

    mean: Tensor
    root: Tensor

    def divergence(self) -> Tensor:
        """Kullback-Leibler divergence from the prior, which is standard normal, in nats, shape ()."""
        trace = self.root.square().sum() + self.mean.square().sum() - self.mean.shape[0]
        return 0.5 * trace - self.root.diagonal().log().sum()

    def marginals(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Means and variances of the latent values of rows, (N,) each."""
        spread = (self.root.mT @ rows.projected).square().sum(0)
        return rows.mean + self.mean @ rows.projected, rows.unexplained + spread


class Tightened(NamedTuple):
    """The bound at its best posterior of the knots.

    Args:
        posterior: The posterior.
        sites: The sites that give it.
        bound: Evidence lower bound in nats, shape ().
        steps: Natural-gradient steps that it took.
    """

    posterior: WhitenedPosterior
    sites: Sites
    bound: Tensor
    steps: int


@torch.no_grad()
def tighten(
    rows: Rows, expected_log_prob: ExpectedLogProb, start: Sites, *, tolerance: float | None = None
) -> Tightened:
    r"""Maximize the evidence lower bound over the knots' posterior, in O(N K^2) a step.

    Steps are halved until the bound grows, and doubled again afterwards. It ends when a step adds no more than the
    tolerance, relative to the bound.

    Args:
        rows: The data seen through the knots.
        expected_log_prob: Takes means and variances of normal latent values, (N,) each, to expected log densities of
            the targets (N,); differentiable in both.
        start: Sites to start from; zeros start from the prior.
        tolerance: The dtype's precision to the power 0.6 if ``None``.

    Raises:
        NumericalError: If the bound is not finite at the start, nor at the prior, or still rises after many steps.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> normal = lambda mean, variance: -0.5 * ((3.0 - mean) ** 2 + variance)
        >>> rows = Rows(one.unsqueeze(0), 0 * one, 0 * one)
        >>> tighten(rows, normal, Sites(0 * one, 0 * one)).posterior.mean  # halfway between prior and target
        tensor([1.5000], dtype=torch.float64)
    """
    tolerance = float(torch.finfo(rows.mean.dtype).eps) ** 0.6 if tolerance is None else tolerance
    here = _try(rows, expected_log_prob, start)
    zeros = torch.zeros_like(rows.mean)
    prior = _try(rows, expected_log_prob, Sites(zeros, zeros))
    if here is None or (prior is not None and bool(prior.bound > here.bound)):
        here = prior
    if here is None:
        raise NumericalError(
            "the expected log density of the targets is not finite under the prior; standardize the inputs, or start "
            "from a prior of another mean or smaller variance"
        )
    steps, share, added = 0, 1.0, 0.0
    while steps < _STEPS:
        steps += 1
        share, trial = min(1.0, 2.0 * share), None
        for _ in range(_HALVINGS):
            trial = _try(rows, expected_log_prob, _between(here.sites, here.better, share))
            if trial is not None and bool(trial.bound >= here.bound):
                break
            share *= 0.5
        if trial is None or not bool(trial.bound >= here.bound):  # rounding hides what is left
            break
        added, here = float(trial.bound - here.bound), trial
        if added <= tolerance * (1.0 + float(here.bound.abs())):
            break
    else:
        if added > _SLACK * (1.0 + float(here.bound.abs())):
            raise NumericalError(
                f"the best posterior of the knots was not found in {_STEPS} steps, the last of which raised the bound "
                f"by {added:.3g}; start from a prior of another mean or smaller variance"
            )
    return Tightened(here.posterior, here.sites, here.bound, steps)


def posterior_of(rows: Rows, sites: Sites) -> WhitenedPosterior:
    """The knots' posterior under normal sites.

    The factor of the covariance is lower triangular, as that of GPyTorch's variational distributions is: it is the
    inverse of the transpose of an upper triangular factor of the precision, found with the order of knots reversed.

    Raises:
        NumericalError: If negative precisions of the sites outweigh the prior.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> posterior_of(Rows(one.unsqueeze(0), 0 * one, 0 * one), Sites(3 * one, 4 * one)).mean
        tensor([1.], dtype=torch.float64)
    """
    V = rows.projected
    identity = torch.diag_embed(torch.ones_like(V[:, 0]))
    precision = identity + (V * sites.precision) @ V.mT
    upper = cholesky(precision.flip(0, 1), "the precision of the knots").flip(0, 1)
    root = torch.linalg.solve_triangular(upper, identity, upper=True).mT
    return WhitenedPosterior(root @ (root.mT @ (V @ sites.shift)), root)


class _Place(NamedTuple):
    """Sites, and which ones a natural-gradient step replaces them by."""

    sites: Sites
    posterior: WhitenedPosterior
    bound: Tensor
    better: Sites


def _try(rows: Rows, expected_log_prob: ExpectedLogProb, sites: Sites) -> _Place | None:
    """The bound and its natural gradient at sites; ``None`` where there is none."""
    try:
        posterior = posterior_of(rows, sites)
    except NumericalError:
        return None
    mean, variance = posterior.marginals(rows)
    with torch.enable_grad():
        mean.requires_grad_()
        variance.requires_grad_()
        expected = expected_log_prob(mean, variance).sum()
        first, half_second = torch.autograd.grad(expected, (mean, variance))
    bound = expected.detach() - posterior.divergence()
    precision = -2.0 * half_second  # the derivative in a variance is half the expected second derivative
    better = Sites(precision, first + precision * (mean.detach() - rows.mean))
    if not bool(bound.isfinite() & precision.isfinite().all() & better.shift.isfinite().all()):
        return None
    return _Place(sites, posterior, bound, better)


def _between(old: Sites, new: Sites, share: float) -> Sites:
    return Sites(old.precision.lerp(new.precision, share), old.shift.lerp(new.shift, share))
