"""What a marginalisation found."""

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.hyperprior import Hyperparameters
from gp_ensembles.bayesian_quadrature.integral import Integral
from gp_ensembles.bayesian_quadrature.model import KernelMixtureModel
from gp_ensembles.bayesian_quadrature.problem import Problem
from gp_ensembles.bayesian_quadrature.search import SearchState, integral_of, nodes_of, surrogate_of
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate
from gp_ensembles.bayesian_quadrature.weights import RootWeights, positive_weights, root_weights

if TYPE_CHECKING:
    from gp_ensembles.bayesian_quadrature.inference import Step


class Marginalisation:
    """Evidence, posterior over the number of components, weighted kernels and a predictive model.

    Args:
        problem: Data and prior.
        state: The search.
        history: How the evidence developed, round by round.
    """

    def __init__(self, problem: Problem, state: SearchState, history: "tuple[Step, ...]") -> None:
        self.problem = problem
        self.state = state
        self.history = history

    @property
    def num_evaluations(self) -> int:
        """Likelihoods evaluated, failed ones included."""
        return self.state.spent

    @property
    def num_failed(self) -> int:
        """Kernels whose covariance could not be factorised; they are left out."""
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
        return integral_of(self.problem, self.surrogate, self.state)

    @property
    def log_evidence(self) -> float:
        """Log evidence of the targets, in nats."""
        return float(self.integral.log_evidence)

    @property
    def log_evidence_sd(self) -> float:
        """Standard deviation of the log evidence under the surrogate."""
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
    def log_weights(self) -> Tensor:
        """Log weights of the evaluated kernels, shape (h,), those without a likelihood left out."""
        return positive_weights(self.surrogate, nodes_of(self.problem, self.state))

    @cached_property
    def root_weights(self) -> RootWeights:
        """Weights of the paper's mixture of products of roots."""
        return root_weights(self.surrogate, nodes_of(self.problem, self.state))

    def top(self, tolerance: float = 1e-3) -> tuple[Tensor, Tensor]:
        """Rows of the heaviest kernels that together lack less than ``tolerance``, and their log weights, heaviest first.

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
            NumericalError: If a kept kernel's covariance cannot be factorised.
        """
        rows, log_weights = self.top(tolerance)
        return KernelMixtureModel(self.problem, self.hyperparameters(rows), log_weights, self.root_weights.matrix[rows][:, rows])
