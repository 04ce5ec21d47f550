"""Result of a marginalization: evidence, weighted kernels, predictions, and the quadrature's own numbers."""

import math
from functools import cached_property
from typing import NamedTuple

import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from gp_ensembles.distributions import StudentTMixture
from gp_ensembles.numerics import mixtures
from gp_ensembles.numerics.display import counted, fields_text, prints_fields
from gp_ensembles.papers.quadrature.evidence import EvidenceSampler
from gp_ensembles.papers.quadrature.kernel_mixture import KernelMixtureModel
from gp_ensembles.papers.quadrature.likelihoods import Processes
from gp_ensembles.papers.quadrature.prior import KernelHyperparameters
from gp_ensembles.papers.quadrature.problem import RegressionProblem, WeightedKernels, affordable_kernels
from gp_ensembles.papers.quadrature.quadrature import NO_DRAWS, Evidence
from gp_ensembles.papers.quadrature.search import (
    Quadrature,
    Round,
    Search,
    SearchState,
    prior_covers_likelihood,
    sampler_for,
)
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtureKernel
from gp_ensembles.papers.sparse.tails import Tails, tails_of


@prints_fields
class TopKernels(NamedTuple):
    """The heaviest kernels as GPyTorch kernels, for instance for an online ensemble."""

    kernels: list[ScaleKernel]  # of :class:`SpectralMixtureKernel`, heaviest first
    noise: Tensor  # their noise variances, (K,)
    weights: Tensor  # which sum to one, (K,)
    mean: Tensor  # prior mean of the targets, to be subtracted first, ()


