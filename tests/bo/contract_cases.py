"""Every model that goes into BoTorch, made from a data set in one way: the table of the contract's suite."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.datasets import SupervisedDataset
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from torch import Tensor

from gp_ensembles.bo import EnsembleModel, ExactEnsembleModel
from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import RandomFourierFeatures
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.papers import fusion
from gp_ensembles.papers.quadrature import KernelMixtureModel, RegressionProblem
from gp_ensembles.papers.quadrature.prior import KernelHyperparameters
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures
from gp_ensembles.papers.sparse import ExactGP, SparseGP

NUM_INPUTS, NUM_ROWS, NUM_DRAWS = 2, 15, 6
NOISE = 0.05
KERNELS = (math.inf, 2.5, 1.5)
exact_ensemble = partial(ExactEnsembleModel, kernels=KERNELS)


class Transforms(NamedTuple):
    """Transforms of a data set, fresh for every model."""

    inputs: InputTransform | None = None
    outcomes: OutcomeTransform | None = None


NO_TRANSFORMS = Transforms()
Options = Callable[[Tensor, Tensor, Tensor], dict[str, Any]]


class Case(NamedTuple):
    """A kind of model."""

    kind: type[MixtureModel]
    options: Options  # from transformed inputs (n, D) and outcomes (n, 1) of the rows, and inputs as given
    known_noise: bool = True
    more_knots: bool = False  # whether fantasies are further knots, while data are not

    def make(
        self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None, transforms: Transforms = NO_TRANSFORMS
    ) -> MixtureModel:
        """A model of rows (n, D), (n, 1), by ``construct_inputs`` if it takes them."""
        names = {"feature_names": [f"x{i}" for i in range(X.shape[-1])], "outcome_names": ["y"]}
        data = SupervisedDataset(X, Y, Yvar=Yvar, **names)
        inputs, outcomes = transforms
        seen = X if inputs is None else inputs(X), Y if outcomes is None else outcomes(Y)[0]
        options = {"outcome_transform": outcomes, "input_transform": inputs, **self.options(*seen, X)}
        if Yvar is not None:
            options.pop("likelihood", None)
        if self.kind in (KernelMixtureModel, fusion.FusedModel):
            return self.kind(**options, **({} if Yvar is None else {"known_noise": Yvar}))
        if outcomes is None and self.kind in (EnsembleModel, ExactEnsembleModel):
            return self.kind(X, Y, Yvar, **options)  # None stands for no transform here
        return self.kind(**self.kind.construct_inputs(data, **options))


def close(a: Any, b: Any, tolerance: float = 1e-8) -> None:
    """Equal to a relative and an absolute tolerance."""
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def generator(seed: int = 0) -> torch.Generator:
    """A seeded source of randomness."""
    return torch.Generator().manual_seed(seed)


def rows(num: int = NUM_ROWS, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Inputs of the unit square and values of a bumpy function."""
    source = generator(seed)
    X = torch.rand(num, NUM_INPUTS, generator=source, dtype=torch.float64)
    noise = 0.1 * torch.randn(num, 1, generator=source, dtype=torch.float64)
    return X.to(dtype), ((5 * X.sum(-1, keepdim=True)).sin() + noise).to(dtype)


def numpy_draws(p, num, seed=0):
    """Draws of all points of a posterior without batch, (num, Q, O): output by output, expert by expert."""
    rng, outputs = np.random.default_rng(seed), []
    for o, weights in enumerate(p.own_log_weights.exp().double().numpy()):
        counts = rng.multinomial(num, weights / weights.sum())
        moments = p.component_mean[..., o].double().numpy(), p.component_covariance[:, o].double().numpy()
        parts = [rng.multivariate_normal(*moment, count) for *moment, count in zip(*moments, counts, strict=True)]
        outputs.append(rng.permutation(np.concatenate(parts)))
    return np.stack(outputs, axis=-1)


def points(*shape: int, seed: int = 5) -> Tensor:
    """Points of the unit square."""
    return torch.rand(*shape, NUM_INPUTS, generator=generator(seed), dtype=torch.float64)


