"""Training rows of a BoTorch model, raw and transformed, and their validation."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.transforms.input import InputTransform, Normalize
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.assorted import fantasize as fantasize_flag
from gpytorch.constraints import Positive
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from torch import Tensor

from gp_ensembles.numerics.warn_caller import warn_caller

_EXPLAINED = 0.03  # share of the targets' variance that a fit to pure noise rarely explains
_FILLED = 0.1  # share of the unit interval that an input column must cover to be left unscaled


class Observations(NamedTuple):
    """Rows, either raw or transformed."""

    X: Tensor  # inputs, (..., n, D)
    Y: Tensor  # targets, (..., n, O)
    noise: Tensor | None = None  # known noise variances, (..., n, O); None if they are inferred

    def map(self, function: Callable[[Tensor], Tensor]) -> "Observations":
        """Apply a function to every tensor."""
        return Observations(function(self.X), function(self.Y), None if self.noise is None else function(self.noise))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Observations":
        """A copy; tensors with a graph, as fantasies may have, are shared."""
        return self.map(lambda part: part if part.grad_fn is not None else deepcopy(part, memo))

    def of_outputs(self, outputs: list[int]) -> "Observations":
        """The rows of some of the outputs."""
        return Observations(self.X, self.Y[..., outputs], None if self.noise is None else self.noise[..., outputs])

    def transformed(self, inputs: InputTransform | None, outcomes: OutcomeTransform | None) -> "Observations":
        """Rows as the experts see them, except for input transforms that are applied only at evaluation."""
        with fantasize_flag():
            X = self.X if inputs is None else inputs(self.X)
        return Observations(X, *(self[1:] if outcomes is None else outcomes(self.Y, self.noise, X=self.X)))

    def untransformed(self, inputs: InputTransform | None, outcomes: OutcomeTransform | None) -> "Observations":
        """Undo the transforms."""
        X = self.X if inputs is None else inputs.eval().untransform(self.X)
        return Observations(X, *(self[1:] if outcomes is None else outcomes.eval().untransform(self.Y, self.noise)))

    def observed(self) -> "Observations":
        """The rows whose targets are not missing (NaN)."""
        missing = self.Y.isnan().movedim(-2, 0).flatten(1)
        gone = missing.all(1)
        partly = missing.any(1) & ~gone
        if bool(partly.any()):
            raise InputDataError(
                f"some targets of row {int(partly.int().argmax())} are missing (NaN) and others are not; outputs and "
                f"data sets share rows: build one model for each, and combine those of outputs in a ModelList"
            )
        return self.map(lambda values: values[..., ~gone, :]) if bool(gone.any()) else self

    def followed_by(self, rows: "Observations") -> "Observations":
        """Append rows of any batch shape; an UnsupportedError if noise is known for only one of the two parts."""
        if self.X.shape[-2] and (self.noise is None) != (rows.noise is None):
            raise UnsupportedError("give noise for all fantasies or for none")
        noise = rows.noise if self.noise is None or rows.noise is None else joined(self.noise, rows.noise)
        return Observations(joined(self.X, rows.X), joined(self.Y, rows.Y), noise)


def joined(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate rows (..., n, D), with broadcast batch shapes."""
    shape = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    return torch.cat([part.expand(*shape, *part.shape[-2:]) for part in (first, second)], dim=-2)


def unit_scale(X: Tensor, kept: Sequence[int] = ()) -> Normalize:
    r"""Scaling of every column of inputs (\*b, n, D) to the unit interval, unless it lies within it already."""
    low, high = X.detach().amin(-2, keepdim=True), X.detach().amax(-2, keepdim=True)
    width, num_inputs = high - low, X.shape[-1]
    as_it_is = (low >= 0) & (high <= 1) & ((width >= _FILLED) | (width == 0))
    for column in range(num_inputs):
        as_it_is[..., column] |= column in kept or column - num_inputs in kept
    low, width = low.masked_fill(as_it_is, 0.0), torch.where(width > 0, width, high.abs()).masked_fill(as_it_is, 1.0)
    scale = Normalize(num_inputs, bounds=torch.cat([torch.zeros_like(low), width], -2))
    scale._offset = low  # with bounds far from zero the width would be rounded
    return scale


def normal_likelihood(noise: Tensor, known_noise: Tensor | None) -> GaussianLikelihood | FixedNoiseGaussianLikelihood:
    r"""GPyTorch's likelihood with this noise variance, shape (\*b), or with known variances (\*b, n) or (\*b, n, 1)."""
    if known_noise is not None:
        return FixedNoiseGaussianLikelihood(known_noise.squeeze(-1) if known_noise.shape[-1] == 1 else known_noise)
    likelihood = GaussianLikelihood(noise_constraint=Positive(), batch_shape=noise.shape).to(noise)
    likelihood.noise = noise.unsqueeze(-1)
    return likelihood


