"""Predictions during the warm-up: the distribution of the targets so far, whatever the inputs."""

import torch
from torch import Tensor

from gp_ensembles.distributions import LatentMixture, Mixture
from gp_ensembles.distributions.latent_mixture import Response
from gp_ensembles.engine.predictions import AnyMixture
from gp_ensembles.ensembles.targets import LevelTarget, Target
from gp_ensembles.likelihoods import LogPoissonLikelihood, MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Probit
from gp_ensembles.likelihoods.predictive import GaussHermite
from gp_ensembles.numerics.gpytorch_types import Likelihood
from gp_ensembles.streaming.predictions import OnlinePredictions

_CERTAIN = 1e-12  # latent variance of a known distribution


def running_distribution(target: Target, y: Tensor, num_rows: int) -> AnyMixture:
    """The distribution of the targets so far, y (N,) or (N, O), for each of a number of rows."""
    if target.is_real:
        columns = y.unsqueeze(-1) if y.ndim == 1 else y
        moments = [_moments(column[~column.isnan()]) for column in columns.unbind(-1)]
        mean, variance = (torch.stack(part).reshape(y.shape[1:]) for part in zip(*moments, strict=True))
        shape = (1, num_rows, *y.shape[1:])
        return Mixture(y.new_zeros(1), mean.expand(shape), variance.expand(shape))
    seen = y[~y.isnan()]
    if target.num_labels is None:
        rate = (seen.sum() + 0.5) / max(seen.numel(), 1)
        return _latent(LogPoissonLikelihood(), rate.log(), num_rows)
    frequencies = torch.bincount(seen.long(), minlength=target.num_labels).to(y) + 1
    frequencies = frequencies / frequencies.sum()
    if isinstance(target, LevelTarget):
        ordinal = OrdinalLikelihood(target.num_levels, Probit()).to(y)
        ordinal.cut_points = torch.special.ndtri(frequencies.cumsum(0)[:-1])
        return _latent(ordinal.requires_grad_(False), y.new_zeros(()), num_rows)
    if target.num_labels == 2 and target.is_ordered:
        return _latent(LogisticLikelihood(), torch.logit(frequencies[1]), num_rows)
    return _latent(MulticlassLikelihood(target.num_labels), frequencies.log(), num_rows)


def class_distribution(probabilities: Tensor) -> LatentMixture:
    """The distribution of classes with these probabilities (1, C), of N = 1 rows."""
    if probabilities.shape[1] == 2:
        return _latent(LogisticLikelihood(), torch.logit(probabilities[0, 1]), 1)
    return _latent(MulticlassLikelihood(probabilities.shape[1]), probabilities[0].log(), 1)


def no_predictions(target: Target, y: Tensor, num_experts: int) -> OnlinePredictions:
    """Predictions of no row, at the end of a call of targets (N,) that were all of the warm-up."""
    empty = y.new_zeros(max(num_experts, 1), 0)
    return OnlinePredictions(running_distribution(target, y, 0), empty[0], empty, y.shape[0])


def _moments(seen: Tensor) -> tuple[Tensor, Tensor]:
    mean = seen.mean() if seen.numel() else seen.new_zeros(())
    variance = seen.var() if seen.numel() > 1 else seen.new_ones(())
    return mean, torch.where(variance > 0, variance, torch.ones_like(variance))


def _latent(likelihood: Likelihood, value: Tensor, num_rows: int) -> LatentMixture:
    """One expert that is certain of its latent value, a scalar or a vector."""
    mean = value.expand(1, num_rows, *value.shape)
    variance = torch.full_like(mean, _CERTAIN)
    if value.ndim:
        variance = torch.diag_embed(variance)
    response = Response(likelihood, GaussHermite(), 1, torch.Size([1]))
    return LatentMixture(value.new_zeros(1), mean, variance, (response,))
