"""Better hyperparameters from where they are: a few steps uphill that can do no harm."""

from collections.abc import Callable

import torch
from torch import Tensor

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.empirical_bayes import LBFGS, log_priors
from gp_ensembles.experts.parameters import get_vectors, gradient_vectors, set_vectors_
from gp_ensembles.numerics.minimize import minimize


def gradient_ascent(
    expert: Expert, evidence: Callable[[], Tensor], method: LBFGS, start_precision: float, num_rows: int
) -> Tensor:
    """Maximize the log posterior of every expert in a batch from where its hyperparameters are.

    Returns shape (M, P).
    """
    start = get_vectors(expert)

    def loss(points: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
        vectors = start.clone()
        vectors[problems] = points.to(start)
        set_vectors_(expert, vectors)
        value = evidence().reshape(-1) + log_priors(expert)
        usable = torch.isfinite(value)
        gradient = gradient_vectors(expert, torch.where(usable, value, 0.0).sum())
        step = vectors - start
        gradient = (start_precision * step - gradient) / num_rows
        usable = usable & torch.isfinite(gradient).all(-1)
        value = (0.5 * start_precision * step.square().sum(-1) - value.detach()) / num_rows
        value, gradient = torch.where(usable, value, torch.inf), torch.where(usable.unsqueeze(-1), gradient, 0.0)
        return value[problems].to(points), gradient[problems].to(points)

    with torch.inference_mode(False), torch.enable_grad():
        every = torch.arange(len(start), device=start.device)
        try:
            good = loss(start, every)[0].isfinite().nonzero().squeeze(-1)
            if not good.numel():
                return start
            found = minimize(
                lambda points, problems: loss(points, good[problems.to(good.device)]),
                start[good].double(),
                max_iterations=method.max_iterations,
                gradient_tolerance=method.gradient_tolerance,
                loss_tolerance=method.loss_tolerance,
            )
        except RuntimeError:  # of a kernel or of a factorization: what was known before stays
            return start
    return start.index_copy(0, good, found.point.to(start))
