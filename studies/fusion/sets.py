r"""Rows of the fusion paper's made-up mixture (Ajirak et al. 2024, Section 4), splits of them, priors and experts.

The targets come from a mixture of three experts, :math:`p(y \mid x) = \sum_k w_k(x) N(y; f_k(x), 0.1^2)`, whose means
are Gaussian processes of length scale 0.2 and whose three logits are ones of length scale 0.5, all of amplitude one.
The paper gives neither the range of the inputs nor the length scale of the noise, whose logarithm is a process of its
own by equation 18 (:data:`DRAWN`), and draws the functions from random Fourier features: here of many frequencies, so
that none of the models' numbers of them is favored. The user's own table may take the
place of these rows: its inputs are scaled to the same range, its targets to unit variance.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from gp_ensembles.data import Table
from gp_ensembles.distributions import Mixture
from gp_ensembles.papers.fusion import ExpertPredictions, FourierPrior, linear_pool, predict_experts
from studies.harness.sources import PaperSet

MIXTURE = PaperSet("mixture", made_up=True)
NUM_ROWS = 1000
TRUE_EXPERTS = 3
_TRAIN_SHARE = 0.8
NOISE = 0.1
DRAWN = 0.0  # in the place of a deviation: the logarithm of that of each mean is a process of amplitude one
_MEAN_LENGTHSCALE, _OTHER_LENGTHSCALE = 0.2, 0.5
_TRUE_FREQUENCIES = 500
_MOST_FREQUENCIES = 100


class TrueMixture(NamedTuple):
    """The mixture that the rows come from.

    Attributes:
        priors: Features of the means, of the logits and of logarithms of the noise.
        coefficients: Their coefficients, shape (3, F) each.
        noise: Deviation of the noise where it is not drawn.
    """

    priors: Sequence[FourierPrior]
    coefficients: Sequence[Tensor]
    noise: float

    def at(self, X: Tensor) -> Mixture:
        """Densities of targets at inputs (N, 1)."""
        pairs = zip(self.priors, self.coefficients, strict=True)
        means, logits, *logs = (drawn @ prior.basis(X) for prior, drawn in pairs)
        variance = (2 * logs[0]).exp() if logs else torch.full_like(means, self.noise**2)
        return linear_pool(means, variance, logits)


class FusionRows(NamedTuple):
    """Rows, and what is true of them if they were made up.

    Attributes:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,).
        half_width: Inputs lie on [-half_width, half_width], or are scaled so by the training rows of a split.
        truth: The mixture that they come from; none of a table.
    """

    X: Tensor
    y: Tensor
    half_width: float
    truth: TrueMixture | None


class FusionSplit(NamedTuple):
    """A random split; targets are less the average of the training targets, those of a table of unit variance, too.

    Attributes:
        X: Training inputs, shape (N, D).
        y: Training targets, shape (N,).
        test_X: Test inputs, shape (M, D).
        test_y: Test targets, shape (M,).
        center: The average of the training targets.
        truth: Mean of the test targets' negative log densities under the true mixture, in nats; NaN of a table.
    """

    X: Tensor
    y: Tensor
    test_X: Tensor
    test_y: Tensor
    center: float
    truth: float


class FusionPriors(NamedTuple):
    """Priors of the functions: the length scales and amplitudes are those of the made-up rows."""

    mean: FourierPrior
    noise: FourierPrior
    weight: FourierPrior


class StackedExperts(NamedTuple):
    """Fixed experts, trained on the first half of the training rows.

    Attributes:
        X: Inputs of the second half, shape (N / 2, D).
        y: Targets of the second half.
        predictions: The experts' predictions of the second half, on which weights are learned.
        test: Their predictions of the test rows.
    """

    X: Tensor
    y: Tensor
    predictions: ExpertPredictions
    test: ExpertPredictions


def made_up_mixture(half_width: float, num_rows: int, seed: int, noise: float = NOISE) -> FusionRows:
    """Rows with inputs uniform on [-half_width, half_width]; the same seed makes the same rows.

    The noise has this deviation, or is :data:`DRAWN`.

    Example:
        >>> rows = made_up_mixture(1.0, 50, 0)
        >>> rows.X.shape, bool(rows.X.abs().max() < 1)
        (torch.Size([50, 1]), True)
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")

    X = half_width * (2.0 * torch.rand(num_rows, 1, generator=generator, dtype=torch.float64, device="cpu") - 1.0)
    priors, coefficients = [], []
    for lengthscale in (_MEAN_LENGTHSCALE, _OTHER_LENGTHSCALE, *[_OTHER_LENGTHSCALE] * (noise == DRAWN)):
        priors.append(FourierPrior(normal(_TRUE_FREQUENCIES, 1), lengthscale))
        coefficients.append(normal(TRUE_EXPERTS, priors[-1].num_coefficients))
    truth = TrueMixture(priors, coefficients, noise)
    y = truth.at(X).sample(1, generator=generator).squeeze(0)
    return FusionRows(X, y, half_width, truth)


def table_rows(table: Table, half_width: float, max_rows: int, seed: int) -> FusionRows:
    """Rows of the user's own table instead of the made-up ones, at most so many, at random.

    Raises:
        ValueError: If a target is missing.

    Example:
        >>> from gp_ensembles.data import friedman1
        >>> table = friedman1(100, generator=torch.Generator().manual_seed(0)).table
        >>> table_rows(table, 1.0, 60, 0).X.shape
        torch.Size([60, 10])
    """
    if not bool(table.y.isfinite().all()):
        raise ValueError(f"{table.name} has rows without a target; leave them out of the file")
    order = torch.randperm(len(table.y), generator=torch.Generator().manual_seed(seed), device="cpu")[:max_rows]
    return FusionRows(table.X[order].double(), table.y[order].double(), half_width, None)


