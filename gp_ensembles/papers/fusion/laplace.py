"""Laplace's approximation at the best mode of the joint density."""

import math
import time
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.draws import normal_draws
from gp_ensembles.papers.fusion.base import FusionModel
from gp_ensembles.papers.fusion.inference import (
    InferenceMethod,
    InferenceReport,
    PosteriorDraws,
    find_modes,
    issue_cautions,
    without_parameters,
)
from gp_ensembles.papers.fusion.leapfrog import LogDensity, Points, evaluate

# Copies of the parameters whose second derivatives are in memory at once, most Newton steps and their halvings.
_COPIES, _NEWTON, _HALVINGS = 64, 20, 10
# Newton's method ends where a step is expected to gain less than this many nats.
_MIN_GAIN = 1e-8
# Fewest draws by which an approximation is judged; nats per parameter by which a tenth of them may lie below the
# density that the approximation expects. Where it served well, a tenth lay below by 0.00 to 0.19, elsewhere by 0.36 to
# 1e4. The Pareto shape of the importance ratios separates less: 0.3 to 1.2 in the good cases, 0.9 or more in others.
_CHECKED, _TOLERATED = 200, 0.25


class NormalApproximation(NamedTuple):
    """A normal approximation at a mode, in units of the prior's standard deviations."""

    theta: Tensor  # the mode, shape (P,)
    log_joint: Tensor
    precision: Tensor  # eigenvalues of the negative Hessian, ascending, shape (P,)
    directions: Tensor  # its eigenvectors as columns, shape (P, P)
    expected_gain: float  # nats that the quadratic model predicts for another Newton step


@final
@dataclass(frozen=True)
class LaplaceApproximation(InferenceMethod):
    r"""Laplace's approximation: a normal distribution at the best of several modes.

    .. math:: p(\theta \mid y) \approx N(\hat\theta, (-\nabla^2 \log p(\hat\theta, y))^{-1}), \qquad
              \log p(y) \approx \log p(\hat\theta, y) + \tfrac P2 \log 2\pi - \tfrac12 \log\det(-\nabla^2 \log p)

    The mode comes from :class:`MAP` and is refined by Newton's method. It takes a fraction of the time of sampling
    and predicts nearly as well, but covers one mode of a mixture only: its evidence omits the others. With sampled
    hyperparameters the best mode may be a spike without mass: a caution is given where a tenth of the draws lie more
    than a quarter of a nat for each parameter below the log joint density that the approximation expects of them.

    Args:
        num_restarts: Starts of the search.
        max_iterations: Maximum number of steps of each.
        num_draws: Chains S from the approximation.

    Raises:
        ValueError: If a number is not at least one.

    Example:
        >>> from gp_ensembles.papers.fusion import FourierPrior, HetGP
        >>> X = torch.linspace(-1, 1, 40, dtype=torch.float64).unsqueeze(-1)
        >>> prior = FourierPrior(torch.ones_like(X[:2]))
        >>> model = HetGP(X, X.squeeze(-1) + 0.3 * (60 * X.squeeze(-1)).sin(), prior, prior)
        >>> found = LaplaceApproximation(num_draws=50).infer(model, generator=torch.Generator().manual_seed(0))
        >>> found.theta.shape, found.report.log_evidence < float(found.report.log_joint.max())
        (torch.Size([50, 8]), True)
    """

    num_restarts: int = 8
    max_iterations: int = 300
    num_draws: int = 200

    def __post_init__(self) -> None:
        if min(self.num_restarts, self.max_iterations, self.num_draws) < 1:
            raise ValueError("num_restarts, max_iterations and num_draws must be at least 1")

    def infer(
        self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = False
    ) -> PosteriorDraws:
        """Draws from the approximation, shape (S, P), of equal weights."""
        began = time.perf_counter()
        if not model.num_parameters:
            return without_parameters(model, "Laplace")
        found = find_modes(model, self.num_restarts, self.max_iterations, generator=generator, progress=progress)
        best = int(found.value.argmin())
        mode = newton(model.log_joint, found.point[best], model.prior_stddev)
        precision, cautions = usable_precision(mode)
        noise = normal_draws((self.num_draws, len(mode.theta)), mode.theta, generator)
        theta = _normal_draws(model, mode, precision, noise)
        cautions += _misfit(model, mode, precision, theta, noise, generator)
        values = -found.value
        values[best] = mode.log_joint
        evidence = float(mode.log_joint + (precision.log().neg().sum() + _log_volume(model.prior_stddev)) / 2)
        report = InferenceReport(
            "Laplace", time.perf_counter() - began, found.num_evaluations, values, evidence,
            cautions=issue_cautions(cautions),
        )  # fmt: skip
        return PosteriorDraws(theta, torch.zeros_like(theta[:, 0]).log_softmax(0), report)


def usable_precision(mode: NormalApproximation) -> tuple[Tensor, list[str]]:
    """Positive eigenvalues to draw with, and cautions where they were replaced."""
    cautions = []
    # Round-off of a Hessian, relative to its largest eigenvalue.
    floor = float(mode.precision[-1].clamp(min=1.0)) * len(mode.precision) * torch.finfo(mode.precision.dtype).eps
    flat = mode.precision <= floor
    if bool(flat.any()):
        cautions.append(
            f"the search ended where the density rises or is flat in {int(flat.sum())} of {len(flat)} directions, so "
            "the prior's variance is used there; allow more iterations, or sample with HMC"
        )
    elif mode.expected_gain > 1e-3:
        cautions.append(
            f"Newton's method has not converged ({mode.expected_gain:.2g} nats below the mode); allow more iterations"
        )
    return torch.where(flat, 1.0, mode.precision), cautions


