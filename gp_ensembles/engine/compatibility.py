"""Compatibility of experts: a mixture needs predictions of targets of one kind."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.laplace import BoundLaplace
from gp_ensembles.likelihoods.predictive import num_classes
from gp_ensembles.likelihoods.response import conditional, latent_dim
from gp_ensembles.numerics.gpytorch_types import Likelihood


class _Kind(NamedTuple):
    """The kind of an expert's targets; ``None`` where an entry does not apply."""

    likelihood: str | None
    num_outputs: int | None
    num_classes: int | None
    num_latent: int
    support: tuple[bool, float, float] | None  # whether discrete, and its ends


def count_outputs(experts: Sequence[Expert]) -> int | None:
    """Number of outputs O of the first expert: targets have shape (B, O); ``None`` where they have shape (B,)."""
    return _kind(experts[0]).num_outputs


def check_compatible(experts: Sequence[Expert], names: Sequence[str]) -> None:
    """Raise unless all experts predict targets of one kind, so that their predictions have a mixture.

    Raises:
        ValueError: Naming two experts that do not fit, how they differ, and how to correct it.
    """
    kinds = [_kind(expert) for expert in experts]
    start = 0
    for expert, kind in zip(experts, kinds, strict=True):
        problem = _difference(kinds[0], kind)
        if problem is not None:
            raise ValueError(f"experts {names[0]!r} and {names[start]!r} cannot be mixed: {problem}")
        start += expert.num_experts


def _difference(one: _Kind, other: _Kind) -> str | None:
    first, second = one.likelihood, other.likelihood
    if (first is None) != (second is None):
        return (
            f"one has the likelihood {first or second}, the other predicts real-valued targets without one; give both "
            f"a likelihood (LaplaceExpert) or neither"
        )
    if one.num_outputs != other.num_outputs:
        return (
            f"one predicts {_outputs(one)} and the other {_outputs(other)}; use MultiOutputExpert for both, with one "
            f"num_outputs"
        )
    if one.num_classes != other.num_classes:
        return (
            f"{first} has {_classes(one)} and {second} has {_classes(other)}; give both a likelihood of the same "
            f"classes"
        )
    if one.num_latent != other.num_latent:
        return (
            f"{first} has {one.num_latent} latent value(s) behind each target and {second} {other.num_latent}; "
            f"choose unordered classes or ordered levels for both"
        )
    # Classes are numbered from zero, so the same number of them is the same support however it is specified.
    if one.num_classes is None and None not in (one.support, other.support) and one.support != other.support:
        return f"{first} and {second} are for targets of different kinds of values; give both one kind of likelihood"
    return None


def _kind(expert: Expert) -> _Kind:
    bound = expert.bind()
    if isinstance(bound, BoundLaplace):
        name, classes = type(bound.likelihood).__name__, num_classes(bound.likelihood)
        return _Kind(name, None, classes, bound.num_latent, _support(bound.likelihood, bound))
    return _Kind(None, expert.traits.num_outputs, None, 1, None)


@torch.no_grad()
def _support(likelihood: Likelihood, bound: BoundLaplace) -> tuple[bool, float, float] | None:
    """Kind and ends of the support of the likelihood's distribution, at latent values of zero."""
    dim = latent_dim(likelihood)
    if bound.prior_variance.is_meta:
        return None
    support = conditional(likelihood, bound.prior_variance.new_zeros((1, dim) if dim > 1 else 1)).support
    assert support is not None
    if support is torch.distributions.constraints.boolean:
        return True, 0.0, 1.0
    lower = bound.prior_variance.new_tensor(getattr(support, "lower_bound", -torch.inf))
    upper = bound.prior_variance.new_tensor(getattr(support, "upper_bound", torch.inf))
    return bool(support.is_discrete), float(lower.amin()), float(upper.amax())


def _outputs(kind: _Kind) -> str:
    return "a single target, y (B,)" if kind.num_outputs is None else f"{kind.num_outputs} output(s), y (B, O)"


def _classes(kind: _Kind) -> str:
    return "no classes" if kind.num_classes is None else f"{kind.num_classes} classes"
