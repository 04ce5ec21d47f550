"""Knots from inputs and kernel alone: k-means, greedy conditional variance, leverage scores, k-DPPs, at random.

Every rule is a :class:`KnotInitializer`, and BoTorch's inducing point allocator as a :class:`KnotAllocator`.
"""

from itertools import product
from typing import Any, Protocol

import torch
from botorch.models.utils.inducing_point_allocators import InducingPointAllocator, QualityFunction
from torch import Tensor
from torch.nn import Module

from gp_ensembles.numerics.draws import generator_device, permutation
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.numerics.kmeans import kmeans

_SWEEPS = 5  # exchanges proposed for every knot of a k-DPP


class KnotInitializer(Protocol):
    """A rule for knots from inputs and kernel, such as :func:`kmeans_knots`.

    Example:
        >>> rule: KnotInitializer = dpp_knots
    """

    def __call__(
        self, X: Tensor, num_knots: int, kernel: Kernel, /, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Knots (K, D) for inputs (N, D), K at most ``num_knots``."""


def random_knots(
    X: Tensor, num_knots: int, kernel: Kernel | None = None, *, generator: torch.Generator | None = None
) -> Tensor:
    """Distinct rows at random, shape (num_knots, D); the kernel does not matter.

    Args:
        X: Inputs, shape (N, D).
        num_knots: Number of knots.
        kernel: Not used; all rules take it.
        generator: Source of randomness.

    Raises:
        ValueError: If there are fewer distinct rows than knots.

    Example:
        >>> import torch
        >>> random_knots(torch.arange(4.0).unsqueeze(-1), 2).shape
        torch.Size([2, 1])
    """
    distinct = distinct_rows(X, num_knots)
    return X[distinct[permutation(len(distinct), generator)[:num_knots].to(X.device)]]


def kmeans_knots(
    X: Tensor, num_knots: int, kernel: Kernel | None = None, *, generator: torch.Generator | None = None
) -> Tensor:
    """Centers of :func:`~gp_ensembles.numerics.kmeans.kmeans`, shape (num_knots, D); the kernel does not matter.

    Args:
        X: Inputs, shape (N, D).
        num_knots: Number of knots.
        kernel: Not used; all rules take it.
        generator: Source of randomness.

    Raises:
        ValueError: If there are fewer distinct rows than knots.

    Example:
        >>> import torch
        >>> kmeans_knots(torch.tensor([[0.0], [0.2], [5.0], [5.2]]), 2).sort(0).values
        tensor([[0.1000],
                [5.1000]])
    """
    distinct_rows(X, num_knots)
    return kmeans(X, num_knots, generator=generator)


@torch.no_grad()
def greedy_variance_rows(X: Tensor, num_rows: int, kernel: Kernel, *, tolerance: float = 0.0) -> Tensor:
    """Rows of the largest remaining prior variance, one after the other, in O(N K) memory and O(N K^2) time.

    The pivots of an incomplete Cholesky factorization (Burt et al., 2020): no N x N matrix is made.

    Args:
        X: Inputs, shape (N, D).
        num_rows: Most rows.
        kernel: A kernel without a batch.
        tolerance: Stop when no variance above this share of the first is left.

    Returns:
        Rows in order of choice, shape (k,).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.tensor([[0.0], [0.1], [5.0]])
        >>> with torch.no_grad():
        ...     greedy_variance_rows(X, 2, RBFKernel())
        tensor([0, 2])
    """
    left = _variances(kernel, X).clone()
    factor = X.new_zeros(X.shape[0], num_rows)
    first = left.max()
    rows: list[int] = []
    for k in range(num_rows):
        pivot = int(left.argmax())
        if not bool(left[pivot] > max(tolerance, 1e-12) * first):
            break
        column = _covariances(kernel, X, X[pivot : pivot + 1]).squeeze(-1) - factor[:, :k] @ factor[pivot, :k]
        factor[:, k] = column / left[pivot].sqrt()
        left = (left - factor[:, k].square()).clamp_min(0.0)
        left[pivot] = 0.0
        rows.append(pivot)
    return torch.tensor(rows, dtype=torch.long, device=X.device)


def greedy_variance_knots(
    X: Tensor, num_knots: int, kernel: Kernel, *, generator: torch.Generator | None = None
) -> Tensor:
    """Rows by :func:`greedy_variance_rows`, shape (k, D); fewer than asked for where they explain the whole prior.

    It is deterministic: the generator does not matter.

    Args:
        X: Inputs, shape (N, D).
        num_knots: Number of knots at most.
        kernel: A kernel without a batch.
        generator: Not used; all rules take it.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.tensor([[0.0], [0.1], [5.0]])
        >>> greedy_variance_knots(X, 2, RBFKernel())
        tensor([[0.],
                [5.]])
    """
    return X[greedy_variance_rows(X, num_knots, kernel)]


def distinct_rows(X: Tensor, num_knots: int = 1) -> Tensor:
    """The first row of every distinct input; refuses to have more knots than those.

    Args:
        X: Inputs, shape (N, D).
        num_knots: Number of knots that are wanted.

    Returns:
        Row numbers, shape (U,), in the order of the sorted inputs.

    Raises:
        ValueError: If there are fewer distinct rows than knots.

    Example:
        >>> import torch
        >>> distinct_rows(torch.tensor([[1.0], [0.0], [1.0]]), 2)
        tensor([1, 0])
    """
    _, index, counts = torch.unique(X, dim=0, return_inverse=True, return_counts=True)
    first = torch.argsort(index, stable=True)[counts.cumsum(0) - counts]
    if num_knots > len(first):
        raise ValueError(f"{num_knots} knots are more than the {len(first)} distinct row(s)")
    return first


def ridge_leverage_scores(X: Tensor, kernel: Kernel, noise: float, rank: int = 200) -> Tensor:
    r"""Ridge leverage scores of all rows from a low-rank approximation, shape (N,).

    .. math:: \ell_i = \big(K (K + \tau^2 I)^{-1}\big)_{ii}

    (Alaoui and Mahoney, 2015), with K approximated by an incomplete Cholesky factor of the given rank and a diagonal of
    what it leaves unexplained: no N x N matrix is made.

    Args:
        X: Inputs, shape (N, D).
        kernel: A kernel without a batch.
        noise: Noise variance.
        rank: Rank of the approximation.

    Returns:
        Scores in [0, 1]; their sum is the effective number of dimensions.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.tensor([[0.0], [0.0], [5.0]], dtype=torch.float64)
        >>> scores = ridge_leverage_scores(X, RBFKernel().double(), noise=1.0).detach()
        >>> [round(score, 3) for score in scores.tolist()]
        [0.333, 0.333, 0.5]
    """
    with torch.no_grad():
        rows = greedy_variance_rows(X, min(rank, X.shape[0]), kernel)
        pivots = X[rows]
        own = _covariances(kernel, pivots, pivots)
        jitter = max(1e-10, 10.0 * torch.finfo(own.dtype).eps) * own.diagonal().mean()
        lower = torch.linalg.cholesky(own + torch.diag_embed(jitter.expand(len(rows))))
        factor = torch.linalg.solve_triangular(lower, _covariances(kernel, pivots, X), upper=False)  # (r, N)
        small = torch.diag_embed(torch.ones_like(factor[:, 0])) + factor @ factor.mT / noise
        white = torch.linalg.solve_triangular(torch.linalg.cholesky(small), factor, upper=False)
        explained = white.square().sum(0) / noise
        left = (_variances(kernel, X) - factor.square().sum(0)).clamp_min(0.0)
        scores: Tensor = (explained + left / (left + noise)).clamp(0.0, 1.0)
    return scores


def leverage_knots(
    X: Tensor, num_knots: int, kernel: Kernel, noise: float, *, generator: torch.Generator | None = None
) -> Tensor:
    """Distinct rows drawn without replacement in proportion to their ridge leverage scores, shape (num_knots, D).

    Args:
        X: Inputs, shape (N, D).
        num_knots: Number of knots.
        kernel: A kernel without a batch.
        noise: Noise variance.
        generator: Source of randomness.

    Raises:
        ValueError: If there are fewer distinct rows than knots.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> leverage_knots(X, 5, RBFKernel().double(), 0.1).shape
        torch.Size([5, 1])
    """
    rows = distinct_rows(X, num_knots)
    scores = ridge_leverage_scores(X, kernel, noise)[rows].clamp_min(torch.finfo(X.dtype).tiny)
    uniform = torch.rand(len(rows), dtype=torch.float64, generator=generator, device=generator_device(generator)).to(X)
    keys = scores.log() - (-uniform.log()).log()  # Gumbel noise: the largest keys are a draw without replacement
    return X[rows[keys.argsort(descending=True)[:num_knots]]]


def dpp_knots(X: Tensor, num_knots: int, kernel: Kernel, *, generator: torch.Generator | None = None) -> Tensor:
    r"""An approximate draw of a k-determinantal point process, :math:`p(S) \propto \det K_{SS}`, shape (num_knots, D).

    Exchanges of the Metropolis kind (Anari et al., 2016; Burt et al., 2020, use them for knots), started from greedy
    variance: a knot is exchanged for a row with probability min(1, the ratio of the remaining variances).

    Args:
        X: Inputs, shape (N, D).
        num_knots: Number of knots.
        kernel: A kernel without a batch.
        generator: Source of randomness.

    Raises:
        ValueError: If there are fewer distinct rows than knots.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> dpp_knots(X, 3, RBFKernel().double()).shape
        torch.Size([3, 1])
    """
    candidates = distinct_rows(X, num_knots)
    pool = X[candidates]
    with torch.no_grad():
        chosen = greedy_variance_rows(pool, num_knots, kernel).tolist()
        for row in range(len(pool)):  # kernels of low rank leave no variance before there are enough
            if len(chosen) == num_knots:
                break
            if row not in chosen:
                chosen.append(row)
        for _ in range(_SWEEPS * num_knots):
            slot = int(torch.randint(num_knots, (), generator=generator, device=generator_device(generator)))
            row = int(torch.randint(len(pool), (), generator=generator, device=generator_device(generator)))
            if row in chosen:
                continue
            others = pool[[index for position, index in enumerate(chosen) if position != slot]]
            old, new = _remaining(pool[[chosen[slot], row]], others, kernel)
            level = float(torch.rand((), generator=generator, device=generator_device(generator), dtype=torch.float64))
            if level * float(old) < float(new):
                chosen[slot] = row
    return pool[chosen]


def _remaining(points: Tensor, given: Tensor, kernel: Kernel) -> Tensor:
    """Variances of points given others."""
    variance = _variances(kernel, points)
    if not len(given):
        return variance
    own = _covariances(kernel, given, given)
    jitter = max(1e-8, 10.0 * torch.finfo(own.dtype).eps) * own.diagonal().mean()
    lower = torch.linalg.cholesky(own + torch.diag_embed(jitter.expand(len(given))))
    cross = torch.linalg.solve_triangular(lower, _covariances(kernel, given, points), upper=False)
    rest: Tensor = (variance - cross.square().sum(0)).clamp_min(0.0)
    return rest


class KnotAllocator(InducingPointAllocator):
    """A rule for knots as BoTorch's ``InducingPointAllocator``.

    Args:
        initializer: The rule; BoTorch passes no source of randomness on, so that torch's global one is used.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> allocator = KnotAllocator(kmeans_knots)
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> allocator.allocate_inducing_points(X, RBFKernel().double(), 4, torch.Size()).shape
        torch.Size([4, 1])
    """

    def __init__(self, initializer: KnotInitializer) -> None:
        self.initializer = initializer

    def allocate_inducing_points(
        self, inputs: Tensor, covar_module: Module, num_inducing: int, input_batch_shape: torch.Size
    ) -> Tensor:
        r"""Knots for inputs (\*batch, N, D), shape (\*batch, K, D); of a kernel for several outputs by the first."""
        kernels = _kernels(covar_module, input_batch_shape)
        if not input_batch_shape:
            return self.initializer(inputs, num_inducing, kernels[0])
        flat = inputs.expand(*input_batch_shape, *inputs.shape[-2:]).reshape(-1, *inputs.shape[-2:])
        found = [self.initializer(part, num_inducing, kernel) for part, kernel in zip(flat, kernels, strict=True)]
        least = min(len(knots) for knots in found)  # a rule may need fewer for some
        return torch.stack([knots[:least] for knots in found]).reshape(*input_batch_shape, least, flat.shape[-1])

    def _get_quality_function(self) -> QualityFunction:
        """BoTorch's own allocators weigh their choices by this; rules here do not."""
        raise ValueError("a KnotAllocator has no quality function; its rule chooses the knots")


def _kernels(kernel: Any, batch_shape: torch.Size) -> list[Kernel]:
    """A kernel without a batch for each batch of inputs."""
    while len(kernel.batch_shape) > len(batch_shape):
        kernel = kernel[(0,) * (len(kernel.batch_shape) - len(batch_shape))]
    if not kernel.batch_shape:
        return [kernel] * max(1, batch_shape.numel())
    return [kernel[index] for index in product(*map(range, batch_shape))]


def _covariances(kernel: Kernel, first: Tensor, second: Tensor) -> Tensor:
    matrix: Tensor = kernel(first, second).to_dense()
    return matrix


def _variances(kernel: Kernel, X: Tensor) -> Tensor:
    values: Tensor = kernel(X, diag=True)
    return values
