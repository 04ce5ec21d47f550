"""Knots by how much they matter to the kernel matrix: ridge leverage scores and determinantal point processes."""

import torch
from torch import Tensor

from gp_ensembles.sparse.kernels import Covariance
from gp_ensembles.sparse.placement import distinct_rows, greedy_variance_rows

_SWEEPS = 5  # exchanges proposed for every knot


def ridge_leverage_scores(X: Tensor, kernel: Covariance, noise: float, rank: int = 200) -> Tensor:
    r"""Ridge leverage scores of all rows from a low-rank approximation, shape (N,).

    .. math:: \ell_i = \big(K (K + \tau^2 I)^{-1}\big)_{ii}

    (Alaoui and Mahoney, 2015), with K's incomplete Cholesky factor of the given rank in its place and what that leaves
    open added as if rows were independent: no N x N matrix is made.

    Args:
        X: Inputs, shape (N, D).
        kernel: Covariances.
        noise: Noise variance.
        rank: Rank of the approximation.

    Returns:
        Scores in [0, 1]; their sum is the effective number of dimensions.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.tensor([[0.0], [0.0], [5.0]], dtype=torch.float64)
        >>> scores = ridge_leverage_scores(X, Covariance(RBFKernel().double()), noise=1.0).detach()
        >>> [round(score, 3) for score in scores.tolist()]
        [0.333, 0.333, 0.5]
    """
    with torch.no_grad():
        rows = greedy_variance_rows(X, min(rank, X.shape[0]), kernel)
        pivots = X[rows]
        own = kernel.between(pivots, pivots)
        jitter = max(1e-10, 10.0 * torch.finfo(own.dtype).eps) * own.diagonal().mean()
        lower = torch.linalg.cholesky(own + torch.diag_embed(jitter.expand(len(rows))))
        factor = torch.linalg.solve_triangular(lower, kernel.between(pivots, X), upper=False)  # (r, N)
        small = torch.diag_embed(torch.ones_like(factor[:, 0])) + factor @ factor.mT / noise
        white = torch.linalg.solve_triangular(torch.linalg.cholesky(small), factor, upper=False)
        seen = white.square().sum(0) / noise
        left = (kernel.diagonal(X) - factor.square().sum(0)).clamp_min(0.0)
        scores: Tensor = (seen + left / (left + noise)).clamp(0.0, 1.0)
    return scores


def leverage_knots(
    X: Tensor, count: int, kernel: Covariance, noise: float, *, generator: torch.Generator | None = None
) -> Tensor:
    """Distinct rows drawn without replacement in proportion to their ridge leverage scores, shape (count, D).

    Raises:
        ValueError: If there are fewer distinct rows than knots.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> leverage_knots(X, 5, Covariance(RBFKernel().double()), 0.1).shape
        torch.Size([5, 1])
    """
    rows = distinct_rows(X, count)
    scores = ridge_leverage_scores(X, kernel, noise)[rows].clamp_min(torch.finfo(X.dtype).tiny)
    uniform = torch.rand(len(rows), dtype=torch.float64, generator=generator, device="cpu").to(X)
    keys = scores.log() - (-uniform.log()).log()  # Gumbel noise: the largest keys are a draw without replacement
    return X[rows[keys.argsort(descending=True)[:count]]]


def dpp_knots(X: Tensor, count: int, kernel: Covariance, *, generator: torch.Generator | None = None) -> Tensor:
    r"""An approximate draw of a k-determinantal point process, :math:`p(S) \propto \det K_{SS}`, shape (count, D).

    Exchanges of the Metropolis kind (Anari et al., 2016; Burt et al., 2020, use them for knots), started from greedy
    variance: a knot and a row change places with probability min(1, the ratio of the remaining variances).

    Raises:
        ValueError: If there are fewer distinct rows than knots.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> dpp_knots(X, 3, Covariance(RBFKernel().double())).shape
        torch.Size([3, 1])
    """
    candidates = distinct_rows(X, count)
    pool = X[candidates]
    with torch.no_grad():
        chosen = greedy_variance_rows(pool, count, kernel).tolist()
        for row in range(len(pool)):  # kernels of low rank leave no variance before there are enough
            if len(chosen) == count:
                break
            if row not in chosen:
                chosen.append(row)
        for _ in range(_SWEEPS * count):
            place = int(torch.randint(count, (), generator=generator, device="cpu"))
            row = int(torch.randint(len(pool), (), generator=generator, device="cpu"))
            if row in chosen:
                continue
            others = pool[[index for position, index in enumerate(chosen) if position != place]]
            old, new = _remaining(pool[[chosen[place], row]], others, kernel)
            if float(torch.rand((), generator=generator, device="cpu", dtype=torch.float64)) * float(old) < float(new):
                chosen[place] = row
    return pool[chosen]


def _remaining(points: Tensor, given: Tensor, kernel: Covariance) -> Tensor:
    """Variances of points given others."""
    variance = kernel.diagonal(points)
    if not len(given):
        return variance
    own = kernel.between(given, given)
    jitter = max(1e-8, 10.0 * torch.finfo(own.dtype).eps) * own.diagonal().mean()
    lower = torch.linalg.cholesky(own + torch.diag_embed(jitter.expand(len(given))))
    cross = torch.linalg.solve_triangular(lower, kernel.between(given, points), upper=False)
    rest: Tensor = (variance - cross.square().sum(0)).clamp_min(0.0)
    return rest
