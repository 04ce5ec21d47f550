"""Hyperparameters by type-II maximum likelihood: the maximum of Laplace's approximation of the evidence."""

import math
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.fusion.ascent import ascend
from gp_ensembles.fusion.laplace import Mode, newton, usable_precision
from gp_ensembles.fusion.leapfrog import evaluate
from gp_ensembles.fusion.map_search import find_modes
from gp_ensembles.fusion.model import FusionModel, hyper_block
from gp_ensembles.numerics.cholesky import NumericalError

# Copies of the parameters whose third derivatives are in memory at once.
_COPIES = 32


class TypeTwo(NamedTuple):
    """Hyperparameters of the largest evidence.

    Args:
        hyperparameters: Logarithms of length scales and amplitude of each name of functions, shape (H,) each; for
            ``role.fixed_at``.
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
    restarts: int = 8,
    max_iterations: int = 30,
    generator: torch.Generator | None = None,
    progress: bool = False,
) -> TypeTwo:
    r"""Type-II maximum likelihood of the hyperparameters of a model that samples them.

    .. math:: \hat\eta = \arg\max_\eta \; \log p(y \mid \hat z, \eta) + \log p(\hat z) + \tfrac P2 \log 2\pi
              - \tfrac12 \log\det A(\hat z, \eta), \qquad A = -\nabla_z^2 \log p(y, z \mid \eta)

    (Rasmussen and Williams, 2006, section 5.5) by L-BFGS with the exact gradient, that of the mode and of the
    determinant included. The priors of the hyperparameters play no part, except that the search starts at the mode of
    everything. Build the model again with the roles fixed at what is found.

    Args:
        model: A model some of whose roles have a ``prior_stddev``.
        restarts: Starts of the search for the first mode.
        max_iterations: Most steps of the hyperparameters.
        generator: Source of randomness of the starts.
        progress: Whether to show a progress bar.

    Raises:
        ValueError: If the model samples no hyperparameters.
        NumericalError: If the evidence cannot be computed where the search starts.

    Example:
        >>> import torch
        >>> from gp_ensembles.fusion.joint_models import HetGP
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> X = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> y = X.squeeze(-1) + 0.1 * (40 * X.squeeze(-1)).sin()
        >>> role = FourierRole(torch.ones_like(X[:1]), prior_stddev=0.5)
        >>> fixed = FourierRole(torch.ones_like(X[:1]))
        >>> found = maximize_evidence(HetGP(X, y, role, fixed), generator=torch.Generator().manual_seed(0))
        >>> best = HetGP(X, y, role.fixed_at(found.hyperparameters["mean"]), fixed)
        >>> best.num_parameters, found.hyperparameters["mean"].shape
        (4, torch.Size([2]))
    """
    split = _Split.of(model)
    modes = find_modes(model, restarts, 300, generator=generator)
    start = modes.points.theta[int(modes.points.log_density.argmax())]
    evidence = _Evidence(model, split, start[split.coefficients])
    eta = start[split.hyperparameters].unsqueeze(0)
    if not math.isfinite(float(evidence(eta))):
        raise NumericalError(
            "the evidence cannot be computed at the mode of the model; fix the hyperparameters instead"
        )
    found = ascend(evidence, eta, max_iterations=max_iterations, tolerance=1e-4, progress=progress)
    best = found.points.theta
    evidence(best)
    theta = split.join(evidence.mode, best[0])
    blocks = model.unpack(theta)
    names = [name for name in model.functions if hyper_block(name) in blocks]
    return TypeTwo(
        {name: blocks[hyper_block(name)] for name in names},
        float(found.points.log_density),
        theta,
        bool(found.converged.all()),
    )


class _Split(NamedTuple):
    """Where coefficients and hyperparameters stand in the parameters of a model."""

    coefficients: Tensor
    hyperparameters: Tensor

    @classmethod
    def of(cls, model: FusionModel) -> "_Split":
        inside = {hyper_block(name) for name in model.functions}
        blocks = model.unpack(torch.arange(model.num_parameters, device=model.X.device))
        split = [[part.flatten() for name, part in blocks.items() if (name in inside) == wanted] for wanted in (0, 1)]
        if not split[1]:
            raise ValueError("this model samples no hyperparameters; give its roles a prior_stddev")
        return cls(torch.cat(split[0]), torch.cat(split[1]))

    def join(self, z: Tensor, eta: Tensor) -> Tensor:
        """Parameters (..., P) of coefficients (..., P - H) and hyperparameters (..., H)."""
        order = torch.cat([self.coefficients, self.hyperparameters]).argsort()
        return torch.cat([z, eta.expand(*z.shape[:-1], -1)], -1)[..., order]


@final
@dataclass
class _Evidence:
    """Laplace's evidence as a function of hyperparameters (1, H); remembers the mode, from which the next starts."""

    model: FusionModel
    split: _Split
    mode: Tensor

    def __call__(self, eta: Tensor) -> Tensor:
        given = eta.detach()[0]
        try:
            found = newton(lambda z: self._log_joint(z, given), self.mode, torch.ones_like(self.mode))
        except NumericalError:
            return (eta * torch.nan).sum(-1)
        precision, complaints = usable_precision(found)
        if complaints:
            # Not a mode: no step may end here.
            return (eta * torch.nan).sum(-1)
        self.mode = found.theta
        value = found.log_joint + 0.5 * (len(precision) * math.log(2 * math.pi) - precision.log().sum())
        gradient = self._gradient(found, precision, given)
        # The value with this gradient, for whoever differentiates it.
        return value + ((eta - eta.detach()) * gradient).sum(-1)

    def _log_joint(self, z: Tensor, eta: Tensor) -> Tensor:
        normalizer = 0.5 * z.shape[-1] * math.log(2 * math.pi)
        theta = self.split.join(z, eta)
        # All vectors have the same hyperparameters, so one basis serves them all, as if it were fixed.
        blocks = self.model.unpack(theta.reshape(-1, theta.shape[-1])[0])
        conditional = copy(self.model)
        conditional._bases = dict(self.model._bases)
        for name, (role, _) in self.model.functions.items():
            if hyper_block(name) in blocks:
                conditional._bases[name] = role.basis(self.model.X, blocks[hyper_block(name)])
        likelihood = conditional.pointwise(theta).sum(-1)
        return likelihood - 0.5 * z.square().sum(-1) - normalizer

    def _gradient(self, mode: Mode, precision: Tensor, eta: Tensor) -> Tensor:
        """Total derivative: of the log joint, of the determinant, and of the mode through the determinant."""
        direct = evaluate(lambda some: self._log_joint(mode.theta.unsqueeze(0), some), eta.unsqueeze(0)).gradient[0]
        by_z, by_eta = torch.zeros_like(mode.theta), torch.zeros_like(eta)
        # Half the trace of the inverse times A, with that inverse held fixed: its derivative is the determinant's.
        rows = (mode.directions * precision.rsqrt()).mT
        with torch.enable_grad():
            for part in rows.split(_COPIES):
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