def _normal_draws(model: FusionModel, mode: NormalApproximation, precision: Tensor, noise: Tensor) -> Tensor:
    """Draws of the approximation, shape (S, P), from standard normal numbers (S, P)."""
    return mode.theta + model.prior_stddev * ((noise * precision.rsqrt()) @ mode.directions.mT)


@torch.no_grad()
def _misfit(
    model: FusionModel,
    mode: NormalApproximation,
    precision: Tensor,
    theta: Tensor,
    noise: Tensor,
    generator: torch.Generator | None,
) -> list[str]:
    """A caution where a tenth of the draws or more lie far below the density that the approximation expects."""
    missing = _CHECKED - len(theta)
    if missing > 0:
        more = normal_draws((missing, noise.shape[1]), noise, generator)
        theta, noise = torch.cat([theta, _normal_draws(model, mode, precision, more)]), torch.cat([noise, more])
    log_joint = torch.cat([model.log_joint(part) for part in theta.split(_COPIES)])
    below = (mode.log_joint - 0.5 * noise.square().sum(-1) - log_joint) / len(mode.theta)
    worst = float(below.nan_to_num(nan=torch.inf).quantile(0.9, interpolation="lower"))
    if worst <= _TOLERATED:
        return []
    remedy = "fix the hyperparameters, or " if model.sampled else ""
    return [
        f"the posterior is far from normal at its best mode (a tenth of the draws lie {worst:.2g} nats or more for "
        "each parameter below expectation), so predictions and evidence may be badly wrong: "
        f"{remedy}sample with HMC"
    ]


def newton(log_density: LogDensity, theta: Tensor, scale: Tensor) -> NormalApproximation:
    """The mode near a point, by Newton's method with the absolute values of negative curvatures.

    Shapes: ``theta`` (P,), ``scale`` (P,).
    """
    points = evaluate(log_density, theta.unsqueeze(0))
    for step in range(_NEWTON + 1):
        precision, directions = _curvature(log_density, points.theta[0], scale)
        gradient = directions.mT @ (points.gradient[0] * scale)
        # At a saddle the step follows the negative curvatures, no longer than the prior allows.
        size = torch.where(precision > 1e-3, precision, precision.abs().clamp(min=1.0))
        move = gradient / size
        expected_gain = 0.5 * float(gradient @ move)
        if expected_gain < _MIN_GAIN or step == _NEWTON:
            break
        ahead = _line(log_density, points, scale * (directions @ move))
        if ahead is None:
            break
        points = ahead
    return NormalApproximation(points.theta[0], points.log_density[0], precision, directions, expected_gain)


def hessian(log_density: LogDensity, theta: Tensor) -> Tensor:
    """Second derivatives at one position, shape (P, P), by differentiating the gradients of copies of it.

    Shapes: ``theta`` (P,).
    """
    rows = []
    unit = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
    with torch.enable_grad():
        for part in unit.split(_COPIES):
            leaf = theta.detach().expand(len(part), -1).clone().requires_grad_()
            (gradient,) = torch.autograd.grad(log_density(leaf).sum(), leaf, create_graph=True)
            (row,) = torch.autograd.grad((gradient * part).sum(), leaf)
            rows.append(row)
    matrix = torch.cat(rows)
    return 0.5 * (matrix + matrix.mT)


def covariance_factor(log_density: LogDensity, theta: Tensor, scale: Tensor) -> Tensor:
    r"""A matrix F for which :math:`F F^\top` is the covariance of a Laplace approximation, shape (P, P).

    Shapes: ``theta`` (P,), ``scale`` (P,).
    """
    precision, directions = _curvature(log_density, theta, scale)
    factor: Tensor = scale.unsqueeze(-1) * directions * precision.abs().clamp(min=1.0).rsqrt()
    return factor


def _curvature(log_density: LogDensity, theta: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (P,), ascending, and eigenvectors (P, P) of the negative Hessian in units of the scale."""
    curvature = -hessian(log_density, theta) * scale * scale.unsqueeze(-1)
    if not bool(curvature.isfinite().all()):
        raise NumericalError("the second derivatives of the log joint density are not finite at its mode; use HMC")
    precision, directions = torch.linalg.eigh(curvature)
    return precision, directions


def _line(log_density: LogDensity, points: Points, move: Tensor) -> Points | None:
    """The longest of the halved steps with a gain; ``None`` if none has one."""
    for halvings in range(_HALVINGS):
        ahead = evaluate(log_density, points.theta + 0.5**halvings * move)
        if bool(ahead.log_density > points.log_density) and bool(ahead.gradient.isfinite().all()):
            return ahead
    return None


def _log_volume(scale: Tensor) -> float:
    """Twice the logarithm of the normalizer of a normal distribution with these standard deviations."""
    return len(scale) * math.log(2 * math.pi) + 2 * float(scale.log().sum())
