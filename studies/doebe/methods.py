"""The ensembles of the paper as choices of experts and of a weight rule, scored on a recording."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.meta_learners import BayesianModelAveraging, MarkovSwitching, MetaLearner
from gp_ensembles.meta_learners.base import weigh_observed
from gp_ensembles.meta_learners.switching import group_transition
from gp_ensembles.numerics import mixtures, normal
from studies.doebe.design import FAMILIES, THREE, TITLES
from studies.doebe.published import chain_transition, weights_after_targets
from studies.doebe.recording import Recording

NUM_SAMPLES = 5
DELTA = 0.01
PAPER_THRESHOLD = 1e-16


class Rule(ABC):
    """A weight rule for any number of experts, static ones first and their dynamic twins after them."""

    @abstractmethod
    def build(self, num_experts: int) -> MetaLearner:
        """The rule for this many experts."""


@final
@dataclass(frozen=True)
class Averaging(Rule):
    """Bayesian model averaging.

    Attributes:
        prune_below: Weight below which an expert is dead for good; the paper has 1e-16, ``None`` is never.
    """

    prune_below: float | None = None

    def build(self, num_experts: int) -> MetaLearner:
        """The rule for this many experts."""
        return BayesianModelAveraging(prune_below=self.prune_below)


@final
@dataclass(frozen=True)
class Exchange(Rule):
    """E-DOEBE: each static expert and its dynamic twin exchange weight.

    Attributes:
        delta: Probability of a switch per step.
    """

    delta: float = DELTA

    def build(self, num_experts: int) -> MetaLearner:
        """The rule for this many experts."""
        return MarkovSwitching(group_transition(list(range(num_experts // 2)) * 2, self.delta))


@dataclass(frozen=True)
class Method:
    """An ensemble of the paper.

    Attributes:
        name: What tables call it.
        rule: Its weight rule.
        has_static: Whether it has static experts.
        has_dynamic: Whether it has dynamic experts.
        families: Its families of basis functions.
        num_samples: Experts per optimum of the evidence.
    """

    name: str
    rule: Rule
    has_static: bool
    has_dynamic: bool
    families: tuple[str, ...]
    num_samples: int = NUM_SAMPLES

    def members(self, recording: Recording, separate_poly: bool = True) -> Tensor:
        """Indices of its experts in a recording, static ones first.

        Args:
            recording: The recording.
            separate_poly: Whether polynomials are static or dynamic as others are; else both, as in the authors' code.

        Raises:
            ValueError: If the recording has none of them.
        """
        both = not separate_poly and self.families == ("poly",)
        chosen = [
            index
            for index, (family, dynamic, sample) in enumerate(
                zip(recording.family, recording.is_dynamic.tolist(), recording.sample.tolist(), strict=True)
            )
            if family in self.families
            and (both or (self.has_dynamic if dynamic else self.has_static))
            and sample < self.num_samples
        ]
        if not chosen:
            raise ValueError(f"the recording has no expert of {self.name}")
        return torch.tensor(chosen, dtype=torch.int64, device=recording.y.device)


def family_methods(families: tuple[str, ...] = FAMILIES, num_samples: int = NUM_SAMPLES) -> list[Method]:
    """The ensembles of one family each: OE-HSGP, DOE-HSGP, and so on.

    Example:
        >>> [method.name for method in family_methods()][:3]
        ['OE-HSGP', 'DOE-HSGP', 'OE-RFF']
    """
    return [
        Method(f"{prefix}-{TITLES[family]}", Averaging(), not dynamic, dynamic, (family,), num_samples)
        for family in families
        for prefix, dynamic in (("OE", False), ("DOE", True))
    ]


def e_doebe(delta: float = DELTA, name: str = "E-DOEBE") -> Method:
    """Static and dynamic experts of three families that exchange weight.

    Example:
        >>> e_doebe(0.1).rule
        Exchange(delta=0.1)
    """
    return Method(name, Exchange(delta), True, True, THREE)


def whole_methods() -> list[Method]:
    """The ensembles of three families at once."""
    return [
        Method("OEBE", Averaging(), True, False, THREE),
        Method("DOEBE", Averaging(), False, True, THREE),
        Method("both, BMA", Averaging(), True, True, THREE),
        Method("both, BMA pruned", Averaging(PAPER_THRESHOLD), True, True, THREE),
        e_doebe(),
    ]


class Run(NamedTuple):
    """What an ensemble said of a stream.

    Attributes:
        mean: Means of its mixtures, or probabilities of class 1, shape (T,).
        log_prob: Log densities of the targets under the mixtures, shape (T,); NaN where there is none.
        gaussian: The same of normals with the mixtures' moments; of classes that of the mixtures.
        log_weights: Log weights that it predicted with, shape (M, T).
    """

    mean: Tensor
    log_prob: Tensor
    gaussian: Tensor
    log_weights: Tensor


@torch.no_grad()
def run_method(method: Method, recording: Recording, is_classes: bool = False) -> Run:
    """Weigh the experts of a recording with the weights before each target.

    Args:
        method: The ensemble.
        recording: Predictions of all experts.
        is_classes: Whether targets are classes 0 and 1.

    Raises:
        ValueError: If the recording has no expert of the ensemble.
    """
    members = method.members(recording)
    rule = method.rule.build(members.shape[0])
    log_prob, y = recording.log_prob[members], recording.y
    _, output = weigh_observed(rule, rule.init(members.shape[0], like=log_prob), log_prob, torch.isnan(y))
    if is_classes:
        seen = output.log_prob.exp()
        return Run(torch.where(y > 0, seen, 1 - seen), output.log_prob, output.log_prob, output.log_weights)
    return _run(output.log_weights, members, recording)


@torch.no_grad()
def run_as_published(method: Method, recording: Recording) -> Run:
    """The same as the authors' code: averages pruned at 1e-16; exchange in a chain, with weights after the target.

    Args:
        method: The ensemble.
        recording: Predictions of all experts.

    Raises:
        ValueError: If the recording has no expert of the ensemble.
    """
    members = method.members(recording, separate_poly=False)
    log_prob, y = recording.log_prob[members], recording.y
    missing = torch.isnan(y)
    if isinstance(method.rule, Exchange):
        families = [recording.family[index] for index in members.tolist()]
        group = torch.tensor(
            [2 * method.families.index(family) for family in families], dtype=torch.int64, device=members.device
        )
        group += (~recording.is_dynamic[members]).long()  # dynamic experts stand first there
        switch = chain_transition(group, recording.start[members], recording.sample[members], method.rule.delta)
        return _run(weights_after_targets(torch.where(missing, 0.0, log_prob), switch), members, recording)
    rule = BayesianModelAveraging(prune_below=PAPER_THRESHOLD)
    _, output = weigh_observed(rule, rule.init(members.shape[0], like=log_prob), log_prob, missing)
    return _run(output.log_weights, members, recording)


def _run(log_weights: Tensor, members: Tensor, recording: Recording) -> Run:
    y = recording.y
    mean, variance = mixtures.moments(log_weights, recording.mean[members], recording.variance[members])
    mixture = (log_weights + recording.log_prob[members]).logsumexp(0)
    return Run(mean, mixture, normal.log_prob(y, mean, variance), log_weights)
