"""Several outputs that share features and the covariance of their weights."""

import math
from collections.abc import Callable

import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor, nn

from gp_ensembles.experts.base import BoundExpert, Expert, Plans, StagedRunner, Traits
from gp_ensembles.experts.evidence import whitened_statistics
from gp_ensembles.experts.gaussian import check_real_targets, checked_likelihood
from gp_ensembles.features.base import BoundFeatures, FeatureMap, log_scale
from gp_ensembles.features.batch import take_experts
from gp_ensembles.filters.multi_output import (
    MultiOutputNoise,
    apply_gains,
    apply_gains_,
    condition_multi_output,
    multi_output_state,
    num_groups,
)
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import FilterState, MultiOutputState, Predictions, StepPredictions, overwrite_
from gp_ensembles.filters.transitions import Transition, make_schedule
from gp_ensembles.filters.update import predict, update_block
from gp_ensembles.numerics.cholesky import NumericalError


def _runner(bound: "BoundMultiOutput", state: MultiOutputState) -> StagedRunner:
    """Runner of several outputs: covariances in use change in place, memory reserved for others is untouched."""

    def run(Phi: Tensor, rows: Rows, has_gaps: bool) -> tuple[Predictions, Callable[[], object]]:
        schedule = make_schedule(bound.transition, Phi.shape[-2], bound.prior_variance, rows.ages)
        gains, predictions = condition_multi_output(state, Phi, rows.y, bound.observation, schedule)
        if [gain.source for gain in gains] == list(range(num_groups(state))):
            return predictions, lambda: apply_gains_(state, gains, schedule)
        after = apply_gains(state, gains, schedule)
        return predictions, lambda: overwrite_(state, after)

    return StagedRunner(run)


class BoundMultiOutput(BoundExpert):
    r"""A multi-output expert's hyperparameters.

    Shapes: ``prior_variance`` (\*batch), ``noise`` (\*batch), ``scale`` (\*batch, O).
    """

    plans = Plans(_runner)

    def __init__(
        self,
        features: BoundFeatures,
        prior_variance: Tensor,
        transition: Transition | None,
        noise: Tensor,
        scale: Tensor,
    ) -> None:
        super().__init__(features, prior_variance, transition)
        self.noise = noise
        self.scale = scale
        self.observation: MultiOutputNoise = MultiOutputNoise(noise, scale)

    def update_block(
        self, state: FilterState, Phi: Tensor, y: Tensor | Rows
    ) -> tuple[MultiOutputState, StepPredictions]:
        """See :meth:`BoundExpert.update_block`; targets have shape (B, O)."""
        assert isinstance(state, MultiOutputState)
        return update_block(state, Phi, y, self.transition, self.observation, prior_variance=self.prior_variance)

    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> StepPredictions:
        assert isinstance(state, MultiOutputState)
        return predict(state, Phi, self.transition, self.observation, prior_variance=self.prior_variance, steps=steps)

    def take(self, index: Tensor) -> "BoundMultiOutput":
        transition = None if self.transition is None else self.transition.take(self.noise.shape, index)
        prior_variance, noise = (value.reshape(-1)[index] for value in (self.prior_variance, self.noise))
        scale = self.scale.reshape(-1, self.scale.shape[-1])[index]
        return BoundMultiOutput(self.features, prior_variance, transition, noise, scale)


