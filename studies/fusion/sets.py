r"""Rows of the fusion paper's made-up mixture (Ajirak et al. 2024, Section 4), splits of them, priors and experts.

The targets come from a mixture of three experts, :math:`p(y \mid x) = \sum_k w_k(x) N(y; f_k(x), 0.1^2)`, whose means
are Gaussian processes of length scale 0.2 and whose three logits are ones of length scale 0.5, all of amplitude one.
The paper gives neither the noise nor the range of the inputs, and draws the functions from random Fourier features:
here of many frequencies, so that none of the models' numbers of them is favored.
"""

from collections.abc import Callable
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

from gp_ensembles.fusion import ExpertPredictions, FourierPrior, linear_pool, predict_experts

NUM_ROWS = 1000
_TRAIN_SHARE = 0.8
_TRUE_EXPERTS = 3
_NOISE = 0.1
_MEAN_LENGTHSCALE, _OTHER_LENGTHSCALE = 0.2, 0.5
_TRUE_FREQUENCIES = 500
_MOST_FREQUENCIES = 100


class FusionRows(NamedTuple):
    """Made-up rows and what is true of them.

    Attributes:
        X: Inputs, shape (N, 1).
        y: Targets, shape (N,).
        log_prob: Log densities of the targets under the mixture that they come from, shape (N,), in nats.
    """

    X: Tensor
    y: Tensor
    log_prob: Tensor


class FusionSplit(NamedTuple):
    """A random split; targets are less the average of the training targets.

    Attributes:
        X: Training inputs, shape (N, 1).
        y: Training targets, shape (N,).
        test_X: Test inputs, shape (M, 1).
        test_y: Test targets, shape (M,).
        truth: Mean of the test targets' negative log densities under the true mixture, in nats.
    """

    X: Tensor
    y: Tensor
    test_X: Tensor
    test_y: Tensor
    truth: float


class FusionPriors(NamedTuple):
    """Priors of the functions: the length scales and amplitudes are those of the made-up rows."""

    mean: FourierPrior
    noise: FourierPrior
    weight: FourierPrior


class StackedExperts(NamedTuple):
    """Fixed experts, trained on the first half of the training rows.

    Attributes:
        X: Inputs of the second half, shape (N / 2, 1).
        y: Targets of the second half.
        predictions: The experts' predictions of the second half, on which weights are learned.
        test: Their predictions of the test rows.
    """

    X: Tensor
    y: Tensor
    predictions: ExpertPredictions
    test: ExpertPredictions


def made_up_mixture(half_width: float, num_rows: int, seed: int) -> FusionRows:
    """Rows with inputs uniform on [-half_width, half_width]; the same seed makes the same rows.

    Example:
        >>> rows = made_up_mixture(1.0, 50, 0)
        >>> rows.X.shape, bool(rows.X.abs().max() < 1)
        (torch.Size([50, 1]), True)
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")

    X = half_width * (2.0 * torch.rand(num_rows, 1, generator=generator, dtype=torch.float64, device="cpu") - 1.0)
    values = []
    for lengthscale in (_MEAN_LENGTHSCALE, _OTHER_LENGTHSCALE):
        prior = FourierPrior(normal(_TRUE_FREQUENCIES, 1), lengthscale)
        values.append(normal(_TRUE_EXPERTS, prior.num_coefficients(num_rows)) @ prior.basis(X))
    means, logits = values
    mixture = linear_pool(means, torch.full_like(means, _NOISE**2), logits)
    y = mixture.sample(1, generator=generator).squeeze(0)
    return FusionRows(X, y, mixture.log_prob(y))


def split_mixture(rows: FusionRows, seed: int, split: int) -> FusionSplit:
    """A random split, four fifths for training, in the order drawn.

    Example:
        >>> split = split_mixture(made_up_mixture(1.0, 50, 0), 0, 0)
        >>> len(split.y), len(split.test_y), bool(split.y.mean().abs() < 1e-9)
        (40, 10, True)
    """
    order = torch.randperm(len(rows.y), generator=_source(seed, split, 0), device="cpu")
    X, y, log_prob = (part[order] for part in rows)
    num_train = int(_TRAIN_SHARE * len(y) + 1e-9)
    center = y[:num_train].mean()
    y = y - center
    truth = -float(log_prob[num_train:].mean())
    return FusionSplit(X[:num_train], y[:num_train], X[num_train:], y[num_train:], truth)


def make_priors(like: Tensor, num_frequencies: int, seed: int, split: int) -> FusionPriors:
    """Priors with so many frequencies each; those of fewer frequencies have the first ones of the others.

    Raises:
        ValueError: If there are more frequencies than are drawn.

    Example:
        >>> small, large = (make_priors(torch.zeros(1, dtype=torch.float64), number, 0, 0) for number in (10, 30))
        >>> bool((small.weight.frequencies == large.weight.frequencies[:10]).all())
        True
    """
    if not 1 <= num_frequencies <= _MOST_FREQUENCIES:
        raise ValueError(f"there must be 1 to {_MOST_FREQUENCIES} frequencies, got {num_frequencies}")
    generator = _source(seed, split, 1)
    made = []
    for lengthscale in (_MEAN_LENGTHSCALE, _OTHER_LENGTHSCALE, _OTHER_LENGTHSCALE):
        drawn = like.new_empty(_MOST_FREQUENCIES, 1).normal_(generator=generator)
        made.append(FourierPrior(drawn[:num_frequencies], lengthscale))
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
        >>> split = split_mixture(made_up_mixture(1.0, 100, 0), 0, 0)
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
