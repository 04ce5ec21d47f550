"""Acquisition functions of the next kernels to evaluate, as BoTorch's, over the prior's unit cube."""

import math

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.utils.transforms import concatenate_pending_points, t_batch_mode_transform
from torch import Tensor

from gp_ensembles.papers.quadrature.hyperkernel import PreparedKernels
from gp_ensembles.papers.quadrature.quadrature import QuadratureNodes
from gp_ensembles.papers.quadrature.surrogate import Surrogate

_TINY = 1e-200
_SINGULAR = 1e-7  # smallest pivot over the largest, below which gradients are noise


class ExplainedVariance:
    r"""Share :math:`\rho^2` of the evidence's variance that evaluating a batch of kernels would remove.

    .. math:: \rho^2 = c^\top C^{-1} c / V \in [0, 1]

    with C the covariance of the roots g(X) at the batch, c their covariance with the integral, and V its variance.

    Attributes:
        variance: V, shape ().
    """

    def __init__(self, surrogate: Surrogate, nodes: QuadratureNodes) -> None:
        self.surrogate = surrogate
        self.nodes = nodes
        with torch.no_grad():
            self.prepared: PreparedKernels = surrogate.kernel_distance.prepare(nodes.cube)
            cross = surrogate.cross(self.prepared)
            self.weighted: Tensor = nodes.weights * (cross @ surrogate.solved)
            self.projected: Tensor = self.weighted @ cross  # cov(g(Theta), I) before the data
            self.solved: Tensor = surrogate.solve(self.projected)
            among = surrogate.kernel(self.prepared, self.prepared)
            prior = self.weighted @ among @ self.weighted
            self.variance: Tensor = (prior - self.projected @ self.solved).clamp_min(_TINY)

    def __call__(self, X: Tensor) -> Tensor:
        r"""Shares :math:`\rho^2` of batches X (\*batch, q, C) of rows of the cube: (\*batch)."""
        covariance, with_integral = self._covariances(X)
        factor, sound = _factor(covariance)
        # a batch whose points coincide with one another or with the data explains nothing more
        with_integral = with_integral.where(sound.unsqueeze(-1), 0.0)
        white = torch.linalg.solve_triangular(factor, with_integral.unsqueeze(-1), upper=False).squeeze(-1)
        share: Tensor = (white / self.variance.sqrt()).square().sum(-1)
        return share.clamp(max=1.0 - 1e-12)

    def _covariances(self, X: Tensor) -> tuple[Tensor, Tensor]:
        flat = self.surrogate.kernel_distance.prepare(X.reshape(-1, X.shape[-1]))
        cross = self.surrogate.cross(flat)
        with_integral = self.surrogate.kernel(flat, self.prepared) @ self.weighted - cross @ self.solved
        return _covariance(self.surrogate, X, cross), with_integral.reshape(X.shape[:-1])


class InformationGain(AcquisitionFunction):
    r"""Mutual information between the likelihoods of a batch and the integral (MASKERADE-I), in nats.

    .. math:: -\tfrac12 \log(1 - \rho^2)

    or, with ``log``, :math:`\log \rho^2`, which has the same maximizer. Shapes: ``X_pending`` (m, C).
    """

    def __init__(self, explained: ExplainedVariance, *, log: bool = False, X_pending: Tensor | None = None) -> None:
        super().__init__(model=None)  # type: ignore[arg-type]  # the surrogate is no model of the data
        self.explained = explained
        self.log = log
        self.set_X_pending(X_pending)

    @t_batch_mode_transform()
    @concatenate_pending_points
    def forward(self, X: Tensor) -> Tensor:
        r"""Values of batches (\*batch, q, C), shape (\*batch)."""
        share = self.explained(X)
        return share.clamp_min(_TINY).log() if self.log else -0.5 * torch.log1p(-share)


class LikelihoodUncertainty(AcquisitionFunction):
    r"""Uncertainty of the likelihood in the cube (MASKERADE-U): log determinant of its linearized covariance.

    .. math:: \log \det\big(D\, C(X, X)\, D\big) + 2 \log p(n), \qquad D = \mathrm{diag}(m(X))

    with m and C the posterior mean and covariance of the roots. Shapes: ``X_pending`` (m, C).
    """

    def __init__(self, surrogate: Surrogate, *, X_pending: Tensor | None = None) -> None:
        super().__init__(model=None)  # type: ignore[arg-type]  # the surrogate is no model of the data
        self.surrogate = surrogate
        self.set_X_pending(X_pending)

    @t_batch_mode_transform()
    @concatenate_pending_points
    def forward(self, X: Tensor) -> Tensor:
        r"""Values of batches (\*batch, q, C), shape (\*batch)."""
        surrogate, prior = self.surrogate, self.surrogate.kernel_distance.prior
        cross = surrogate.cross(surrogate.kernel_distance.prepare(X.reshape(-1, X.shape[-1])))
        mean = (cross @ surrogate.solved).reshape(X.shape[:-1])
        factor, sound = _factor(_covariance(surrogate, X, cross))
        log_determinant = 2.0 * factor.diagonal(dim1=-2, dim2=-1).clamp_min(_TINY).log().sum(-1)
        log_prior = prior.log_prob_components[prior.num_components(X) - 1].sum(-1)
        value = log_determinant + mean.square().clamp_min(_TINY).log().sum(-1) + 2.0 * log_prior
        return value.where(sound, 2.0 * math.log(_TINY))


def _factor(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factors, and which exist; factors of the identity elsewhere, so that gradients stay finite."""
    tried, info = torch.linalg.cholesky_ex(covariance.detach())
    pivots = tried.diagonal(dim1=-2, dim2=-1)
    sound = (info == 0) & (pivots.amin(-1) > _SINGULAR * pivots.amax(-1))
    identity = torch.diag_embed(torch.ones_like(covariance[..., 0]))
    factor: Tensor = torch.linalg.cholesky(torch.where(sound[..., None, None], covariance, identity))
    return factor, sound


def _covariance(surrogate: Surrogate, X: Tensor, cross: Tensor) -> Tensor:
    """Posterior covariances of observed roots within batches X (*batch, q, C), from their cross-covariances (*, h)."""
    white = torch.linalg.solve_triangular(surrogate.factor, cross.mT, upper=False).mT.reshape(*X.shape[:-1], -1)
    noise = surrogate.parameters.noise.expand(X.shape[-2])
    covariance: Tensor = _among(surrogate, X) - white @ white.mT + torch.diag_embed(noise)
    return covariance


def _among(surrogate: Surrogate, X: Tensor) -> Tensor:
    """Prior covariances within batches X (*batch, q, C): (*batch, q, q)."""
    if X.shape[-2] == 1:
        return surrogate.parameters.outputscale.expand(*X.shape[:-1], 1)
    prepared = surrogate.kernel_distance.prepare(X)
    return surrogate.kernel(prepared, prepared)
