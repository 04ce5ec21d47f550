"""States of the filters, first states, and one-step-ahead predictions."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from gp_ensembles.numerics.display import record_text


class GaussianState(NamedTuple):
    r"""Posterior of the weights in covariance form.

    Attributes:
        moments: [covariance | mean], shape (\*batch, F, F + 1).
    """

    moments: Tensor

    def __repr__(self) -> str:
        return record_text(self)

    @property
    def mean(self) -> Tensor:
        r"""Posterior mean of the weights, shape (\*batch, F)."""
        return self.moments[..., -1]

    @property
    def covariance(self) -> Tensor:
        r"""Posterior covariance of the weights, shape (\*batch, F, F)."""
        return self.moments[..., :-1]


class SquareRootState(NamedTuple):
    r"""Posterior of the weights in square-root form; the choice for float32 and tiny noise.

    Attributes:
        mean: Posterior mean of the weights, shape (\*batch, F).
        factor: A square root A of the covariance, A Aᵀ, not triangular, shape (\*batch, F, F).
    """

    mean: Tensor
    factor: Tensor

    def __repr__(self) -> str:
        return record_text(self)

    @property
    def covariance(self) -> Tensor:
        r"""Posterior covariance of the weights, shape (\*batch, F, F)."""
        return self.factor @ self.factor.mT


class StudentTState(NamedTuple):
    r"""Posterior of the weights and of an unknown noise variance: normal-inverse-gamma.

    Attributes:
        moments: [V | \mu], shape (\*batch, F, F + 1).
        concentration: a, shape (\*batch).
        rate: b, in squared units of the target, shape (\*batch).
    """

    moments: Tensor
    concentration: Tensor
    rate: Tensor

    def __repr__(self) -> str:
        return record_text(self)

    @property
    def mean(self) -> Tensor:
        r"""Posterior mean of the weights, shape (\*batch, F)."""
        return self.moments[..., -1]

    @property
    def covariance(self) -> Tensor:
        r"""Posterior covariance of the weights, the noise variance integrated out, shape (\*batch, F, F)."""
        noise = self.rate / (self.concentration - 1)
        return noise[..., None, None] * self.moments[..., :-1]


class MultiOutputState(NamedTuple):
    r"""Posterior of the weights of several outputs that share covariances.

    Attributes:
        covariance: Posterior covariance of each group, shape (O, \*batch, F, F), for there may be as many as outputs.
        mean: Posterior mean of the weights of each output, shape (\*batch, O, F).
        group: Group of each output, integers, shape (O,).
    """

    covariance: Tensor
    mean: Tensor
    group: Tensor

    def __repr__(self) -> str:
        return record_text(self)


class WindowState(NamedTuple):
    r"""The last rows of an exact Gaussian process, in the order of time, C at most; unused entries are neutral.

    Attributes:
        inputs: Rows, shape (\*batch, C, D).
        targets: Targets, shape (\*batch, C).
        noise_scale: Factor of the noise variance of each target, shape (\*batch, C).
        factor: Lower Cholesky factor of the covariance of the targets, shape (\*batch, C, C).
        projected: The factor's inverse times the targets less their prior means, shape (\*batch, C).
        num_used: Rows in use, integers, shape (\*batch).
        hyperparameters: Current ones where they are refitted, unconstrained, shape (\*batch, P); else P is zero.
        num_rows: Rows so far, missing ones included, integers, shape (\*batch); zero where nothing is refitted.
        due: Value of ``num_rows`` at which the next refit is due, integers, shape (\*batch).
    """

    inputs: Tensor
    targets: Tensor
    noise_scale: Tensor
    factor: Tensor
    projected: Tensor
    num_used: Tensor
    hyperparameters: Tensor
    num_rows: Tensor
    due: Tensor

    def __repr__(self) -> str:
        return record_text(self)


class ExternalState(NamedTuple):
    """The last observed rows that an external model is trained on, C at most, and when it is trained.

    Attributes:
        inputs: Rows, single precision, shape (C, D).
        targets: Targets, double precision like all that follow but the counts, shape (C,).
        shares: Weight of each target, shape (C,).
        errors: Error of the prediction made before each target, shape (C,); NaN where there was none.
        num_seen: Rows so far, those with a missing target among them, an integer.
        num_stored: Observed rows so far, an integer.
        due: Value of ``num_seen`` at which the model is trained next, an integer.
        trained_at: Value of ``num_stored`` when it was trained last, an integer.
        digest: Of the rows that it was trained on, an integer; zero before it is trained.
        reason: Code of why it last had no prediction, an integer; zero before.
        words: Its message then, 200 bytes of UTF-8 padded with zeros, shape (200,).
    """

    inputs: Tensor
    targets: Tensor
    shares: Tensor
    errors: Tensor
    num_seen: Tensor
    num_stored: Tensor
    due: Tensor
    trained_at: Tensor
    digest: Tensor
    reason: Tensor
    words: Tensor


class StructuralState(NamedTuple):
    r"""Posterior of level, trend and season of a series, and how long it has lasted.

    Attributes:
        moments: [covariance | mean], double precision, shape (\*batch, F, F + 1).
        num_rows: Rows so far, those with a missing target among them, an integer.
    """

    moments: Tensor
    num_rows: Tensor


class RefittedState(NamedTuple):
    r"""Posterior of the weights of a model that is refitted on the last rows, and those rows, C at most.

    Attributes:
        moments: [covariance | mean], shape (\*batch, F, F + 1).
        hyperparameters: Current ones, unconstrained, shape (P,).
        walks: Variance of each weight's step, shape (\*batch).
        lags: Lags of the past targets that are inputs, integers, shape (L,); zero for none.
        inputs: Rows, shape (C, D).
        targets: Targets, shape (C,); NaN where missing or downweighted.
        remembered: Targets with gaps filled by the last value before them, shape (C,); zero before the first.
        num_rows: Rows so far, those with a missing target among them, an integer.
        due: Value of ``num_rows`` at which the next refit is due, an integer.
    """

    moments: Tensor
    hyperparameters: Tensor
    walks: Tensor
    lags: Tensor
    inputs: Tensor
    targets: Tensor
    remembered: Tensor
    num_rows: Tensor
    due: Tensor


LinearState = GaussianState | SquareRootState
FilterState = (
    LinearState | StudentTState | MultiOutputState | WindowState | ExternalState | StructuralState | RefittedState
)


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

    def __repr__(self) -> str:
        return record_text(self)


class StudentTPredictions(NamedTuple):
    r"""One-step-ahead Student-t predictions; the first fields as in :class:`StepPredictions`.

    Attributes:
        mean: Predictive mean, shape (\*batch, B).
        variance: Predictive variance (not the squared scale), shape (\*batch, B).
        log_prob: Log predictive density of the target, shape (\*batch, B); NaN where there is none.
        degrees_of_freedom: Shape (\*batch, B); infinity for a normal prediction.
    """

    mean: Tensor
    variance: Tensor
    log_prob: Tensor
    degrees_of_freedom: Tensor

    def __repr__(self) -> str:
        return record_text(self)


class LatentPredictions(NamedTuple):
    r"""One-step-ahead predictions under a likelihood that is not Gaussian.

    Attributes:
        mean: Predictive mean of the target, shape (\*batch, B); probabilities (\*batch, B, C) for C unordered classes.
        variance: Predictive variance of the target, of the same shape.
        log_prob: Log predictive probability (or density) of the target, shape (\*batch, B); NaN where there is none.
        latent_mean: Mean of the latent function, shape (\*batch, B), or (\*batch, B, C) for C unordered classes.
        latent_variance: Its variance (\*batch, B), or covariance (\*batch, B, C, C).
    """

    mean: Tensor
    variance: Tensor
    log_prob: Tensor
    latent_mean: Tensor
    latent_variance: Tensor

    def __repr__(self) -> str:
        return record_text(self)


class LatentMoments(NamedTuple):
    r"""Latent values one step ahead, each before its target was seen.

    Attributes:
        mean: Shape (\*batch, B), or (\*batch, B, C) for vectors of C latent values.
        variance: Shape (\*batch, B), or covariance (\*batch, B, C, C).
    """

    mean: Tensor
    variance: Tensor


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
