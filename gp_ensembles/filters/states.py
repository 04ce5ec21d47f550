"""States of the filters, first states, and one-step-ahead predictions."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from gp_ensembles.numerics.display import prints_fields


@prints_fields
class GaussianState(NamedTuple):
    r"""Posterior of the weights in covariance form.

    Attributes:
        moments: [covariance | mean], shape (\*batch, F, F + 1).
    """

    moments: Tensor

    @property
    def mean(self) -> Tensor:
        r"""Posterior mean of the weights, shape (\*batch, F)."""
        return self.moments[..., -1]

    @property
    def covariance(self) -> Tensor:
        r"""Posterior covariance of the weights, shape (\*batch, F, F)."""
        return self.moments[..., :-1]


@prints_fields
class SquareRootState(NamedTuple):
    r"""Posterior of the weights in square-root form; the choice for float32 and tiny noise.

    Attributes:
        mean: Posterior mean of the weights, shape (\*batch, F).
        factor: A square root A of the covariance, A Aᵀ, not triangular, shape (\*batch, F, F).
    """

    mean: Tensor
    factor: Tensor

    @property
    def covariance(self) -> Tensor:
        r"""Posterior covariance of the weights, shape (\*batch, F, F)."""
        return self.factor @ self.factor.mT


@prints_fields
class StudentTState(NamedTuple):
    """Posterior of the weights and of an unknown noise variance: normal-inverse-gamma."""

    moments: Tensor  # [V | μ], shape (*batch, F, F + 1)
    concentration: Tensor  # a, shape (*batch)
    rate: Tensor  # b, in squared units of the target, shape (*batch)

    @property
    def mean(self) -> Tensor:
        r"""Posterior mean of the weights, shape (\*batch, F)."""
        return self.moments[..., -1]

    @property
    def covariance(self) -> Tensor:
        r"""Posterior covariance of the weights, the noise variance integrated out, shape (\*batch, F, F)."""
        noise = self.rate / (self.concentration - 1)
        return noise[..., None, None] * self.moments[..., :-1]


@prints_fields
class MultiOutputState(NamedTuple):
    """Posterior of the weights of several outputs that share covariances."""

    # Posterior covariance of each group, shape (O, *batch, F, F), for there may be as many as outputs
    covariance: Tensor
    mean: Tensor  # posterior mean of the weights of each output, shape (*batch, O, F)
    group: Tensor  # group of each output, integers, shape (O,)


@prints_fields
class WindowState(NamedTuple):
    """The last rows of an exact Gaussian process, in the order of time, C at most; unused entries are neutral."""

    inputs: Tensor  # rows, shape (*batch, C, D)
    targets: Tensor  # targets, shape (*batch, C)
    noise_scale: Tensor  # factor of the noise variance of each target, shape (*batch, C)
    factor: Tensor  # lower Cholesky factor of the covariance of the targets, shape (*batch, C, C)
    projected: Tensor  # the factor's inverse times the targets less their prior means, shape (*batch, C)
    num_used: Tensor  # rows in use, integers, shape (*batch)
    hyperparameters: Tensor  # current ones where they are refitted, unconstrained, shape (*batch, P); else P is zero
    num_rows: Tensor  # rows so far, missing ones included, integers, shape (*batch); zero where nothing is refitted
    due: Tensor  # value of ``num_rows`` at which the next refit is due, integers, shape (*batch)


class ExternalState(NamedTuple):
    """The last observed rows that an external model is trained on, C at most, and when it is trained."""

    inputs: Tensor  # rows, single precision, shape (C, D)
    targets: Tensor  # targets, double precision like all that follow but the counts, shape (C,)
    shares: Tensor  # weight of each target, shape (C,)
    errors: Tensor  # error of the prediction made before each target, shape (C,); NaN where there was none
    num_seen: Tensor  # rows so far, those with a missing target among them, an integer
    num_stored: Tensor  # observed rows so far, an integer
    due: Tensor  # value of ``num_seen`` at which the model is trained next, an integer
    trained_at: Tensor  # value of ``num_stored`` when it was trained last, an integer
    digest: Tensor  # of the rows that it was trained on, an integer; zero before it is trained
    reason: Tensor  # code of why it last had no prediction, an integer; zero before
    words: Tensor  # its message then, 200 bytes of UTF-8 padded with zeros, shape (200,)


class StructuralState(NamedTuple):
    """Posterior of level, trend and season of a series, and how long it has lasted."""

    moments: Tensor  # [covariance | mean], double precision, shape (*batch, F, F + 1)
    num_rows: Tensor  # rows so far, those with a missing target among them, an integer


class RefittedState(NamedTuple):
    """Posterior of the weights of a model that is refitted on the last rows, and those rows, C at most."""

    moments: Tensor  # [covariance | mean], shape (*batch, F, F + 1)
    hyperparameters: Tensor  # current ones, unconstrained, shape (P,)
    walks: Tensor  # variance of each weight's step, shape (*batch)
    lags: Tensor  # lags of the past targets that are inputs, integers, shape (L,); zero for none
    inputs: Tensor  # rows, shape (C, D)
    targets: Tensor  # targets, shape (C,); NaN where missing or downweighted
    remembered: Tensor  # targets with gaps filled by the last value before them, shape (C,); zero before the first
    num_rows: Tensor  # rows so far, those with a missing target among them, an integer
    due: Tensor  # value of ``num_rows`` at which the next refit is due, an integer


LinearState = GaussianState | SquareRootState
FilterState = (
    LinearState | StudentTState | MultiOutputState | WindowState | ExternalState | StructuralState | RefittedState
)


@prints_fields
class StepPredictions(NamedTuple):
    r"""One-step-ahead normal predictions, each made before its target was seen.

    Attributes:
        mean: Predictive mean, shape (\*batch, B), or (\*batch, B, O) for several outputs.
        variance: Predictive variance, observation noise included, of the same shape.
        log_prob: Log predictive density of the target, shape (\*batch, B), of all outputs that were observed jointly;
            NaN where there is no target.
    """

    mean: Tensor
    variance: Tensor
    log_prob: Tensor


@prints_fields
class StudentTPredictions(NamedTuple):
    """One-step-ahead Student-t predictions; the first fields as in :class:`StepPredictions`."""

    mean: Tensor  # predictive mean, shape (*batch, B)
    variance: Tensor  # predictive variance (not the squared scale), shape (*batch, B)
    log_prob: Tensor  # log predictive density of the target, shape (*batch, B); NaN where there is none
    degrees_of_freedom: Tensor  # shape (*batch, B); infinity for a normal prediction


@prints_fields
class LatentPredictions(NamedTuple):
    """One-step-ahead predictions under a likelihood that is not Gaussian."""

    # Predictive mean of the target, shape (*batch, B); probabilities (*batch, B, C) for C unordered classes
    mean: Tensor
    variance: Tensor  # predictive variance of the target, of the same shape
    # Log predictive probability (or density) of the target, shape (*batch, B); NaN where there is none
    log_prob: Tensor
    latent_mean: Tensor  # mean of the latent function, shape (*batch, B), or (*batch, B, C) for C unordered classes
    latent_variance: Tensor  # its variance (*batch, B), or covariance (*batch, B, C, C)


class LatentMoments(NamedTuple):
    """Latent values one step ahead, each before its target was seen."""

    mean: Tensor  # shape (*batch, B), or (*batch, B, C) for vectors of C latent values
    variance: Tensor  # shape (*batch, B), or covariance (*batch, B, C, C)


Predictions = StepPredictions | StudentTPredictions | LatentPredictions
P = TypeVar("P", bound=Predictions)


def concatenate_steps(parts: Sequence[P]) -> P:
    """Predictions of consecutive blocks as one; the time axis is that of ``log_prob``, its last."""
    if len(parts) == 1:
        return parts[0]
    axis = parts[0].log_prob.ndim - 1
    return type(parts[0])(*(torch.cat(fields, dim=axis) for fields in zip(*parts, strict=True)))


def in_dtype(steps: StepPredictions, like: Tensor) -> StepPredictions:
    """Predictions in the dtype of a tensor."""
    return StepPredictions(*(value.to(like.dtype) for value in steps))


def overwrite_(state: Iterable[Tensor], other: Iterable[Tensor]) -> None:
    """Copy the tensors of another state into the memory of one."""
    for old, new in zip(state, other, strict=True):
        old.copy_(new)


def gaussian_state(prior_variance: Tensor, num_features: int) -> GaussianState:
    r"""State before any data: mean zero, covariance ``prior_variance`` I.

    Args:
        prior_variance: Prior variance of each weight, shape (\*batch).
        num_features: Number of features F.

    Example:
        >>> import torch
        >>> gaussian_state(torch.tensor(2.0), 2).moments
        tensor([[2., 0., 0.],
                [0., 2., 0.]])
    """
    diagonal = prior_variance.unsqueeze(-1).expand(*prior_variance.shape, num_features)
    mean = diagonal.new_zeros(diagonal.shape)
    return GaussianState(torch.cat([torch.diag_embed(diagonal), mean.unsqueeze(-1)], dim=-1))


def square_root_state(prior_variance: Tensor, num_features: int) -> SquareRootState:
    """State before any data in square-root form; arguments as in :func:`gaussian_state`.

    Example:
        >>> import torch
        >>> square_root_state(torch.tensor(4.0), 1).factor
        tensor([[2.]])
    """
    diagonal = prior_variance.unsqueeze(-1).expand(*prior_variance.shape, num_features)
    return SquareRootState(diagonal.new_zeros(diagonal.shape), torch.diag_embed(diagonal.sqrt()))
