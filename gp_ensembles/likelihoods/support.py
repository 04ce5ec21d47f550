"""Whether targets are ones that a likelihood can explain; the messages name the value and its row."""

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from gp_ensembles.likelihoods.response import conditional, latent_dim, legal_value


def check_support(likelihood: Likelihood, y: Tensor) -> None:
    r"""Raise unless each target has a positive, finite density under the likelihood; NaN is missing and legal.

    The support is the one that the likelihood's own distribution states, at latent values of zero.

    Args:
        likelihood: Any likelihood whose ``likelihood(latent)`` is a distribution.
        y: Targets, shape (N,).

    Raises:
        ValueError: If a target is outside the support; the value and its row are named.

    Example:
        >>> import torch
        >>> from gpytorch.likelihoods import PoissonLikelihood
        >>> check_support(PoissonLikelihood(), torch.tensor([0.0, 2.0, torch.nan]))
        >>> check_support(PoissonLikelihood(), torch.tensor([0.0, -1.0]))
        Traceback (most recent call last):
        ...
        ValueError: target -1 in row 1 is outside the support of PoissonLikelihood: counts must be whole numbers from
        zero; correct it, or set it to NaN if it is missing
    """
    if y.ndim != 1:
        raise ValueError(f"targets must have shape (N,), got {tuple(y.shape)}")
    if y.device.type == "meta" or not y.numel():
        return
    targets = y if y.is_floating_point() else y.double()
    dim = latent_dim(likelihood)
    like = next(iter(likelihood.parameters()), targets)
    with torch.no_grad():
        distribution = conditional(likelihood, like.new_zeros((1, dim) if dim > 1 else 1))
        support: Constraint = distribution.support  # type: ignore[assignment]
        legal = torch.isnan(targets) | support.check(targets)
        inner = torch.where(legal & ~torch.isnan(targets), targets, legal_value(distribution))
        # The ends of an interval may be in the stated support and have no density all the same.
        dense = torch.isfinite(distribution.log_prob(inner)).reshape(-1, targets.shape[0]).all(0)
    bad = ~(legal & dense)
    if bool(bad.any()):
        row = int(bad.int().argmax())
        raise ValueError(
            f"target {float(targets[row]):.10g} in row {row} is outside the support of {type(likelihood).__name__}: "
            f"{_describe(support, distribution)}; correct it, or set it to NaN if it is missing"
        )


def check_classes(y: Tensor) -> None:
    """Raise if all labels are of one class: nothing can be learned about what tells classes apart.

    Args:
        y: Labels, shape (N,), NaN where missing.

    Raises:
        ValueError: If fewer than two different labels were observed.

    Example:
        >>> import torch
        >>> check_classes(torch.tensor([0.0, 1.0]))
        >>> check_classes(torch.tensor([1.0, torch.nan, 1.0]))
        Traceback (most recent call last):
        ...
        ValueError: all 2 observed labels are 1; ...
    """
    observed = y[~torch.isnan(y)] if y.is_floating_point() else y
    if observed.numel() == 0:
        raise ValueError("no label was observed; give rows of at least two classes")
    if bool((observed == observed[0]).all()):
        raise ValueError(
            f"all {observed.numel()} observed labels are {float(observed[0]):.10g}; give rows of at least two classes "
            f"(more rows, or shuffled ones)"
        )


def _describe(support: Constraint, distribution: Distribution) -> str:
    if support is constraints.boolean:
        return "labels must be 0 or 1"
    if isinstance(support, constraints.integer_interval):
        return f"class numbers must be whole, {int(support.lower_bound)} to {int(support.upper_bound)}"
    if support is constraints.nonnegative_integer:
        return "counts must be whole numbers from zero"
    if isinstance(support, constraints.interval):
        return f"values must be strictly between {float(support.lower_bound):g} and {float(support.upper_bound):g}"
    if support is constraints.real:
        return "values must be finite"
    return f"{type(distribution).__name__} takes values of {support}"
