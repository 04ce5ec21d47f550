"""Gradient ascents of the likelihood under the prior: where prior-wide acquisition never looks."""

from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gp_ensembles.bayesian_quadrature.hyperprior import EDGE, Hyperprior
from gp_ensembles.bayesian_quadrature.likelihood import GaussianLikelihoods


class Evaluated(NamedTuple):
    """Rows of the prior's cube, shape (E, C), and their log-likelihoods, shape (E,)."""

    cube: Tensor
    log_likelihood: Tensor


class _Spent(Exception):  # noqa: N818 (no error: the budget is used up)
    """All evaluations of an ascent are used."""


def ascend(likelihoods: GaussianLikelihoods, prior: Hyperprior, start: Tensor, max_evaluations: int) -> Evaluated:
    r"""L-BFGS from a kernel towards larger :math:`\log L + \log N(v; 0, I)`, every evaluation kept.

    The coordinates are v = the normal quantiles of the cube's coordinates that n components use, in which the prior is
    a standard normal distribution; n stays what it is. A likelihood that cannot be computed ends the ascent.

    Args:
        likelihoods: Log-likelihoods of the data.
        prior: The prior.
        start: A row of the prior's cube, shape (C,).
        max_evaluations: Likelihoods (with gradients) to spend.

    Returns:
        All evaluations in order, the start's included.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature.marginals import HalfNormal, LogNormal
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = Hyperprior(HalfNormal(one), LogNormal(0.0 * one, one), max_components=1)
        >>> X = torch.linspace(0, 4, 20, dtype=torch.float64).unsqueeze(-1)
        >>> likelihoods = GaussianLikelihoods(X, torch.sin(6.0 * X.squeeze(-1)))
        >>> path = ascend(likelihoods, prior, prior.draw(1, 1, generator=torch.Generator().manual_seed(0))[0], 15)
        >>> bool(path.log_likelihood[-1] > path.log_likelihood[0])
        True
    """
    components = int(prior.num_components(start))
    columns = prior.used(components)
    cubes: list[Tensor] = []
    values: list[Tensor] = []

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        if len(values) >= max_evaluations:
            raise _Spent
        v = torch.as_tensor(point).to(start).requires_grad_()
        cube = prior.embed(torch.special.ndtr(v).clamp(EDGE, 1.0 - EDGE), components).unsqueeze(0)
        value = likelihoods(*prior.hyperparameters(cube)).squeeze(0)
        cubes.append(cube.detach().squeeze(0))
        values.append(value.detach())
        if not bool(value.isfinite()):
            raise _Spent
        target = 0.5 * v.square().sum() - value
        (gradient,) = torch.autograd.grad(target, v)
        return float(target.detach()), gradient.cpu().double().numpy()

    first = torch.special.ndtri(start[columns]).cpu().double().numpy()
    limit = float(torch.special.ndtri(start.new_tensor(1.0 - EDGE)))
    with suppress(_Spent):
        minimize(objective, first, jac=True, method="L-BFGS-B", bounds=[(-limit, limit)] * len(first))
    return Evaluated(torch.stack(cubes), torch.stack(values))
