r"""Weights of experts that depend on the input, learned online: stacking by a recursive filter.

The logits of the weights are Bayesian basis expansions, :math:`\tilde w_k(x) = \phi(x)^\top \theta_k`, and the density
of a target under the pool of the experts' predictions is a likelihood of these latent values, so that the filter of a
Laplace expert learns them, in one pass over the data.
"""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from gp_ensembles.distributions import Mixture
from gp_ensembles.experts.latent_update import LatentUpdate, MomentMatchingUpdate
from gp_ensembles.features import FeatureMap
from gp_ensembles.filters.sites import SiteRule, VectorRule
from gp_ensembles.filters.states import GaussianState, LatentMoments
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.filters.update import predict, update_block
from gp_ensembles.fusion.pools import linear_pool, log_linear_pool
from gp_ensembles.numerics.gauss_hermite import normal_nodes


class OnlinePool(ABC):
    """A pool of experts whose weights are functions of latent values, one vector of them for each row."""

    @abstractmethod
    def num_latent(self, num_experts: int) -> int:
        """Number of latent values L for K experts."""

    @abstractmethod
    def log_weights(self, latent: Tensor, num_experts: int) -> Tensor:
        """From latent values (..., L) to log weights (..., K)."""

    @abstractmethod
    def mixture(self, log_weights: Tensor, node_weights: Tensor, mean: Tensor, variance: Tensor) -> Mixture:
        """The fused prediction, averaged over the latent values.

        Args:
            log_weights: Log weights at S nodes of the latent values, shape (S, K, N).
            node_weights: Quadrature weights of the nodes, shape (S,).
            mean: The experts' means, shape (K, N).
            variance: The experts' variances, shape (K, N).
        """

    @abstractmethod
    def log_prob(self, log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Log density of a target y () with log weights (..., K) of experts' predictions (K,), shape (...).

        Up to a constant that does not depend on the weights.
        """


@final
class OnlineLinearPool(OnlinePool):
    """A mixture: weights are the softmax of K - 1 latent values and a zero (online BHS).

    Example:
        >>> OnlineLinearPool().num_latent(3)
        2
    """

    def num_latent(self, num_experts: int) -> int:
        """K - 1."""
        return num_experts - 1

    def log_weights(self, latent: Tensor, num_experts: int) -> Tensor:
        """Softmax, the last latent value zero."""
        return pad(latent, (0, 1)).log_softmax(-1)

    def mixture(self, log_weights: Tensor, node_weights: Tensor, mean: Tensor, variance: Tensor) -> Mixture:
        """The experts, with the average weights."""
        average = (log_weights + node_weights.log()[:, None, None]).logsumexp(0)
        return linear_pool(mean, variance, average)

    def log_prob(self, log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Log density of the mixture, relative to that of the best expert."""
        normal = torch.distributions.Normal(mean, variance.sqrt(), validate_args=False)
        log_prob: Tensor = normal.log_prob(y)
        # Relative to the best expert, or weights would be lost to round-off where a target is far from all experts.
        return (log_weights + (log_prob - log_prob.amax(-1, keepdim=True))).logsumexp(-1)


@final
class OnlineLogLinearPool(OnlinePool):
    """A log-linear pool: log weights are K latent values less log K (online P-BHS).

    Example:
        >>> OnlineLogLinearPool().num_latent(3)
        3
    """

    def num_latent(self, num_experts: int) -> int:
        """K."""
        return num_experts

    def log_weights(self, latent: Tensor, num_experts: int) -> Tensor:
        """Latent values less log K, so that the prior median of a weight is 1/K."""
        return latent - torch.full_like(latent, num_experts).log()

    def mixture(self, log_weights: Tensor, node_weights: Tensor, mean: Tensor, variance: Tensor) -> Mixture:
        """The mixture of the pools at the nodes."""
        pool = log_linear_pool(mean, variance, log_weights)
        return Mixture(node_weights.log(), pool.mean, pool.variance)

    def log_prob(self, log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Log density of the pool."""
        pool = log_linear_pool(mean.unsqueeze(-1), variance.unsqueeze(-1), log_weights.unsqueeze(-1))
        normal = torch.distributions.Normal(pool.mean, pool.variance.sqrt(), validate_args=False)
        value: Tensor = normal.log_prob(y)
        return value.squeeze(-1)


_NODES, _MOST_NODES = 32, 1024  # quadrature nodes of each latent value for few experts, and in all


class _RowDensity:
    """Log density of the target of the current row as a function of its latent values."""

    def __init__(self, pool: OnlinePool, num_experts: int) -> None:
        self.pool, self.num_experts = pool, num_experts
        self.mean = self.variance = self.target = torch.empty(0, dtype=torch.float64, device="cpu")

    def __call__(self, values: Tensor, _: Tensor) -> Tensor:
        vector = values if self.pool.num_latent(self.num_experts) > 1 else values.unsqueeze(-1)
        log_weights = self.pool.log_weights(vector, self.num_experts)
        return self.pool.log_prob(log_weights, self.mean, self.variance, self.target)


@final
class OnlineFusion(nn.Module):
    r"""Fusion of K experts' normal predictions by weights that depend on the input and are learned online.

    Args:
        features: Basis of the logits, for one expert (no batch); its prior variance is that of a logit. A
            :class:`~gp_ensembles.features.ConstantFeatures` gives weights that are the same everywhere.
        num_experts: Number of experts K, two at least.
        pool: :class:`OnlineLinearPool` (a mixture, the default) or :class:`OnlineLogLinearPool`.
        latent_update: Approximation of the update of the logits: moment matching by default. With
            :class:`~gp_ensembles.experts.LaplaceUpdate` a target that the favored experts miss may change little, for
            the likelihood is not log-concave.
        transition: Drift of the logits, such as :class:`~gp_ensembles.filters.RandomWalk`; none if ``None``.

    Raises:
        ValueError: If there are fewer than two experts, or the features have a batch.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.features import RandomFourierFeatures
        >>> generator = torch.Generator().manual_seed(0)
        >>> kernel = ScaleKernel(RBFKernel()).double()
        >>> features = RandomFourierFeatures.from_kernel(kernel, 1, 20, generator=generator)
        >>> fusion = OnlineFusion(features, 2)
        >>> X = torch.linspace(-2, 2, 200, dtype=torch.float64).unsqueeze(-1)
        >>> mean = torch.stack([0.0 * X[:, 0], 0.0 * X[:, 0] + 1.0])  # the second expert is right where x > 0
        >>> variance, y = torch.full_like(mean, 0.1), (X[:, 0] > 0).double()
        >>> order = torch.randperm(200, generator=generator)
        >>> state, _ = fusion.update(fusion.init(), X[order], mean[:, order], variance[:, order], y[order])
        >>> fusion.predict(state, X[[0, -1]], mean[:, [0, -1]], variance[:, [0, -1]]).mean.round()
        tensor([0., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        features: FeatureMap,
        num_experts: int,
        *,
        pool: OnlinePool | None = None,
        latent_update: LatentUpdate | None = None,
        transition: Transition | None = None,
    ) -> None:
        super().__init__()
        if num_experts < 2:
            raise ValueError(f"num_experts must be at least 2, got {num_experts}")
        if features.batch_shape:
            raise ValueError(f"the features must have no batch, got {tuple(features.batch_shape)}")
        self.features = features
        self.num_experts = num_experts
        self.pool: OnlinePool = OnlineLinearPool() if pool is None else pool
        self.latent_update: LatentUpdate = MomentMatchingUpdate() if latent_update is None else latent_update
        self.transition = transition

    @property
    def num_latent(self) -> int:
        """Number of latent values of a row."""
        return self.pool.num_latent(self.num_experts)

    @torch.no_grad()
    def init(self) -> GaussianState:
        """The prior of the logits' coefficients."""
        variance = self.features.prior_variance
        size = self.num_latent * self.features.num_features
        diagonal = torch.diag_embed(variance.reshape(1).expand(size))
        return GaussianState(torch.cat([diagonal, torch.zeros_like(diagonal[:, :1])], dim=-1))

    @torch.no_grad()
    def log_weights(self, state: GaussianState, X: Tensor) -> tuple[Tensor, Tensor]:
        """Log weights at quadrature nodes of the logits' predictive distribution.

        Args:
            state: The state.
            X: Inputs, shape (N, D).

        Returns:
            Log weights, shape (S, K, N), and the quadrature weights of the nodes, shape (S,).
        """
        return self._log_weights(self._latent(state, self.features(X)))

    @torch.no_grad()
    def predict(self, state: GaussianState, X: Tensor, mean: Tensor, variance: Tensor) -> Mixture:
        """The fused prediction, averaged over the distribution of the weights.

        Args:
            state: The state.
            X: Inputs, shape (N, D).
            mean: The experts' means, shape (K, N).
            variance: The experts' variances, noise included, shape (K, N).

        Raises:
            ValueError: If shapes do not fit, or a variance is not positive.
        """
        self._check(X, mean, variance)
        log_weights, node_weights = self.log_weights(state, X)
        return self.pool.mixture(log_weights, node_weights, mean, variance)

    @torch.no_grad()
    def update(
        self, state: GaussianState, X: Tensor, mean: Tensor, variance: Tensor, y: Tensor
    ) -> tuple[GaussianState, Mixture]:
        """Predict rows one after another, each before the weights are updated with its target.

        Args:
            state: The state; it is not changed.
            X: Inputs in the order of time, shape (B, D).
            mean: The experts' means, each before its target was seen, shape (K, B).
            variance: The experts' variances, noise included, shape (K, B).
            y: Targets, shape (B,); NaN where missing.

        Returns:
            The state after the rows, and their predictions.

        Raises:
            ValueError: If shapes do not fit, there is no row, a variance is not positive, or a target is infinite or
                so far off that no expert's log density is finite.
        """
        self._check(X, mean, variance)
        if y.shape != mean.shape[-1:]:
            raise ValueError(f"there must be a target for each of {mean.shape[-1]} rows, got {tuple(y.shape)}")
        if bool(y.isinf().any()):
            raise ValueError(f"targets must be finite or NaN, but row {int(y.isinf().nonzero()[0])} is infinite")
        error = (y - mean).abs().amin(0).nan_to_num()
        if bool((error.square() / variance.amax(0)).isinf().any()):
            row = int((error.square() / variance.amax(0)).isinf().nonzero()[0])
            raise ValueError(
                f"the target of row {row}, {float(y[row]):g}, is too far off: no expert has a finite log density of "
                "it; leave it out (NaN)"
            )
        density = _RowDensity(self.pool, self.num_experts)
        Phi, prior = self.features(X), self.features.prior_variance
        moments: list[LatentMoments] = []
        rule = self._rule(density)
        for t in range(len(y)):
            density.mean, density.variance, density.target = mean[:, t], variance[:, t], y[t]
            row, target = Phi[t : t + 1], y[t : t + 1]
            state, ahead = update_block(state, row, target, self.transition, rule, prior_variance=prior)
            moments.append(ahead)
        together = LatentMoments(*(torch.cat(parts) for parts in zip(*moments, strict=True)))
        log_weights, node_weights = self._log_weights(together)
        return state, self.pool.mixture(log_weights, node_weights, mean, variance)

    def _latent(self, state: GaussianState, Phi: Tensor) -> LatentMoments:
        rule = self._rule(_RowDensity(self.pool, self.num_experts))
        return predict(state, Phi, self.transition, rule, prior_variance=self.features.prior_variance)

    def _rule(self, density: _RowDensity) -> SiteRule | VectorRule:
        prior = self.features.prior_variance
        if self.num_latent == 1:
            return self.latent_update.rule(density, prior)
        return self.latent_update.vector_rule(density, self.num_latent, prior)

    def _log_weights(self, moments: LatentMoments) -> tuple[Tensor, Tensor]:
        mean, variance = moments
        if self.num_latent == 1:
            mean, variance = mean.unsqueeze(-1), variance[..., None, None]
        nodes, node_weights = normal_nodes(_NODES, self.num_latent, mean, _MOST_NODES)
        root = torch.linalg.cholesky_ex(variance)[0]
        values = mean + torch.einsum("nij,sj->sni", root, nodes)
        return self.pool.log_weights(values, self.num_experts).mT, node_weights

    def _check(self, X: Tensor, mean: Tensor, variance: Tensor) -> None:
        wanted = (self.num_experts, X.shape[0])
        if not X.shape[0]:
            raise ValueError("there must be at least one row, got none")
        if mean.shape != wanted or variance.shape != wanted:
            raise ValueError(
                f"means and variances must be (experts, rows) = {wanted}, got {tuple(mean.shape)} and "
                f"{tuple(variance.shape)}"
            )
        if not bool(mean.isfinite().all()) or not bool(((variance > 0) & variance.isfinite()).all()):
            raise ValueError("the experts' means must be finite and their variances positive")
