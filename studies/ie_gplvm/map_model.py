r"""The sparse latent variable model with places at their posterior's mode, of all rows at once (Lawrence, 2007).

Every column of N rows is a process over the places :math:`x_n \sim N(0, I)`, through K inducing points. Places,
inducing points, length scale, amplitude and noise together climb the collapsed bound of Titsias (2009),

.. math:: \sum_d \log N(y_d; 0, Q + \sigma^2 I) - \frac{D}{2 \sigma^2} \mathrm{tr}(K_{xx} - Q)
    - \tfrac12 \sum_n \|x_n\|^2, \qquad Q = K_{xz} K_{zz}^{-1} K_{zx},

by L-BFGS, from probabilistic principal components.
"""

import math

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.numerics.minimize import minimize
from gp_ensembles.papers.gplvm.first_rows import principal_components

NUM_INDUCING, MOST_STEPS = 100, 1000  # of the paper
_NUGGET = 1e-6  # share of the variance that an inducing variable has of its own


def collapsed_bound(X: Tensor, Z: Tensor, logs: Tensor, Y: Tensor) -> Tensor:
    """The bound without the prior of the places, shape ().

    Shapes: ``X`` (N, d), ``Z`` (K, d), ``Y`` (N, D), ``logs`` (3,): of length scale, variance of functions and noise.
    """
    scale, variance, noise = logs.exp().unbind()
    eye = torch.eye(len(Z), dtype=Y.dtype, device=Y.device)

    def covariance(A: Tensor) -> Tensor:
        squared = A.square().sum(-1) + Z.square().sum(-1, keepdim=True) - 2 * Z @ A.mT
        return variance * (-0.5 * squared.clamp_min(0.0) / scale.square()).exp()

    factor = cholesky(covariance(Z) + _NUGGET * variance * eye, "the covariance of the inducing points")
    rows = torch.linalg.solve_triangular(factor, covariance(X), upper=False)
    root = cholesky(eye + rows @ rows.mT / noise, "the posterior precision")
    white = torch.linalg.solve_triangular(root, rows @ Y, upper=False) / noise
    num_rows, num_columns = Y.shape
    log_det = num_rows * noise.log() + 2 * root.diagonal().log().sum()
    unexplained = num_rows * variance - rows.square().sum()
    fit = Y.square().sum() / noise - white.square().sum()
    bound: Tensor = -0.5 * (num_columns * (num_rows * math.log(2 * math.pi) + log_det + unexplained / noise) + fit)
    return bound


def map_embedding(Y: Tensor, *, num_latent: int = 2, seed: int = 0, steps: int = MOST_STEPS) -> Tensor:
    """Places of rows Y (N, D), shape (N, d); rows are centered and divided by their root mean square.

    Example:
        >>> Y = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
        >>> map_embedding(Y, steps=3).shape
        torch.Size([12, 2])
    """
    scores, mean = principal_components(Y, num_latent)
    centered = Y - mean
    rows = centered / centered.square().mean().sqrt()
    X = scores / scores.std(0)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed), device="cpu")[:NUM_INDUCING]
    Z, logs = X[order.to(X.device)], X.new_tensor([0.0, 0.0, math.log(0.5)])
    sizes = [X.numel(), Z.numel(), 3]

    def losses(points: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = points[0].clone().requires_grad_()
            places, inducing, others = point.split(sizes)
            places = places.reshape(X.shape)
            try:
                bound = collapsed_bound(places, inducing.reshape(Z.shape), others, rows)
            except NumericalError:
                return points.new_full((1,), torch.inf), torch.zeros_like(points)
            loss = (0.5 * places.square().sum() - bound) / rows.numel()
            (gradient,) = torch.autograd.grad(loss, point)
        return loss.detach().reshape(1), gradient.unsqueeze(0)

    start = torch.cat([X.flatten(), Z.flatten(), logs]).unsqueeze(0)
    found = minimize(losses, start, max_iterations=steps, gradient_tolerance=1e-7, loss_tolerance=1e-9)
    return found.point[0, : X.numel()].reshape(X.shape)