class Marginalization:
    """Evidence, posterior over the number of components, weighted kernels and a predictive model.

    If prior draws cover the likelihood, results are from quadrature, otherwise from importance sampling.
    ``quadrature`` always has the paper's estimates.

    Args:
        problem: Data and prior.
        state: State of the search.
        search: Its settings.
        is_late: Whether it ended by the time limit.

    Example:
        >>> from gp_ensembles.papers.quadrature import Budget, marginalize
        >>> X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
        >>> problem = RegressionProblem(X, torch.sin(5.0 * X.squeeze(-1)))
        >>> found = marginalize(problem, Budget(40, draws=0))
        >>> found.predict(X[:2]).mean.shape, found.num_evaluations
        (torch.Size([2]), 40)
    """

    def __init__(self, problem: RegressionProblem, state: SearchState, search: Search, is_late: bool = False) -> None:
        self.problem = problem
        self.state = state
        self.is_late = is_late
        self.quadrature: Quadrature = Quadrature(problem, state)
        self.is_covered: bool = prior_covers_likelihood(search, state)

    def __repr__(self) -> str:
        rows, inputs = self.problem.X.shape
        log_evidence = f"{self.log_evidence:.2f} with standard deviation {self.log_evidence_sd:.2g}"
        reported = {
            "log evidence": f"{log_evidence}: {self.doubt}" if self.doubt else log_evidence,
            "probabilities of 1, 2, ... components": [round(p, 3) for p in self.posterior_components.tolist()],
            "weights of the kernels": self.log_weights.exp(),
            "kernels evaluated": self.num_evaluations,
        }
        if self.problem.num_missing:
            reported["rows dropped for a missing target"] = self.problem.num_missing
        return fields_text(f"Marginalization of {counted((rows, 'row'), (inputs, 'input'))}", reported)

    @property
    def history(self) -> tuple[Round, ...]:
        """Totals after each round, including those before a resumption."""
        return self.state.history

    @property
    def num_evaluations(self) -> int:
        """Number of likelihoods evaluated, including failed ones and those of importance sampling."""
        return self.state.num_evaluations + (self.state.importance.num_evaluations if self.state.importance else 0)

    @property
    def num_failed(self) -> int:
        """Number of kernels of the search whose covariance could not be factorized; they are ignored."""
        return self.state.evaluations.num_failed

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent on likelihoods, ascents, the surrogate, the policy and importance sampling."""
        return dict(self.state.seconds)

    @cached_property
    def _sampler(self) -> EvidenceSampler | None:
        """The importance sampler, if its draws determine the result."""
        return sampler_for(self.problem, self.state) if self.state.importance and not self.is_covered else None

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence in parts for n = 1..N components."""
        if self.is_covered:
            return self.quadrature.evidence
        if self._sampler is not None and self.state.importance is not None:
            return self._sampler.evidence(self.state.importance)
        return self.quadrature.nearest()

    @property
    def log_evidence(self) -> float:
        """Log evidence of the targets, in nats."""
        return self.evidence.log_evidence

    @property
    def log_evidence_sd(self) -> float:
        """Standard deviation of the log evidence of the numbers of components that it includes.

        Numbers with an unknown part are omitted (``doubt`` gives the reason and a bound on them); infinite if all
        are. A part is known only after mode searches from other starting points found nothing of weight; a mode missed
        by all of them is not accounted for.
        """
        return self.evidence.log_evidence_sd

    @property
    def doubt(self) -> str:
        """Why the evidence does not cover all numbers of components; empty if it does."""
        if self.is_covered:
            return ""
        doubt = NO_DRAWS if self._sampler is None else self.evidence.doubt  # without fitting a surrogate
        return f"the time limit of the budget was reached: {doubt}" if doubt and self.is_late else doubt

    @property
    def posterior_components(self) -> Tensor:
        """Posterior probabilities of n = 1..N components, shape (N,), given that n is among those of the evidence.

        NaN if there are none.
        """
        none = not math.isfinite(self.evidence.log_evidence_sd)
        return torch.full_like(self.evidence.log_parts, torch.nan) if none else self.evidence.posterior

    @property
    def posterior_components_sd(self) -> Tensor:
        """Standard deviations of these probabilities, shape (N,); infinite if unreliable."""
        return self.evidence.posterior_sd

    @cached_property
    def kernels(self) -> WeightedKernels:
        """Kernels with posterior weights: up to 64 draws of reliable importance sampling, or those of the search.

        The kernels of the search are weighted by likelihood and by the share of the prior that is nearest to them: if
        numbers of components had to be omitted, they predict better than draws of the others.
        """
        importance, drawn = self.state.importance, None
        if self._sampler is not None and importance is not None and not self.doubt:
            drawn = self._sampler.kernels(importance)
        if drawn is None:
            return self.quadrature.kernels
        generator = torch.Generator().manual_seed(self.state.nodes_seed)
        return drawn.thin(affordable_kernels(self.problem.likelihoods.bytes_each), generator=generator)

    @property
    def log_weights(self) -> Tensor:
        """Log weights of the kernels, shape (R,)."""
        return self.kernels.log_weights

    def top(self, tolerance: float = 1e-3) -> tuple[Tensor, Tensor]:
        """Rows of the heaviest of ``kernels``, of total weight at least 1 - ``tolerance``, and their log weights.

        No probability under the mixture changes by more than the omitted weight.

        Raises:
            ValueError: If the tolerance is not in [0, 1).
        """
        if not 0.0 <= tolerance < 1.0:
            raise ValueError(f"tolerance must be in [0, 1), got {tolerance}")
        order = self.log_weights.argsort(descending=True, stable=True)
        missing = 1.0 - self.log_weights[order].exp().cumsum(0)
        kept = order[: int((missing > tolerance).sum()) + 1]
        return kept, self.log_weights[kept].log_softmax(-1)

    def hyperparameters(self, rows: Tensor) -> KernelHyperparameters:
        """Mixtures, output scales and noise variances of some rows of ``kernels``."""
        with torch.no_grad():
            return self.problem.prior.hyperparameters(self.kernels.cube[rows])

    def model(self, tolerance: float = 1e-3) -> KernelMixtureModel:
        """The predictive model of the kept kernels, as a BoTorch ``Model``.

        Args:
            tolerance: Maximum omitted weight; no probability changes by more.

        Raises:
            ValueError: If the tolerance is not in [0, 1).
            NumericalError: If a kept kernel's covariance cannot be factorized.
        """
        rows, log_weights = self.top(tolerance)
        return KernelMixtureModel(self.problem, self.hyperparameters(rows), log_weights)

    def top_kernels(self, count: int) -> TopKernels:
        """The ``count`` heaviest kernels (or as many as there are), for instance for an online ensemble.

        Example:
            >>> from gp_ensembles.engine import Ensemble
            >>> from gp_ensembles.meta_learners import BayesianModelAveraging
            >>> from gp_ensembles.papers.quadrature import Budget, marginalize
            >>> X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
            >>> problem = RegressionProblem(X, torch.sin(5.0 * X.squeeze(-1)))
            >>> top = marginalize(problem, Budget(40, draws=0)).top_kernels(3)
            >>> rule = BayesianModelAveraging(top.weights)
            >>> Ensemble.from_kernels(top.kernels, 1, 100, rule, noise=top.noise).num_experts
            3
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        rows = self.log_weights.argsort(descending=True, stable=True)[:count]
        kernels_of, outputscale, noise = self.hyperparameters(rows)
        kernels = []
        for k in range(len(rows)):
            kernel = ScaleKernel(SpectralMixtureKernel(kernels_of.take(k))).to(noise)
            kernel.outputscale = outputscale[k]
            kernels.append(kernel)
        return TopKernels(kernels, noise, self.log_weights[rows].softmax(-1), self.problem.mean)

    @cached_property
    def _predictor(self) -> tuple[Processes, Tensor, Tensor, Tails]:
        """The kept kernels' processes, log weights (R,), largest leave-one-out variances, (R, 1), and tails."""
        rows, log_weights = self.top()
        processes = self.problem.likelihoods.condition(self.hyperparameters(rows))
        errors, variances = processes.leave_one_out(self.problem.y)
        # each row is also removed from the weights, by Bayes' rule
        without = log_weights.unsqueeze(-1) + 0.5 * (errors.square() / variances + variances.log())
        center, variance = mixtures.moments(without.log_softmax(0), errors, variances)
        return processes, log_weights, variances.amax(-1, keepdim=True), tails_of(center / variance.sqrt())

    @property
    def tails(self) -> Tails:
        """Student's t fitted to the standardized leave-one-out errors."""
        return self._predictor[-1]

    def predict(self, X: Tensor) -> StudentTMixture:
        r"""Marginal predictive distributions of targets at points (M, D).

        They are the mixture of ``model()``, noise included, with the tails of leave-one-out errors. If a kernel's
        variance exceeds all leave-one-out variances, as far ahead of a series, these errors do not make it narrower.
        ``quadrature.predict`` returns the paper's moments.

        Raises:
            ValueError: If X differs from the problem's inputs in columns or dtype, or is not finite.
            NumericalError: If a kept kernel's covariance cannot be factorized.
        """
        like = self.problem.X
        if X.ndim != 2 or X.shape[-1] != like.shape[-1]:
            raise ValueError(f"inputs must have shape (M, {like.shape[-1]}), got {tuple(X.shape)}")
        if X.dtype != like.dtype:
            raise ValueError(f"inputs are {X.dtype}, but the problem's inputs are {like.dtype}; convert one of them")
        if not bool(X.isfinite().all()):
            raise ValueError("inputs must be finite")
        processes, log_weights, most, tails = self._predictor
        mean, variance = processes.marginals(X)
        variance = variance + processes.hyperparameters.noise.unsqueeze(-1)
        beyond = (variance - most).clamp_min(0.0) / min(tails.scale**2, 1.0)
        return tails.mixture(log_weights, mean + self.problem.mean, variance.minimum(most) + beyond)
