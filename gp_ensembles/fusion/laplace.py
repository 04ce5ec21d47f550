"""A normal approximation of the posterior at its best mode."""

import math
import time
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.fusion.inference import Inference, Inferred, complain, nothing_to_learn
from gp_ensembles.fusion.leapfrog import LogDensity, Points, evaluate
from gp_ensembles.fusion.map_search import find_modes
from gp_ensembles.fusion.model import FusionModel
from gp_ensembles.fusion.report import Report
from gp_ensembles.numerics.cholesky import NumericalError

# Copies of the parameters whose second derivatives are in memory at once, most Newton steps and their halvings.
_COPIES, _NEWTON, _HALVINGS = 64, 20, 10
# A step that promises less than this many nats is not worth its Hessian.
_PROMISE = 1e-8


class Mode(NamedTuple):
    """A normal approximation at a mode, in units of the prior's standard deviations.

    Args:
        theta: The mode, shape (P,).
        log_joint: Log joint density there, a scalar.
        precision: Eigenvalues of the negative Hessian, ascending, shape (P,).
        directions: Its eigenvectors as columns, shape (P, P).
        promise: Nats that a further Newton step promises.
    """

    theta: Tensor
    log_joint: Tensor
    precision: Tensor
    directions: Tensor
    promise: float


@final
@dataclass(frozen=True)
class Laplace(Inference):
    r"""Laplace's approximation: a normal distribution at the best of several modes.

    .. math:: p(\theta \mid y) \approx N(\hat\theta, (-\nabla^2 \log p(\hat\theta, y))^{-1}), \qquad
              \log p(y) \approx \log p(\hat\theta, y) + \tfrac P2 \log 2\pi - \tfrac12 \log\det(-\nabla^2 \log p)

    The mode comes from :class:`MAP` and is finished by Newton's method. It takes a fraction of the time of sampling
    and predicts nearly as well, but of a mixture it knows one mode only: the evidence, for one, lacks the others.

    Args:
        restarts: Starts of the search.
        max_iterations: Most steps of each.
        num_draws: Draws S from the approximation.

    Raises:
        ValueError: If a number is not at least one.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.joint_models import HetGP
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> role = FourierRole(torch.ones_like(X[:2]))
        >>> model = HetGP(X, X.squeeze(-1), role, role)
        >>> found = Laplace(num_draws=50).infer(model, generator=torch.Generator().manual_seed(0), progress=False)
        >>> found.theta.shape, found.report.log_evidence < float(found.report.log_joint.max())
        (torch.Size([50, 8]), True)
    """

    restarts: int = 8
    max_iterations: int = 300
    num_draws: int = 200

    def __post_init__(self) -> None:
        if min(self.restarts, self.max_iterations, self.num_draws) < 1:
            raise ValueError("restarts, max_iterations and num_draws must be at least 1")

    def infer(self, model: FusionModel, *, generator: torch.Generator | None = None, progress: bool = True) -> Inferred:
        """Draws from the approximation, shape (S, P), of equal weights."""
        began = time.perf_counter()
        if not model.num_parameters:
            return nothing_to_learn(model, "Laplace")
        found = find_modes(model, self.restarts, self.max_iterations, generator=generator, progress=progress)
        best = int(found.points.log_density.argmax())
        mode = newton(model.log_joint, found.points.theta[best], model.prior_stddev)
        precision, complaints = usable_precision(mode)
        noise = mode.theta.new_empty(self.num_draws, len(mode.theta)).normal_(generator=generator)
        theta = mode.theta + model.prior_stddev * ((noise * precision.rsqrt()) @ mode.directions.mT)
        values = found.points.log_density.clone()
        values[best] = mode.log_joint
        evidence = float(mode.log_joint + (precision.log().neg().sum() + _log_volume(model.prior_stddev)) / 2)
        report = Report(
            "Laplace", time.perf_counter() - began, found.num_gradients, values, evidence,
            complaints=complain(complaints),
        )  # fmt: skip
        return Inferred(theta, torch.zeros_like(theta[:, 0]).log_softmax(0), report)


