r"""Laplace approximation of a fully independent conditional (FIC) Gaussian process with any log-concave likelihood.

The prior of the N latent values is :math:`N(m, S)` with :math:`S = V^\top V + D`, D diagonal. Everything is in terms of
:math:`a = S^{-1} (f - m)` and of :math:`w = W / (1 + W D)`, so that neither D nor the curvatures W are ever divided by:
knots may stand on data, and a row may say nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.numerics.derivatives import Derivatives, scalar_derivatives
from gp_ensembles.sparse.collapsed import Conditional, Projection

LogDensity = Callable[[Tensor, Tensor], Tensor]
_HALVINGS = 40


class LatentPrior(NamedTuple):
    r"""Normal prior :math:`N(m, V^\top V + D)` of the latent values at the data.

    Args:
        mean: m, shape (N,).
        projected: V, shape (K, N).
        diagonal: Diagonal of D, what the knots leave open, not negative, shape (N,).

    Example:
        >>> import torch
        >>> ones = torch.ones(2)
        >>> LatentPrior(0 * ones, ones.unsqueeze(0), 3 * ones).covary(torch.tensor([1.0, 0.0]))
        tensor([4., 1.])
    """

    mean: Tensor
    projected: Tensor
    diagonal: Tensor

    def covary(self, weights: Tensor) -> Tensor:
        """The covariance times a vector (N,)."""
        return self.projected.mT @ (self.projected @ weights) + self.diagonal * weights


class Mode(NamedTuple):
    r"""The latent values that are most probable given the targets.

    Args:
        latent: Latent values :math:`\hat f`, shape (N,).
        weights: :math:`a = S^{-1} (\hat f - m)`, shape (N,).
        log_joint: :math:`\log p(y \mid \hat f) - \frac12 a^\top (\hat f - m)`, shape ().
        iterations: Newton steps that it took.
    """

    latent: Tensor
    weights: Tensor
    log_joint: Tensor
    iterations: int


def latent_prior(projection: Projection, mean: Tensor) -> LatentPrior:
    """The fully independent conditional of a projection, with prior means (N,); its residual and noise do not matter.

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> latent_prior(project(4 * one, 2 * one, 4 * one[0], one[0], one[0, 0]), one[0]).diagonal
        tensor([3.], dtype=torch.float64)
    """
    return LatentPrior(mean, projection.projected, projection.unexplained)


@torch.no_grad()
def find_mode(
    prior: LatentPrior,
    log_density: LogDensity,
    y: Tensor,
    *,
    start: Tensor | None = None,
    tolerance: float | None = None,
    max_iterations: int = 100,
) -> Mode:
    r"""The mode of the latent values by Newton's method, steps halved until the log joint density grows.

    It stops when the last step added no more than the tolerance, relative to the log joint density, and the gradient is
    below the tolerance, relative to the largest curvature; a last step then squares what error is left.

    Args:
        prior: Prior of the latent values.
        log_density: Takes latent values and targets, (N,) each, to log densities (N,), concave in the latent values.
        y: Targets, shape (N,).
        start: Weights :math:`a` of an earlier mode, shape (N,); taken if they are better than none.
        tolerance: Square root of the dtype's precision if ``None``.
        max_iterations: Most Newton steps.

    Raises:
        NumericalError: If the log density is not concave or not finite, or the mode is not found.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = LatentPrior(0 * one, one.unsqueeze(0), 0 * one)
        >>> find_mode(prior, lambda f, y: -0.5 * (y - f) ** 2, 3 * one).latent  # halfway between prior and target
        tensor([1.5000], dtype=torch.float64)
    """
    precision = torch.finfo(y.dtype).eps
    tolerance = precision**0.5 if tolerance is None else tolerance
    mode = _at(prior, log_density, y, torch.zeros_like(prior.mean))
    if start is not None:
        warm = _at(prior, log_density, y, start)
        if bool(warm.log_joint > mode.log_joint):
            mode = warm
    if not bool(mode.log_joint.isfinite()):
        raise NumericalError("the log density of the targets is not finite at the prior mean; start at another mean")
    added = torch.inf
    for iteration in range(max_iterations + 1):
        derivatives = _derivatives(log_density, mode.latent, y)
        slope = derivatives.first - mode.weights
        worst = float(slope.abs().max())
        scale = 1.0 + derivatives.second.abs().max() + mode.weights.abs().max()
        size = 1.0 + float(mode.log_joint.abs())
        arrived = added <= tolerance * size and worst <= tolerance * float(scale)
        step = newton_step(prior, slope, -derivatives.second)
        promised = float(slope @ prior.covary(step))
        share = 1.0
        for _ in range(_HALVINGS):
            trial = _at(prior, log_density, y, mode.weights + share * step)
            # A step that promises next to nothing is taken whole: rounding hides what it adds.
            if bool(trial.log_joint >= mode.log_joint) or 0.0 <= share * promised <= tolerance * size:
                break
            share *= 0.5
        added = float(trial.log_joint - mode.log_joint)
        mode = trial._replace(iterations=iteration + 1)
        if arrived:
            return mode
    raise NumericalError(
        f"the mode of the latent values was not found in {max_iterations} Newton steps (the largest slope is "
        f"{worst:.2g}); raise max_iterations or the tolerance, or see that the log density is concave"
    )


def newton_step(prior: LatentPrior, slope: Tensor, curvature: Tensor) -> Tensor:
    r"""Newton's change of the weights, :math:`(I + W S)^{-1} (\nabla \log p - a)`, shape (N,).

    It is in terms of the slope, which vanishes at the mode, so that rounding does, too.
    """
    shrunk = curvature / (1.0 + curvature * prior.diagonal)
    pulled = shrunk * prior.covary(slope)
    factor = posterior_factor(prior, curvature)
    through = torch.cholesky_solve((prior.projected @ pulled).unsqueeze(-1), factor).squeeze(-1)
    return slope - pulled + shrunk * (through @ prior.projected)


def posterior_factor(prior: LatentPrior, curvature: Tensor) -> Tensor:
    r"""Cholesky factor of :math:`M = I + V\, \mathrm{diag}(w) V^\top`, the precision of the whitened knots, (K, K)."""
    shrunk = curvature / (1.0 + curvature * prior.diagonal)
    identity = torch.diag_embed(torch.ones_like(prior.projected[:, 0]))
    return cholesky(identity + (prior.projected * shrunk) @ prior.projected.mT, "the precision of the knots")


def laplace_evidence(prior: LatentPrior, log_density: LogDensity, y: Tensor, mode: Mode) -> Tensor:
    r"""Laplace's approximation of the log evidence, in O(N K^2), differentiable in prior and likelihood.

    .. math:: \log p(y \mid \hat f) - \frac12 (\hat f - m)^\top S^{-1} (\hat f - m)
              - \frac12 \log |I + W^{1/2} S W^{1/2}|

    The mode moves with the parameters. A Newton step from it, taken with the parameters' graph, lands on it and has its
    derivatives (implicit function theorem), so no gradient is written by hand.

    Args:
        prior: Prior of the latent values.
        log_density: As in :func:`find_mode`.
        y: Targets, shape (N,).
        mode: The mode under this prior; no gradient is taken through it.

    Returns:
        Shape ().

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = LatentPrior(0 * one, one.unsqueeze(0), 0 * one)
        >>> normal = lambda f, y: torch.distributions.Normal(f, 1.0).log_prob(y)
        >>> round(float(laplace_evidence(prior, normal, 3 * one, find_mode(prior, normal, 3 * one))), 4)  # N(3; 0, 2)
        -3.5155
    """
    here = mode.weights.detach()
    derivatives = _derivatives(log_density, prior.mean + prior.covary(here), y)
    weights = here + newton_step(prior, derivatives.first - here, -derivatives.second.detach())
    latent = prior.mean + prior.covary(weights)
    curvature = -_derivatives(log_density, latent, y).second
    log_joint = log_density(latent, y).sum() - 0.5 * (weights * (latent - prior.mean)).sum()
    stretch = torch.log1p(curvature * prior.diagonal).sum()
    return log_joint - 0.5 * stretch - posterior_factor(prior, curvature).diagonal().log().sum()


def knots_posterior(prior: LatentPrior, log_density: LogDensity, y: Tensor, mode: Mode) -> Conditional:
    r"""Posterior of the whitened knots: precision M, mean :math:`V a`.

    With L the factor of the knots' covariance, knots have mean :math:`L V a` beyond the prior's and covariance
    :math:`L M^{-1} L^\top`.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = LatentPrior(0 * one, one.unsqueeze(0), 0 * one)
        >>> normal = lambda f, y: -0.5 * (y - f) ** 2
        >>> knots_posterior(prior, normal, one, find_mode(prior, normal, one)).factor.square()
        tensor([[2.0000]], dtype=torch.float64)
    """
    factor = posterior_factor(prior, -_derivatives(log_density, mode.latent, y).second)
    return Conditional(factor, factor.mT @ (prior.projected @ mode.weights))


def _at(prior: LatentPrior, log_density: LogDensity, y: Tensor, weights: Tensor) -> Mode:
    change = prior.covary(weights)
    latent = prior.mean + change
    return Mode(latent, weights, log_density(latent, y).sum() - 0.5 * (weights * change).sum(), 0)


def _derivatives(log_density: LogDensity, latent: Tensor, y: Tensor) -> Derivatives:
    """First and second derivatives of the log density; refuses one that is not concave."""
    derivatives = scalar_derivatives(log_density, latent, y)
    values = torch.stack([part.detach() for part in derivatives])
    if not bool(values.isfinite().all()):
        raise NumericalError(
            "the log density of the targets has no finite derivatives at the mode of the latent values"
        )
    if bool((values[1] > 0).any()):
        row = int(values[1].argmax())
        raise NumericalError(
            f"the log density of the target in row {row} is not concave in its latent value; use a likelihood whose "
            f"log density is, such as Poisson or Bernoulli"
        )
    return derivatives
