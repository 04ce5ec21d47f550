"""Predictions of an ensemble for a block of rows, assembled from those of its experts."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions.latent_mixture import LatentMixture, Response
from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.distributions.student_t_mixture import StudentTMixture
from gp_ensembles.distributions.table import distribution_text
from gp_ensembles.filters.states import LatentPredictions, Predictions, StudentTPredictions, concatenate_steps
from gp_ensembles.numerics import mixtures
from gp_ensembles.numerics.display import band_html, predictions_head, text_html
from gp_ensembles.numerics.reductions import readable_all

AnyMixture = Mixture | StudentTMixture | LatentMixture


class EnsemblePredictions(NamedTuple):
    """Predictions for a block, each made before its target was seen.

    Attributes:
        mean: Mean of the mixture, shape (B,).
        variance: Variance of the mixture, noise and disagreement included, shape (B,).
        log_prob: Log density of each target under the full mixture, shape (B,); NaN where it is missing, as in
            ``experts``.
        log_weights: Log weights before each target, shape (M, B).
        experts: The experts' own predictions, each (M, B). A dead expert (weight zero forever) is no longer run: its
            mean and variance are NaN, its log density minus infinity. One that is absent from the row has weight zero
            and NaN everywhere.
        responses: Likelihoods that are not Gaussian, which turn latent values into targets; else empty.
    """

    mean: Tensor
    variance: Tensor
    log_prob: Tensor
    log_weights: Tensor
    experts: Predictions
    responses: tuple[Response, ...] = ()

    @property
    def mixture(self) -> AnyMixture:
        """The predictive mixture of each row; a dead expert, whose weight is zero, is replaced by N(0, 1)."""
        return make_mixture(self.log_weights, self.experts, self.responses)

    def __repr__(self) -> str:
        return distribution_text(self._head(), self.mixture)

    def _repr_html_(self) -> str:
        """The last rows as a band, for notebooks; only text for unordered classes and several outputs."""
        if self.mean.ndim > 1 or self.mean.numel() < 2:
            return text_html(repr(self))
        return band_html(self._head(), self.mean, self.variance.sqrt())

    def _head(self) -> str:
        return predictions_head("EnsemblePredictions", self.mean.shape, self.log_weights.shape[0], self.log_prob)


def make_mixture(log_weights: Tensor, experts: Predictions, responses: tuple[Response, ...]) -> AnyMixture:
    """The mixture of the experts' predictions, (M, N) each; an expert that was not run is replaced by N(0, 1)."""
    if isinstance(experts, LatentPredictions):
        dead = torch.isnan(experts.latent_mean)
        variance = experts.latent_variance
        if dead.ndim == 3:
            identity = torch.diag_embed(torch.ones_like(experts.latent_mean))
            variance = torch.where(dead.unsqueeze(-1), identity, variance)
        else:
            variance = torch.where(dead, 1.0, variance)
        return LatentMixture(log_weights, torch.where(dead, 0.0, experts.latent_mean), variance, responses)
    mean, variance, dead = experts.mean, experts.variance, torch.isnan(experts.mean)
    df = experts.degrees_of_freedom if isinstance(experts, StudentTPredictions) else None
    if not readable_all(~dead):
        mean, variance = mean.masked_fill(dead, 0.0), variance.masked_fill(dead, 1.0)
        df = None if df is None else df.masked_fill(dead, torch.inf)
    return Mixture(log_weights, mean, variance) if df is None else StudentTMixture(log_weights, mean, variance, df)


def invalid_rows(steps: Predictions, silent: Sequence[int] = (), dead: Tensor | None = None) -> Tensor | None:
    """Mask (M, B) of predictions whose mean is not finite or whose variance is not positive; ``None`` if all are valid.

    Those of ``silent`` experts, and of ``dead`` ones, a mask (M,), are not looked at.
    """
    if not isinstance(steps, LatentPredictions) and _all_sound(steps.mean, steps.variance):
        return None
    sound = are_sound(steps)
    if readable_all(sound):
        return None
    wrong = ~sound
    wrong = wrong.any(-1) if wrong.ndim > steps.log_prob.ndim else wrong  # several outputs, or classes
    if dead is not None:
        wrong = wrong & ~dead.unsqueeze(-1)
    if silent:
        wrong = wrong.index_fill(0, torch.tensor(list(silent), dtype=torch.int64, device=wrong.device), False)
    return None if readable_all(~wrong) else wrong