def usable_precision(mode: Mode) -> tuple[Tensor, list[str]]:
    """Eigenvalues with which to draw, and what to say where they are not those found.

    Where the density does not fall off, the prior's own width is taken: the precision one.
    """
    complaints = []
    # Of the rounding of a Hessian, relative to its largest eigenvalue.
    floor = float(mode.precision[-1].clamp(min=1.0)) * len(mode.precision) * torch.finfo(mode.precision.dtype).eps
    flat = mode.precision <= floor
    if bool(flat.any()):
        complaints.append(
            f"the search ended where the density rises or is flat in {int(flat.sum())} of {len(flat)} directions, so "
            "the prior's width is taken there; allow more iterations, or sample with HMC"
        )
    elif mode.promise > 1e-3:
        complaints.append(
            f"Newton's method has not reached the mode ({mode.promise:.2g} nats are left to gain); allow more "
            "iterations"
        )
    return torch.where(flat, 1.0, mode.precision), complaints


def newton(log_density: LogDensity, theta: Tensor, scale: Tensor) -> Mode:
    """Climb to the top from nearby, by Newton's method with negative curvatures turned round.

    Args:
        log_density: From positions, shape (R, P), to log densities, shape (R,).
        theta: Where to start, shape (P,).
        scale: Units of the parameters, shape (P,).

    Raises:
        NumericalError: If second derivatives are not finite.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> mode = newton(lambda theta: -theta.cosh().sum(-1), 0.3 * one, one)
        >>> mode.theta.abs() < 1e-3, mode.promise < 1e-6
        (tensor([True]), True)
    """
    points = evaluate(log_density, theta.unsqueeze(0))
    for step in range(_NEWTON + 1):
        curvature = -hessian(log_density, points.theta[0]) * scale * scale.unsqueeze(-1)
        if not bool(curvature.isfinite().all()):
            raise NumericalError("the second derivatives of the log joint density are not finite at its mode; use HMC")
        precision, directions = torch.linalg.eigh(curvature)
        gradient = directions.mT @ (points.gradient[0] * scale)
        # A saddle is left along its own directions, at most as fast as the prior allows.
        size = torch.where(precision > 1e-3, precision, precision.abs().clamp(min=1.0))
        move = gradient / size
        promise = 0.5 * float(gradient @ move)
        if promise < _PROMISE or step == _NEWTON:
            break
        ahead = _line(log_density, points, scale * (directions @ move))
        if ahead is None:
            break
        points = ahead
    return Mode(points.theta[0], points.log_density[0], precision, directions, promise)


def hessian(log_density: LogDensity, theta: Tensor) -> Tensor:
    """Second derivatives at one position, shape (P, P), by differentiating the gradients of copies of it.

    Args:
        log_density: From positions, shape (R, P), to log densities, shape (R,).
        theta: The position, shape (P,).

    Example:
        >>> import torch
        >>> hessian(lambda theta: theta[..., 0] * theta[..., 1].square(), torch.tensor([1.0, 2.0]))
        tensor([[0., 4.],
                [4., 2.]])
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


def _line(log_density: LogDensity, points: Points, move: Tensor) -> Points | None:
    """The whole step or a part of it that gains; ``None`` if none does."""
    for halvings in range(_HALVINGS):
        ahead = evaluate(log_density, points.theta + 0.5**halvings * move)
        if bool(ahead.log_density > points.log_density) and bool(ahead.gradient.isfinite().all()):
            return ahead
    return None


def _log_volume(scale: Tensor) -> float:
    """Twice the logarithm of the normalizer of a normal distribution with these standard deviations."""
    return len(scale) * math.log(2 * math.pi) + 2 * float(scale.log().sum())
