"""Checks of inputs and targets, and of experts that run together; messages name what is wrong and the remedy."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.experts.refitted import RefittedExpert
from gp_ensembles.experts.window import WindowExpert
from gp_ensembles.features.base import FeatureMap, check_matrix
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.stream import choose_block_size
from gp_ensembles.likelihoods.predictive import num_classes
from gp_ensembles.likelihoods.response import conditional, latent_dim
from gp_ensembles.numerics import arguments
from gp_ensembles.numerics.gpytorch_types import Likelihood


def check_axes(X: Tensor, num_inputs: int | None) -> None:
    """Raise if X has fewer axes than a matrix (N, D), with how to add them; D is any number if it is ``None``."""
    if X.ndim < 2:
        wanted = "D" if num_inputs is None else num_inputs
        if X.ndim == 0:
            hint = "use X.reshape(1, 1) for one row of one column"
        elif num_inputs is not None and num_inputs > 1 and X.shape[0] == num_inputs:
            hint = "use X.unsqueeze(0) for one row"
        else:
            hint = "use X.unsqueeze(-1) for N rows of one column"
        raise ValueError(f"X must have shape (N, {wanted}), got {tuple(X.shape)}; {hint}")


def check_rows(X: Tensor, num_inputs: int | None) -> None:
    """Raise unless X is a finite matrix (N, D); D is any number of columns if ``num_inputs`` is ``None``."""
    if isinstance(X, Tensor):
        check_axes(X, num_inputs)
    check_matrix(X, num_inputs)


class Wanted(NamedTuple):
    """The rows that an ensemble takes."""

    like: Tensor  # inputs and targets have its dtype and device
    num_inputs: int  # number of columns, forecasts among them
    num_outputs: int | None  # number of outputs O: targets have shape (N, O); ``None`` where they have shape (N,)
    is_real: bool  # whether targets are single real numbers
    forecasts: tuple[int, ...]  # places of the columns that may be missing


def checked_rows(
    wanted: Wanted, X: Tensor, y: Tensor | None = None, steps: Tensor | None = None, extra: Tensor | None = None
) -> Rows:
    """Rows X (N, D) with targets (N,) or (N, O), none by default, steps and further noise (N,), if they are legal.

    Raises:
        ValueError: If a shape is wrong, a number that must be finite is not, or one must be at least zero and is not.
        TypeError: If a dtype or device is wrong.
    """
    like, num_inputs = wanted.like, wanted.num_inputs
    known = X
    if wanted.forecasts and isinstance(X, Tensor) and X.ndim == 2 and X.shape[1] == num_inputs:
        known, num_inputs = without_columns(X, wanted.forecasts), num_inputs - len(wanted.forecasts)
    check_rows(known, num_inputs)
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"X must have shape (N, {num_inputs}) with at least one row, got {tuple(X.shape)}")
    if X.dtype != like.dtype or X.device != like.device:
        raise TypeError(f"X is {X.dtype} on {X.device}, the ensemble {like.dtype} on {like.device}; use X.to(...)")
    if y is not None:
        _check_targets(X, y, wanted.num_outputs)
    extra, steps = row_numbers(extra, "extra", X), row_numbers(steps, "steps", X)
    rows = Rows(X[:, 0] if y is None else y, None, extra, steps).simplified()
    if rows.extra is None:
        return rows
    if not wanted.is_real:
        raise ValueError("only single real targets can have extra noise; omit extra")
    return rows._replace(extra=rows.extra.to(X.dtype))


def check_domain(X: Tensor, bounded: Sequence[FeatureMap], forecasts: Sequence[int]) -> None:
    """Raise unless rows X (N, D) lie in the domains of feature maps, which do not see the forecasts among them."""
    for features in bounded:
        features.check_inputs(without_columns(X, forecasts))


def without_columns(X: Tensor, columns: Sequence[int]) -> Tensor:
    """The other columns of X (N, D)."""
    return X[:, [j for j in range(X.shape[1]) if j not in columns]] if columns else X


def check_real_numbers(X: Tensor, y: Tensor) -> None:
    """Raise unless targets are a tensor of the dtype and on the device of X."""
    if not isinstance(y, Tensor):
        raise TypeError(f"y must be a tensor, got {type(y).__name__}; use torch.as_tensor(y, dtype=X.dtype)")
    if not y.is_floating_point():
        raise TypeError(f"y must have the floating point dtype of X, {X.dtype}, got {y.dtype}; use y.to(X.dtype)")
    if y.dtype != X.dtype or y.device != X.device:
        raise TypeError(f"y is {y.dtype} on {y.device}, X is {X.dtype} on {X.device}; they must agree, use y.to(X)")


def _check_targets(X: Tensor, y: Tensor, num_outputs: int | None) -> None:
    """Raise unless y (B,) or (B, O) fits the B >= 1 rows of X (B, D)."""
    check_real_numbers(X, y)
    num_rows = X.shape[0]
    if y.shape[:1] != X.shape[:1] or y.ndim != (1 if num_outputs is None else 2):
        wanted = f"({num_rows},)" if num_outputs is None else f"({num_rows}, {num_outputs})"
        raise ValueError(f"y must have shape {wanted}, one target per row of X, got {tuple(y.shape)}{_hint(y, X)}")


def row_numbers(value: Tensor | None, name: str, X: Tensor) -> Tensor | None:
    """Numbers (N,) of the rows X (N, D), finite and at least zero, on their device; ``None`` where there are none."""
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.shape != X.shape[:1]:
        found = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
        raise ValueError(f"{name} must have shape ({X.shape[0]},), one number per row of X, got {found}")
    wrong = ~((value >= 0) & torch.isfinite(value))
    if bool(wrong.any()):
        row = int(wrong.int().argmax())
        raise ValueError(f"{name} must be finite and at least zero, but {name}[{row}] is {float(value[row]):g}")
    return value.detach().to(X.device)


def missing_rows(y: Tensor) -> Tensor:
    """Mask (B,) of rows without any observed target, for targets (B,) or (B, O)."""
    missing = torch.isnan(y)
    return missing if y.ndim == 1 else missing.all(-1)


def _hint(y: Tensor, X: Tensor) -> str:
    if y.shape == (X.shape[0], 1):
        return "; use y.squeeze(-1)"
    if y.shape == (X.shape[0],):
        return "; use y.unsqueeze(-1) if there is one output"
    if y.ndim == 2 and y.shape[0] == X.shape[0]:
        return "; for several outputs use MultiOutputExpert"
    return ""


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
    """Raise unless all experts predict targets of one kind, so that their predictions have a mixture."""
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
        return f"{first} and {second} are for different kinds of targets; give both the same kind of likelihood"
    return None


def _kind(expert: Expert) -> _Kind:
    bound = expert.bind()
    if bound.likelihood is not None:
        name, classes = type(bound.likelihood).__name__, num_classes(bound.likelihood)
        return _Kind(name, None, classes, latent_dim(bound.likelihood), _support(bound.likelihood, bound))
    return _Kind(None, expert.traits.num_outputs, None, 1, None)


@torch.no_grad()
def _support(likelihood: Likelihood, bound: BoundExpert) -> tuple[bool, float, float] | None:
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


_LONGER_BLOCK = 256  # rows that windows and external models predict at once
_MANY_OBJECTS, _LONG_BLOCK = 12, 64  # the fixed cost of a block is paid for each object
MANY_ROWS, _FIELDS = 10_000, 10  # rows from which memory is checked, and numbers kept of each prediction
_COPIES = 2  # states and their copies, while they are made and in snapshots


def usual_block_size(experts: Sequence[Expert]) -> int:
    """The fastest block size: that of the largest object, or a long one for many objects and where rows are stored.

    Sites of targets that are not real numbers are found one after the other: long blocks are dear for them.
    """
    if any(expert.traits.stores_rows and expert.traits.is_real for expert in experts):
        return _LONGER_BLOCK
    if len(experts) >= _MANY_OBJECTS:
        return _LONG_BLOCK
    widest = max(experts, key=lambda e: e.num_experts * e.features.num_features**2)
    return choose_block_size(widest.features.num_features, widest.num_experts)


def state_bytes(experts: Sequence[Expert], like: Tensor) -> int:
    """Bytes of the states of experts in the dtype of ``like``, without trees and external models."""
    return sum(_state_bytes(expert, like.element_size()) for expert in experts)


def check_states_fit(experts: Sequence[Expert], block_size: int, like: Tensor) -> None:
    """Raise if experts cannot run on a GPU: a lower bound of their memory, twice their states and one block of rows."""
    if like.device.type != "cuda":
        return
    states = state_bytes(experts, like)
    block = sum(_block_bytes(expert, block_size, like.element_size()) for expert in experts)
    what = (
        f"an ensemble of {sum(expert.num_experts for expert in experts)} experts (states of {states / 1e9:.3g} GB, "
        f"which are kept twice, and blocks of {block_size} rows)"
    )
    fix = "use fewer experts or features, float32, or the device cpu"
    arguments.check_memory(_COPIES * states + block, like.device, what, fix)


def most_rows(num_experts: int, like: Tensor) -> int:
    """Rows whose predictions by so many experts fit into memory at once."""
    return arguments.memory_of(like.device) // (num_experts * like.element_size() * _FIELDS)


def _state_bytes(expert: Expert, each: int) -> int:
    size, number = expert.features.num_features, expert.num_experts
    if isinstance(expert, WindowExpert):
        return 8 * number * (2 * expert.num_rows) ** 2  # a factor in double precision, with room for as many rows again
    if isinstance(expert, ExternalExpert | RefittedExpert):
        return 0
    return number * size * (size + 1) * each


def _block_bytes(expert: Expert, num_rows: int, each: int) -> int:
    """Memory of a block: three matrices (B, F) and one (B, B) for each expert."""
    if isinstance(expert, WindowExpert | ExternalExpert | RefittedExpert):
        return 0
    return expert.num_experts * num_rows * (3 * expert.features.num_features + num_rows) * each