def random_features(
    X: Tensor, noises: Sequence[float], lengthscales: Sequence[float], num_features: int = 16, seed: int = 1
) -> Ensemble:
    """Experts in random features of Matern-5/2 kernels, weighed by their evidence."""
    source, experts = generator(seed), []
    for noise, lengthscale in zip(noises, lengthscales, strict=True):
        kernel = ScaleKernel(MaternKernel(2.5)).to(X)
        kernel.base_kernel.lengthscale = lengthscale
        features = RandomFourierFeatures.from_kernel(kernel, X.shape[-1], num_features, generator=source)
        experts.append(GaussianExpert(features, GaussianLikelihood().to(X)))
        experts[-1].likelihood.noise = noise
    return Ensemble(experts, BayesianModelAveraging())


def _ensemble(X: Tensor, Y: Tensor, given: Tensor) -> dict[str, Any]:
    return {"ensemble": random_features(X, (0.2, 0.3, 0.5), (0.4, 0.4, 0.4))}


def _kernels(X: Tensor, Y: Tensor, given: Tensor) -> dict[str, Any]:
    mixtures = SpectralMixtures(
        X.new_tensor([[0.7, 0.3], [1.0, 0.0]]),
        X.new_tensor([[[0.3, 0.1], [0.8, 0.5]], [[0.0, 0.0], [0.0, 0.0]]]),
        X.new_tensor([[[0.2, 0.3], [0.1, 0.2]], [[0.4, 0.5], [0.1, 0.1]]]),
    )
    kernels = KernelHyperparameters(mixtures, X.new_tensor([1.0, 0.8]), X.new_tensor([NOISE, 0.1]))
    problem = RegressionProblem(X, Y.squeeze(-1))
    return {"problem": problem, "hyperparameters": kernels, "log_weights": X.new_tensor([0.6, 0.4]).log()}


def _kernel(X: Tensor) -> ScaleKernel:
    return ScaleKernel(MaternKernel(ard_num_dims=X.shape[-1]).initialize(lengthscale=0.5)).to(X)


def _likelihood(X: Tensor) -> GaussianLikelihood:
    return GaussianLikelihood().to(X).initialize(noise=NOISE)


def _exact(X: Tensor, Y: Tensor, given: Tensor) -> dict[str, Any]:
    return {"kernel": _kernel(X), "mean": ZeroMean(), "likelihood": _likelihood(X)}


def _knots(X: Tensor, Y: Tensor, given: Tensor) -> dict[str, Any]:
    return {**_exact(X, Y, given), "knots": given[:6]}


def experts(X: Tensor, Y: Tensor) -> list[SingleTaskGP]:
    """Two exact processes of some of the rows each."""
    found = []
    for part, lengthscale in ((slice(0, 4), 0.3), (slice(4, 8), 0.7)):
        kernel = RBFKernel().to(X).initialize(lengthscale=lengthscale)
        parts = {"likelihood": _likelihood(X), "covar_module": kernel, "mean_module": ZeroMean()}
        found.append(SingleTaskGP(X[part], Y[part], **parts, outcome_transform=None).eval())
    return found


def _fusion(kind: type[fusion.BHS | fusion.PBHS]) -> Options:
    def options(X: Tensor, Y: Tensor, given: Tensor) -> dict[str, Any]:
        parts = experts(X, Y)
        frequencies = torch.randn(2, NUM_INPUTS, generator=generator(3), dtype=torch.float64).to(X) / 0.5

        predicted, prior = fusion.predict_experts(parts, X[8:]), fusion.FourierPrior(frequencies)
        model = kind(X[8:], Y[8:].squeeze(-1), predicted, prior)
        approximation = fusion.LaplaceApproximation(num_draws=NUM_DRAWS)
        return {"fitted": fusion.fit_fusion(model, approximation, generator=generator(2)), "experts": parts}

    return options


CASES = {
    "ensemble": Case(EnsembleModel, _ensemble, known_noise=False),
    "exact ensemble": Case(ExactEnsembleModel, lambda X, Y, given: {"kernels": KERNELS}),
    "exact process": Case(ExactEnsembleModel, lambda X, Y, given: {}),
    "kernel mixture": Case(KernelMixtureModel, _kernels),
    "exact": Case(ExactGP, _exact),
    "knots": Case(SparseGP, _knots, more_knots=True),
    "linear fusion": Case(fusion.FusedModel, _fusion(fusion.BHS), known_noise=False),
    "log-linear fusion": Case(fusion.FusedModel, _fusion(fusion.PBHS), known_noise=False),
}
