"""Marginalization over kernels: the loop over rounds of evaluations within a budget, and its result."""

import time
import warnings
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.bayesian_quadrature.prediction import KernelMixtureModel, Prediction, Predictor
from gp_ensembles.bayesian_quadrature.prior import Hyperparameters, draw_seed
from gp_ensembles.bayesian_quadrature.problem import RegressionProblem
from gp_ensembles.bayesian_quadrature.quadrature import (
    EvidenceEstimate,
    QuadratureNodes,
    positive_weights,
    root_weights,
)
from gp_ensembles.bayesian_quadrature.search import (
    FINAL_NODES_PER_SIZE,
    Round,
    Search,
    SearchState,
    evaluate_ascent,
    evaluate_batch,
    evaluate_draws,
    evidence_for,
    fingerprint,
    init_search,
    load_search,
    nodes_for,
    prior_covers_likelihood,
    save_search,
    surrogate_for,
)
from gp_ensembles.bayesian_quadrature.spectral_mixture import SpectralMixtureKernel
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate

_FEWEST = 5  # evaluations of a budget


class Budget(NamedTuple):
    """When to stop: whichever comes first.

    Args:
        evaluations: Likelihoods, those of ascents included.
        seconds: Seconds of wall time; a round that has begun is finished.
        log_evidence_sd: Stop once the standard deviation of the log evidence is at most this; meaningful only where
            draws of the prior cover the likelihood.
    """

    evaluations: int = 200
    seconds: float | None = None
    log_evidence_sd: float | None = None


class TopKernels(NamedTuple):
    """The heaviest kernels as GPyTorch kernels, for an online ensemble for instance.

    Args:
        kernels: ``ScaleKernel`` of :class:`SpectralMixtureKernel`, heaviest first.
        noise: Their noise variances, shape (K,).
        weights: Their weights, of sum one, shape (K,).
        mean: Prior mean of the targets, to be subtracted from them first, shape ().
    """

    kernels: list[ScaleKernel]
    noise: Tensor
    weights: Tensor
    mean: Tensor


