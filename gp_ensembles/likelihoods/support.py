"""Whether targets are ones that a likelihood can explain; the messages name the value and its row."""

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from gp_ensembles.likelihoods.response import conditional, latent_dim, legal_value


class IllegalTargetError(ValueError):
    """A target that a likelihood cannot produce.

    Attributes:
        value: The target.
        row: Its row among the targets that were checked, counted from zero.
        rule: Which targets there may be.
        remedy: What to do.
    """

    def __init__(self, value: float, row: int, rule: str, remedy: str) -> None:
        super().__init__(value, row, rule, remedy)
        self.value = value
        self.row = row
        self.rule = rule
        self.remedy = remedy

    def __str__(self) -> str:
        return (
            f"target {self.value:.10g} in row {self.row} is not possible: {self.rule}; {self.remedy}, or set it to "
            f"NaN if it is missing"
        )


def check_support(likelihood: Likelihood, y: Tensor) -> None:
    r"""Raise unless each target has a positive, finite density under the likelihood; NaN is missing and legal.

    The support is the one that the likelihood's own distribution states, at latent values of zero.

    Args:
        likelihood: Any likelihood whose ``likelihood(latent)`` is a distribution.
        y: Targets, shape (N,).

    Raises:
        IllegalTargetError: If a target is outside the support; a ValueError that knows the value and its row.

    Example:
        >>> import torch
        >>> from gpytorch.likelihoods import PoissonLikelihood
        >>> check_support(PoissonLikelihood(), torch.tensor([0.0, 2.0, torch.nan]))
        >>> check_support(PoissonLikelihood(), torch.tensor([0.0, -1.0]))
        Traceback (most recent call last):
        ...
        gp_ensembles.likelihoods.support.IllegalTargetError: target -1 in row 1 is not possible: counts must be whole
        numbers from zero; correct it, or set it to NaN if it is missing
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
        raise IllegalTargetError(float(targets[row]), row, *_describe(support, distribution))


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


def _describe(support: Constraint, distribution: Distribution) -> tuple[str, str]:
    """The rule for targets, and the remedy for one that breaks it."""
    if support is constraints.boolean:
        return "labels must be 0 or 1", "recode other labels (-1 and 1, say) as 0 and 1"
    if isinstance(support, constraints.integer_interval):
        low, high = int(support.lower_bound), int(support.upper_bound)
        remedy = f"recode other labels ({low + 1} to {high + 1}, say) as {low} to {high}"
        return f"class numbers must be whole, {low} to {high}", remedy
    if support is constraints.nonnegative_integer:
        rule = "counts must be whole numbers from zero"
    elif isinstance(support, constraints.interval):
        rule = f"values must be strictly between {float(support.lower_bound):g} and {float(support.upper_bound):g}"
    elif support is constraints.real:
        rule = "values must be finite"
    else:
        rule = f"{type(distribution).__name__} takes values of {support}"
    return rule, "correct it"
