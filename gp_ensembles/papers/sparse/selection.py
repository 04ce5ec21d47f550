"""Selection of knots for normal targets."""

import math
from copy import deepcopy
from typing import final

import torch
from gpytorch import means
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from scipy.stats import chi2
from torch import Tensor, nn
from tqdm import tqdm

from gp_ensembles.bo.data import warn_of_noise
from gp_ensembles.numerics.arguments import check_made
from gp_ensembles.numerics.copies import without_copies
from gp_ensembles.numerics.gpytorch_types import Kernel, Mean
from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.papers.rows import check_rows
from gp_ensembles.papers.sparse.adaptive import AdaptiveKnots
from gp_ensembles.papers.sparse.base import SparseModel, constant_mean
from gp_ensembles.papers.sparse.collapsed import VFE, Approximation
from gp_ensembles.papers.sparse.fitting import Coordinates, has_free_hyperparameters, spread_of
from gp_ensembles.papers.sparse.regression import SparseGP
from gp_ensembles.papers.sparse.strategies import Selection, SelectionRun, Strategy

_LEAST_NOISE = 1e-6  # share of the targets' variance
_ROWS_PER_WEIGHT = 10  # rows per coefficient of a linear mean
_OPEN_GAP = 0.1  # nats per row
_LEVEL = 0.01  # significance level of the test against pure noise


def select_knots(
    X: Tensor,
    y: Tensor,
    kernel: Kernel | None = None,
    likelihood: GaussianLikelihood | None = None,
    mean: Mean | None = None,
    *,
    strategy: Strategy = AdaptiveKnots(),  # noqa: B008 (immutable)
    approximation: Approximation = VFE,
    nugget: float | None = None,
    progress: bool = False,
    generator: torch.Generator | None = None,
) -> Selection:
    """Select knots and fit hyperparameters; ``predict`` of the result predicts targets.

    The model is a :class:`SparseGP`, or an :class:`ExactGP` if :class:`AdaptiveKnots` can use all rows as knots.

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,) or (N, 1); rows whose target is NaN are dropped.
        kernel: Any GPyTorch kernel, which is copied; its hyperparameters are the starting point. A Matern-5/2
            kernel with one lengthscale per column if ``None``.
        likelihood: Gaussian likelihood; its noise is the starting point. If ``None``, GPyTorch's default, or, for
            :class:`AdaptiveKnots`, one with a minimum noise of 1e-6 of the targets' variance.
        mean: Prior mean, which is fitted. If ``None``, a constant that starts at the targets' average, or, for
            :class:`AdaptiveKnots`, a linear one if there are ten rows per coefficient.
        strategy: Selection strategy: :class:`AdaptiveKnots`, :class:`GreedyBlocks`, :class:`OneAtATime` or
            :class:`Simultaneous`.
        approximation: The sparse approximation.
        nugget: As in :class:`SparseGP`.
        progress: Whether to show a progress bar.
        generator: Source of randomness.

    Returns:
        Knots, model, history, and ``predict(X)`` for distributions of targets with the tails of leave-one-out
        errors. After a keyboard interrupt, the best result so far, with a warning. There is also a warning if
        :class:`AdaptiveKnots` leaves out exact copies of rows or leaves the bounds on the log evidence more than 0.1
        nats per row apart, or if a likelihood ratio test does not reject pure noise.

    Raises:
        TypeError: If ``kernel``, ``strategy`` or ``approximation`` is of another type.
        ValueError: If shapes do not match, a value is not finite, or targets are constant or all missing.
        NumericalError: If the objective cannot be evaluated with the first knots.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from gp_ensembles.papers.sparse import GreedyBlocks
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(6.0 * X.squeeze(-1))
        >>> found = select_knots(X, y)
        >>> found.stop_reason
        'all 50 distinct rows are knots: the model is exact'
        >>> found.predict(X[:3]).mean.shape
        torch.Size([3])
        >>> found = select_knots(X, y, ScaleKernel(RBFKernel()), strategy=GreedyBlocks())
        >>> found.knots.shape[0] <= 50, found.history[-1].objective > found.history[0].objective
        (True, True)
    """
    check_made("strategy", strategy, Strategy, "AdaptiveKnots()")
    if kernel is not None:
        check_made("kernel", kernel, Kernel, "ScaleKernel(RBFKernel())")
    X, y = _observed(X, y)
    is_ours = isinstance(strategy, AdaptiveKnots)  # the others are initialized as in the literature
    if is_ours:
        rows = without_copies(X, y)
        X, y = X[rows], y[rows]
    kernel = default_kernel(X, y) if kernel is None else kernel
    if is_ours:
        likelihood = default_likelihood(y) if likelihood is None else likelihood
        mean = default_mean(X, y) if mean is None else mean
    start = strategy.initial_knots(X, generator=generator)
    model = SparseGP(X, y, start, *deepcopy((kernel, likelihood, mean)), approximation=approximation, nugget=nugget)
    least = model.likelihood.noise_covar.raw_noise_constraint.lower_bound
    if bool(least > 0.1 * y.var()):
        warn_caller(
            f"the likelihood's minimum noise variance, {float(least):.1g}, is not below the targets' variance, "
            f"{float(y.var()):.1g}: standardize the targets, or give a likelihood with a smaller bound"
        )
    return _search(model, strategy, progress=progress, generator=generator)