def split_rows(rows: FusionRows, seed: int, split: int) -> FusionSplit:
    """A random split, four fifths for training, in the order drawn.

    Raises:
        ValueError: If an input or the target of a table is constant in the training rows.

    Example:
        >>> split = split_rows(made_up_mixture(1.0, 50, 0), 0, 0)
        >>> len(split.y), len(split.test_y), bool(split.y.mean().abs() < 1e-9)
        (40, 10, True)
    """
    order = torch.randperm(len(rows.y), generator=_source(seed, split, 0), device="cpu")
    X, y = rows.X[order], rows.y[order]
    num_train = int(_TRAIN_SHARE * len(y) + 1e-9)
    center, truth = y[:num_train].mean(), math.nan
    if rows.truth is None:
        least, most, unit = X[:num_train].amin(0), X[:num_train].amax(0), y[:num_train].std()
        if not bool((most > least).all()) or not bool(unit > 0):
            raise ValueError("an input or the target is constant in the training rows; choose another --seed")
        X = rows.half_width * (2.0 * (X - least) / (most - least) - 1.0)
        y = (y - center) / unit
    else:
        truth = -float(rows.truth.at(X[num_train:]).log_prob(y[num_train:]).mean())
        y = y - center
    return FusionSplit(X[:num_train], y[:num_train], X[num_train:], y[num_train:], float(center), truth)


def make_priors(like: Tensor, num_frequencies: int, seed: int, split: int) -> FusionPriors:
    """Priors with so many frequencies each; those of fewer frequencies have the first ones of the others.

    Of D inputs the length scales are those of the made-up rows times the root of D.

    Args:
        like: Inputs, shape (N, D).
        num_frequencies: Frequencies of every function.
        seed: Seed of the study.
        split: Number of the split.

    Raises:
        ValueError: If there are more frequencies than are drawn.

    Example:
        >>> small, large = (make_priors(torch.zeros(1, 1, dtype=torch.float64), number, 0, 0) for number in (10, 30))
        >>> bool((small.weight.frequencies == large.weight.frequencies[:10]).all())
        True
    """
    if not 1 <= num_frequencies <= _MOST_FREQUENCIES:
        raise ValueError(f"there must be 1 to {_MOST_FREQUENCIES} frequencies, got {num_frequencies}")
    generator = _source(seed, split, 1)
    made = []
    for lengthscale in (_MEAN_LENGTHSCALE, _OTHER_LENGTHSCALE, _OTHER_LENGTHSCALE):
        drawn = like.new_empty(_MOST_FREQUENCIES, like.shape[1]).normal_(generator=generator)
        made.append(FourierPrior(drawn[:num_frequencies], lengthscale * math.sqrt(like.shape[1])))
    return FusionPriors(*made)


def expert_source(split: FusionSplit, seed: int, number: int) -> Callable[[int], StackedExperts]:
    """The experts of a split by how many they are, trained when they are asked for and then kept."""

    @cache
    def experts(num_experts: int) -> StackedExperts:
        return train_experts(split, num_experts, _source(seed, number, 2))

    return experts


def train_experts(split: FusionSplit, num_experts: int, generator: torch.Generator) -> StackedExperts:
    """Exact Gaussian processes, each by maximum likelihood on a random part of the first half; no two share a row.

    The text of the paper says that each has a K-th of all training rows, of which the first half holds not enough.

    Raises:
        ValueError: If there are fewer than two rows for an expert.

    Example:
        >>> split = split_rows(made_up_mixture(1.0, 100, 0), 0, 0)
        >>> found = train_experts(split, 2, torch.Generator().manual_seed(0))
        >>> found.predictions.mean.shape, found.test.mean.shape
        (torch.Size([2, 40]), torch.Size([2, 20]))
    """
    half = len(split.y) // 2
    share = half // num_experts
    if share < 2:
        raise ValueError(f"{half} rows are not enough to train {num_experts} experts; ask for more rows")
    order = torch.randperm(half, generator=generator, device="cpu")
    experts = []
    for rows in order[: share * num_experts].split(share):
        expert = _process(split.X[rows], split.y[rows])
        fit_gpytorch_mll(ExactMarginalLogLikelihood(expert.likelihood, expert))
        experts.append(expert)
    both = predict_experts(experts, torch.cat([split.X[half:], split.test_X]))
    parts = [part.split([len(split.y) - half, len(split.test_y)], -1) for part in both]
    learned, test = (ExpertPredictions(*some) for some in zip(*parts, strict=True))
    return StackedExperts(split.X[half:], split.y[half:], learned, test)


def _process(X: Tensor, y: Tensor) -> SingleTaskGP:
    """A Gaussian process with an isotropic squared exponential kernel and mean zero, not yet fitted."""
    half = 0.5 * float(y.var())
    kernel, likelihood = ScaleKernel(RBFKernel()).to(y), GaussianLikelihood().to(y)
    kernel.base_kernel.lengthscale, kernel.outputscale, likelihood.noise = _MEAN_LENGTHSCALE, half, half
    return SingleTaskGP(
        X, y.unsqueeze(-1), likelihood=likelihood, covar_module=kernel, mean_module=ZeroMean(), outcome_transform=None
    )


def _source(seed: int, split: int, purpose: int) -> torch.Generator:
    """A source of randomness for one purpose of a split, none of them that of the rows."""
    return torch.Generator().manual_seed(1 + purpose + 3 * split + 1000 * (seed + 1))
