"""Baselines of kernel marginalization: one kernel of several kinds, a variational spectrum, prior draws."""

from collections.abc import Callable
from typing import NamedTuple

import gpytorch
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.optim.closures import ForwardBackwardClosure
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.papers.quadrature import KernelMixtureModel, RegressionProblem
from gp_ensembles.papers.quadrature.prior import draw_stratified
from gp_ensembles.papers.quadrature.search import gradient_ascent
from studies.maskerade.predictions import Answer, asked
from studies.maskerade.problems import problem_of, published_problem_of
from studies.maskerade.sets import Split
from studies.maskerade.variational_spectrum import fit as fit_spectrum
from studies.maskerade.variational_spectrum import start_spectrum

_DRAWN = 0.3  # share of the budget of the spectral mixture that goes to draws
_STARTS = 5
_LEFT_OUT = 1e-3  # weight that may be missing from prior draws
_LONG, _SHORT = 0.3, 0.05  # length scales to start from, as shares of each input's range
_FREQUENCIES = (10, 50)  # of the variational spectrum: few for few rows, as each costs divergence
_BOUNDS = 600  # of each of its starts; a bound is cheaper than a likelihood
_EXACT_UP_TO = 20_000  # rows below which GPyTorch factorizes in place of approximating


def sobol_average(split: Split, evaluations: int, generator: torch.Generator, as_published: bool = False) -> Answer:
    """Prior draws weighed by their likelihoods: self-normalized quasi-Monte Carlo, no surrogate.

    Raises:
        ValueError: If no kernel has a likelihood.
    """
    problem = published_problem_of(split) if as_published else problem_of(split)
    cube = draw_stratified(problem.prior, evaluations, generator=generator)
    values = _finite(problem.evaluate(cube))
    log_weights, rows = values.log_softmax(-1).sort(descending=True, stable=True)
    kept = int((1.0 - log_weights.exp().cumsum(0) > _LEFT_OUT).sum()) + 1
    log_evidence = float(values.logsumexp(-1) - torch.as_tensor(evaluations).to(values).log())
    model = _mixture(problem, cube[rows[:kept]], log_weights[:kept].log_softmax(-1))
    found = {"log_evidence": log_evidence, "best_log_likelihood": float(values.max()), "kernels": float(kept)}
    return Answer(asked(model, split.test_X), evaluations, found, {})


def spectral_mixture(split: Split, evaluations: int, generator: torch.Generator, as_published: bool = False) -> Answer:
    """One spectral mixture by gradient: see :func:`likeliest_mixture`.

    Raises:
        ValueError: If no kernel has a likelihood.
    """
    problem = published_problem_of(split) if as_published else problem_of(split)
    model, found, spent = likeliest_mixture(problem, evaluations, generator)
    return Answer(asked(model, split.test_X), spent, found, {})


