"""Policies that select the next kernels, by prior draws or acquisition functions over the prior's unit cube."""

import math
import warnings
from typing import Any, NamedTuple

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.optim.optimize import optimize_acqf_mixed
from botorch.utils.transforms import concatenate_pending_points, t_batch_mode_transform
from torch import Tensor

from gp_ensembles.papers.quadrature.prior import draw_stratified
from gp_ensembles.papers.quadrature.quadrature import QuadratureNodes, draw_nodes
from gp_ensembles.papers.quadrature.surrogate import PreparedKernels, Surrogate

_TINY = 1e-200
_SINGULAR = 1e-7  # ratio of smallest to largest pivot below which gradients are noise


class AcquisitionOptimizer(NamedTuple):
    """Settings of BoTorch's ``optimize_acqf_mixed``, one set of fixed features for each number of components."""

    num_restarts: int = 1  # ascents per number of components
    raw_samples: int = 32  # candidate starting points: draws from the prior and near the best kernels
    max_iterations: int = 8  # of L-BFGS
    num_sizes: int = 2  # numbers of components optimized per batch: those with the best raw samples

    def optimize(
        self, acquisition: AcquisitionFunction, surrogate: Surrogate, count: int, generator: torch.Generator | None
    ) -> Tensor:
        """A batch of ``count`` kernels, selected sequentially, so that it may mix numbers of components."""
        prior = surrogate.kernel_distance.prior
        raw = draw_nodes(prior, self.raw_samples, around=surrogate.evaluations.best(3).cube, generator=generator)
        with torch.no_grad():
            values = acquisition(raw.cube.unsqueeze(-2))
        best = [float(values[raw.components == n].max()) for n in range(1, prior.max_components + 1)]
        sizes = sorted(sorted(range(1, prior.max_components + 1), key=lambda n: -best[n - 1])[: self.num_sizes])

        def initial_conditions(**settings: Any) -> Tensor:  # the best raw samples, given the pending points
            mine = raw.cube[raw.components == int(settings["fixed_features"][0])].unsqueeze(-2)
            with torch.no_grad():
                order = acquisition(mine).argsort(descending=True, stable=True)
            return mine[order[: settings["num_restarts"]]]

        with warnings.catch_warnings():
            # a line search without progress has reached the maximum up to round-off
            warnings.filterwarnings("ignore", message="Optimization failed", category=RuntimeWarning)
            batch, _ = optimize_acqf_mixed(
                acquisition,
                bounds=prior.bounds,
                q=count,
                num_restarts=min(self.num_restarts, self.raw_samples),
                raw_samples=self.raw_samples,
                fixed_features_list=[prior.fixed_features(n) for n in sizes],
                ic_generator=initial_conditions,  # type: ignore[arg-type]  # any acquisition function is accepted
                options={"maxiter": self.max_iterations},
                retry_on_optimization_warning=False,
            )
        return batch


class InformationPolicy(NamedTuple):
    """Kernels whose likelihoods are most informative about the evidence (MASKERADE-I).

    Args:
        optimizer: Settings of the acquisition optimizer.
        num_nodes: Quadrature nodes of the acquisition function per number of components.

    Example:
        >>> from gp_ensembles.papers.quadrature import Budget, RegressionProblem, Search, marginalize
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = RegressionProblem(X, X.squeeze(-1).sin())
        >>> marginalize(problem, Budget(10, draws=0), Search(InformationPolicy(num_nodes=16))).num_evaluations
        10
    """

    optimizer: AcquisitionOptimizer = AcquisitionOptimizer()
    num_nodes: int = 64

    def select(
        self, surrogate: Surrogate, nodes: QuadratureNodes, count: int, *, generator: torch.Generator | None
    ) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        acquisition = InformationGain(surrogate, nodes.first(self.num_nodes))
        return self.optimizer.optimize(acquisition, surrogate, count, generator)


