"""Optimization methods: each suggests the next point from all observations so far."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, cast, final

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.models.fully_bayesian import FullyBayesianSingleTaskGP, SaasFullyBayesianSingleTaskGP
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.distributions import MultivariateNormal
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
    own_kernel,
    quadratic_trend,
)

SMOOTHNESSES = (math.inf, 2.5, 1.5)
_NO_NOISE = 1e-6  # of the variance of values


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

    A tail is how values are changed before they are learned; with ``exact`` the noise is known to be none.
    """

    def __init__(
        self,
        bounds: Tensor,
        seed: int,
        kernels: Sequence[float] = (2.5,),
        tail: Callable[[Tensor], Tensor] | None = None,
        exact: bool = False,
    ) -> None:
        self.bounds, self.kernels, self.tail, self.exact = bounds, kernels, tail, exact
        self.start: Hyperparameters | None = None

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        varies = bool((Y[:1] != Y).any())  # a plateau has no information about length scales
        Y = self.tail(Y) if self.tail is not None and varies else Y
        noise = (_NO_NOISE * Y.var(0)).expand_as(Y) if self.exact and varies else None
        model = ExactEnsembleModel(X, Y, noise, kernels=self.kernels)
        if varies:
            self.start = model.fit(self.start).hyperparameters
        improvement = LogExpectedImprovement if model.is_normal else _WeightedImprovement
        return maximizer(improvement(model, Y.max()), self.bounds)


def clamped(Y: Tensor) -> Tensor:
    """Values (n, 1), those below the mirror image of the best about the median as that.

    Example:
        >>> import torch
        >>> clamped(torch.tensor([[-1e6], [-3.0], [-2.0], [-1.0], [-0.5]])).squeeze(-1).tolist()
        [-3.5, -3.0, -2.0, -1.0, -0.5]
    """
    return Y.clamp_min(2 * Y.median() - Y.max())


def logged(Y: Tensor) -> Tensor:
    """Values (n, 1) as minus the log of one plus their distance from the best, in units of the median's.

    Example:
        >>> import torch
        >>> logged(torch.tensor([[-7.0], [-1.0], [0.0]])).exp().squeeze(-1).tolist()
        [0.125, 0.5, 1.0]
    """
    distance = Y.max() - Y
    return -(distance / distance[distance > 0].median()).log1p()


@final
class _Processes(Model):
    """The processes of a mixture as a batch of normal ones."""

    num_outputs = 1

    def __init__(self, mixture: ExactEnsembleModel) -> None:
        super().__init__()
        self.mixture = mixture

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size([self.mixture.num_experts])

    def posterior(self, X: Tensor, *_: Any, **options: Any) -> GPyTorchPosterior:
        r"""At X (\*t, 1, q, D), of batch shape (\*t, M)."""
        found = cast(MixturePosterior, self.mixture.posterior(X.squeeze(-3)))
        return GPyTorchPosterior(
            MultivariateNormal(found.component_mean.squeeze(-1), found.component_covariance.squeeze(-3))
        )


@final
class _WeightedImprovement(AcquisitionFunction):
    """Log of the expected improvement over the best value, exact under the weights of the kernels."""

    def __init__(self, model: ExactEnsembleModel, best: Tensor) -> None:
        super().__init__(model)
        self.each = LogExpectedImprovement(_Processes(model), best)

    def forward(self, X: Tensor) -> Tensor:
        r"""Value at X (\*t, 1, D), shape (\*t)."""
        value: Tensor = (self.each(X.unsqueeze(-3)) + self.model.log_weights).logsumexp(-1)
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


def _improvement(
    kernels: Sequence[float] = (2.5,), tail: Callable[[Tensor], Tensor] | None = None, exact: bool = False
) -> Method:
    return Method(partial(EnsembleImprovement, kernels=kernels, tail=tail, exact=exact), runs_anywhere=True)


METHODS: dict[str, Method] = {
    "ensemble-logei": _improvement(SMOOTHNESSES),
    "matern-logei": _improvement(),
    "matern-rbf-logei": _improvement((2.5, math.inf)),
    "matern-exact-logei": _improvement(exact=True),
    "matern-clamped-logei": _improvement(tail=clamped),
    "matern-logged-logei": _improvement(tail=logged),
    "egp-ts": Method(EnsembleThompson, runs_anywhere=True),
    "egp-ts-dynamic": Method(partial(EnsembleThompson, drifts=True), runs_anywhere=True),
    "gp-logei": Method(ProcessImprovement, runs_anywhere=True),
    "gp-own-kernel-logei": Method(partial(ProcessImprovement, modules=own_kernel), runs_anywhere=True),
    "gp-quadratic-logei": Method(partial(ProcessImprovement, modules=quadratic_trend), runs_anywhere=True),
    "gp-ts": Method(ProcessThompson, runs_anywhere=True),
    "bayesian-logei": Method(partial(SampledImprovement, make=FullyBayesianSingleTaskGP), ("jax", "numpyro")),
    "saas-logei": Method(partial(SampledImprovement, make=SaasFullyBayesianSingleTaskGP), ("jax", "numpyro")),
    "map-saas-logei": Method(SparseMapImprovement, runs_anywhere=True),
    "vbll-logei": Method(LastLayerImprovement, ("botorch_community",)),
    "random": Method(RandomSearch, runs_anywhere=True),
    "sobol": Method(SobolSearch, runs_anywhere=True),
}
