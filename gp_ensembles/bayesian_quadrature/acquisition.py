"""Where the next likelihood tells most about the evidence: BoTorch acquisition functions over the prior's cube."""

import math

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.utils.transforms import concatenate_pending_points, t_batch_mode_transform
from torch import Tensor

from gp_ensembles.bayesian_quadrature.nodes import Nodes
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate

_TINY = 1e-200
_SINGULAR = 1e-7  # smallest pivot over the largest, below which gradients are noise


class Explained:
    r"""How much of the integral's variance a batch of kernels would explain, :math:`\rho^2`.

    With :math:`I = \sum_s \omega_s m(s) g(s)` over shared nodes, :math:`c = \mathrm{cov}(g(X), I)`, C the covariance of
    g(X), and V the variance of I,

    .. math:: \rho^2 = c^\top C^{-1} c / V \in [0, 1]

    All of it lives in the latent space: the factors m(X) of the linearized likelihood cancel.

    Args:
        surrogate: The surrogate.
        nodes: Nodes of the integral.

    Attributes:
        variance: V, shape ().

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, X.squeeze(-1).sin())
        >>> generator = torch.Generator().manual_seed(0)
        >>> cube = problem.prior.draw(8, 1, generator=generator)
        >>> surrogate = fitted_surrogate(Evaluations(cube, problem.evaluate(cube)), problem.geometry)
        >>> nodes = draw_nodes(problem.prior, 16, generator=generator)
        >>> bool((Explained(surrogate, nodes)(problem.prior.draw(3, 2, generator=generator).unsqueeze(-2)) <= 1).all())
        True
    """

    def __init__(self, surrogate: Surrogate, nodes: Nodes) -> None:
        self.surrogate = surrogate
        self.nodes = nodes
        with torch.no_grad():
            self.placed = surrogate.geometry.measure(nodes.cube)
            cross = surrogate.cross(self.placed)
            self.weighted = nodes.weights * (cross @ surrogate.solved)
            self.projected = self.weighted @ cross  # cov(g(Theta), I) before the data
            self.solved = surrogate.solve(self.projected)
            among = surrogate.kernel(self.placed, self.placed)
            prior = self.weighted @ among @ self.weighted
            self.variance = (prior - self.projected @ self.solved).clamp_min(_TINY)

    def __call__(self, X: Tensor) -> Tensor:
        r"""Shares :math:`\rho^2` of batches X (\*batch, q, C) of rows of the cube: (\*batch)."""
        covariance, with_integral = self._covariances(X)
        factor, sound = _factor(covariance)
        # a batch whose points coincide with one another or with the data has no more to tell
        with_integral = with_integral.where(sound.unsqueeze(-1), 0.0)
        white = torch.linalg.solve_triangular(factor, with_integral.unsqueeze(-1), upper=False).squeeze(-1)
        share: Tensor = (white / self.variance.sqrt()).square().sum(-1)
        return share.clamp(max=1.0 - 1e-12)

    def _covariances(self, X: Tensor) -> tuple[Tensor, Tensor]:
        flat = self.surrogate.geometry.measure(X.reshape(-1, X.shape[-1]))
        cross = self.surrogate.cross(flat)
        with_integral = self.surrogate.kernel(flat, self.placed) @ self.weighted - cross @ self.solved
        return _covariance(self.surrogate, X, cross), with_integral.reshape(X.shape[:-1])


class InformationGain(AcquisitionFunction):
    r"""Mutual information between the likelihoods of a batch and the integral (MASKERADE-I), in nats.

    .. math:: -\tfrac12 \log(1 - \rho^2)

    (Hamid et al., 2022, section 3.3.) Rows of X are points of the prior's cube; batches may mix numbers of components.

    Args:
        explained: What a batch explains of the integral.
        log: Whether to return the logarithm of :math:`\rho^2` in place of the information: it has the same maximizer,
            and a gradient that does not vanish where everything is known to within rounding.
        X_pending: Points under evaluation, shape (m, C), as part of every batch.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> prior = default_prior(X, X.squeeze(-1).sin(), max_components=2)
        >>> generator = torch.Generator().manual_seed(0)
        >>> cube = prior.draw(8, 1, generator=generator)
        >>> values = GaussianLikelihoods(X, X.squeeze(-1).sin())(*prior.hyperparameters(cube))
        >>> surrogate = fitted_surrogate(Evaluations(cube, values), HyperGeometry(prior))
        >>> explained = Explained(surrogate, draw_nodes(prior, 16, generator=generator))
        >>> InformationGain(explained)(prior.draw(4, 2, generator=generator).unsqueeze(-2)).shape
        torch.Size([4])
    """

    def __init__(self, explained: Explained, *, log: bool = False, X_pending: Tensor | None = None) -> None:
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


