"""Bayesian linear regression on features that gross outliers cannot derail."""

import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.evidence import batched_log_evidence
from gp_ensembles.experts.gaussian import check_single_output, default_likelihood
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.rebatch import take_experts
from gp_ensembles.filters import latent
from gp_ensembles.filters.adaptation import Adaptation, exact_tensor
from gp_ensembles.filters.sites import RobustRule
from gp_ensembles.filters.states import FilterState, GaussianState, StepPredictions, gaussian_state
from gp_ensembles.numerics import normal

_GROSS = 5.0  # robust standard deviations from the median beyond which a warm-up target is left out of the evidence
_MAD_TO_SD = 1.4826


class BoundRobust(BoundExpert):
    r"""A robust expert's numbers.

    Args:
        features: The feature map as a plain function.
        prior_variance: Prior variance of the weights, shape (\*batch).
        adaptation: How the weights change.
        noise: Observation noise variance, shape (\*batch).
        threshold: Residual that counts half, in predictive standard deviations, shape (\*batch).
    """

    def __init__(
        self,
        features: BoundFeatures,
        prior_variance: Tensor,
        adaptation: Adaptation | None,
        noise: Tensor,
        threshold: Tensor,
    ) -> None:
        super().__init__(features, prior_variance, adaptation)
        self.noise = noise
        self.threshold = threshold
        self._rule = RobustRule(noise, threshold)

    def update_block(self, state: FilterState, Phi: Tensor, y: Tensor) -> tuple[GaussianState, StepPredictions]:
        """See :meth:`BoundExpert.update_block`."""
        assert isinstance(state, GaussianState)
        after, (mean, variance) = latent.update_block(state, Phi, y, self._rule, self.adaptation, self.prior_variance)
        variance = variance + self.noise.unsqueeze(-1)
        log_prob = torch.where(torch.isnan(y), 0.0, normal.log_prob(y, mean, variance))
        return after, StepPredictions(mean, variance, log_prob)

    def predict(self, state: FilterState, Phi: Tensor) -> StepPredictions:
        """See :meth:`BoundExpert.predict`."""
        assert isinstance(state, GaussianState)
        mean, variance = latent.predict(state, Phi, self.adaptation, self.prior_variance)
        return StepPredictions(mean, variance + self.noise.unsqueeze(-1), torch.zeros_like(mean))

    def take(self, index: Tensor) -> "BoundRobust":
        """See :meth:`BoundExpert.take`."""
        adaptation = None if self.adaptation is None else self.adaptation.take(self.noise.shape, index)
        parts = (value.reshape(-1)[index] for value in (self.prior_variance, self.noise, self.threshold))
        prior_variance, noise, threshold = parts
        return BoundRobust(self.features, prior_variance, adaptation, noise, threshold)


class RobustExpert(Expert):
    r"""A batch of Bayesian basis expansions that learn less from a target the further it lies from its prediction.

    The weighted-observation-likelihood filter (Duran-Martin et al. 2024) with the inverse multiquadric weight, see
    :class:`~gp_ensembles.filters.sites.RobustRule`. Predictions are normal, of targets that are not outliers; the cost
    of a row is that of :class:`~gp_ensembles.experts.gaussian.GaussianExpert`.

    Args:
        features: Feature map; its ``prior_variance`` is the prior variance of the weights.
        likelihood: GPyTorch's Gaussian likelihood with the feature map's ``batch_shape``; by default as for a
            Gaussian expert.
        adaptation: How the weights change before every row; ``None`` for static weights.
        threshold: Residual in predictive standard deviations that counts half: a number, or a tensor () or (\*batch).

    Raises:
        ValueError: If a batch shape does not fit or the threshold is not positive.

    Example:
        >>> import torch
        >>> from gp_ensembles.features import LinearFeatures
        >>> X = torch.linspace(-1, 1, 60, dtype=torch.float64).unsqueeze(-1)
        >>> y = X.squeeze(-1).clone()
        >>> y[::7] = 1e4
        >>> expert = RobustExpert(LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64)))
        >>> state, _ = expert.update(expert.init(), X, y)
        >>> bool((expert.predict(state, X)[0] - X.squeeze(-1)).abs().max() < 0.2)
        True
    """

    threshold: Tensor

    def __init__(
        self,
        features: FeatureMap,
        likelihood: GaussianLikelihood | None = None,
        adaptation: Adaptation | None = None,
        threshold: Tensor | float = 4.0,
    ) -> None:
        super().__init__(features, adaptation)
        self.likelihood = default_likelihood(features) if likelihood is None else likelihood
        if self.likelihood.noise.shape[:-1] != features.batch_shape:
            raise ValueError(
                f"the likelihood's batch shape {tuple(self.likelihood.noise.shape[:-1])} is not the feature map's "
                f"{tuple(features.batch_shape)}; build it with batch_shape=features.batch_shape"
            )
        value = exact_tensor(threshold).to(features.prior_variance)
        if not bool((value > 0).all()):
            raise ValueError(f"threshold must be positive, got {value.tolist()}; 4 standard deviations is the default")
        self.register_buffer("threshold", value.detach().expand(features.batch_shape).clone())

    def init(self) -> GaussianState:
        """State before any data."""
        return gaussian_state(self.features.prior_variance, self.features.num_features)

    def bind(self) -> BoundRobust:
        """Read the hyperparameters once, differentiably."""
        noise: Tensor = self.likelihood.noise.squeeze(-1)
        features = self.features
        return BoundRobust(features.bind(), features.prior_variance, self.adaptation, noise, self.threshold)

    def check_targets(self, y: Tensor) -> None:
        """Raise unless targets have shape (B,) and none is infinite; see :meth:`Expert.check_targets`."""
        check_single_output(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """Gaussian evidence without gross targets; see :meth:`Expert.log_evidence`.

        Targets further than five robust standard deviations (by the median absolute deviation) from their median are
        left out: the noise is that of the targets that are not outliers.
        """
        distance = (y - y.median()).abs()
        kept = distance <= _GROSS * _MAD_TO_SD * distance.median()
        bound = self.bind()
        return batched_log_evidence(bound.features(X[kept]), y[kept], bound.prior_variance, bound.noise)

    def take(self, index: Tensor) -> "RobustExpert":
        """See :meth:`Expert.take`."""
        return RobustExpert(
            take_experts(self.features, self.batch_shape, index),
            take_experts(self.likelihood, self.batch_shape, index),
            None if self.adaptation is None else self.adaptation.take(self.batch_shape, index),
            self.threshold.reshape(-1)[index],
        )

    def with_adaptation(self, adaptation: Adaptation | None) -> "RobustExpert":
        """See :meth:`Expert.with_adaptation`."""
        return RobustExpert(self.features, self.likelihood, adaptation, self.threshold)
