"""Who optimizes: each method suggests the next point from all observations so far."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple, final

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.fit import fit_fully_bayesian_model_nuts, fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim.optimize import optimize_acqf
from botorch.sampling.pathwise import get_matheron_path_model
from botorch.utils.sampling import draw_sobol_samples, optimize_posterior_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from gp_ensembles.bo import EnsembleModel, ThompsonLoop, ThompsonSettings, WeightedAcquisition, kernel_ensemble
from gp_ensembles.bo.exact_kernels import Hyperparameters
from gp_ensembles.bo.exact_model import ExactEnsembleModel
from gp_ensembles.bo.outcomes import as_mixture

_NUM_FEATURES = 256
_MOST_EXACT, _REFIT_SHARE = 1000, 50  # rows of exact processes; the share by which rows grow between two fits
_RESTARTS, _RAW_SAMPLES, _STEPS = 4, 128, 50  # of optimizing an acquisition function
_DRAW_RESTARTS, _DRAW_RAW_SAMPLES = 5, 1024  # of optimizing a draw, as the Thompson loop's
_FORGETTING = (0.99, 0.95, 0.8)
_SAAS_WARM_UP, _SAAS_SAMPLES, _SAAS_THINNING, _SAAS_REFIT = 64, 32, 8, 5


class Optimizer(ABC):
    """A run of a method; randomness is torch's global generator, which the runner seeds."""

    @abstractmethod
    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """The point to observe next, (1, D) in the unit cube, after inputs X (n, D) with values Y (n, 1)."""


class Method(NamedTuple):
    """A method.

    Attributes:
        start: Starts a run from the bounds of the unit cube, shape (2, D), and the seed of the run.
        needs: Packages that have to be installed.
    """

    start: Callable[[Tensor, int], Optimizer]
    needs: tuple[str, ...] = ()


def make_method(name: str) -> Method:
    """A method by its name.

    Raises:
        ValueError: If there is none of that name.
        ImportError: If a package that it needs is not installed.

    Example:
        >>> make_method("annealing")
        Traceback (most recent call last):
        ValueError: there is no method 'annealing'; choose from ensemble-logei, egp-ts, ..., random, sobol
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
    """Kernels weighed by their evidence, and their expected improvement, exact under the weights.

    Exact processes up to a number of rows, random features beyond. Hyperparameters are fitted anew as soon as the rows
    have grown by a fiftieth: with every row at first. With forgetting, the value to improve on is the highest mean at a
    row that was seen, as it would be now.
    """

    def __init__(self, bounds: Tensor, seed: int, forgetting: tuple[float, ...] = ()) -> None:
        self.bounds, self.forgetting = bounds, forgetting
        self.start: Hyperparameters | None = None
        self.num_fitted = 0

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        model = self._exact(X, Y) if X.shape[0] <= _MOST_EXACT else self._features(X, Y)
        best = as_mixture(model.posterior(X)).mean.max() if self.forgetting else Y.max()
        return _maximizer(
            WeightedAcquisition(model, lambda experts: LogExpectedImprovement(experts, best_f=best)), self.bounds
        )

    def _exact(self, X: Tensor, Y: Tensor) -> ExactEnsembleModel:
        model = ExactEnsembleModel(X, Y, forgetting=self.forgetting)
        if self.start is not None and X.shape[0] - self.num_fitted < max(1, self.num_fitted // _REFIT_SHARE):
            return model.with_hyperparameters_(self.start)
        self.start, self.num_fitted = model.fit(self.start).hyperparameters, X.shape[0]
        return model

    def _features(self, X: Tensor, Y: Tensor) -> EnsembleModel:
        ensemble = kernel_ensemble(X, num_features=_NUM_FEATURES, forgetting=self.forgetting)
        return EnsembleModel(X, Y, ensemble=ensemble).fit()


@final
class EnsembleThompson(Optimizer):
    """The library's own Thompson loop."""

    def __init__(self, bounds: Tensor, seed: int, forgetting: tuple[float, ...] = ()) -> None:
        generator = torch.Generator().manual_seed(seed)
        settings = ThompsonSettings(_NUM_FEATURES, forgetting=forgetting, num_initial=0)
        self.loop = ThompsonLoop(bounds, settings, generator=generator)

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        seen = self.loop.Y.shape[0]
        self.loop.observe(X[seen:], Y[seen:])
        return self.loop.suggest()