def likeliest_mixture(
    problem: RegressionProblem, evaluations: int, generator: torch.Generator
) -> tuple[KernelMixtureModel, dict[str, float], int]:
    """L-BFGS from the best prior draws, the most likely kernel of all kept; what was found, and likelihoods spent.

    Ascents maximize likelihood times prior, with the marginalization's own prior and budget; an ascent that converges
    leaves what it has not spent to the next draw.

    Raises:
        ValueError: If no kernel has a likelihood.
    """
    drawn = min(evaluations, max(2, round(_DRAWN * evaluations)))
    cube = draw_stratified(problem.prior, drawn, generator=generator)
    values = _finite(problem.evaluate(cube))
    order = values.argsort(descending=True, stable=True)
    starts = min(_STARTS, drawn)
    for number, row in enumerate(order[values[order].isfinite()].tolist()):
        left = evaluations - values.numel()
        if not left:
            break
        share = max(1, left // max(1, starts - number))
        path = gradient_ascent(problem.likelihoods, problem.prior, cube[row], share)
        cube = torch.cat([cube, path.cube])
        values = torch.cat([values, path.log_likelihood.nan_to_num(nan=-torch.inf)])
    best = int(values.argmax())
    model = _mixture(problem, cube[best : best + 1], values.new_zeros(1))
    components = float(problem.prior.num_components(cube[best]))
    found = {"best_log_likelihood": float(values[best]), "kernels": 1.0, "components": components}
    return model, found, values.numel()


def variational_spectrum(split: Split, evaluations: int, generator: torch.Generator) -> Answer:
    """The variational sparse spectrum with 10 or 50 frequencies: the best bound of six starts, 600 bounds each."""
    starts = [start_spectrum(split.X, k, share, generator) for k in _FREQUENCIES for share in _shares(split)]
    fits = [fit_spectrum(start, split.X, split.y, _BOUNDS) for start in starts]
    with torch.no_grad():
        bounds = [float(spectrum.bound(split.X, split.y)) for spectrum, _ in fits]
        spectrum, _ = fits[bounds.index(max(bounds))]
        posterior = _single(spectrum.predict(split.X, split.y, split.test_X))
    return Answer(posterior, sum(count for _, count in fits), {"best_log_likelihood": max(bounds)}, {})


def radial_basis(split: Split, evaluations: int, generator: torch.Generator) -> Answer:
    """One Gaussian process with an RBF kernel, a length scale for each input, by its likelihood."""
    return _fitted(split, lambda: RBFKernel(ard_num_dims=split.X.shape[1]))


def matern(split: Split, evaluations: int, generator: torch.Generator) -> Answer:
    """One Gaussian process with a Matern-5/2 kernel, a length scale for each input, by its likelihood."""
    return _fitted(split, lambda: MaternKernel(nu=2.5, ard_num_dims=split.X.shape[1]))


class _Process(gpytorch.models.ExactGP):  # type: ignore[misc]
    """A Gaussian process of mean zero that counts its likelihoods."""

    def __init__(self, X: Tensor, y: Tensor, likelihood: GaussianLikelihood, kernel: Kernel) -> None:
        super().__init__(X, y, likelihood)
        self.kernel = kernel
        self.evaluations = 0

    def forward(self, X: Tensor) -> MultivariateNormal:
        self.evaluations += int(self.training)
        return MultivariateNormal(X.new_zeros(X.shape[:-1]), self.kernel(X))


class _Fit(NamedTuple):
    """A fitted process: its log-likelihood, the likelihoods it took, and its prediction of the test targets."""

    value: float
    evaluations: int
    joint: MultivariateNormal


def _fitted(split: Split, make_kernel: Callable[[], Kernel]) -> Answer:
    """The likeliest of three fits by L-BFGS, from long, middling and short length scales, each until it converges.

    A start from which none converges is left out.

    Raises:
        ModelFittingError: If none does.
    """
    with gpytorch.settings.max_cholesky_size(_EXACT_UP_TO):
        tried = [_fit(split, make_kernel(), share) for share in _shares(split)]
    fits = [fit for fit in tried if fit is not None]
    if not fits:
        raise ModelFittingError("no fit of the kernel from any of its starts came to an end")
    best = max(fits, key=lambda fit: fit.value)
    found = {"best_log_likelihood": best.value, "kernels": 1.0}
    return Answer(_single(best.joint), sum(fit.evaluations for fit in fits), found, {})


def _shares(split: Split) -> tuple[float, float, float]:
    """Long, middling and short length scales to start from, as shares of each input's range."""
    # one input may be a season of a few rows, which a fit from long length scales takes for noise
    shortest = 2.0 / split.y.shape[0] if split.X.shape[1] == 1 else _SHORT
    return _LONG, (_LONG * shortest) ** 0.5, shortest


def _single(joint: MultivariateNormal) -> MixturePosterior:
    """One joint distribution of all test targets as a mixture of one."""
    mean, covariance = joint.mean[None, :, None], joint.covariance_matrix[None, None]
    return MixturePosterior(mean.new_zeros(1), mean, covariance)


def _fit(split: Split, kernel: Kernel, share: float) -> _Fit | None:
    """Scale, length scales and noise by likelihood, from length scales that are a share of each input's range.

    ``None`` where the line search of L-BFGS gives up, as on likelihoods that are flat from there.
    """
    X, y = split.X, split.y
    kernel.lengthscale = share * (X.amax(0) - X.amin(0))
    likelihood = GaussianLikelihood()
    likelihood.noise = 0.01
    process = _Process(X, y, likelihood, ScaleKernel(kernel)).to(X)
    objective = ExactMarginalLogLikelihood(likelihood, process)
    parameters = {name: value for name, value in objective.named_parameters() if value.requires_grad}
    # BoTorch's own closure asks for a BoTorch model
    closure = ForwardBackwardClosure(lambda: -objective(process(X), y), parameters)
    try:
        fit_gpytorch_mll(objective, closure=closure)
    except ModelFittingError:
        return None
    evaluations = process.evaluations
    with torch.no_grad():
        process.train()
        value = float(objective(process(X), y)) * y.shape[0]
        process.eval()
        return _Fit(value, evaluations, likelihood(process(split.test_X)))


def _mixture(problem: RegressionProblem, cube: Tensor, log_weights: Tensor) -> KernelMixtureModel:
    """Kernels with weights that owe nothing to a surrogate."""
    with torch.no_grad():
        kernels = problem.prior.hyperparameters(cube)
    return KernelMixtureModel(problem, kernels, log_weights)


def _finite(values: Tensor) -> Tensor:
    """Log-likelihoods with minus infinity for kernels that have none."""
    if not bool(values.isfinite().any()):
        raise ValueError(f"none of {values.numel()} kernels has a likelihood; give more evaluations")
    return values.nan_to_num(nan=-torch.inf)