class Marginalization:
    """Evidence, posterior over the number of components, weighted kernels and a predictive model.

    Args:
        problem: Data and prior.
        state: State of the search.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import RegressionProblem
        >>> X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
        >>> problem = RegressionProblem(X, torch.sin(5.0 * X.squeeze(-1)))
        >>> found = marginalize(problem, Budget(40), generator=torch.Generator().manual_seed(0))
        >>> bool((found.posterior_components.sum() - 1).abs() < 1e-12), found.log_evidence_sd > 0
        (True, True)
    """

    def __init__(self, problem: RegressionProblem, state: SearchState) -> None:
        self.problem = problem
        self.state = state

    @property
    def history(self) -> tuple[Round, ...]:
        """Totals after each round, those before a resumption included."""
        return self.state.history

    @property
    def num_evaluations(self) -> int:
        """Number of likelihoods evaluated, failed ones included."""
        return self.state.num_evaluations

    @property
    def num_failed(self) -> int:
        """Number of kernels whose covariance could not be factorized; they are left out."""
        return self.state.evaluations.num_failed

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent on likelihoods, ascents, the surrogate and the policy."""
        return dict(self.state.seconds)

    @cached_property
    def surrogate(self) -> Surrogate:
        """Surrogate of the likelihood over kernels."""
        return surrogate_for(self.problem, self.state)

    @cached_property
    def evidence(self) -> EvidenceEstimate:
        """Moments of the evidence for each number of components."""
        return evidence_for(self.problem, self.surrogate, self.state, FINAL_NODES_PER_SIZE)

    @property
    def log_evidence(self) -> float:
        """Log evidence of the targets, in nats."""
        return float(self.evidence.log_evidence)

    @property
    def log_evidence_sd(self) -> float:
        """Standard deviation of the log evidence: the surrogate's and the jackknife's.

        Where the likelihood is a spike (ascents were needed), neither accounts for the uncertain width of the spike:
        the error may be many times larger.
        """
        return float(self.evidence.log_evidence_sd)

    @property
    def posterior_components(self) -> Tensor:
        """Posterior probabilities of n = 1..N components, shape (N,)."""
        return self.evidence.posterior

    @property
    def posterior_components_sd(self) -> Tensor:
        """Standard deviations of those under the surrogate, shape (N,)."""
        return self.evidence.posterior_sd

    @cached_property
    def _nodes(self) -> QuadratureNodes:
        return nodes_for(self.problem, self.state)

    @cached_property
    def log_weights(self) -> Tensor:
        """Log weights of the evaluated kernels, shape (h,), those without a likelihood left out."""
        return positive_weights(self.surrogate, self._nodes)

    @cached_property
    def root_weights(self) -> Tensor:
        """Weights of the paper's mixture of products of roots, shape (h, h)."""
        return root_weights(self.surrogate, self._nodes)

    def top(self, tolerance: float = 1e-3) -> tuple[Tensor, Tensor]:
        """Rows of the heaviest kernels, heaviest first, of total weight at least 1 - ``tolerance``; their log weights.

        No probability under the mixture changes by more than the weight left out.

        Raises:
            ValueError: If the tolerance is not in [0, 1).
        """
        if not 0.0 <= tolerance < 1.0:
            raise ValueError(f"the weight that may be left out must be in [0, 1), got {tolerance}")
        order = self.log_weights.argsort(descending=True, stable=True)
        missing = 1.0 - self.log_weights[order].exp().cumsum(0)
        kept = order[: int((missing > tolerance).sum()) + 1]
        return kept, self.log_weights[kept].log_softmax(-1)

    def hyperparameters(self, rows: Tensor) -> Hyperparameters:
        """Mixtures, output scales and noise variances of some rows of the evaluated kernels."""
        with torch.no_grad():
            return self.problem.prior.hyperparameters(self.surrogate.evaluations.cube[rows])

    def model(self, tolerance: float = 1e-3) -> KernelMixtureModel:
        """The predictive model of the kept kernels, as a BoTorch ``Model``.

        Args:
            tolerance: Weight that may be left out; no probability changes by more.

        Raises:
            ValueError: If the tolerance is not in [0, 1).
            NumericalError: If a kept kernel's covariance cannot be factorized.
        """
        rows, log_weights = self.top(tolerance)
        roots = self.root_weights
        kernels = self.hyperparameters(rows)
        return KernelMixtureModel(self.problem, kernels, log_weights, roots[rows][:, rows], roots.sum())

    def top_kernels(self, count: int) -> TopKernels:
        """The ``count`` heaviest kernels (or as many as there are), to start an online ensemble from.

        Example:
            >>> import torch
            >>> from gp_ensembles.bayesian_quadrature import RegressionProblem
            >>> from gp_ensembles.ensembles import Ensemble
            >>> from gp_ensembles.meta_learners import BayesianModelAveraging
            >>> X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
            >>> problem = RegressionProblem(X, torch.sin(5.0 * X.squeeze(-1)))
            >>> found = marginalize(problem, Budget(40), generator=torch.Generator().manual_seed(0))
            >>> top = found.top_kernels(3)
            >>> rule = BayesianModelAveraging(top.weights)
            >>> ensemble = Ensemble.from_kernels(top.kernels, 1, 100, rule, noise=top.noise)
            >>> state, _ = ensemble.update(ensemble.init(), X, torch.sin(5.0 * X.squeeze(-1)) - top.mean)
            >>> ensemble.num_experts
            3
        """
        if count < 1:
            raise ValueError(f"at least one kernel must be asked for, got {count}")
        rows = self.log_weights.argsort(descending=True, stable=True)[:count]
        kernels_of, outputscale, noise = self.hyperparameters(rows)
        kernels = []
        for k in range(len(rows)):
            one = SpectralMixtureKernel.from_mixtures(kernels_of.take(k), self.problem.reflection)
            kernel = ScaleKernel(one).to(noise)
            kernel.outputscale = outputscale[k]
            kernels.append(kernel)
        return TopKernels(kernels, noise, self.log_weights[rows].softmax(-1), self.problem.mean)

    def predict(self, X: Tensor) -> Prediction:
        r"""Moments of the targets at points (M, D), with standard errors.

        Products of roots (the paper's mixture) interpolate between kernels and are about twice as exact as positive
        weights where the likelihood is smooth; where it is a spike they may not be usable, and positive weights serve.

        Raises:
            ValueError: If X has another number of inputs.
        """
        return self._predictor.predict(X)

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self.problem, self.surrogate, self._nodes)


