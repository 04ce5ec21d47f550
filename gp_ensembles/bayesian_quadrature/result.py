"""What a marginalization found."""

from functools import cached_property
from typing import NamedTuple

import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from gp_ensembles.bayesian_quadrature.hyperprior import Hyperparameters
from gp_ensembles.bayesian_quadrature.integral import Integral
from gp_ensembles.bayesian_quadrature.kernel import SpectralMixtureKernel
from gp_ensembles.bayesian_quadrature.model import KernelMixtureModel
from gp_ensembles.bayesian_quadrature.nodes import Nodes
from gp_ensembles.bayesian_quadrature.prediction import Prediction, Predictor
from gp_ensembles.bayesian_quadrature.problem import Problem
from gp_ensembles.bayesian_quadrature.search import (
    FINAL_NODES_PER_SIZE,
    SearchState,
    Step,
    integral_of,
    nodes_of,
    surrogate_of,
)
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate
from gp_ensembles.bayesian_quadrature.weights import RootWeights, positive_weights, root_weights


class TopKernels(NamedTuple):
    """The heaviest kernels, as GPyTorch's, for whatever takes kernels; an online ensemble for instance.

    Args:
        kernels: ``ScaleKernel`` of :class:`SpectralMixtureKernel`, heaviest first.
        noise: Their noise variances, shape (K,).
        weights: Their weights, of sum one, shape (K,).
        mean: Prior mean of the targets, to be taken from them first, shape ().
    """

    kernels: list[ScaleKernel]
    noise: Tensor
    weights: Tensor
    mean: Tensor


class Marginalization:
    """Evidence, posterior over the number of components, weighted kernels and a predictive model.

    Args:
        problem: Data and prior.
        state: The search.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, torch.sin(5.0 * X.squeeze(-1)))
        >>> found = marginalize(problem, Budget(40), progress=False, generator=torch.Generator().manual_seed(0))
        >>> bool((found.posterior_components.sum() - 1).abs() < 1e-12), found.log_evidence_sd > 0
        (True, True)
    """

    def __init__(self, problem: Problem, state: SearchState) -> None:
        self.problem = problem
        self.state = state

    @property
    def history(self) -> tuple[Step, ...]:
        """How the evidence developed, round by round, those before a resumption included."""
        return self.state.history

    @property
    def num_evaluations(self) -> int:
        """Likelihoods evaluated, failed ones included."""
        return self.state.spent

    @property
    def num_failed(self) -> int:
        """Kernels whose covariance could not be factorized; they are left out."""
        return self.state.evaluations.num_failed

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent on likelihoods, ascents, the surrogate and the policy."""
        return dict(self.state.seconds)

    @cached_property
    def surrogate(self) -> Surrogate:
        """Surrogate of the likelihood over kernels."""
        return surrogate_of(self.problem, self.state)

    @cached_property
    def integral(self) -> Integral:
        """Moments of the evidence for each number of components."""
        return integral_of(self.problem, self.surrogate, self.state, FINAL_NODES_PER_SIZE)

    @property
    def log_evidence(self) -> float:
        """Log evidence of the targets, in nats."""
        return float(self.integral.log_evidence)

    @property
    def log_evidence_sd(self) -> float:
        """Standard deviation of the log evidence: the surrogate's and the jackknife's.

        Where the likelihood is a spike (ascents were needed), neither knows the spike's width: the error may be many
        times larger.
        """
        return float(self.integral.log_evidence_sd)

    @property
    def posterior_components(self) -> Tensor:
        """Posterior probabilities of n = 1..N components, shape (N,)."""
        return self.integral.posterior

    @property
    def posterior_components_sd(self) -> Tensor:
        """Standard deviations of those under the surrogate, shape (N,)."""
        return self.integral.posterior_sd

    @cached_property
    def _nodes(self) -> Nodes:
        return nodes_of(self.problem, self.state)

    @cached_property
    def log_weights(self) -> Tensor:
        """Log weights of the evaluated kernels, shape (h,), those without a likelihood left out."""
        return positive_weights(self.surrogate, self._nodes)

    @cached_property
    def root_weights(self) -> RootWeights:
        """Weights of the paper's mixture of products of roots."""
        return root_weights(self.surrogate, self._nodes)

    def top(self, tolerance: float = 1e-3) -> tuple[Tensor, Tensor]:
        """Rows of the heaviest kernels, heaviest first, that together lack less than ``tolerance``; their log weights.

        No probability that the mixture states is moved by more than the weight left out.

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
        """What the kernels of some rows are made of."""
        with torch.no_grad():
            return self.problem.prior.hyperparameters(self.surrogate.evaluations.cube[rows])

    def model(self, tolerance: float = 1e-3) -> KernelMixtureModel:
        """The predictive model of the kept kernels, as a BoTorch ``Model``.

        Args:
            tolerance: Weight that may be left out; no probability is moved by more.

        Raises:
            ValueError: If the tolerance is not in [0, 1).
            NumericalError: If a kept kernel's covariance cannot be factorized.
        """
        rows, log_weights = self.top(tolerance)
        roots = self.root_weights.matrix
        kernels = self.hyperparameters(rows)
        return KernelMixtureModel(self.problem, kernels, log_weights, roots[rows][:, rows], roots.sum())

    def top_kernels(self, count: int) -> TopKernels:
        """The ``count`` heaviest kernels (or as many as there are) with what an online ensemble starts from.

        Example:
            >>> import torch
            >>> from gp_ensembles.bayesian_quadrature import *
            >>> from gp_ensembles.ensembles import Ensemble
            >>> from gp_ensembles.meta_learners import BayesianModelAveraging
            >>> X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
            >>> problem = Problem(X, torch.sin(5.0 * X.squeeze(-1)))
            >>> found = marginalize(problem, Budget(40), progress=False, generator=torch.Generator().manual_seed(0))
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
        r"""Moments of the targets at points (M, D) by products of roots where they are sound, with standard errors.

        Products of roots (the paper's mixture) interpolate between kernels and are about twice as exact as positive
        weights where the likelihood is smooth; where it is a spike they may be unsound, and positive weights step in.

        Raises:
            ValueError: If X has another number of inputs.
        """
        return self._predictor.predict(X)

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self.problem, self.surrogate, self._nodes)
