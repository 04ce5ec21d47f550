"""Diagnostics of Markov chains: rank R-hat, effective sample sizes, leave-one-out densities of their draws."""

import math

import torch
from torch import Tensor

from gp_ensembles.numerics.pareto import smooth_weights

# Fewest draws of a half chain for a diagnostic.
_FEWEST = 2


def rank_rhat(draws: Tensor) -> Tensor:
    r"""Rank-normalized split :math:`\hat R`, the larger of the one for location and the folded one for scale.

    Shapes: ``draws`` (C, S, ...).
    """
    halves, shape = _split(draws)
    # Distances from the median less that of the two middle draws, which are so tied exactly and not up to round-off.
    ordered = halves.flatten(0, 1).sort(dim=0).values
    lower, upper = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    folded = torch.maximum(halves - upper, lower - halves)
    return torch.maximum(_rhat(_rank_normalized(halves)), _rhat(_rank_normalized(folded))).reshape(shape)


def bulk_ess(draws: Tensor) -> Tensor:
    """Effective sample size of rank-normalized draws, for the center of a law. Shapes: ``draws`` (C, S, ...)."""
    halves, shape = _split(draws)
    return _ess(_rank_normalized(halves)).reshape(shape)


def mean_ess(draws: Tensor) -> Tensor:
    """Effective sample size for the mean: of the draws themselves, without ranks (Gelman et al., 2013, section 11.5).

    Shapes: ``draws`` (C, S, ...).
    """
    halves, shape = _split(draws)
    return _ess(halves).reshape(shape)


def psis_loo(log_likelihood: Tensor) -> tuple[Tensor, Tensor]:
    r"""Leave-one-out log densities :math:`\log p(y_n \mid y_{-n})` from draws given all observations.

    By Pareto-smoothed importance sampling, with the shapes of the tails of the weights: above 0.7 a density is
    unreliable. Shapes: ``log_likelihood`` (..., S, N); returns (..., N) each.
    """
    if not bool(log_likelihood.isfinite().all()):
        raise ValueError("log likelihoods must be finite: drop the draws for which they are not")
    log_weights, pareto_k = smooth_weights(-log_likelihood)
    return (log_weights + log_likelihood).logsumexp(-2), pareto_k


def _split(draws: Tensor) -> tuple[Tensor, torch.Size]:
    """Halves of the chains, shape (2C, S/2, Q), without the middle draw of an odd number; and the shape of the rest."""
    if draws.ndim < 2:
        raise ValueError(f"the first two axes of draws must be chains and draws, got shape {tuple(draws.shape)}")
    shape = draws.shape[2:]
    flat = draws.reshape(*draws.shape[:2], math.prod(shape))
    half = draws.shape[1] // 2
    if half < _FEWEST:  # which makes any diagnostic NaN
        return draws.new_full((2 * len(draws), _FEWEST, flat.shape[-1]), torch.nan), shape
    return torch.cat([flat[:, :half], flat[:, draws.shape[1] - half :]]), shape


def _rank_normalized(chains: Tensor) -> Tensor:
    """Normal scores of the ranks among all draws, ties averaged; NaN where a quantity has draws that are not finite."""
    whole = chains.flatten(0, 1).mT.contiguous()  # (Q, N)
    ordered = whole.sort(dim=-1).values
    below = torch.searchsorted(ordered, whole, right=False)
    up_to = torch.searchsorted(ordered, whole, right=True)
    rank = (below + up_to + 1).to(whole) / 2.0
    score = torch.special.ndtri((rank - 0.375) / (whole.shape[-1] + 0.25))
    score = torch.where(whole.isfinite().all(-1, keepdim=True), score, torch.nan)
    return score.mT.reshape(chains.shape)


def _rhat(chains: Tensor) -> Tensor:
    """Of chains as they are, shape (C, S, Q) to (Q,)."""
    count = chains.shape[1]
    between = chains.mean(1).var(0)
    within = chains.var(1).mean(0)
    return ((count - 1) / count + between / torch.where(within > 0.0, within, torch.nan)).sqrt()


def _ess(chains: Tensor) -> Tensor:
    """Geyer's initial monotone positive sequence of chains as they are, shape (C, S, Q) to (Q,)."""
    num_chains, count = chains.shape[:2]
    covariances = _autocovariances(chains).mean(0)  # (S, Q)
    within = covariances[0] * count / (count - 1)
    total = covariances[0] + (chains.mean(1).var(0) if num_chains > 1 else 0.0)
    correlation = 1.0 - (within - covariances) / torch.where(total > 0.0, total, torch.nan)
    correlation[0] = torch.where(correlation[0].isnan(), torch.nan, 1.0)
    num_pairs = max((count - 3) // 2, 0) + 1
    even, odd = correlation[0 : 2 * num_pairs : 2], correlation[1 : 2 * num_pairs : 2]
    pairs = even + odd
    # The pairs before the first that is not positive count, and what is positive of its first half.
    before = (pairs > 0.0).long().cumprod(0)
    before[-1] = 0
    last = before.sum(0, keepdim=True)
    monotone = pairs.cummin(0).values
    time = -1.0 + 2.0 * torch.where(before.bool(), monotone, 0.0).sum(0) + even.gather(0, last)[0].clamp(min=0.0)
    size = num_chains * count
    # Antithetic chains may beat independent draws, but not without bound.
    time = time.clamp(min=1.0 / math.log10(size))
    return torch.where(correlation.isnan().any(0), torch.nan, size / time)


def _autocovariances(chains: Tensor) -> Tensor:
    """Biased autocovariances at all lags by the fast Fourier transform, shape (C, S, Q)."""
    count = chains.shape[1]
    centered = chains - chains.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centered, n=2 * count, dim=1)
    power = spectrum.real.square() + spectrum.imag.square()
    products: Tensor = torch.fft.irfft(power, n=2 * count, dim=1)
    return products[:, :count] / count
