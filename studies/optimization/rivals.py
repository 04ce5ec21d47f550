"""BoTorch's own models: what an ensemble is compared with."""

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.fit import fit_fully_bayesian_model_nuts, fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.fully_bayesian import FullyBayesianSingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.transforms import Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.sampling.pathwise import get_matheron_path_model
from botorch.utils.sampling import optimize_posterior_samples
from gpytorch.kernels import ConstantKernel, PolynomialKernel, ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

from studies.optimization.optimizer import Optimizer, maximizer

_DRAW_RESTARTS, _DRAW_RAW_SAMPLES = 5, 1024  # of optimizing a draw, as of ours
_WARM_UP, _SAMPLES, _THINNING, _SAMPLE_AGAIN = 64, 32, 8, 5  # of the no-U-turn sampler
_NUM_SPARSITIES = 4
EPOCHS, PATIENCE = 1000, 100  # of a network whose last layer is Bayesian


@final
class ProcessImprovement(Optimizer):
    """One Gaussian process, fitted to all rows, and its expected improvement; modules are made from the inputs."""

    def __init__(
        self, bounds: Tensor, seed: int, modules: Callable[[Tensor], Mapping[str, Any]] = lambda _: {}
    ) -> None:
        self.bounds, self.modules = bounds, modules

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        model = fitted_process(X, Y, **self.modules(X))
        return maximizer(LogExpectedImprovement(model, best_f=Y.max()), self.bounds)


@final
class ProcessThompson(Optimizer):
    """One Gaussian process, fitted to all rows, and the maximum of one draw from it (decoupled sampling)."""

    def __init__(self, bounds: Tensor, seed: int) -> None:
        self.bounds = bounds

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        paths = get_matheron_path_model(fitted_process(X, Y), torch.Size([1]))
        drawn = GenericDeterministicModel(lambda points: paths(points.to(X)).to(points))  # BoTorch draws on the host
        best, _ = optimize_posterior_samples(drawn, self.bounds.cpu(), _DRAW_RAW_SAMPLES, _DRAW_RESTARTS)
        return best.detach().to(X)


@final
class SampledImprovement(Optimizer):
    """A fully Bayesian process: an ensemble of samples of its hyperparameters; sampled every fifth time, being slow."""

    bounds: Tensor
    seed: int
    num_sampled: int

    def __init__(self, bounds: Tensor, seed: int, make: Callable[..., FullyBayesianSingleTaskGP]) -> None:
        self.bounds, self.seed = bounds, seed
        self.make: Callable[..., FullyBayesianSingleTaskGP] = make
        self.samples: dict[str, Tensor] = {}
        self.num_sampled = 0

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        model = self.make(X, Y, outcome_transform=Standardize(1))
        if not self.samples or X.shape[0] - self.num_sampled >= _SAMPLE_AGAIN:
            fit_fully_bayesian_model_nuts(
                model, warmup_steps=_WARM_UP, num_samples=_SAMPLES, thinning=_THINNING, disable_progbar=True,
                seed=self.seed,
            )  # fmt: skip
            state = model.state_dict()
            self.samples = {name: value for name, value in state.items() if not name.startswith("outcome_transform")}
            self.num_sampled = X.shape[0]
        else:  # the same samples with all rows; the transform is that of these rows
            own = {name: value for name, value in model.state_dict().items() if name.startswith("outcome_transform")}
            model.load_state_dict({**self.samples, **own})
        return maximizer(LogExpectedImprovement(model, best_f=Y.max()), self.bounds)


@final
class SparseMapImprovement(Optimizer):
    """Processes with sparse priors over length scales, each of another strength, fitted and averaged."""

    def __init__(self, bounds: Tensor, seed: int) -> None:
        self.bounds = bounds

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        model = EnsembleMapSaasSingleTaskGP(X, Y, num_taus=_NUM_SPARSITIES)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        return maximizer(LogExpectedImprovement(model, best_f=Y.max()), self.bounds)


@final
class LastLayerImprovement(Optimizer):
    """A network whose last layer is Bayesian by variational inference (VBLL); trained again at every step."""

    def __init__(self, bounds: Tensor, seed: int) -> None:
        self.bounds = bounds

    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :meth:`Optimizer.suggest`."""
        from botorch_community.models.vblls import VBLLModel

        standard = (Y - Y.mean()) / Y.std()
        model = VBLLModel(in_features=X.shape[-1], device=X.device)
        model.fit(X, standard, optimization_settings={"num_epochs": EPOCHS, "patience": PATIENCE})
        return maximizer(LogExpectedImprovement(model, best_f=standard.max()), self.bounds)


def fitted_process(X: Tensor, Y: Tensor, **modules: Any) -> SingleTaskGP:
    """A ``SingleTaskGP``, with these modules, fitted."""
    model = SingleTaskGP(X, Y, **modules)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def own_kernel(X: Tensor) -> dict[str, Any]:
    """The Matern-5/2 kernel of our models: an output scale and, in the place of a mean, a constant of unit variance."""
    matern = get_covar_module_with_dim_scaled_prior(X.shape[-1], use_rbf_kernel=False)
    constant = ConstantKernel().to(X)
    constant.constant = X.new_ones(1)
    constant.raw_constant.requires_grad_(False)
    scaled = ScaleKernel(matern, outputscale_prior=LogNormalPrior(0.0, 1.0))
    return {"covar_module": scaled + constant, "mean_module": ZeroMean()}


def quadratic_trend(X: Tensor) -> dict[str, Any]:
    """The same plus polynomials of second degree."""
    own = own_kernel(X)
    trend = ScaleKernel(PolynomialKernel(2), outputscale_prior=LogNormalPrior(0.0, 1.0))
    return {**own, "covar_module": own["covar_module"] + trend}