class IntegralVarianceReduction(AcquisitionFunction):
    r"""Expected reduction of the integral's variance, :math:`V \rho^2`, likelihoods over the largest so far.

    Args:
        explained: What a batch explains of the integral.
        X_pending: Points under evaluation, shape (m, C), as part of every batch.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, X.squeeze(-1).sin())
        >>> generator = torch.Generator().manual_seed(0)
        >>> cube = problem.prior.draw(8, 1, generator=generator)
        >>> surrogate = fitted_surrogate(Evaluations(cube, problem.evaluate(cube)), problem.geometry)
        >>> nodes = draw_nodes(problem.prior, 16, generator=generator)
        >>> acquisition = IntegralVarianceReduction(Explained(surrogate, nodes))
        >>> acquisition(problem.prior.draw(3, 2, generator=generator).unsqueeze(-2)).shape
        torch.Size([3])
    """

    def __init__(self, explained: Explained, *, X_pending: Tensor | None = None) -> None:
        super().__init__(model=None)  # type: ignore[arg-type]  # the surrogate is no model of the data
        self.explained = explained
        self.set_X_pending(X_pending)

    @t_batch_mode_transform()
    @concatenate_pending_points
    def forward(self, X: Tensor) -> Tensor:
        r"""Values of batches (\*batch, q, C), shape (\*batch)."""
        return self.explained.variance * self.explained(X)


class Uncertainty(AcquisitionFunction):
    r"""Uncertainty of the likelihood in the cube (MASKERADE-U): log determinant of its linearized covariance.

    .. math:: \log \det\big(D\, C(X, X)\, D\big) + 2 \log p(n), \qquad D = \mathrm{diag}(m(X))

    For one kernel, :math:`\log(m^2 C) + 2 \log p(n)`. Densities over the cube can be compared between different n,
    those over frequencies cannot: their units differ.

    Args:
        surrogate: The surrogate.
        X_pending: Points under evaluation, shape (m, C), as part of every batch.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, X.squeeze(-1).sin())
        >>> generator = torch.Generator().manual_seed(0)
        >>> cube = problem.prior.draw(8, 1, generator=generator)
        >>> surrogate = fitted_surrogate(Evaluations(cube, problem.evaluate(cube)), problem.geometry)
        >>> Uncertainty(surrogate)(problem.prior.draw(6, 2, generator=generator).reshape(3, 2, -1)).shape
        torch.Size([3])
    """

    def __init__(self, surrogate: Surrogate, *, X_pending: Tensor | None = None) -> None:
        super().__init__(model=None)  # type: ignore[arg-type]  # the surrogate is no model of the data
        self.surrogate = surrogate
        self.set_X_pending(X_pending)

    @t_batch_mode_transform()
    @concatenate_pending_points
    def forward(self, X: Tensor) -> Tensor:
        r"""Values of batches (\*batch, q, C), shape (\*batch)."""
        surrogate, prior = self.surrogate, self.surrogate.geometry.prior
        cross = surrogate.cross(surrogate.geometry.measure(X.reshape(-1, X.shape[-1])))
        mean = (cross @ surrogate.solved).reshape(X.shape[:-1])
        factor, sound = _factor(_covariance(surrogate, X, cross))
        log_determinant = 2.0 * factor.diagonal(dim1=-2, dim2=-1).clamp_min(_TINY).log().sum(-1)
        log_prior = prior.log_prob_components[prior.num_components(X) - 1].sum(-1)
        value = log_determinant + mean.square().clamp_min(_TINY).log().sum(-1) + 2.0 * log_prior
        return value.where(sound, 2.0 * math.log(_TINY))


def _factor(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factors, of the identity where there is none, and where there is one; gradients stay finite."""
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
    placed = surrogate.geometry.measure(X)
    return surrogate.kernel(placed, placed)
