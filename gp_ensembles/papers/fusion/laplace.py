"""Laplace's approximation at the best mode, and hyperparameters that maximize its evidence."""

import math
import time
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.draws import normal_draws
from gp_ensembles.papers.fusion.base import FusionModel, hyperparameter_block
from gp_ensembles.papers.fusion.inference import (
    InferenceMethod,
    InferenceReport,
    PosteriorDraws,
    find_modes,
    gradient_ascent,
    issue_cautions,
    without_parameters,
)
from gp_ensembles.papers.fusion.leapfrog import LogDensity, Points, evaluate

# Copies of the parameters whose second derivatives are in memory at once, most Newton steps and their halvings.
_COPIES, _NEWTON, _HALVINGS = 64, 20, 10
# Newton's method ends where a step is expected to gain less than this many nats.
MIN_GAIN = 1e-8
# Fewest draws by which an approximation is judged; nats per parameter by which a tenth of them may lie below the
# density that the approximation expects. Where it served well, a tenth lay below by 0.00 to 0.19, elsewhere by 0.36 to
# 1e4. The Pareto shape of the importance ratios separates less: 0.3 to 1.2 in the good cases, 0.9 or more in others.
_CHECKED, _TOLERATED = 200, 0.25
# Copies of the parameters whose third derivatives are in memory at once.
_EVIDENCE_COPIES = 32


class NormalApproximation(NamedTuple):
    """A normal approximation at a mode, in units of the prior's standard deviations.

    Args:
        theta: The mode, shape (P,).
        log_joint: Log joint density there, a scalar.
        precision: Eigenvalues of the negative Hessian, ascending, shape (P,).
        directions: Its eigenvectors as columns, shape (P, P).
        expected_gain: Nats that the quadratic model predicts for another Newton step.
    """

    theta: Tensor
    log_joint: Tensor
    precision: Tensor
    directions: Tensor
    expected_gain: float


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
        max_iterations: Most steps of each.
        num_draws: Chains S from the approximation.

    Raises:
        ValueError: If a number is not at least one.

    Example:
        >>> import torch
        >>> from gp_ensembles.papers.fusion.models import HetGP
        >>> from gp_ensembles.papers.fusion.function_priors import FourierPrior
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
    remedy = "fix the hyperparameters at maximize_evidence(model), or " if model.sampled else ""
    return [
        f"the posterior is far from normal at its best mode (a tenth of the draws lie {worst:.2g} nats or more for "
        "each parameter below what is expected of them), so predictions and evidence may be badly wrong: "
        f"{remedy}sample with HMC"
    ]


