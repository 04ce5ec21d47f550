"""The models of the fusion paper and rules with fixed weights, each from a split to densities of the test targets."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions import Mixture
from gp_ensembles.papers.fusion import (
    BHS,
    HMC,
    PBHS,
    ExpertPredictions,
    HetGP,
    LaplaceApproximation,
    MoGPE,
    PoGPE,
    fuse,
    linear_pool,
    stacking_weights,
)
from gp_ensembles.papers.fusion.base import FusionModel
from gp_ensembles.papers.fusion.chees import HMCSettings
from gp_ensembles.papers.fusion.hmc import equal_chains, stacked_chains
from gp_ensembles.papers.fusion.inference import InferenceMethod, InferenceReport
from studies.fusion.nuts import NUTS
from studies.fusion.sets import FusionPriors, FusionSplit, StackedExperts
from studies.harness.plan import check_range

INFERENCES = ("hmc", "laplace", "nuts")


class Sampling(NamedTuple):
    """How posteriors are found.

    Attributes:
        inference: One of :data:`INFERENCES`: our batched chains, Laplace's method, or NumPyro's no-U-turn sampler.
        num_chains: Chains.
        num_draws: Draws of each, after as many of warm-up.
        as_published: Chains start at draws of the prior, and all have equal weight; else those of HMC start at modes,
            and chains are weighted by stacking.
    """

    inference: str
    num_chains: int
    num_draws: int
    as_published: bool

    def method(self) -> InferenceMethod:
        """The inference."""
        if self.inference == "laplace":
            return LaplaceApproximation()
        weighting = equal_chains if self.as_published else stacked_chains
        if self.inference == "nuts":
            return NUTS(self.num_chains, self.num_draws, self.num_draws, chain_weighting=weighting)
        settings = HMCSettings(self.num_draws, self.num_draws)
        if self.as_published:
            return HMC(self.num_chains, settings, weighting, start_iterations=0)
        return HMC(self.num_chains, settings, weighting)

    def __str__(self) -> str:
        """For titles."""
        if self.inference == "laplace":
            return "Laplace's method"
        name = {"hmc": "HMC", "nuts": "NumPyro's NUTS"}[self.inference]
        return f"{name}, {self.num_chains} chains of {self.num_draws} draws after as many of warm-up"


def sampling_of(inference: str, num_chains: int, num_draws: int, as_published: bool) -> Sampling:
    """How posteriors are found, where no name and numbers of zero stand for the usual ones.

    These are the paper's as published, 4 chains of 500 draws by NumPyro's no-U-turn sampler, and else 16 of 150 by HMC.

    Raises:
        ValueError: If there is no such inference, NumPyro is not installed, or a number is out of range.

    Example:
        >>> str(sampling_of("hmc", 0, 0, True))
        'HMC, 4 chains of 500 draws after as many of warm-up'
    """
    inference = inference or ("nuts" if as_published else "hmc")
    if inference not in INFERENCES:
        raise ValueError(f"--inference must be one of {', '.join(INFERENCES)}, got {inference}")
    if inference == "nuts" and find_spec("numpyro") is None:
        raise ValueError('--inference nuts needs NumPyro: pip install "gp_ensembles[numpyro]"; or choose hmc')
    check_range("chains", num_chains, 0)
    check_range("draws", num_draws, 0)
    usual = (4, 500) if as_published or inference == "nuts" else (16, 150)
    return Sampling(inference, num_chains or usual[0], num_draws or usual[1], as_published)


class FusionTask(NamedTuple):
    """What a method is given.

    Attributes:
        split: The rows.
        num_experts: Number of experts K.
        priors: Priors of the functions, with M frequencies each.
        experts: Fixed experts by how many they are.
        sampling: How posteriors are found.
        generator: Source of randomness.
    """

    split: FusionSplit
    num_experts: int
    priors: FusionPriors
    experts: Callable[[int], StackedExperts]
    sampling: Sampling
    generator: torch.Generator


class FusionAnswer(NamedTuple):
    """What a method predicts of the test rows.

    Attributes:
        log_prob: Log densities of the test targets, shape (M,), in nats.
        mean: Point predictions, the means of the densities, shape (M,).
        checks: Diagnostics of the inference: R-hat, Pareto k, divergences; nothing where there is no chain.
    """

    log_prob: Tensor
    mean: Tensor
    checks: dict[str, float]


class FusionMethod(NamedTuple):
    """A model of the comparison, or a rule with fixed weights.

    Attributes:
        title: What it is.
        run: From a task to an answer.
        uses: What it depends on: the number of experts, of frequencies (which an inference goes with), fixed experts.
    """

    title: str
    run: Callable[[FusionTask], FusionAnswer]
    uses: frozenset[str]


def _mixture_of_processes(task: FusionTask) -> FusionAnswer:
    split, priors = task.split, task.priors
    return _inferred(task, MoGPE(split.X, split.y, task.num_experts, priors.mean, priors.noise, priors.weight))


def _product_of_processes(task: FusionTask) -> FusionAnswer:
    split, priors = task.split, task.priors
    return _inferred(task, PoGPE(split.X, split.y, task.num_experts, priors.mean, priors.noise, priors.weight))


def _one_process(task: FusionTask) -> FusionAnswer:
    return _inferred(task, HetGP(task.split.X, task.split.y, task.priors.mean, task.priors.noise))


def _linear_stacking(task: FusionTask) -> FusionAnswer:
    experts = task.experts(task.num_experts)
    return _inferred(task, BHS(experts.X, experts.y, experts.predictions, task.priors.weight), experts.test)


def _log_linear_stacking(task: FusionTask) -> FusionAnswer:
    experts = task.experts(task.num_experts)
    return _inferred(task, PBHS(experts.X, experts.y, experts.predictions, task.priors.weight), experts.test)


def _inferred(task: FusionTask, model: FusionModel, test: ExpertPredictions | None = None) -> FusionAnswer:
    found = task.sampling.method().infer(model, generator=task.generator)
    if found.chains is not None and found.chains.theta.shape[1] < task.sampling.num_draws:
        raise KeyboardInterrupt  # the sampler kept the draws so far, but they are no finished part
    predicted = model.predictive(found.theta, task.split.test_X, test, draw_log_weights=found.log_weights)
    return FusionAnswer(predicted.log_prob(task.split.test_y), predicted.mean, checks_of(found.report))


def checks_of(report: InferenceReport) -> dict[str, float]:
    """Numbers of a report that tables show."""
    chains = report.diagnostics
    if chains is None:
        return {}
    return {
        "rhat": chains.rhat,
        "high_pareto_k": chains.unreliable,
        "divergences": float(chains.divergences.sum()),
        "chains_with_weight": float((chains.weights > 0).sum()),
    }


def _equal(task: FusionTask) -> FusionAnswer:
    test = task.experts(task.num_experts).test
    return _scored(task, linear_pool(test.mean, test.target_variance, test.mean.new_zeros(task.num_experts)))


def _stacked(task: FusionTask) -> FusionAnswer:
    _, y, predictions, test = task.experts(task.num_experts)
    weights = stacking_weights(predictions.log_prob(y))
    return _scored(task, linear_pool(test.mean, test.target_variance, weights))


def _product(log_weights: float | None) -> Callable[[FusionTask], FusionAnswer]:
    """A product of powers of the targets' densities, as the paper's pools have it."""
    return lambda task: _scored(task, fuse(task.experts(task.num_experts).test, log_weights, space="y"))


def _scored(task: FusionTask, mixture: Mixture) -> FusionAnswer:
    return FusionAnswer(mixture.log_prob(task.split.test_y), mixture.mean, {})


_ALONE = frozenset({"frequencies"})
_JOINT = frozenset({"num_experts", "frequencies"})
_STACKS = frozenset({"num_experts", "frequencies", "experts"})
_RULE = frozenset({"num_experts", "experts"})
METHODS: dict[str, FusionMethod] = {
    "MoGPE": FusionMethod("mixture of GP experts, learned together", _mixture_of_processes, _JOINT),
    "PoGPE": FusionMethod("product of GP experts, learned together", _product_of_processes, _JOINT),
    "HetGP": FusionMethod("one GP with noise that depends on the input (het-RFF-GP)", _one_process, _ALONE),
    "P-BHS": FusionMethod("log-linear stacking of fixed experts", _log_linear_stacking, _STACKS),
    "BHS": FusionMethod("linear stacking of fixed experts", _linear_stacking, _STACKS),
    "stacking": FusionMethod("linear pool of the same experts, stacked constant weights", _stacked, _RULE),
    "equal": FusionMethod("linear pool of them, equal weights", _equal, _RULE),
    "gPoE": FusionMethod("log-linear pool of them, weights 1/K", _product(None), _RULE),
    "PoE": FusionMethod("product of them", _product(0.0), _RULE),
}