def are_sound(steps: Predictions) -> Tensor:
    """Where means are finite and variances positive; under other likelihoods these may be zero or infinite."""
    variance = steps.variance
    is_legal = variance >= 0 if isinstance(steps, LatentPredictions) else (variance > 0) & (variance < torch.inf)
    return steps.mean.isfinite() & is_legal


def _all_sound(mean: Tensor, variance: Tensor) -> bool:
    """Whether all are valid, in few calls; False also if a sum overflows or cannot be read."""
    try:
        return math.isfinite((mean + variance.log()).detach().sum())
    except RuntimeError:  # inside vmap and on the meta device
        return False


def concatenate_mixtures(parts: Sequence[AnyMixture]) -> AnyMixture:
    """Mixtures of consecutive rows as one; weights are (M,) or, in some of them, (M, N)."""
    first = parts[0]
    if len(parts) == 1:
        return first
    names = [name for name in first._fields if name not in ("log_weights", "responses")]
    if any(part.log_weights.ndim > 1 for part in parts):  # an expert is absent from some rows
        num = len(first.log_weights)
        each = [part.log_weights.reshape(num, -1).expand(num, part[1].shape[1]) for part in parts]  # of means (M, N)
        first = first._replace(log_weights=torch.cat(each, dim=1))
    rows: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts], dim=1) for name in names}
    return first._replace(**rows)


def flatten(parts: Sequence[Predictions], lead: int = 0) -> Predictions:
    r"""Predictions of all experts, (..., M, B), from those of the expert objects, (..., \*batch, B).

    ``lead`` is the number of axes in front, such as one for many series.
    """
    if len(parts) == 1 and parts[0].log_prob.ndim == lead + 2:
        return parts[0]
    kinds = {type(part) for part in parts}
    if len(kinds) > 1:  # normal and Student-t experts together: a normal one has infinite degrees of freedom
        parts = [as_student_t(part) for part in parts]
    num_axes = [part.log_prob.ndim - 1 for part in parts]
    fields = []
    for field in zip(*parts, strict=True):
        flat = [v.reshape(*v.shape[:lead], -1, *v.shape[n:]) for v, n in zip(field, num_axes, strict=True)]
        fields.append(torch.cat(flat, dim=lead))
    return type(parts[0])(*fields)


def as_student_t(part: Predictions) -> StudentTPredictions:
    """The same, with infinite degrees of freedom where they are normal."""
    if isinstance(part, StudentTPredictions):
        return part
    return StudentTPredictions(part.mean, part.variance, part.log_prob, torch.full_like(part.mean, torch.inf))


def assemble(steps: Predictions, log_weights: Tensor, log_prob: Tensor) -> EnsemblePredictions:
    """The ensemble's predictions from those of the experts and their weights, (M, B) each."""
    weights = log_weights.exp()
    if steps.mean.ndim > weights.ndim:  # several outputs
        weights = weights.unsqueeze(-1)
    mean = mixtures.weighted(weights, steps.mean).sum(0)
    variance = mixtures.weighted(weights, steps.variance + (steps.mean - mean).square()).sum(0)
    return EnsemblePredictions(mean, variance, log_prob, log_weights, steps)


def concatenate_predictions(blocks: Sequence[EnsemblePredictions]) -> EnsemblePredictions:
    """Predictions of consecutive blocks as one."""
    if len(blocks) == 1:
        return blocks[0]
    mean, variance = (torch.cat(parts) for parts in list(zip(*blocks, strict=True))[:2])
    log_prob, log_weights = (torch.cat(parts, dim=-1) for parts in list(zip(*blocks, strict=True))[2:4])
    experts = concatenate_steps([block.experts for block in blocks])
    return EnsemblePredictions(mean, variance, log_prob, log_weights, experts, blocks[0].responses)