def newton(log_density: LogDensity, theta: Tensor, scale: Tensor) -> NormalApproximation:
    """The mode near a point, by Newton's method with the absolute values of negative curvatures.

    Shapes: ``theta`` (P,), ``scale`` (P,).

    Raises:
        NumericalError: If second derivatives are not finite.
    """
    points = evaluate(log_density, theta.unsqueeze(0))
    for step in range(_NEWTON + 1):
        curvature = -hessian(log_density, points.theta[0]) * scale * scale.unsqueeze(-1)
        if not bool(curvature.isfinite().all()):
            raise NumericalError("the second derivatives of the log joint density are not finite at its mode; use HMC")
        precision, directions = torch.linalg.eigh(curvature)
        gradient = directions.mT @ (points.gradient[0] * scale)
        # At a saddle the step follows the negative curvatures, no longer than the prior allows.
        size = torch.where(precision > 1e-3, precision, precision.abs().clamp(min=1.0))
        move = gradient / size
        expected_gain = 0.5 * float(gradient @ move)
        if expected_gain < MIN_GAIN or step == _NEWTON:
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

    Raises:
        NumericalError: If second derivatives are not finite.
    """
    curvature = -hessian(log_density, theta) * scale * scale.unsqueeze(-1)
    if not bool(curvature.isfinite().all()):
        raise NumericalError("the second derivatives of the log joint density are not finite at its mode")
    precision, directions = torch.linalg.eigh(curvature)
    factor: Tensor = scale.unsqueeze(-1) * directions * precision.abs().clamp(min=1.0).rsqrt()
    return factor


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


class EvidenceMaximum(NamedTuple):
    """Hyperparameters of maximal evidence.

    Args:
        hyperparameters: Logarithms of length scales and amplitude of each name of functions, shape (H,) each; for
            ``prior.fixed_at``.
        log_evidence: Laplace's approximation of the log evidence there.
        theta: The mode of the model's parameters there, hyperparameters included, shape (P,).
        converged: Whether the search ended at a maximum.
    """

    hyperparameters: dict[str, Tensor]
    log_evidence: float
    theta: Tensor
    converged: bool


def maximize_evidence(
    model: FusionModel,
    *,
    num_restarts: int = 8,
    max_iterations: int = 30,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> EvidenceMaximum:
    r"""Type-II maximum likelihood of the hyperparameters of a model that samples them.

    .. math:: \hat\eta = \operatorname{argmax}_\eta \; \log p(y \mid \hat z, \eta) + \log p(\hat z)
              + \tfrac P2 \log 2\pi - \tfrac12 \log\det A(\hat z, \eta), \qquad A = -\nabla_z^2 \log p(y, z \mid \eta)

    Raises:
        ValueError: If the model samples no hyperparameters.
        NumericalError: If the evidence cannot be computed where the search starts.
    """
    if not model.sampled:
        raise ValueError("this model samples no hyperparameters; give its function priors a prior_stddev")
    modes = find_modes(model, num_restarts, 300, generator=generator)
    start = modes.point[int(modes.value.argmin())]
    evidence = LaplaceEvidence(model, start)
    eta = start[evidence.hyperparameters].unsqueeze(0)
    if not math.isfinite(float(evidence(eta))):
        raise NumericalError(
            "the evidence cannot be computed at the mode of the model; fix the hyperparameters instead"
        )
    found = gradient_ascent(evidence, eta, max_iterations=max_iterations, loss_tolerance=1e-6, progress=progress)
    evidence(found.point)
    theta = evidence.join(evidence.mode, found.point[0])
    blocks = model.unpack(theta)
    return EvidenceMaximum(
        {name: blocks[hyperparameter_block(name)] for name in model.sampled},
        -float(found.value),
        theta,
        bool(found.converged.all()),
    )


@final
class LaplaceEvidence:
    """Laplace's log evidence of hyperparameters (1, H), shape (1,), differentiable once; NaN where there is no mode.

    Args:
        model: A model that samples hyperparameters.
        theta: Parameters whose coefficients the first search for the mode starts from, shape (P,).
    """

    def __init__(self, model: FusionModel, theta: Tensor) -> None:
        inside = {hyperparameter_block(name) for name in model.sampled}
        blocks = model.unpack(torch.arange(model.num_parameters, device=model.X.device))
        split = [[part.flatten() for name, part in blocks.items() if (name in inside) == wanted] for wanted in (0, 1)]
        self.model = model
        # Indices of coefficients, shape (P - H,), and of hyperparameters, shape (H,), among the parameters.
        coefficients, self.hyperparameters = torch.cat(split[0]), torch.cat(split[1])
        self._order = torch.cat([coefficients, self.hyperparameters]).argsort()
        self.mode = theta[coefficients]  # each call leaves its own for the next to start from

    def join(self, z: Tensor, eta: Tensor) -> Tensor:
        """Parameters (..., P) of coefficients (..., P - H) and hyperparameters (..., H)."""
        return torch.cat([z, eta.expand(*z.shape[:-1], -1)], -1)[..., self._order]

    def __call__(self, eta: Tensor) -> Tensor:
        """The log evidence of hyperparameters (1, H)."""
        given = eta.detach()[0]
        try:
            found = newton(lambda z: self._log_joint(z, given), self.mode, torch.ones_like(self.mode))
        except NumericalError:
            return (eta * torch.nan).sum(-1)
        precision, cautions = usable_precision(found)
        if cautions:
            # Not a mode: the search must not stop here.
            return (eta * torch.nan).sum(-1)
        self.mode = found.theta
        value = found.log_joint + 0.5 * (len(precision) * math.log(2 * math.pi) - precision.log().sum())
        gradient = self._gradient(found, precision, given)
        # The value with this gradient for autograd.
        return value + ((eta - eta.detach()) * gradient).sum(-1)

    def _log_joint(self, z: Tensor, eta: Tensor) -> Tensor:
        normalizer = 0.5 * z.shape[-1] * math.log(2 * math.pi)
        theta = self.join(z, eta)
        # All vectors have the same hyperparameters, so one basis serves them all, as if it were fixed.
        blocks = self.model.unpack(theta.reshape(-1, theta.shape[-1])[0])
        conditional = copy(self.model)
        conditional._bases = dict(self.model._bases)
        for name in self.model.sampled:
            prior = self.model.priors[name]
            conditional._bases[name] = prior.basis(self.model.X, blocks[hyperparameter_block(name)])
        likelihood = conditional.log_likelihood(theta).sum(-1)
        return likelihood - 0.5 * z.square().sum(-1) - normalizer

    def _gradient(self, mode: NormalApproximation, precision: Tensor, eta: Tensor) -> Tensor:
        """Total derivative: of the log joint, of the determinant, and of the determinant through the mode."""
        direct = evaluate(lambda some: self._log_joint(mode.theta.unsqueeze(0), some), eta.unsqueeze(0)).gradient[0]
        by_z, by_eta = torch.zeros_like(mode.theta), torch.zeros_like(eta)
        # Half the trace of the inverse times A, with that inverse held fixed: its derivative is the determinant's.
        rows = (mode.directions * precision.rsqrt()).mT
        with torch.enable_grad():
            for part in rows.split(_EVIDENCE_COPIES):
                z, hyper = mode.theta.clone().requires_grad_(), eta.clone().requires_grad_()
                copies = z.expand(len(part), -1)
                (slope,) = torch.autograd.grad(self._log_joint(copies, hyper).sum(), copies, create_graph=True)
                (bend,) = torch.autograd.grad((slope * part).sum(), copies, create_graph=True)
                some = torch.autograd.grad(0.5 * (bend * part).sum(), (z, hyper), allow_unused=True)
                by_z, by_eta = by_z + some[0], by_eta + some[1]
            # How the mode moves: A dz = d(slope) / d(eta).
            push = mode.directions @ ((mode.directions.mT @ by_z) / precision)
            z, hyper = mode.theta.clone().requires_grad_(), eta.clone().requires_grad_()
            (slope,) = torch.autograd.grad(self._log_joint(z.unsqueeze(0), hyper).sum(), z, create_graph=True)
            (moved,) = torch.autograd.grad((slope * push).sum(), hyper)
        return direct + by_eta + moved
