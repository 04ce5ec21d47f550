"""The ensembles of the paper as choices of experts and of a weight rule, scored on a recording."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from gp_ensembles.meta_learners import BayesianModelAveraging, MarkovSwitching, MetaLearner, edoebe_transition
from gp_ensembles.meta_learners.base import weigh_observed
from gp_ensembles.metrics import log_score, nmse
from gp_ensembles.numerics import mixtures, normal
from studies.doebe.recording import NUM_SAMPLES, Recording

FAMILIES = ("hsgp", "rff", "rbf", "poly", "linear")
TITLES = {"hsgp": "HSGP", "rff": "RFF", "rbf": "RBF", "poly": "Poly", "linear": "Linear"}
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
        return MarkovSwitching(edoebe_transition(num_experts // 2, 2, self.delta))


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
    families: tuple[str, ...] = FAMILIES
    num_samples: int = NUM_SAMPLES

    @property
    def key(self) -> str:
        """A name that no other method has, fit for a file."""
        return f"{self.name}; {self.rule}; {self.num_samples}"

    def members(self, recording: Recording) -> Tensor:
        """Indices of its experts in a recording, static ones first.

        Raises:
            ValueError: If the recording has none of them.
        """
        chosen = [
            index
            for index, (family, dynamic, sample) in enumerate(
                zip(recording.family, recording.is_dynamic.tolist(), recording.sample.tolist(), strict=True)
            )
            if family in self.families
            and (self.has_dynamic if dynamic else self.has_static)
            and sample < self.num_samples
        ]
        if not chosen:
            raise ValueError(f"the recording has no expert of {self.name}")
        return torch.tensor(chosen, dtype=torch.int64, device=recording.y.device)


def family_methods(num_samples: int = NUM_SAMPLES) -> list[Method]:
    """The ten ensembles of one family each: OE-HSGP, DOE-HSGP, and so on.

    Example:
        >>> [method.name for method in family_methods()][:3]
        ['OE-HSGP', 'DOE-HSGP', 'OE-RFF']
    """
    return [
        Method(f"{prefix}-{TITLES[family]}", Averaging(), not dynamic, dynamic, (family,), num_samples)
        for family in FAMILIES
        for prefix, dynamic in (("OE", False), ("DOE", True))
    ]


def e_doebe(delta: float = DELTA, num_samples: int = NUM_SAMPLES) -> Method:
    """Static and dynamic experts of all families that exchange weight.

    Example:
        >>> e_doebe(0.1).rule
        Exchange(delta=0.1)
    """
    return Method("E-DOEBE", Exchange(delta), True, True, FAMILIES, num_samples)


def whole_methods() -> list[Method]:
    """The ensembles of all families at once."""
    return [
        Method("OEBE", Averaging(), True, False),
        Method("DOEBE", Averaging(), False, True),
        Method("both, BMA", Averaging(), True, True),
        Method("both, BMA pruned", Averaging(PAPER_THRESHOLD), True, True),
        e_doebe(),
    ]


@torch.no_grad()
def score(method: Method, recording: Recording) -> dict[str, float]:
    """Score an ensemble on a recording, with weights in force before each target.

    Args:
        method: The ensemble.
        recording: Predictions of all experts.

    Returns:
        ``nmse``; ``log_score`` of the full mixture and ``log_score_gaussian`` of the normal distribution with its
        moments, in nats per row for standardized targets.

    Raises:
        ValueError: If the recording has no expert of the ensemble.
    """
    members = method.members(recording)
    rule = method.rule.build(members.shape[0])
    log_prob, y = recording.log_prob[members], recording.y
    _, output = weigh_observed(rule, rule.init(members.shape[0], like=log_prob), log_prob, torch.isnan(y))
    mean, variance = mixtures.moments(output.log_weights, recording.mean[members], recording.variance[members])
    return {
        "nmse": float(nmse(mean, y)),
        "log_score": float(log_score(output.log_prob, y)),
        "log_score_gaussian": float(log_score(normal.log_prob(y, mean, variance), y)),
    }
