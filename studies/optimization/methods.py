"""Optimization methods: each suggests the next point from all observations so far."""

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, final

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import _log_ei_helper  # private, as of BoTorch 0.18
from botorch.models.fully_bayesian import FullyBayesianSingleTaskGP, SaasFullyBayesianSingleTaskGP
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from gp_ensembles.bo import ExactEnsembleModel, MixturePosterior, thompson
from gp_ensembles.bo.exact_kernels import Hyperparameters
from studies.optimization.optimizer import Optimizer, maximizer
from studies.optimization.rivals import (
    LastLayerImprovement,
    ProcessImprovement,
    ProcessThompson,
    SampledImprovement,
    SparseMapImprovement,
)

SMOOTHNESSES = (math.inf, 2.5, 1.5)


class Method(NamedTuple):
    """A method.

    Attributes:
        start: Starts a run from the bounds of the unit cube, shape (2, D), and the seed of the run.
        needs: Packages that have to be installed.
        runs_anywhere: Whether it runs on other devices than the host.
    """

    start: Callable[[Tensor, int], Optimizer]
    needs: tuple[str, ...] = ()
    runs_anywhere: bool = False


def make_method(name: str) -> Method:
    """A method by its name.

    Raises:
        ValueError: If there is none of that name.
        ImportError: If a package that it needs is not installed.

    Example:
        >>> make_method("annealing")
        Traceback (most recent call last):
        ValueError: there is no method 'annealing'; choose from ensemble-logei, matern-logei, ..., random, sobol
    """
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; choose from {', '.join(METHODS)}")
    missing = [package for package in METHODS[name].needs if find_spec(package) is None]
    if missing:
        raise ImportError(f"{name} needs {' and '.join(missing)}: pip install {' '.join(missing)}, or leave it out")
    return METHODS[name]


def initial_design(bounds: Tensor, num_points: int, seed: int) -> Tensor:
    """The first points of a scrambled Sobol sequence, shape (n, D): the start of every method of a seed.

    Example:
        >>> import torch
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> torch.equal(initial_design(bounds, 9, seed=3)[:5], initial_design(bounds, 5, seed=3))
        True
    """
    return draw_sobol_samples(bounds, num_points, 1, seed=seed).squeeze(-2)


@final
class EnsembleImprovement(Optimizer):
    """Kernels weighed by their evidence, fitted to all rows, and their expected improvement, exact under the weights.

    Clamped, values below the mirror image of the best about the median count as that.
    """

    def __init__(
        self, bounds: Tensor, seed: int, kernels: Sequence[float] = SMOOTHNESSES, clamped: bool = False
    ) -> None:
        self.bounds, self.kernels, self.clamped = bounds, kernels, clamped
        self.start: Hyperparameters | None = None

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        Y = Y.clamp_min(2 * Y.median() - Y.max()) if self.clamped else Y
        model, best = ExactEnsembleModel(X, Y, kernels=self.kernels), Y.max()
        if bool((Y[:1] != Y).any()):  # a plateau has no information about length scales
            self.start = model.fit(self.start).hyperparameters
        return maximizer(_WeightedImprovement(model, best), self.bounds)


@final
class _WeightedImprovement(AcquisitionFunction):
    """Log of the expected improvement over the best value, exact under the weights of the kernels."""

    def __init__(self, model: ExactEnsembleModel, best: Tensor) -> None:
        super().__init__(model)
        self.best = best

    def forward(self, X: Tensor) -> Tensor:
        r"""Value at X (\*t, 1, D), shape (\*t)."""
        posterior: Any = self.model.posterior(X)
        log_weights, mean, variance = X.new_zeros(1), posterior.mean.unsqueeze(-3), posterior.variance.unsqueeze(-3)
        if isinstance(posterior, MixturePosterior):
            log_weights, mean, variance = posterior.log_weights, posterior.component_mean, posterior.component_variance
        spread = variance[..., 0, 0].clamp_min(1e-12).sqrt()  # as in BoTorch's
        each = _log_ei_helper((mean[..., 0, 0] - self.best) / spread) + spread.log()
        value: Tensor = (each + log_weights).logsumexp(-1)
        return value


@final
class EnsembleThompson(Optimizer):
    """The maximum of a function drawn from exact processes, to which time may be one more input."""

    def __init__(self, bounds: Tensor, seed: int, *, drifts: bool = False) -> None:
        self.bounds = bounds
        self.drifts = drifts
        self.start: Hyperparameters | None = None

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        bounds = self.bounds
        if self.drifts:
            times = torch.arange(len(X) + 1, dtype=X.dtype, device=X.device).unsqueeze(-1)
            X, bounds = torch.cat([X, times[:-1]], -1), torch.cat([bounds, times[-1:].expand(2, 1)], -1)
        model = ExactEnsembleModel(X, Y, kernels=SMOOTHNESSES)
        if bool((Y[:1] != Y).any()):  # a plateau has no information about length scales
            self.start = model.fit(self.start).hyperparameters
        return thompson(model, bounds)[:, : self.bounds.shape[1]]


@final
class RandomSearch(Optimizer):
    """Points drawn uniformly."""

    def __init__(self, bounds: Tensor, seed: int) -> None:
        self.bounds = bounds

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        return self.bounds[:1] + torch.rand_like(self.bounds[:1]) * (self.bounds[1:] - self.bounds[:1])


@final
class SobolSearch(Optimizer):
    """The Sobol sequence of the initial design, continued."""

    def __init__(self, bounds: Tensor, seed: int) -> None:
        self.bounds = bounds
        self.seed = seed

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        return initial_design(self.bounds, X.shape[0] + 1, self.seed)[-1:]


def _matern(bounds: Tensor, seed: int) -> Optimizer:
    return EnsembleImprovement(bounds, seed, (2.5,))


def _clamped(bounds: Tensor, seed: int) -> Optimizer:
    return EnsembleImprovement(bounds, seed, clamped=True)


def _own_kernel(bounds: Tensor, seed: int) -> Optimizer:
    return ProcessImprovement(bounds, seed, own_kernel=True)


def _dynamic(bounds: Tensor, seed: int) -> Optimizer:
    return EnsembleThompson(bounds, seed, drifts=True)


def _fully_bayesian(bounds: Tensor, seed: int) -> Optimizer:
    return SampledImprovement(bounds, seed, FullyBayesianSingleTaskGP)


def _sparse(bounds: Tensor, seed: int) -> Optimizer:
    return SampledImprovement(bounds, seed, SaasFullyBayesianSingleTaskGP)


METHODS: dict[str, Method] = {
    "ensemble-logei": Method(EnsembleImprovement, runs_anywhere=True),
    "matern-logei": Method(_matern, runs_anywhere=True),
    "ensemble-clamped-logei": Method(_clamped, runs_anywhere=True),
    "egp-ts": Method(EnsembleThompson, runs_anywhere=True),
    "egp-ts-dynamic": Method(_dynamic, runs_anywhere=True),
    "gp-logei": Method(ProcessImprovement, runs_anywhere=True),
    "gp-own-kernel-logei": Method(_own_kernel, runs_anywhere=True),
    "gp-ts": Method(ProcessThompson, runs_anywhere=True),
    "bayesian-logei": Method(_fully_bayesian, ("jax", "numpyro")),
    "saas-logei": Method(_sparse, ("jax", "numpyro")),
    "map-saas-logei": Method(SparseMapImprovement, runs_anywhere=True),
    "vbll-logei": Method(LastLayerImprovement, ("botorch_community",)),
    "random": Method(RandomSearch, runs_anywhere=True),
    "sobol": Method(SobolSearch, runs_anywhere=True),
}