class MultiOutputExpert(Expert):
    r"""A batch of Bayesian basis expansions with several outputs each, learned online and exactly.

    .. math::
        y_{t,o} = s_o (\phi(x_t)^\top \theta_{t,o} + \varepsilon_{t,o}), \quad
        \varepsilon_{t,o} \sim N(0, \sigma^2), \quad \theta_{0,o} \sim N(0, \sigma_\theta^2 I)

    Outputs are independent given the inputs, share features, prior, noise and transition up to their scale, and thus
    share the covariance of the weights: seven outputs cost about as much as one. Some outputs of a row may be missing;
    outputs with different gaps then have separate covariances (see :mod:`gp_ensembles.filters.multi_output`).

    Args:
        features: Feature map; its ``prior_variance`` is :math:`\sigma_\theta^2`.
        num_outputs: Number of outputs O.
        likelihood: GPyTorch's Gaussian likelihood with the feature map's ``batch_shape``; by default as for a
            Gaussian expert.
        transition: How the weights change before every row; ``None`` for static weights.

    Raises:
        ValueError: If a batch shape does not fit or there is no output.

    Example:
        >>> import torch
        >>> from gp_ensembles.features import LinearFeatures
        >>> expert = MultiOutputExpert(LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64)), num_outputs=2)
        >>> X = torch.linspace(-1, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> state, steps = expert.update(expert.init(), X, torch.cat([X, -X], dim=-1))
        >>> steps.mean.shape, steps.log_prob.shape
        (torch.Size([50, 2]), torch.Size([50]))
    """

    raw_scale: Tensor

    def __init__(
        self,
        features: FeatureMap,
        num_outputs: int,
        likelihood: GaussianLikelihood | None = None,
        transition: Transition | None = None,
    ) -> None:
        super().__init__(features, transition)
        if num_outputs < 1:
            raise ValueError(f"num_outputs must be at least 1, got {num_outputs}")
        self.num_outputs = num_outputs
        self.traits = Traits(shares_state=True, runs_apart=False, num_outputs=num_outputs)
        self.likelihood = checked_likelihood(features, likelihood)
        self.scale_constraint = log_scale()
        start = features.prior_variance.detach().new_zeros(*features.batch_shape, num_outputs)
        self.register_parameter("raw_scale", nn.Parameter(start))

    @property
    def output_scale(self) -> Tensor:
        r"""Scale of each output, in its units, shape (\*batch, O); initially one."""
        value: Tensor = self.scale_constraint.transform(self.raw_scale)
        return value

    def init(self) -> MultiOutputState:
        return multi_output_state(self.features.prior_variance, self.features.num_features, self.num_outputs)

    def bind(self) -> BoundMultiOutput:
        noise: Tensor = self.likelihood.noise.squeeze(-1)
        features = self.features
        return BoundMultiOutput(features.bind(), features.prior_variance, self.transition, noise, self.output_scale)

    def check_targets(self, y: Tensor) -> None:
        """Raise unless targets have shape (B, O) and none is infinite; see :meth:`Expert.check_targets`."""
        if y.ndim != 2 or y.shape[1] != self.num_outputs:
            raise ValueError(f"y must have shape (B, {self.num_outputs}), one column per output, got {tuple(y.shape)}")
        check_real_targets(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """Exact, the sum over outputs; see :meth:`Expert.log_evidence`."""
        bound = self.bind()
        Phi = bound.features(X)
        scaled = y / bound.scale.unsqueeze(-2)
        try:
            quadratic, half_log_determinant = whitened_statistics(Phi, scaled, bound.prior_variance / bound.noise)
        except NumericalError:
            return bound.noise * torch.nan
        normalizer = y.numel() * (math.log(2 * math.pi) + bound.noise.log())
        per_output = half_log_determinant * self.num_outputs + y.shape[0] * bound.scale.log().sum(-1)
        return -0.5 * (quadratic / bound.noise + normalizer) - per_output

    def take(self, index: Tensor) -> "MultiOutputExpert":
        taken = MultiOutputExpert(
            take_experts(self.features, self.batch_shape, index),
            self.num_outputs,
            take_experts(self.likelihood, self.batch_shape, index),
            None if self.transition is None else self.transition.take(self.batch_shape, index),
        )
        scale = self.raw_scale.detach().reshape(-1, self.num_outputs)[index].clone()
        taken.raw_scale = nn.Parameter(scale, self.raw_scale.requires_grad)
        return taken

    def with_transition(self, transition: Transition | None) -> "MultiOutputExpert":
        other = MultiOutputExpert(self.features, self.num_outputs, self.likelihood, transition)
        other.raw_scale = self.raw_scale
        return other
