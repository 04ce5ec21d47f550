"""Every acquisition function that BoTorch exports, and what it takes of an ensemble."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

import botorch.acquisition
import torch
from botorch.acquisition import AcquisitionFunction, InverseCostWeightedUtility, PosteriorMean
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.multi_objective.utils import compute_sample_box_decomposition
from botorch.acquisition.objective import GenericMCObjective
from botorch.acquisition.penalized import L2Penalty
from botorch.exceptions.errors import UnsupportedError
from botorch.models import AffineFidelityCostModel, ModelList
from botorch.sampling import IIDNormalSampler, ListSampler, MCSampler, SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions.non_dominated import NondominatedPartitioning
from torch import Size, Tensor

from gp_ensembles.bo import EnsembleModel, ExactEnsembleModel
from gp_ensembles.bo.exact_kernels import Hyperparameters
from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.meta_learners import BayesianModelAveraging
from tests.bo.contract_cases import exact_ensemble, random_features

NUM_INPUTS, NUM_ROWS, NUM_BASELINE = 2, 12, 4
WEIGHTS = {"uneven": (0.4, 0.3, 0.2, 0.1), "nearly one": (0.97, 0.01, 0.01, 0.01)}
BEST, BOUND, BETA = 0.3, 0.2, 2.0
FRONT = ((0.6, -0.5), (0.1, 0.1), (-0.6, 0.7))
REFERENCE = (-1.5, -1.5)
NUM_FANTASIES, NUM_PARETO = 3, 2
NUM_MEMBERS = 200  # to which weights of experts are rounded

MODEL = "the model"
MEMBERS = "`members=K`"
SAME = "same as the wrapped function"
NONE = "none"


class Setting(NamedTuple):
    """Models of some data, and how carefully they are to be sampled."""

    model: EnsembleModel  # four experts that disagree, one output
    pair: ExactEnsembleModel  # three kernels, two outputs with weights of their own
    both: ModelList  # two models of one output
    exact: ExactEnsembleModel  # three kernels, one output
    X: Tensor  # the inputs they have seen, (n, D)
    num_samples: int = 64  # of Monte Carlo acquisition functions
    smoothing: float = 1e-2  # temperature of smooth maxima
    listed: bool = False  # whether posteriors are lists of mixtures, which need a sampler each

    def sampler(self, num_samples: int | None = None) -> MCSampler:
        """The same draws each time."""
        if self.listed:
            return self.samplers(self.num_samples)
        return SobolQMCNormalSampler(Size([num_samples or self.num_samples]), seed=1)

    def samplers(self, num_samples: int) -> ListSampler:
        """One for each model of a list; two Sobol sequences would not be independent of each other."""
        return ListSampler(*(IIDNormalSampler(Size([num_samples]), seed=seed) for seed in range(2)))

    @property
    def baseline(self) -> Tensor:
        """Some of the inputs that were seen, (NUM_BASELINE, D)."""
        return self.X[:NUM_BASELINE]

    @property
    def front(self) -> NondominatedPartitioning:
        """The space above the front that is known."""
        reference = self.X.new_tensor(REFERENCE)
        return NondominatedPartitioning(reference, Y=self.X.new_tensor(FRONT))

    @property
    def soft(self) -> dict[str, Any]:
        """How smooth logarithms of improvements are."""
        return {"tau_max": self.smoothing, "tau_relu": min(1e-4, self.smoothing)}


Make = Callable[[Any, Setting], AcquisitionFunction]


class Case(NamedTuple):
    """How an acquisition function takes an ensemble."""

    given: str  # what the table says it takes
    make: Make  # one from its class
    sizes: tuple[int, ...] = (1, 3)  # rows q that it is tried with, auxiliary points included
    num_values: int | None = None  # of one input, where there are several
    rough: tuple[int, ...] = ()  # sizes with which its gradient is not that of differences
    fixed: bool = True  # whether it says the same twice
    alone: bool = False  # whether it takes one t-batch at a time
    num_inputs: int = NUM_INPUTS
    error: type[Exception] | None = None  # what is raised, for those that take none


def build(weights: tuple[float, ...], dtype: torch.dtype = torch.float64, **options: Any) -> Setting:
    """A setting in which the experts have the weights given."""
    generator = torch.Generator().manual_seed(7)
    X = torch.rand(NUM_ROWS, NUM_INPUTS, generator=generator, dtype=torch.float64)
    Y = torch.cat([(4 * X.sum(-1, keepdim=True)).sin(), (5 * X[:, :1] - 3 * X[:, 1:]).cos()], dim=-1)
    Y = Y + 0.1 * torch.randn(Y.shape, generator=generator, dtype=torch.float64)
    wanted = X.new_tensor(weights)
    both = ModelList(*(_model(X, Y[:, [output]], wanted) for output in range(2))).to(dtype)
    lengthscale = X.new_tensor([0.25, 0.6, 0.4])[:, None].expand(3, NUM_INPUTS)
    own = Hyperparameters(lengthscale, X.new_tensor([1.0, 2.0, 0.5]), X.new_tensor([0.02, 0.3, 0.1]))
    pair = exact_ensemble(X, Y).with_hyperparameters_(Hyperparameters(*(torch.stack([v, v]) for v in own)))
    exact = exact_ensemble(X, Y[:, :1]).with_hyperparameters_(own)
    return Setting(both.models[0], pair.to(dtype), both, exact.to(dtype), X.to(dtype), **options)


def _model(X: Tensor, Y: Tensor, wanted: Tensor) -> EnsembleModel:
    """Hyperparameters are far apart, so that experts disagree; prior weights make up for their evidence."""
    start = random_features(X, (0.02, 0.3, 0.1, 0.05), (0.25, 1.0, 0.5, 0.12), num_features=64, seed=11)
    evidence = EnsembleModel(X, Y, ensemble=start).log_weights.detach()
    prior = torch.softmax(wanted.log() - evidence, dim=-1)
    return EnsembleModel(X, Y, ensemble=Ensemble(start.experts, BayesianModelAveraging(prior)))


# A class and a setting to an acquisition function; options may be functions of the setting.


def _of(pick: Callable[[Setting], Any]) -> Callable[..., Make]:
    return lambda **options: lambda A, s: A(pick(s), **_read(options, s))


on_model, on_pair, on_both = _of(lambda s: s.model), _of(lambda s: s.pair), _of(lambda s: s.both)
on_members, on_members_of_pair = _of(lambda s: _members(s.exact)), _of(lambda s: _members(s.pair))


def _read(options: dict[str, Any], s: Setting) -> dict[str, Any]:
    return {name: option(s) if inspect.isfunction(option) else option for name, option in options.items()}


def _q_log_ei(s: Setting) -> AcquisitionFunction:
    return qLogExpectedImprovement(s.model, BEST, s.sampler(), **s.soft)


def _sampled(s: Setting) -> MCSampler:
    return s.sampler()


def _members(model: ExactEnsembleModel) -> ExactEnsembleModel:
    other = exact_ensemble(model.data.X, model.data.Y, members=NUM_MEMBERS)
    return other.with_hyperparameters_(model.hyperparameters)


def _best_below(samples: Tensor) -> Tensor:
    """A constraint on the second output: negative where it holds."""
    return samples[..., 1] - BOUND


def _cost(s: Setting) -> InverseCostWeightedUtility:
    return InverseCostWeightedUtility(AffineFidelityCostModel({-1: 1.0}, fixed_cost=1.0).to(s.X))


def _to_target(X: Tensor) -> Tensor:
    """The highest fidelity, which is the last column."""
    return torch.cat([X[..., :-1], torch.ones_like(X[..., -1:])], dim=-1)


def _optima(s: Setting) -> Tensor:
    """Where the maximum may be, (3, D)."""
    return s.X[4:7] + 0.05


def _fronts(s: Setting) -> Tensor:
    """Fronts that may be the true one, (2, P, O)."""
    front = s.X.new_tensor(FRONT)
    return torch.stack([front, front + 0.2])


def _sets(s: Setting) -> Tensor:
    """Inputs of such fronts, (2, P, D)."""
    return s.X[:6].unflatten(0, (2, 3)) + 0.03


def _boxes(s: Setting) -> Tensor:
    return compute_sample_box_decomposition(_fronts(s))


class _LogPrior(torch.nn.Module):
    """The user believes in the middle of the square."""

    def forward(self, X: Tensor) -> Tensor:
        """Log density of every point, (..., q)."""
        return -(X - 0.5).square().sum(-1)


_FRONT: dict[str, Any] = {
    "ref_point": lambda s: s.X.new_tensor(REFERENCE),
    "partitioning": lambda s: s.front,
    "sampler": _sampled,
}
_NOISY: dict[str, Any] = {"X_baseline": lambda s: s.baseline, "sampler": _sampled, "prune_baseline": False}
_MODEL_BEST: dict[str, Any] = {"best_f": BEST, "sampler": _sampled}
_SMOOTH: dict[str, Any] = {"tau_max": lambda s: s.soft["tau_max"], "tau_relu": lambda s: s.soft["tau_relu"]}
_ONE_SHOT = (1 + NUM_FANTASIES, 3 + NUM_FANTASIES)
_PARETO_SIZES = (1 + NUM_FANTASIES * NUM_PARETO, 3 + NUM_FANTASIES * NUM_PARETO)
_PARETO: dict[str, Any] = {
    "ref_point": lambda s: s.X.new_tensor(REFERENCE),
    "num_fantasies": NUM_FANTASIES,
    "num_pareto": NUM_PARETO,
    "sampler": lambda s: s.samplers(NUM_FANTASIES),
}
_FANTASIES: dict[str, Any] = {"num_fantasies": None, "sampler": lambda s: s.sampler(NUM_FANTASIES)}
_CANDIDATES: dict[str, Any] = {"candidate_set": lambda s: s.X[:6] / 2}
_CONSTRAINED: dict[str, Any] = {"best_f": BEST, "objective_index": 0, "constraints": {1: [None, BOUND]}}

CASES: dict[str, Case] = {
    # Analytic
    "ExpectedImprovement": Case(MEMBERS, on_members(best_f=BEST), (1,)),
    "LogExpectedImprovement": Case(MEMBERS, on_members(best_f=BEST), (1,)),
    "ProbabilityOfImprovement": Case(MEMBERS, on_members(best_f=BEST), (1,)),
    "LogProbabilityOfImprovement": Case(MEMBERS, on_members(best_f=BEST), (1,)),
    "qAnalyticProbabilityOfImprovement": Case(MEMBERS, on_members(best_f=BEST), rough=(3,)),
    "ConstrainedExpectedImprovement": Case(MEMBERS, on_members_of_pair(**_CONSTRAINED), (1,)),
    "LogConstrainedExpectedImprovement": Case(MEMBERS, on_members_of_pair(**_CONSTRAINED), (1,)),
    "LogProbabilityOfFeasibility": Case(MEMBERS, on_members_of_pair(constraints={1: [None, BOUND]}), (1,)),
    "PosteriorMean": Case(MODEL, on_model(), (1,)),
    "ScalarizedPosteriorMean": Case(MODEL, on_model(weights=lambda s: s.X.new_tensor([0.5, -1.0, 2.0])), (3,)),
    "PosteriorStandardDeviation": Case(MODEL, on_model(), (1,)),
    "UpperConfidenceBound": Case(MODEL, on_model(beta=BETA), (1,)),
    "NoisyExpectedImprovement": Case(NONE, on_model(X_observed=lambda s: s.X), (1,), error=UnsupportedError),
    "LogNoisyExpectedImprovement": Case(NONE, on_model(X_observed=lambda s: s.X), (1,), error=UnsupportedError),
    # Monte Carlo
    "qExpectedImprovement": Case(MODEL, on_model(**_MODEL_BEST)),
    "qLogExpectedImprovement": Case(MODEL, on_model(**_MODEL_BEST, **_SMOOTH)),
    "qNoisyExpectedImprovement": Case(MODEL, on_model(**_NOISY)),
    "qLogNoisyExpectedImprovement": Case(MODEL, on_model(**_NOISY, **_SMOOTH)),
    "qProbabilityOfImprovement": Case(MODEL, on_model(**_MODEL_BEST, tau=lambda s: s.smoothing)),
    "qLogProbabilityOfFeasibility": Case(
        MODEL,
        on_pair(
            constraints=[_best_below],
            sampler=_sampled,
            eta=lambda s: s.smoothing,
            tau_max=lambda s: s.smoothing,
            fat=False,
        ),
    ),
    "qSimpleRegret": Case(MODEL, on_model(sampler=_sampled)),
    "qUpperConfidenceBound": Case(MODEL, on_model(beta=BETA, sampler=_sampled)),
    "qLowerConfidenceBound": Case(MODEL, on_model(beta=BETA, sampler=_sampled)),
    "qPosteriorStandardDeviation": Case(MODEL, on_model(sampler=_sampled)),
    "qExpectedUtilityOfBestOption": Case(MODEL, on_model(sampler=_sampled)),
    # Looking ahead
    "qKnowledgeGradient": Case(MODEL, on_model(**_FANTASIES), _ONE_SHOT),
    "qMultiFidelityKnowledgeGradient": Case(
        MODEL,
        on_model(
            **_FANTASIES,
            cost_aware_utility=_cost,
            project=lambda s: _to_target,
            current_value=lambda s: s.X.new_zeros(()),
        ),
        _ONE_SHOT,
    ),
    "ProjectedAcquisitionFunction": Case(SAME, lambda A, s: A(PosteriorMean(s.model), project=_to_target), sizes=(1,)),
    "qMultiStepLookahead": Case(
        MODEL, on_model(batch_sizes=[1], samplers=lambda s: [s.sampler(NUM_FANTASIES)]), (1 + NUM_FANTASIES,)
    ),
    # Entropy searches
    "qMaxValueEntropy": Case(MODEL, on_model(**_CANDIDATES), (1,)),
    "qLowerBoundMaxValueEntropy": Case(MODEL, on_model(**_CANDIDATES), (1,)),
    "qMultiFidelityMaxValueEntropy": Case(MODEL, on_model(**_CANDIDATES, project=lambda s: _to_target), (1,)),
    "qMultiFidelityLowerBoundMaxValueEntropy": Case(MODEL, on_model(**_CANDIDATES, project=lambda s: _to_target), (1,)),
    "qJointEntropySearch": Case(
        MODEL, on_model(optimal_inputs=_optima, optimal_outputs=lambda s: s.X.new_full((3, 1), 1.2))
    ),
    "qPredictiveEntropySearch": Case(MODEL, on_model(optimal_inputs=_optima), rough=(1, 3)),
    # Active learning
    "qNegIntegratedPosteriorVariance": Case(MODEL, on_model(mc_points=lambda s: s.X, sampler=lambda s: s.sampler(1))),
    "PairwiseMCPosteriorVariance": Case(
        MODEL,
        on_model(objective=lambda s: GenericMCObjective(lambda Y, X=None: Y.squeeze(-1).sigmoid()), sampler=_sampled),
        (2, 4),
    ),
    "qBayesianActiveLearningByDisagreement": Case(MEMBERS, on_members(sampler=_sampled)),
    "AnalyticExpectedUtilityOfBestOption": Case(NONE, on_model(), (2,), error=AttributeError),
    "PairwiseBayesianActiveLearningByDisagreement": Case(MODEL, on_model(), (2,), fixed=False),
    # Thompson samples
    "PathwiseThompsonSampling": Case(MODEL, lambda A, s: A(s.exact)),
    # Changes of another acquisition function
    "FixedFeatureAcquisitionFunction": Case(SAME, lambda A, s: A(_q_log_ei(s), NUM_INPUTS, [1], [0.4]), num_inputs=1),
    "PenalizedAcquisitionFunction": Case(SAME, lambda A, s: A(_q_log_ei(s), L2Penalty(s.X[0]), 0.1)),
    "PriorGuidedAcquisitionFunction": Case(SAME, lambda A, s: A(_q_log_ei(s), _LogPrior(), log=True)),
    "ProximalAcquisitionFunction": Case(SAME, lambda A, s: A(_q_log_ei(s), s.X.new_ones(NUM_INPUTS), beta=1.0), (1,)),
    "MultiOutputAcquisitionFunctionWrapper": Case(
        SAME, lambda A, s: A([_q_log_ei(s), PosteriorMean(s.model)]), sizes=(1,), num_values=2
    ),
    "MultiOutputPosteriorMean": Case(MODEL, on_pair(), (1,), num_values=2),
    # Several objectives
    "ExpectedHypervolumeImprovement": Case(
        MEMBERS, on_members_of_pair(ref_point=list(REFERENCE), partitioning=_FRONT["partitioning"]), (1,)
    ),
    "qExpectedHypervolumeImprovement": Case(MODEL, on_pair(**_FRONT)),
    "qLogExpectedHypervolumeImprovement": Case(MODEL, on_pair(**_FRONT, **_SMOOTH)),
    "qNoisyExpectedHypervolumeImprovement": Case(MODEL, on_pair(**_NOISY, ref_point=_FRONT["ref_point"])),
    "qLogNoisyExpectedHypervolumeImprovement": Case(MODEL, on_pair(**_NOISY, **_SMOOTH, ref_point=_FRONT["ref_point"])),
    "MOMF": Case(MODEL, on_pair(**_FRONT)),
    "qLogNParEGO": Case(
        MODEL, on_pair(**_NOISY, **_SMOOTH, scalarization_weights=lambda s: s.X.new_tensor([0.7, 0.3]))
    ),
    "qHypervolumeKnowledgeGradient": Case(MODEL, on_both(**_PARETO), _PARETO_SIZES, alone=True),
    "qMultiFidelityHypervolumeKnowledgeGradient": Case(
        MODEL, on_both(**_PARETO, target_fidelities={1: 1.0}, project=lambda s: _to_target), _PARETO_SIZES, alone=True
    ),
    "qLowerBoundMultiObjectiveMaxValueEntropySearch": Case(MODEL, on_pair(hypercell_bounds=_boxes)),
    "qLowerBoundMultiObjectiveJointEntropySearch": Case(
        MODEL, on_pair(pareto_sets=_sets, pareto_fronts=_fronts, hypercell_bounds=_boxes)
    ),
    "qMultiObjectivePredictiveEntropySearch": Case(MODEL, on_pair(pareto_sets=_sets), rough=(1, 3)),
}


def exported() -> dict[str, type[AcquisitionFunction]]:
    """Every acquisition function of BoTorch that is not abstract, by name."""
    package = botorch.acquisition
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
    waiting, classes = [AcquisitionFunction], {}
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith(package.__name__) and not inspect.isabstract(kind):
                classes[kind.__name__] = kind
    return classes