def marginalize(
    problem: RegressionProblem,
    budget: Budget = Budget(),  # noqa: B008 (immutable)
    search: Search = Search(),  # noqa: B008
    *,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = False,
    generator: torch.Generator | None = None,
) -> Marginalization:
    """Marginalize over kernels by Bayesian quadrature (MASKERADE; Hamid et al., 2022).

    Args:
        problem: Data and prior.
        budget: When to stop.
        search: How kernels are selected.
        checkpoint: File that the search is written to after every round, atomically, and resumed from if it exists.
        progress: Whether to show a progress bar: best log-likelihood, log evidence and its standard deviation.
        generator: Source of randomness; the result is a function of its state.

    Returns:
        The result; after a keyboard interrupt, that of the evaluations so far, with a warning.

    Raises:
        ValueError: If the budget is below five evaluations, no kernel has a likelihood, or the checkpoint belongs to
            another problem or search.

    Example:
        >>> import torch
        >>> X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
        >>> problem = RegressionProblem(X, torch.sin(5.0 * X.squeeze(-1)))
        >>> found = marginalize(problem, Budget(40), generator=torch.Generator().manual_seed(0))
        >>> found.num_evaluations, found.posterior_components.shape
        (40, torch.Size([5]))
    """
    if budget.evaluations < _FEWEST:
        raise ValueError(f"a budget of {budget.evaluations} evaluations is too small; give it at least {_FEWEST}")
    path = None if checkpoint is None else Path(checkpoint)
    mark = fingerprint(problem, search)
    state = load_search(path, mark) if path is not None and path.exists() else None
    _check_search(search)
    clock = time.perf_counter()
    bar: tqdm[Any]
    with tqdm(total=budget.evaluations, disable=not progress, desc="kernels", unit="likelihood") as bar:
        try:
            if state is None:
                state = init_search(problem, search, budget.evaluations, generator or _seeded())
            is_new = len(state.pending) > 0
            while len(state.pending) and not (state.num_evaluations and _is_late(budget, clock)):
                state = evaluate_draws(problem, search, state, budget.evaluations)
                _save(state, path, mark)
            if is_new or not state.history:
                state, surrogate = _record(problem, state, bar)
                _save(state, path, mark)
            else:
                surrogate = surrogate_for(problem, state)
            while not _is_over(state, budget, clock):
                state = _round(problem, search, state, surrogate, budget.evaluations)
                state, surrogate = _record(problem, state, bar)
                _save(state, path, mark)
        except KeyboardInterrupt:
            if state is None or not state.num_evaluations:
                raise
            warnings.warn(
                f"interrupted after {state.num_evaluations} of {budget.evaluations} likelihoods; the result uses those",
                stacklevel=2,
            )
    return Marginalization(problem, state)


def _save(state: SearchState, path: Path | None, mark: str) -> None:
    if path is not None:
        save_search(state, path, mark)


def _check_search(search: Search) -> None:
    if (
        search.batch_size < 1
        or search.num_ascents < 0
        or search.ascent_evaluations < 1
        or not 0 < search.initial_share <= 1
    ):
        raise ValueError(
            f"a search needs batch_size and ascent_evaluations of at least 1, num_ascents of at least 0 and "
            f"initial_share in (0, 1], got {search}"
        )


def _round(
    problem: RegressionProblem, search: Search, state: SearchState, surrogate: Surrogate, evaluations: int
) -> SearchState:
    """A batch of the policy's and, where prior draws do not cover the likelihood, part of an ascent."""
    before = state.num_evaluations
    state = evaluate_batch(
        problem, search, state, surrogate, min(search.batch_size, evaluations - state.num_evaluations)
    )
    if state.num_evaluations == before:
        raise ValueError(f"{search.policy} selected no kernel to evaluate; a policy must select at least one")
    left = evaluations - state.num_evaluations
    if not left or not search.num_ascents or prior_covers_likelihood(search, state):
        return state
    return evaluate_ascent(problem, search, state, min(search.ascent_evaluations, left))


def _record(problem: RegressionProblem, state: SearchState, bar: "tqdm[Any]") -> tuple[SearchState, Surrogate]:
    """The state with a further round in its history, and its surrogate."""
    before = time.perf_counter()
    surrogate = surrogate_for(problem, state)
    evidence = evidence_for(problem, surrogate, state)
    seconds = {**state.seconds, "surrogate": state.seconds["surrogate"] + time.perf_counter() - before}
    totals = Round(
        state.num_evaluations,
        sum(seconds.values()),
        float(surrogate.log_scale),
        float(evidence.log_evidence),
        float(evidence.log_evidence_sd),
    )
    bar.update(state.num_evaluations - bar.n)
    bar.set_postfix_str(
        f"best {totals.best_log_likelihood:.1f}, log evidence {totals.log_evidence:.2f} ± {totals.log_evidence_sd:.2f}"
    )
    return state._replace(seconds=seconds, history=(*state.history, totals)), surrogate


def _is_over(state: SearchState, budget: Budget, clock: float) -> bool:
    if state.num_evaluations >= budget.evaluations:
        return True
    if _is_late(budget, clock):
        return True
    return budget.log_evidence_sd is not None and state.history[-1].log_evidence_sd <= budget.log_evidence_sd


def _is_late(budget: Budget, clock: float) -> bool:
    return budget.seconds is not None and time.perf_counter() - clock >= budget.seconds


def _seeded() -> torch.Generator:
    """A generator seeded by torch's global one, so that ``torch.manual_seed`` has its effect."""
    return torch.Generator().manual_seed(draw_seed(None))
