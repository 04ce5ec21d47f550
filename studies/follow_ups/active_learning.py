"""Polyzos, Lu and Giannakis 2022: which row to label next, by several rules whose weights follow their usefulness."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.data.synthetic import friedman1
from gp_ensembles.distributions import Mixture
from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.metrics import nmse
from studies.harness.experiment import Choices
from studies.harness.plan import chosen
from studies.harness.trials import Case, run_cases

Rule = Callable[[Mixture], Tensor]
Scores = dict[str, float]
WEIGHTED = "weighted"
LABELS = (20, 40, 80)
_LENGTHSCALES = (0.3, 1.0, 3.0)
_NOISES = (0.01, 0.1)
_NUM_FEATURES = 100
_NUM_FIRST = 10
_NUM_VALIDATION = 30
_NUM_TEST = 500
_NUM_OTHERS = _NUM_VALIDATION + _NUM_TEST


class Problem(NamedTuple):
    """Rows that can be labeled, and rows that tell how well they were chosen.

    Attributes:
        X: Inputs of the pool, shape (N, D).
        y: Their targets, each unknown until its row is chosen.
        X_validation: Inputs of the labeled rows that tell how useful a rule is.
        y_validation: Their targets.
        X_test: Inputs of the rows that are predicted.
        y_test: Their targets without noise.
    """

    X: Tensor
    y: Tensor
    X_validation: Tensor
    y_validation: Tensor
    X_test: Tensor
    y_test: Tensor


def variance(mixture: Mixture) -> Tensor:
    """The mean of the experts' variances, shape (N,)."""
    return (mixture.log_weights.exp() * mixture.component_variance.mT).sum(-1)


def disagreement(mixture: Mixture) -> Tensor:
    """The variance of the experts' means, shape (N,)."""
    return mixture.variance - variance(mixture)


def entropy(mixture: Mixture) -> Tensor:
    r"""A lower bound of the mixture's entropy: :math:`-\sum_m w_m \log \sum_j w_j N(\mu_m; \mu_j, v_m + v_j)`.

    In nats, shape (N,) (Huber et al. 2008).

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> bool(entropy(Mixture(0 * one[:, 0], one, one)) < 0.5 * math.log(2 * math.pi * math.e))
        True
    """
    mean, spread = mixture.component_mean.mT, mixture.component_variance.mT
    both = spread.unsqueeze(-1) + spread.unsqueeze(-2)
    apart = mean.unsqueeze(-1) - mean.unsqueeze(-2)
    overlap = -0.5 * (apart.square() / both + (2 * math.pi * both).log())
    weights = mixture.log_weights.exp()
    return -(weights * (overlap + mixture.log_weights).logsumexp(-1)).sum(-1)


RULES: dict[str, Rule | None] = {"variance": variance, "disagreement": disagreement, "entropy": entropy, "random": None}
METHODS = (*RULES, WEIGHTED)


class Bandit:
    """Weights of rules that are tried one at a time, by what each was worth (EXP3; Auer et al. 2002).

    Args:
        num_rules: How many there are.
        learning_rate: How fast weights follow.
        share: Probability of a rule at random.

    Example:
        >>> bandit = Bandit(2)
        >>> bandit.learn(0, 1.0)
        >>> bandit.probabilities[0] > bandit.probabilities[1]
        tensor(True)
    """

    def __init__(self, num_rules: int, learning_rate: float = 0.2, share: float = 0.2) -> None:
        self.learning_rate = learning_rate
        self.share = share
        self._log_weights = torch.zeros(num_rules, dtype=torch.float64, device="cpu")

    @property
    def probabilities(self) -> Tensor:
        """With which each rule is tried next, shape (K,)."""
        return (1 - self.share) * self._log_weights.softmax(0) + self.share / len(self._log_weights)

    def learn(self, rule: int, gain: float) -> None:
        """What a rule was worth, from -1 to 1; larger gains count as one."""
        estimate = max(-1.0, min(1.0, gain)) / float(self.probabilities[rule])
        self._log_weights[rule] += self.learning_rate * estimate


def ensemble(num_inputs: int, generator: torch.Generator) -> OnlineEnsemble:
    """Random features of six RBF kernels, three length scales times two noises, averaged by their evidence."""
    kernels, noises = [], []
    for lengthscale in _LENGTHSCALES:
        for noise in _NOISES:
            kernel = ScaleKernel(RBFKernel()).double()
            kernel.base_kernel.lengthscale, kernel.outputscale = lengthscale * num_inputs**0.5, 1.0
            kernels.append(kernel)
            noises.append(noise)
    values = torch.tensor(noises, dtype=torch.float64, device="cpu")
    rule = BayesianModelAveraging()
    return OnlineEnsemble(
        Ensemble.from_kernels(kernels, num_inputs, _NUM_FEATURES, rule, noise=values, generator=generator)
    )


