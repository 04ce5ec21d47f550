"""Ensemble as pure functions: state in, state out."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from gpytorch.constraints import Positive
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor, nn

from gp_ensembles.distributions.latent_mixture import Response
from gp_ensembles.engine.external_counts import init_counts
from gp_ensembles.engine.input_checks import (
    Wanted,
    check_compatible,
    check_domain,
    checked_rows,
    count_outputs,
    missing_rows,
    without_columns,
)
from gp_ensembles.engine.memory import TargetMemory
from gp_ensembles.engine.outliers import init_outliers
from gp_ensembles.engine.predictions import AnyMixture, EnsemblePredictions, flatten, invalid_rows, make_mixture
from gp_ensembles.engine.quarantine import init_quarantine, places_out
from gp_ensembles.engine.state import EnsembleState
from gp_ensembles.engine.weighing import Layers, append_copies, awake_weights, find_absent, marked, run_block
from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.filters.rows import Rows, add_extra_noise
from gp_ensembles.filters.states import FilterState, LatentPredictions, Predictions
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.innovations.bank import InnovationBank
from gp_ensembles.meta_learners.base import MetaLearner
from gp_ensembles.numerics.display import ensemble_text
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.numerics.reductions import readable_all


class Ensemble(nn.Module):
    """Experts, and a rule that weighs them.

    Expert objects may be batches; their experts are numbered in order. Objects that share one feature map evaluate it
    once. Only an :class:`~gp_ensembles.experts.external.ExternalExpert` sees the columns of X that it takes as
    forecasts. Each innovation model turns each expert's prediction into another one: the rule weighs M = (number of
    experts) (1 + number of innovation models) predictions, those of one expert together, as if each were an expert.

    Args:
        experts: Expert objects; all take the same inputs, in one dtype on one device, and predict targets of one
            kind: as many outputs, the same classes, the same range of values.
        meta_learner: The rule that weighs the M experts.
        names: A name for each expert; numbers by default.
        innovations: Innovation models; only for one output with Gaussian noise.
        memory: Past targets that the experts see as inputs after the D columns of X.
        outlier_threshold: Error in standard deviations of the mixture from which a target counts less, see
            :func:`~gp_ensembles.engine.weighing.run_block`; ``None`` for never.

    Raises:
        ValueError: If there is no expert, inputs differ in number, names are not M distinct ones, two experts
            predict targets of different kinds, or the rule was built for another number of experts.
        TypeError: If an object is not an expert.

    Example:
        >>> import torch
        >>> from gp_ensembles.experts import GaussianExpert
        >>> from gp_ensembles.features import LinearFeatures
        >>> from gp_ensembles.filters import RandomWalk
        >>> from gp_ensembles.meta_learners import BayesianModelAveraging
        >>> features = LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64))
        >>> moving = GaussianExpert(features, transition=RandomWalk(1e-2))
        >>> ensemble = Ensemble([GaussianExpert(features), moving], BayesianModelAveraging())
        >>> X = torch.linspace(0, 1, 8, dtype=torch.float64).unsqueeze(-1)
        >>> state, predictions = ensemble.update(ensemble.init(), X, X.squeeze(-1))
        >>> predictions.log_weights.detach().exp()[:, 0]
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    def __init__(
        self,
        experts: Sequence[Expert],
        meta_learner: MetaLearner,
        names: Sequence[str] | None = None,
        *,
        innovations: Sequence[InnovationModel] = (),
        memory: TargetMemory | None = None,
        outlier_threshold: float | None = None,
    ) -> None:
        super().__init__()
        if not experts:
            raise ValueError("an ensemble needs at least one expert")
        wrong = next((expert for expert in experts if not isinstance(expert, Expert)), None)
        if wrong is not None:
            raise TypeError(f"experts must be instances of Expert, such as ExternalExpert, got {type(wrong).__name__}")
        inputs = {expert.features.num_inputs for expert in experts if not expert.columns}
        if len(inputs) > 1:
            raise ValueError(f"the experts take different numbers of inputs: {sorted(inputs)}")
        self._modules_of_experts = nn.ModuleList(experts)
        self.experts: tuple[Expert, ...] = tuple(experts)  # the same objects with their type, for loops
        self.meta_learner = meta_learner
        num = sum(expert.num_experts for expert in experts)
        self.expert_names: tuple[str, ...] = tuple(names) if names is not None else tuple(str(m) for m in range(num))
        if len(self.expert_names) != num or len(set(self.expert_names)) != num:
            raise ValueError(f"names must be {num} distinct strings, got {list(self.expert_names)}")
        like = experts[0].features.prior_variance
        if len({(e.features.prior_variance.dtype, e.features.prior_variance.device) for e in experts}) > 1:
            raise ValueError("the experts differ in dtype or device; bring them together with .to(...)")
        check_compatible(experts, self.expert_names)
        self.num_outputs: int | None = count_outputs(experts)  # None where targets have shape (B,)
        if innovations or memory is not None or outlier_threshold is not None:
            _check_layers(self, outlier_threshold)
        bank = InnovationBank(innovations) if innovations else None
        self.forecasts: tuple[int, ...] = tuple(sorted({place for expert in experts for place in expert.columns}))
        # Columns of X, forecasts among them, without those of remembered targets.
        self.num_inputs: int = sum(inputs) - (0 if memory is None else memory.num_columns) + len(self.forecasts)
        self.memory = memory
        self.layers: Layers = Layers(meta_learner, bank, memory, outlier_threshold, _external_places(experts))
        labels = ["", *(f" + {model.label}" for model in innovations)]
        self.names: tuple[str, ...] = tuple(f"{name}{label}" for name in self.expert_names for label in labels)
        self.num_experts: int = len(self.names)
        meta_learner.init(self.num_experts, like.detach())

    @classmethod
    def from_kernels(
        cls,
        kernels: Sequence[Kernel],
        num_inputs: int,
        num_features: int,
        meta_learner: MetaLearner,
        *,
        noise: Tensor,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Static Gaussian experts on random Fourier features, one for each kernel with its hyperparameters.

        Args:
            kernels: M stationary kernels, of any classes with a spectral form, without a batch.
            num_inputs: Number of input columns D.
            num_features: Number of features F of each expert, even.
            meta_learner: The rule that weighs them.
            noise: Noise variances of the experts, shape (M,).
            generator: Source of randomness; torch's global one if ``None``.

        Raises:
            TypeError: If a kernel's class has no spectral form.
            ValueError: If there is no kernel, noise variances are not M positive numbers, or F is too small.

        Example:
            >>> import torch
            >>> from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
            >>> from gp_ensembles.meta_learners import BayesianModelAveraging
            >>> kernels = [ScaleKernel(kernel).double() for kernel in (RBFKernel(), MaternKernel())]
            >>> rule, noise = BayesianModelAveraging(), torch.tensor([0.1, 0.2], dtype=torch.float64)
            >>> Ensemble.from_kernels(kernels, 1, 50, rule, noise=noise).num_experts
            2
        """
        if noise.shape != (len(kernels),) or not bool((noise > 0).all()):
            raise ValueError(f"noise must be {len(kernels)} positive variances, got shape {tuple(noise.shape)}")
        experts = []
        for kernel, variance in zip(kernels, noise, strict=True):
            features = RandomFourierFeatures.from_kernel(kernel, num_inputs, num_features, generator=generator)
            likelihood = GaussianLikelihood(noise_constraint=Positive()).to(features.prior_variance)
            likelihood.noise = variance.to(features.prior_variance).reshape(1)
            experts.append(GaussianExpert(features, likelihood))
        return cls(experts, meta_learner)

    def with_experts(
        self, experts: Sequence[Expert], names: Sequence[str] | None = None, meta_learner: MetaLearner | None = None
    ) -> "Ensemble":
        """Other experts, under the same names and rule unless others are given, with the same layers around them."""
        layers = self.layers
        return Ensemble(
            experts,
            self.meta_learner if meta_learner is None else meta_learner,
            self.expert_names if names is None else names,
            innovations=() if layers.bank is None else layers.bank.models,
            memory=layers.memory,
            outlier_threshold=layers.outlier_threshold,
        )

    def __repr__(self) -> str:
        return ensemble_text("Ensemble", self.expert_names, None, type(self.meta_learner).__name__)

    def init(self) -> EnsembleState:
        """State before any data."""
        like = self.experts[0].features.prior_variance.detach()
        meta = self.meta_learner.init(self.num_experts, like)
        bank, memory = self.layers.bank, self.memory
        return EnsembleState(
            tuple(expert.init() for expert in self.experts),
            meta,
            None if bank is None else bank.init(len(self.expert_names), like),
            None if memory is None else memory.init(like),
            self.init_external_counts(like),
            init_quarantine(len(self.expert_names), like.device),
            None if self.layers.outlier_threshold is None else init_outliers(like),
        )

    def init_external_counts(self, like: Tensor) -> Tensor | None:
        """Counts of external models before any row, (9, G), on the device of ``like``; ``None`` for none."""
        external_models = [e for e in self.experts if isinstance(e, ExternalExpert) for _ in range(e.num_experts)]
        return (
            init_counts([e.adapter.initial is not None for e in external_models], like.device)
            if external_models
            else None
        )

    def bind(self) -> tuple[BoundExpert, ...]:
        """Read all hyperparameters once; experts that share a feature map share its bound function."""
        bound = tuple(expert.bind() for expert in self.experts)
        first: dict[int, BoundExpert] = {}
        for expert, b in zip(self.experts, bound, strict=True):
            b.features = first.setdefault(id(expert.features), b).features
        return bound

    def update(self, state: EnsembleState, X: Tensor, y: Tensor) -> tuple[EnsembleState, EnsemblePredictions]:
        """Predict and learn a block of targets; any blocking gives the same numbers.

        Args:
            state: State before the block.
            X: Inputs in the order of time, shape (B, D).
            y: Targets, shape (B,); NaN where missing.

        Returns:
            The state after the block, and the predictions made before each target.

        Raises:
            ValueError: If a shape is wrong, an input is not finite or outside a feature map's domain, a target is
                infinite, or an expert is in quarantine.
            TypeError: If a dtype is wrong.
            NumericalError: If an expert's predictive covariance is not positive definite.
        """
        self.check_block(X, y)
        if state.quarantine is not None and not readable_all(state.quarantine.until == 0):
            raise ValueError("some experts of this state are in quarantine; use an OnlineEnsemble, which handles it")
        bound = self.bind()
        states: list[FilterState] = []

        def stage(inputs: Tensor, rows: Rows) -> Predictions:
            states.clear()
            parts = []
            for expert_state, b, Phi in zip(state.experts, bound, evaluate(bound, inputs), strict=True):
                after, part = b.update_block(expert_state, Phi, rows)
                states.append(after)
                parts.append(part)
            return flatten(parts)

        after, predictions = run_block(self.layers, state, X, Rows(y), stage, missing=missing_rows(y))
        return after._replace(experts=tuple(states)), predictions._replace(responses=responses_of(bound))

    def predict(self, state: EnsembleState, X: Tensor) -> AnyMixture:
        """Predict each row of X (N, D) separately as the next one; learns nothing."""
        self.check_inputs(X)
        bound = self.bind()
        return predict_mixture(self.layers, bound, responses_of(bound), state, X, out=places_out(state.quarantine))

    def wanted(self, like: Tensor | None = None) -> Wanted:
        """The rows that it takes, in the dtype and on the device of ``like``, or of its hyperparameters."""
        like = self.experts[0].features.prior_variance if like is None else like
        return Wanted(like, self.num_inputs, self.num_outputs, self.is_real, self.forecasts)

    def check_inputs(self, X: Tensor) -> None:
        """Raise unless X (N, D) is a valid input."""
        checked_rows(self.wanted(), X)
        check_domain(X, self.bounded_features(), self.forecasts)

    def check_block(self, X: Tensor, y: Tensor) -> None:
        """Raise unless X (B, D) and y (B,) are a valid block."""
        checked_rows(self.wanted(), X, y)
        check_domain(X, self.bounded_features(), self.forecasts)
        for expert in self.experts:
            expert.check_targets(y)

    @property
    def is_real(self) -> bool:
        """Whether targets are single real numbers."""
        return self.num_outputs is None and all(expert.traits.is_real for expert in self.experts)

    def bounded_features(self) -> tuple[FeatureMap, ...]:
        """The distinct feature maps with a bounded domain."""
        maps = {id(e.features): e.features for e in self.experts if e.features.domain is not None}
        return tuple(maps.values())


def evaluate(bound: Sequence[BoundExpert], X: Tensor) -> list[Tensor]:
    r"""Features of each expert object at X (B, D), each (\*batch, B, F); a shared map is evaluated once."""
    values: dict[tuple[int, ...], Tensor] = {}
    shared, found = without_columns(X, sorted({place for b in bound for place in b.columns})), []
    for b in bound:
        own = list(b.columns)
        key = id(b.features), *own
        if key not in values:
            values[key] = b.features(X[:, own] if own else shared)
        found.append(values[key])
    return found


def predict_mixture(
    layers: Layers,
    bound: Sequence[BoundExpert],
    responses: tuple[Response, ...],
    state: EnsembleState,
    X: Tensor,
    steps: Tensor | None = None,
    extra: Tensor | None = None,
    *,
    out: Sequence[int] = (),
    first_row: int = 0,
) -> AnyMixture:
    """Predict each row of X (N, D) as the next one from bound experts and a state, without those in quarantine.

    Shapes: ``steps`` (1,) to each of them, ``extra`` (N,).
    """
    features = evaluate(bound, next_inputs(layers, state, X))
    found = flatten([b.predict(s, Phi, steps) for s, b, Phi in zip(state.experts, bound, features, strict=True)])
    if extra is not None and not isinstance(found, LatentPredictions):
        found = add_extra_noise(found, extra, torch.full_like(extra, torch.nan))
    absent = find_absent(found, layers.external_models)
    if out:
        absent = torch.zeros_like(found.log_prob, dtype=torch.bool) if absent is None else absent
        absent[list(out)] = True
    failed = invalid_rows(found, [*layers.external_models, *out])
    if failed is not None:
        absent, found = failed if absent is None else absent | failed, marked(found, failed)
    if layers.bank is not None and state.innovations is not None:
        found = append_copies(found, layers.bank.predict(state.innovations, found.mean, found.variance))
    # A copy: the weights may be the state's own memory, which the next row changes.
    log_weights = layers.rule.log_weights(state.meta).clone()
    if absent is not None:
        log_weights = awake_weights(log_weights, absent.repeat_interleave(layers.num_copies, 0), first_row)
    return make_mixture(log_weights, found, responses)


def _external_places(experts: Sequence[Expert]) -> tuple[int, ...]:
    """Places of the external models, which may not predict a row."""
    start, places = 0, list[int]()
    for expert in experts:
        if expert.traits.may_be_absent:
            places += range(start, start + expert.num_experts)
        start += expert.num_experts
    return tuple(places)


def _check_layers(ensemble: Ensemble, outlier_threshold: float | None) -> None:
    """Raise unless targets are of a kind that innovation models, lags and an outlier threshold are for."""
    if not ensemble.is_real:
        raise ValueError(
            "innovation models, lagged targets and an outlier threshold are for scalar real targets; leave them out"
        )
    if outlier_threshold is not None and not 1 <= outlier_threshold < math.inf:
        raise ValueError(f"outlier_threshold must be at least one standard deviation, got {outlier_threshold}")


def next_inputs(layers: Layers, state: EnsembleState, X: Tensor) -> Tensor:
    """Inputs (N, D + P) of the experts for rows X (N, D), each the next one: its columns, then the last targets."""
    if layers.memory is None or state.history is None:
        return X
    return torch.cat([X, layers.memory.next_columns(state.history).expand(X.shape[0], -1)], dim=-1)


def responses_of(bound: Sequence[BoundExpert]) -> tuple[Response, ...]:
    """The likelihoods of experts that have one, which turn latent values into targets."""
    found = [(b.likelihood, b.predictive, b.prior_variance.shape) for b in bound]
    return tuple(
        Response(likelihood, predictive, shape.numel(), shape)
        for likelihood, predictive, shape in found
        if likelihood is not None and predictive is not None
    )
