"""Construction of an ensemble from warm-up rows: features, hyperparameters, samples, conditioning."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.external_counts import after_warm_up
from gp_ensembles.engine.input_checks import check_real_numbers, check_rows
from gp_ensembles.engine.memory import TargetMemory
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.predictions import EnsemblePredictions
from gp_ensembles.engine.quarantine import rebased
from gp_ensembles.ensembles.spec_checks import check_count, check_flag, check_positive
from gp_ensembles.ensembles.targets import RealTarget, Target
from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.empirical_bayes import (
    LBFGS,
    GaussianPerturbation,
    fit_empirical_bayes,
    fit_fixed_kernels,
    get_vectors,
    has_fixed_kernels,
    perturb_hyperparameters,
    repeat_expert,
    sample_hyperparameters,
    set_vectors_,
)
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.filters.transitions import RandomWalk
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.likelihoods import CountLikelihood
from gp_ensembles.meta_learners import MetaLearner
from gp_ensembles.numerics.arguments import check_made, check_memory
from gp_ensembles.numerics.display import call_text
from gp_ensembles.numerics.warn_caller import warn_caller

_REAL = RealTarget()
MIN_ROWS = 10
_WORTH = 0.01  # nats per row by which a later start must be ahead of the first
_FAR = 10.0  # mean or scale of targets beyond which starting values are far off


@final
@dataclass(frozen=True)
class FitSettings:
    """Fit of hyperparameters to the warm-up rows.

    Attributes:
        method: Optimizer of the evidence; ``None`` keeps the starting values. Fixed kernels need none: the best noise
            and prior variance of each follow from one decomposition.
        num_samples: Experts per optimum: the optimum itself, and draws around it, from a Laplace approximation or by
            ``perturbation``.
        start_precision: Precision of a Gaussian prior around the starting values in the unconstrained space
            (logarithms); weak, so that only what the data do not determine stays near its start.
        prior_precision: Floor of the curvature of the Laplace approximation in the same space; directions that
            the data do not determine spread with a variance of one over it.
        perturbation: Draws by independent noise on every hyperparameter in place of the Laplace approximation, whose
            Hessian is out of reach where centers or frequencies are fitted.
        best_start: Whether only the start of each basis whose search ends with the most evidence becomes an expert; a
            start after the first must be ahead of it by 0.01 nats per row. Fleets fitted to several series keep all.

    Raises:
        TypeError: If a field is not a number, or ``best_start`` not true or false.
        ValueError: If a number is out of range.

    Example:
        >>> FitSettings(num_samples=1).method
        LBFGS(max_iterations=200, gradient_tolerance=1e-05, loss_tolerance=1e-07)
    """

    method: LBFGS | None = LBFGS()  # noqa: RUF009 (an immutable record)
    num_samples: int = 3
    start_precision: float = 0.5
    prior_precision: float = 4.0
    perturbation: GaussianPerturbation | None = None
    best_start: bool = False

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        check_count(self, "num_samples", self.num_samples)
        if self.start_precision != 0:
            check_positive(self, "start_precision", self.start_precision)
        check_positive(self, "prior_precision", self.prior_precision)
        if self.perturbation is not None:
            check_made("perturbation", self.perturbation, GaussianPerturbation, "GaussianPerturbation()")
            check_positive(self.perturbation, "variance", self.perturbation.variance)
        check_flag(self, "best_start", self.best_start)


NamedExpert = tuple[str, Expert]


def fitted_experts(
    maps: Sequence[tuple[str, FeatureMap]],
    X: Tensor,
    y: Tensor,
    fit: FitSettings,
    generator: torch.Generator | None,
    progress: bool,
    target: Target = _REAL,
    short: Sequence[Tensor] = (),
) -> list[NamedExpert]:
    """Static experts with fitted hyperparameters, sampled ones included, one object per feature map.

    ``short`` are further starts: length scales of the first columns, (D,) each.
    """
    names = [name for name, _ in maps]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"an ensemble needs bases of distinct names, got {names}")
    for name, features in maps:
        _check_room(name, features, X)
    label = only_label(target, y)
    if label is not None and fit.method is not None:
        warn_caller(one_class_message(label))
        fit = replace(fit, method=None)
    return [(name, _fit(target.expert(features, y), X, y, fit, generator, progress, short)) for name, features in maps]


def _check_room(name: str, features: FeatureMap, X: Tensor) -> None:
    """Raise if features of the warm-up and a covariance for each expert cannot fit into memory."""
    size, num_experts = features.num_features, features.prior_variance.numel()
    check_memory(
        num_experts * size * (size + X.shape[0]) * X.element_size(),
        X.device,
        f"{num_experts} expert{'s' * (num_experts > 1)} of {name} with {size} features",
        "take fewer features",
    )


def only_label(target: Target, y: Tensor) -> int | None:
    """The class of all observed labels (N,) if there is only one; ``None`` for targets that may not be constant."""
    seen = y[~torch.isnan(y)]
    if not target.may_be_constant or seen.numel() == 0 or not bool((seen == seen[0]).all()):
        return None
    return int(seen[0])


def one_class_message(label: int) -> str:
    """Message about labels of the warm-up that are all of one class."""
    return (
        f"all labels of the warm-up are {label}, which says nothing about the inputs: hyperparameters keep their "
        f"starting values; use a longer warm-up with other classes to fit them"
    )


def _fit(
    expert: Expert,
    X: Tensor,
    y: Tensor,
    fit: FitSettings,
    generator: torch.Generator | None,
    progress: bool,
    short: Sequence[Tensor],
) -> Expert:
    if fit.method is not None and has_fixed_kernels(expert):
        fit_fixed_kernels(expert, X, y)
    elif fit.method is not None:
        found = fit_empirical_bayes(
            expert, X, y, fit.method, start_precision=fit.start_precision, progress=progress, length_scales=short
        )
        if fit.best_start:
            evidence = found.log_evidence.clone()
            evidence[1:] -= _WORTH * len(y)
            expert = expert.take(evidence.argmax().reshape(1))
    if fit.num_samples == 1:
        return expert
    if fit.method is None:
        return repeat_expert(expert, fit.num_samples)
    if fit.perturbation is not None:
        samples = perturb_hyperparameters(expert, fit.num_samples, fit.perturbation.variance, generator=generator)
    else:
        samples, _ = sample_hyperparameters(expert, X, y, fit.num_samples, fit.prior_precision, generator=generator)
    vectors = get_vectors(samples)
    vectors[:: fit.num_samples] = get_vectors(expert)  # the optimum itself stands first
    set_vectors_(samples, vectors)
    return samples


def static_group(maps: Sequence[NamedExpert]) -> list[NamedExpert]:
    """Static experts with their names."""
    return [(f"{name}/static", expert) for name, expert in maps]


def dynamic_group(
    maps: Sequence[NamedExpert], X: Tensor, random_walk_variances: Sequence[float], weights_walk: bool = False
) -> list[NamedExpert]:
    """Copies of static experts on a random walk, one for each speed, that share their features and noise."""
    speeds = list(random_walk_variances)
    if not speeds or not all(speed > 0 for speed in speeds) or len(set(speeds)) < len(speeds):
        raise ValueError(f"random_walk_variances must be distinct positive numbers, got {speeds}")

    def walk(features: FeatureMap, speed: float) -> RandomWalk:
        return RandomWalk(speed if weights_walk else _scaled_walk(features, X, speed))

    return [
        (f"{name}/dynamic {speed:g}", expert.with_transition(walk(expert.features, speed)))
        for speed in speeds
        for name, expert in maps
    ]


@torch.no_grad()
def _scaled_walk(features: FeatureMap, X: Tensor, variance: float) -> Tensor:
    """Variance of the weights' steps that adds ``variance`` to the function's, on average over X."""
    size = features.bind()(X).square().sum(-1).mean(-1)
    return (variance / size).unsqueeze(-1)


def group_size(group: Sequence[NamedExpert]) -> int:
    """Number of experts in a group of expert objects."""
    return sum(expert.num_experts for _, expert in group)


def conditioned(
    ensemble: Ensemble, X: Tensor, y: Tensor, *, keep_weights: bool = False
) -> tuple[OnlineEnsemble, EnsemblePredictions]:
    """An ensemble conditioned on the warm-up rows, with the rule's initial weights unless ``keep_weights``.

    Besides it, its predictions of these rows, each made before its target was learned.
    """
    online = OnlineEnsemble(ensemble)
    predictions = online.observe(X, y)
    external_models = online.state.external_models
    if external_models is not None:
        external_models.copy_(after_warm_up(external_models, keep_weights=keep_weights))
    if keep_weights:
        return online, predictions
    state = online.state
    quarantine = rebased(state.quarantine, int(state.meta.num_seen))
    fresh = OnlineEnsemble(ensemble, state._replace(meta=ensemble.init().meta, quarantine=quarantine))
    fresh.is_ranked = len(fresh.names) == 1
    return fresh, predictions


def assemble(
    groups: Sequence[Sequence[NamedExpert]],
    rule: MetaLearner,
    *,
    innovations: Sequence[InnovationModel] = (),
    memory: TargetMemory | None = None,
    outlier_threshold: float | None = None,
) -> Ensemble:
    """The ensemble of some groups, before any data."""
    named = [pair for group in groups for pair in group]
    return Ensemble(
        [expert for _, expert in named],
        rule,
        [f"{name}/{member}" for name, expert in named for member in _members(expert)],
        innovations=innovations,
        memory=memory,
        outlier_threshold=outlier_threshold,
    )


def _members(expert: Expert) -> list[str]:
    """Names of the experts of a batch: their numbers, and the families of those for counts."""
    likelihood = getattr(expert, "likelihood", None)
    if isinstance(likelihood, CountLikelihood):
        return [f"{m} {family}" for m, family in enumerate(likelihood.families)]
    return [str(m) for m in range(expert.num_experts)]


def check_warm_up(X: Tensor, y: Tensor, target: Target) -> None:
    """Raise unless X (N, D) and y (N,) or (N, O) are a valid warm-up; warn of real targets far from standardized."""
    check_rows(X, None)
    check_real_numbers(X, y)
    outputs = () if target.num_outputs is None else (target.num_outputs,)
    if X.ndim != 2 or y.shape != (*X.shape[:1], *outputs):
        hint = "; use y.squeeze(-1)" if y.shape == (X.shape[0], 1) else ""
        wanted = "(N,)" if target.num_outputs is None else f"(N, {target.num_outputs})"
        raise ValueError(
            f"X must be (N, D) and y {wanted} with the same N, got {tuple(X.shape)} and {tuple(y.shape)}{hint}"
        )
    num_seen = int((~torch.isnan(y)).reshape(y.shape[0], -1).all(-1).sum())
    if num_seen < MIN_ROWS:
        raise ValueError(f"only {num_seen} warm-up rows have a target; at least {MIN_ROWS} are needed to fit")
    target.check(y)
    if bool((X[:1] == X).all()):
        raise ValueError("all columns of X are constant in the warm-up; use a longer one")
    seen = y[~torch.isnan(y)]
    mean, scale = float(seen.mean()), float(seen.std())
    if target.is_real and (abs(mean) > _FAR or not 1 / _FAR < scale < _FAR):
        warn_caller(
            f"the warm-up targets have mean {mean:.3g} and standard deviation {scale:.3g}; ensembles expect "
            f"standardized targets (mean 0, deviation 1), see gp_ensembles.streaming.columns.Standardizer"
        )