def check_training_data(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Observations:
    r"""The rows of X (\*b, n, D), Y (\*b, n, O) and Yvar (\*b, n, O) that have targets."""
    for name, value in (("train_X", X), ("train_Y", Y), ("train_Yvar", Yvar)):
        if value is not None and not isinstance(value, Tensor):
            raise InputDataError(f"{name} must be a tensor, got {type(value).__name__}; see torch.as_tensor")
    if X.ndim < 2 or X.shape[-1] == 0:
        hint = "; use X.unsqueeze(-1)" if X.ndim == 1 else ""
        raise BotorchTensorDimensionError(f"train_X must have shape (n, d), got {tuple(X.shape)}{hint}")
    if not X.is_floating_point():
        raise InputDataError(f"train_X is {X.dtype}, not floating point; use train_X.double()")
    given, shapes = Observations(X, Y, Yvar), [tuple(part.shape) for part in (X, Y, Yvar) if part is not None]
    if max(map(len, shapes)) > 2 and (0 in X.shape[:-2] or len({shape[:-2] for shape in shapes}) > 1):
        raise BotorchTensorDimensionError(f"inputs, targets and noise need the same batch shape, got {shapes}")
    _check_targets(X, Y)
    rows = given.observed() if X.device.type != "meta" else given
    if not rows.X.shape[-2]:
        words = f"none of the {X.shape[-2]} rows has a target" if X.shape[-2] else "there are no rows"
        raise InputDataError(f"{words}; at least one target must not be NaN")
    if rows is not given:  # missing rows are ignored, but messages number the rows as given
        given = given.map(lambda values: values.masked_fill(Y.isnan().all(-1, keepdim=True), 1.0))
    check_finite("train_X", given.X)
    check_finite("train_Y", given.Y)
    if given.noise is not None:
        check_noise(given.Y, given.noise)
    return rows


def _check_targets(X: Tensor, Y: Tensor) -> None:
    """Raise unless Y (..., n, O) has a row for each row of X (..., n, D), in its dtype and on its device."""
    if Y.ndim < 2 or Y.shape[-2] != X.shape[-2]:
        hint = "; use Y.unsqueeze(-1)" if Y.shape[-1:] == X.shape[-2:-1] else ""
        raise BotorchTensorDimensionError(
            f"targets must have shape (..., {X.shape[-2]}, m), one row per row of X, got {tuple(Y.shape)}{hint}"
        )
    if X.dtype != Y.dtype or X.device != Y.device:
        raise InputDataError(f"X is {X.dtype} on {X.device}, Y is {Y.dtype} on {Y.device}; convert one with .to(...)")


def check_noise(Y: Tensor, Yvar: Tensor) -> None:
    """Raise unless Yvar has the shape of Y and all variances are finite and positive."""
    if Yvar.shape != Y.shape or Yvar.dtype != Y.dtype:
        raise BotorchTensorDimensionError(
            f"train_Yvar must match train_Y, {tuple(Y.shape)} {Y.dtype}, got {tuple(Yvar.shape)} {Yvar.dtype}"
        )
    check_finite("train_Yvar", Yvar)
    if bool((Yvar <= 0).any()):
        row = int((Yvar <= 0).nonzero()[0, -2])
        raise InputDataError(f"train_Yvar must be positive (about 1e-6 for no noise); in row {row} it is not")


def check_inputs(X: Tensor, like: Tensor, num_inputs: int | None = None) -> None:
    """Raise unless X (..., q, D) is finite, in the dtype and on the device of ``like``."""
    if X.ndim < 2 or num_inputs not in (None, X.shape[-1]):
        raise BotorchTensorDimensionError(f"X must have shape (..., q, {like.shape[-1]}), got {tuple(X.shape)}")
    if X.dtype != like.dtype or X.device != like.device:
        raise InputDataError(f"X is {X.dtype} on {X.device}, the model {like.dtype} on {like.device}; use X.to(...)")
    check_finite("X", X)


def check_observations(X: Tensor, Y: Tensor, like: Tensor, num_outputs: int, *, may_miss: bool) -> None:
    """Raise unless X (..., n, D) and Y (..., n, O) are finite and fit the model; Y may be missing if allowed."""
    check_inputs(X, like, like.shape[-1])
    _check_targets(X, Y)
    if Y.shape[-1] != num_outputs:
        raise BotorchTensorDimensionError(f"the model has {num_outputs} output(s), Y has {Y.shape[-1]}")
    check_finite("Y", Y.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf) if may_miss else Y)


def is_flat(Y: Tensor) -> bool:
    """Whether all observations (n,) are equal, so that nothing can be fitted; warns if so."""
    flat = bool((Y[:1] == Y).all())
    if flat:
        words = "hyperparameters cannot be fitted and stay at the modes of their priors"
        warn_caller(f"all {Y.shape[0]} observations are {float(Y[0]):g}: {words}", InputDataWarning)
    return flat


def warn_of_noise(noise: Tensor, Y: Tensor, *, is_chance: bool = False) -> None:
    r"""Warn if noise variances (\*b) are nearly all of the variance of targets (\*b, n), or if a fit may be chance."""
    share = float((1 - noise.detach() / Y.var(-1)).min())
    if share < _EXPLAINED or is_chance:
        as_much = ", no more than by chance, and" if is_chance else " and"
        warn_caller(
            f"the fit explains {max(share, 0.0):.1%} of the variance of the targets{as_much} treats the rest as noise: "
            f"if the targets do depend on these inputs, give more rows, another kernel or a starting point"
        )


def check_input_transform(transform: InputTransform | None) -> None:
    """Raise an UnsupportedError if a transform has trainable parameters: these models fit hyperparameters only."""
    if transform is not None and any(p.requires_grad for p in transform.parameters()):
        words = "use an ExactEnsembleModel, or freeze it by transform.requires_grad_(False)"
        raise UnsupportedError(f"{type(transform).__name__} has trainable parameters; {words}")


def check_finite(name: str, values: Tensor, advice: str = "leave out rows that were not observed") -> None:
    """Raise unless values (..., n, D) are finite, naming the first that is not."""
    if values.device.type == "meta":
        return
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        index = tuple(int(i) for i in bad.nonzero()[0])
        raise InputDataError(f"{name} is {float(values[index])} in row {index[-2]}, column {index[-1]}; {advice}")