def learn_actively(problem: Problem, method: str, generator: torch.Generator) -> tuple[Scores, list[int]]:
    """Choose rows one by one and learn them.

    Args:
        problem: The rows.
        method: One of :data:`METHODS`.
        generator: Source of features, of the first rows and of what is random in a rule.

    Returns:
        Errors on the test rows after so many labels, with what probability each rule is tried in the end, and the rows
        of the pool in the order in which they were labeled.

    Raises:
        ValueError: If the pool has no more rows than are labeled.
    """
    num_rows = len(problem.y)
    if num_rows <= LABELS[-1]:
        raise ValueError(f"{LABELS[-1]} rows are labeled of a pool of {num_rows}; give a larger one")
    model = ensemble(problem.X.shape[-1], generator)
    free = torch.ones(num_rows, dtype=torch.bool, device="cpu")
    first = torch.randperm(num_rows, generator=generator, device="cpu")[:_NUM_FIRST]
    model.observe(problem.X[first], problem.y[first])
    free[first] = False
    names = list(RULES)
    bandit, scores, rows = Bandit(len(names)), {}, first.tolist()
    known = _validated(model, problem) if method == WEIGHTED else 0.0
    for labels in range(_NUM_FIRST + 1, LABELS[-1] + 1):
        name = method
        if method == WEIGHTED:
            name = names[int(torch.multinomial(bandit.probabilities, 1, generator=generator))]
        row = _choose(RULES[name], model, problem.X, free, generator)
        model.observe(problem.X[row : row + 1], problem.y[row : row + 1])
        free[row] = False
        rows.append(row)
        if method == WEIGHTED:
            before, known = known, _validated(model, problem)
            bandit.learn(names.index(name), known - before)
        if labels in LABELS:
            scores[f"nMSE, {labels}"] = float(nmse(_mixture(model, problem.X_test).mean, problem.y_test))
    if method == WEIGHTED:
        final = bandit.probabilities.tolist()
        scores.update({f"p({name})": value for name, value in zip(names, final, strict=True)})
    return scores, rows


def _choose(rule: Rule | None, model: OnlineEnsemble, X: Tensor, free: Tensor, generator: torch.Generator) -> int:
    rows = free.nonzero().squeeze(-1)
    if rule is None:
        return int(rows[int(torch.randint(len(rows), (1,), generator=generator, device="cpu"))])
    return int(rows[int(rule(_mixture(model, X[rows])).argmax())])


def _validated(model: OnlineEnsemble, problem: Problem) -> float:
    return float(_mixture(model, problem.X_validation).log_prob(problem.y_validation).mean())


def _mixture(model: OnlineEnsemble, X: Tensor) -> Mixture:
    mixture = model.predict(X)
    assert isinstance(mixture, Mixture)
    return mixture


def crowded(num_rows: int, generator: torch.Generator) -> Problem:
    """A wave on two inputs, nine tenths of the pool in a corner of it; all of the square is asked for."""
    crowd = torch.rand(num_rows, 1, dtype=torch.float64, device="cpu", generator=generator) < 0.9
    X = torch.rand(num_rows + _NUM_OTHERS, 2, dtype=torch.float64, device="cpu", generator=generator)
    X[:num_rows] *= torch.where(crowd, 0.3, 1.0)
    truth = (6 * X[:, 0]).sin() + (6 * X[:, 1]).cos()
    noise = 0.1 * torch.randn(len(X), dtype=X.dtype, device="cpu", generator=generator)
    return _standardized(X, truth + noise, truth)


def additive(num_rows: int, generator: torch.Generator) -> Problem:
    """Friedman's first function of five inputs, and five more that do not matter; all rows are uniform."""
    draw = friedman1(num_rows + _NUM_OTHERS, generator=generator)
    return _standardized(draw.table.X, draw.table.y, draw.truth)


SETS = {"crowded": crowded, "friedman1": additive}


def _standardized(X: Tensor, y: Tensor, truth: Tensor) -> Problem:
    """The last rows validate and test; what validates gives the target's scale."""
    X = (X - X[-_NUM_OTHERS:].mean(0)) / X[-_NUM_OTHERS:].std(0)
    validation = slice(len(X) - _NUM_OTHERS, len(X) - _NUM_TEST)
    center, scale = y[validation].mean(), y[validation].std()
    y, truth = (y - center) / scale, (truth - center) / scale
    pool, test = slice(0, len(X) - _NUM_OTHERS), slice(len(X) - _NUM_TEST, None)
    return Problem(X[pool], y[pool], X[validation], y[validation], X[test], truth[test])


def trial(
    make: Callable[[int, torch.Generator], Problem], method: str, rows: int, generator: torch.Generator
) -> Scores:
    """One draw of a set, learned by one method."""
    return learn_actively(make(rows, generator), method, generator)[0]


def run(choices: Choices, settings: None) -> str:
    """Errors by set and method."""
    rows = choices.max_rows or 500
    cases: dict[str, Case] = {
        f"{name}, {method}": partial(trial, make, method, rows)
        for name, make in SETS.items()
        for method in chosen(choices.methods, METHODS, "method")
    }
    title = "Squared errors on test rows over the variance of their targets, after so many labels"
    used = {"rows": rows, "features": _NUM_FEATURES, "first": _NUM_FIRST, "validation": _NUM_VALIDATION}
    return run_cases(choices, "active-learning", title, cases, used)