def default_kernel(X: Tensor, y: Tensor) -> ScaleKernel:
    """A Matern-5/2 kernel in the units of the data, with one lengthscale per column."""
    kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=X.shape[1])).to(X)
    kernel.outputscale, kernel.base_kernel.lengthscale = 0.5 * y.var(), spread_of(X)
    return kernel


def default_likelihood(y: Tensor) -> GaussianLikelihood:
    """A Gaussian likelihood in the units of the targets: noise at least 1e-6 of their variance."""
    variance = float(y.var())
    floor = GreaterThan(_LEAST_NOISE * variance, transform=torch.exp, inv_transform=torch.log)
    likelihood = GaussianLikelihood(noise_constraint=floor).to(y)
    likelihood.noise = 0.5 * variance
    return likelihood


def default_mean(X: Tensor, y: Tensor) -> Mean:
    """A linear prior mean, or a constant one if there are few rows."""
    return LinearTrend(X, y) if len(y) >= _ROWS_PER_WEIGHT * (X.shape[1] + 1) else constant_mean(X, y)


def _search(model: SparseGP, strategy: Strategy, *, progress: bool, generator: torch.Generator | None) -> Selection:
    """Select knots for a model by a strategy, starting from its own."""
    with tqdm(total=strategy.max_knots, disable=not progress, desc="knots") as bar:
        run = SelectionRun(model, bar, generator)
        try:
            stop_reason = strategy.search(run)
            if isinstance(strategy, AdaptiveKnots):  # for the others the number of knots is requested
                _warn_of_gap(run.model)
        except KeyboardInterrupt:
            run.record(run.model, "interrupted")  # the model being fitted has its best parameters so far
            stop_reason = "interrupted"
            warn_caller(f"interrupted with {run.model.num_knots} knots; the model is the best so far")
    if has_free_hyperparameters(run.model) and (stuck := Coordinates(run.model).at_bounds()):
        warn_caller(f"{', '.join(stuck)} ended a factor of 10000 from the start: standardize the data, or start closer")
    run.model.eval()
    if isinstance(strategy, AdaptiveKnots) and run.model.likelihood.noise.requires_grad:
        warn_of_noise(run.model.likelihood.noise.mean(), run.model.train_y, is_chance=_is_chance(run.model))
    return run.result(stop_reason)


def _warn_of_gap(model: SparseModel) -> None:
    gap, num_rows = model.bound_gap(), len(model.train_y)
    if _OPEN_GAP * num_rows < gap < math.inf:
        warn_caller(
            f"with {model.num_knots} knots the bounds on the log evidence are {gap:.3g} nats apart, "
            f"{gap / num_rows:.2g} per row: more knots may predict better"
        )


@torch.no_grad()
def _is_chance(model: SparseModel) -> bool:
    """Whether a likelihood ratio test (Wilks, 1938) with the upper bound on the evidence does not reject pure noise."""
    y = model.train_y
    plain = -0.5 * len(y) * (2 * math.pi * math.e * y.var(unbiased=False)).log()
    free = sum(p.numel() for name, p in model.named_parameters() if p.requires_grad and name != "knots")
    gain = model.upper_bound() - plain  # pure noise also has a mean and a variance
    return float(chi2.sf(2 * float(gain), max(free - 2, 1))) > _LEVEL


def _observed(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that have a target."""
    y, seen = check_rows(X, y)
    X, y = X[seen], y[seen]
    if len(y) == 1:
        raise ValueError("only one row has a target; give at least two, with different targets")
    if not bool(y.amax() > y.amin()):
        raise ValueError("the targets are constant; there is nothing to learn")
    return X, y


@final
class LinearTrend(means.Mean):  # type: ignore[misc]  # GPyTorch is untyped
    r"""A linear prior mean with coefficients of order one, whatever the units of inputs and targets.

    .. math:: m(x) = s_y \Big(b + \sum_d w_d (x_d - c_d) / s_d\Big)

    Shapes: ``X`` (N, D), ``y`` (N,).
    """

    def __init__(self, X: Tensor, y: Tensor) -> None:
        super().__init__()
        unit = y.std(unbiased=False)
        self.register_buffer("center", X.mean(0))
        self.register_buffer("spread", spread_of(X))
        self.register_buffer("unit", torch.where(unit > 0, unit, 1.0))
        self.weights: nn.Parameter = nn.Parameter(torch.zeros_like(X[0]))
        self.bias: nn.Parameter = nn.Parameter(y.mean() / self.unit)

    def forward(self, X: Tensor) -> Tensor:
        r"""The mean at points (\*batch, N, D), shape (\*batch, N)."""
        values: Tensor = self.unit * (self.bias + ((X - self.center) / self.spread) @ self.weights)
        return values