class UncertaintyPolicy(NamedTuple):
    """Kernels whose likelihood is most uncertain, as a density over the prior's cube (MASKERADE-U).

    Args:
        optimizer: Settings of the acquisition optimizer.

    Example:
        >>> from gp_ensembles.papers.quadrature import Search
        >>> search = Search(UncertaintyPolicy(AcquisitionOptimizer(num_sizes=1)))
        >>> search.policy.optimizer.num_sizes
        1
    """

    optimizer: AcquisitionOptimizer = AcquisitionOptimizer()

    def select(
        self, surrogate: Surrogate, nodes: QuadratureNodes, count: int, *, generator: torch.Generator | None
    ) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        return self.optimizer.optimize(LikelihoodUncertainty(surrogate), surrogate, count, generator)


class PriorPolicy(NamedTuple):
    """Draws from the prior, independent of the evaluations so far (MASKERADE-R).

    Example:
        >>> from gp_ensembles.papers.quadrature import Search
        >>> Search(PriorPolicy()).policy
        PriorPolicy()
    """

    def select(
        self, surrogate: Surrogate, nodes: QuadratureNodes, count: int, *, generator: torch.Generator | None
    ) -> Tensor:
        """Rows (count, C) of the prior's cube to evaluate next."""
        return draw_stratified(surrogate.kernel_distance.prior, count, generator=generator)


Policy = InformationPolicy | UncertaintyPolicy | PriorPolicy


class InformationGain(AcquisitionFunction):
    r"""Information about the integral from the likelihoods of a batch (MASKERADE-I).

    .. math:: \log \rho^2, \qquad \rho^2 = c^\top C^{-1} c / V \in [0, 1]

    is the share of the evidence's variance V that evaluating the batch would remove, with C the covariance of the roots
    g(X) at the batch and c their covariance with the integral. The mutual information, :math:`-\tfrac12 \log(1 -
    \rho^2)` nats, has the same maximizer. Shapes: ``X_pending`` (m, C).
    """

    def __init__(self, surrogate: Surrogate, nodes: QuadratureNodes, *, X_pending: Tensor | None = None) -> None:
        super().__init__(model=None)  # type: ignore[arg-type]  # the surrogate is no model of the data
        self.surrogate = surrogate
        self.set_X_pending(X_pending)
        with torch.no_grad():
            self.prepared: PreparedKernels = surrogate.kernel_distance.prepare(nodes.cube)
            cross = surrogate.cross(self.prepared)
            self.weighted: Tensor = nodes.weights * (cross @ surrogate.solved)
            projected = self.weighted @ cross  # cov(g(Theta), I) before the data
            self.solved: Tensor = surrogate.solve(projected)
            among = surrogate.kernel(self.prepared, self.prepared)
            prior = self.weighted @ among @ self.weighted
            self.variance: Tensor = (prior - projected @ self.solved).clamp_min(_TINY)  # V

    @t_batch_mode_transform()
    @concatenate_pending_points
    def forward(self, X: Tensor) -> Tensor:
        r"""Values of batches (\*batch, q, C), shape (\*batch)."""
        return self.share(X).clamp_min(_TINY).log()

    def share(self, X: Tensor) -> Tensor:
        r"""Shares :math:`\rho^2` of batches X (\*batch, q, C) of rows of the cube: (\*batch)."""
        flat = self.surrogate.kernel_distance.prepare(X.reshape(-1, X.shape[-1]))
        cross = self.surrogate.cross(flat)
        with_integral = self.surrogate.kernel(flat, self.prepared) @ self.weighted - cross @ self.solved
        factor, sound = _factor(_covariance(self.surrogate, X, cross))
        # a batch with points that coincide with each other or with the data explains nothing more
        with_integral = with_integral.reshape(X.shape[:-1]).where(sound.unsqueeze(-1), 0.0)
        white = torch.linalg.solve_triangular(factor, with_integral.unsqueeze(-1), upper=False).squeeze(-1)
        share: Tensor = (white / self.variance.sqrt()).square().sum(-1)
        return share.clamp(max=1.0 - 1e-12)


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
    """Cholesky factors and a mask of valid ones; the identity elsewhere, so that gradients are finite."""
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
    if X.shape[-2] == 1:
        among = surrogate.parameters.outputscale.expand(*X.shape[:-1], 1)
    else:
        prepared = surrogate.kernel_distance.prepare(X)
        among = surrogate.kernel(prepared, prepared)
    covariance: Tensor = among - white @ white.mT + torch.diag_embed(noise)
    return covariance
