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

    No error is raised where arithmetic gives out: an expert whose evidence cannot be computed, or gets no better, keeps
    what it has. The modules of the expert hold any values afterwards.

    Args:
        expert: Batch of experts whose trainable parameters are tried out.
        evidence: Log evidence at the parameters that the expert then has, in nats, shape (M,), NaN where there is none.
        method: How far to go.
        start_precision: Precision of a Gaussian prior around the start, in the unconstrained space.
        num_rows: Rows of the evidence: tolerances are in nats a row.

    Returns:
        Unconstrained hyperparameters, shape (M, P).

    Example:
        >>> import torch
        >>> from gp_ensembles.experts.gaussian import GaussianExpert
        >>> from gp_ensembles.features import LinearFeatures
        >>> X = torch.linspace(-1, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> expert = GaussianExpert(LinearFeatures(1, torch.ones(1, dtype=torch.float64)))
        >>> before = expert.log_evidence(X, X[:, 0])
        >>> found = climb(expert, lambda: expert.log_evidence(X, X[:, 0]), LBFGS(max_iterations=5), 0.1, 20)
        >>> set_vectors_(expert, found)
        >>> bool(expert.log_evidence(X, X[:, 0]) > before)
        True
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