@final
class ProcessImprovement(Optimizer):
    """One Gaussian process, fitted to all rows, and its expected improvement."""

    def __init__(self, bounds: Tensor, seed: int) -> None:
        self.bounds = bounds

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        return _maximizer(LogExpectedImprovement(_fitted_process(X, Y), best_f=Y.max()), self.bounds)


@final
class ProcessThompson(Optimizer):
    """One Gaussian process, fitted to all rows, and the maximum of one draw from it (decoupled sampling)."""

    def __init__(self, bounds: Tensor, seed: int) -> None:
        self.bounds = bounds

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        paths = get_matheron_path_model(_fitted_process(X, Y), torch.Size([1]))
        best, _ = optimize_posterior_samples(paths, self.bounds, _DRAW_RAW_SAMPLES, _DRAW_RESTARTS)
        return best.detach()


@final
class SparseImprovement(Optimizer):
    """A fully Bayesian process with a sparse prior over length scales; sampled again every fifth time, being slow."""

    def __init__(self, bounds: Tensor, seed: int) -> None:
        self.bounds = bounds
        self.seed = seed
        self.samples: dict[str, Tensor] = {}
        self.num_sampled = 0

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        model = SaasFullyBayesianSingleTaskGP(X, Y, outcome_transform=Standardize(1))
        if not self.samples or X.shape[0] - self.num_sampled >= _SAAS_REFIT:
            fit_fully_bayesian_model_nuts(
                model, warmup_steps=_SAAS_WARM_UP, num_samples=_SAAS_SAMPLES, thinning=_SAAS_THINNING,
                disable_progbar=True, seed=self.seed,
            )  # fmt: skip
            state = model.state_dict()
            self.samples = {name: value for name, value in state.items() if not name.startswith("outcome_transform")}
            self.num_sampled = X.shape[0]
        else:  # the same samples with all rows; the transform is that of these rows
            own = {name: value for name, value in model.state_dict().items() if name.startswith("outcome_transform")}
            model.load_state_dict({**self.samples, **own})
        return _maximizer(LogExpectedImprovement(model, best_f=Y.max()), self.bounds)


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


def _forgetful_thompson(bounds: Tensor, seed: int) -> Optimizer:
    return EnsembleThompson(bounds, seed, _FORGETTING)


def _forgetful_improvement(bounds: Tensor, seed: int) -> Optimizer:
    return EnsembleImprovement(bounds, seed, _FORGETTING)


def _maximizer(acquisition: AcquisitionFunction, bounds: Tensor) -> Tensor:
    X, _ = optimize_acqf(
        acquisition, bounds, q=1, num_restarts=_RESTARTS, raw_samples=_RAW_SAMPLES, options={"maxiter": _STEPS}
    )
    return X.detach()


def _fitted_process(X: Tensor, Y: Tensor) -> SingleTaskGP:
    model = SingleTaskGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


METHODS: dict[str, Method] = {
    "ensemble-logei": Method(EnsembleImprovement),
    "ensemble-logei-dynamic": Method(_forgetful_improvement),
    "egp-ts": Method(EnsembleThompson),
    "egp-ts-dynamic": Method(_forgetful_thompson),
    "gp-logei": Method(ProcessImprovement),
    "gp-ts": Method(ProcessThompson),
    "saas-logei": Method(SparseImprovement, ("jax", "numpyro")),
    "random": Method(RandomSearch),
    "sobol": Method(SobolSearch),
}
