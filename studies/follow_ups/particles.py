"""The published experts of daily returns, after the authors' public code: particle filters with drawn priors.

GARCH(1, 1) with normal errors, with an asymmetric term (Glosten, Jagannathan and Runkle 1993) and with Student-t
errors, two of each; the authors' two EGARCH are left out. Kept as published: priors that suit squared percent while
returns are fractions, and a variance that moves on twice by the same return before it predicts.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats

from studies.follow_ups.garch import Array

KINDS = ("normal", "normal", "asymmetric", "asymmetric", "t", "t")
NUM_PARTICLES = 1000
NUM_MOVES = 5
_MOVE = 0.01
_OMEGA, _ALPHA, _GAMMA, _BETA, _VARIANCE, _TAILS = range(6)


class Prior(NamedTuple):
    """Normal priors of ω, α, γ, β and the first variance, truncated at zero; the degrees of freedom are uniform.

    Attributes:
        mean: Means, shape (5,).
        deviation: Standard deviations, shape (5,); zero fixes a parameter at zero.
        most_tails: Largest degrees of freedom, the least are three; infinite for normal errors.
    """

    mean: Array
    deviation: Array
    most_tails: float


def draw_prior(kind: str, rng: np.random.Generator) -> Prior:
    """A prior with means and deviations from the authors' ranges."""
    asymmetric, student = float(kind == "asymmetric"), kind == "t"
    mean = rng.uniform([0.01, 0.01, 0.0, 0.5, 0.01], [0.1, 0.2, 0.2, 0.9 if student else 0.95, 0.1])
    deviation = rng.uniform([0.01, 0.01, 0.01, 0.01, 0.01], [0.05, 0.1, 0.05, 0.1, 0.05])
    switch = np.array([1.0, 1.0, asymmetric, 1.0, 1.0])
    return Prior(switch * mean, switch * deviation, float(rng.uniform(10, 30)) if student else math.inf)


def particle_log_prob(
    returns: Array,
    prior: Prior,
    rng: np.random.Generator,
    num_particles: int = NUM_PARTICLES,
    num_moves: int = NUM_MOVES,
) -> Array:
    """Log density of each return given those before it, shape (T,).

    Args:
        returns: Returns as fractions, shape (T,).
        prior: Of the parameters.
        rng: Source of randomness.
        num_particles: Particles of the filter.
        num_moves: Metropolis steps after each return.
    """
    particles = _first(prior, rng, num_particles)
    found, before = np.empty(len(returns)), 0.0
    for row, value in enumerate(returns):
        # The particles' variance has moved on already when the last return was learned.
        found[row] = np.logaddexp.reduce(_log_likelihood(_moved(particles, before), value)) - math.log(num_particles)
        log_weights = _log_likelihood(particles, value)
        weights = np.exp(log_weights - log_weights.max())
        places = (np.arange(num_particles) + rng.random()) / num_particles
        chosen = np.searchsorted(np.cumsum(weights / weights.sum()), places).clip(max=num_particles - 1)
        particles = rejuvenated(_moved(particles[:, chosen], value), value, prior, rng, num_moves)
        before = float(value)
    return found


def published_log_prob(returns: Array, generator: torch.Generator) -> torch.Tensor:
    """Log densities (M, T) of the experts, all rows."""
    rng = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator, device="cpu")))
    rows = [particle_log_prob(returns, draw_prior(kind, rng), rng) for kind in KINDS]
    return torch.from_numpy(np.stack(rows))


def _first(prior: Prior, rng: np.random.Generator, num: int) -> Array:
    values = np.zeros((6, num))
    for place, (mean, deviation) in enumerate(zip(prior.mean, prior.deviation, strict=True)):
        if deviation > 0:
            values[place] = stats.truncnorm.rvs(-mean / deviation, np.inf, mean, deviation, num, random_state=rng)
    values[_TAILS] = rng.uniform(3, prior.most_tails, num) if math.isfinite(prior.most_tails) else math.inf
    if math.isfinite(prior.most_tails):
        values[_VARIANCE] = stats.invgamma.rvs(2.0, scale=2.0, size=num, random_state=rng)
    return values


def _moved(particles: Array, value: float) -> Array:
    moved = particles.copy()
    slope = particles[_ALPHA] + particles[_GAMMA] * (value < 0)
    moved[_VARIANCE] = particles[_OMEGA] + slope * value**2 + particles[_BETA] * particles[_VARIANCE]
    return moved


def _log_likelihood(particles: Array, value: float) -> Array:
    scale = np.sqrt(particles[_VARIANCE])
    if math.isinf(particles[_TAILS, 0]):
        return np.asarray(-0.5 * ((value / scale) ** 2 + math.log(2 * math.pi)) - np.log(scale))
    return np.asarray(stats.t.logpdf(value / scale, particles[_TAILS]) - np.log(scale))


def rejuvenated(particles: Array, value: float, prior: Prior, rng: np.random.Generator, num_moves: int) -> Array:
    """Random-walk Metropolis steps with the prior and the last return's likelihood as their target.

    Args:
        particles: Parameters, variance and degrees of freedom, shape (6, N).
        value: The last return.
        prior: Of the parameters.
        rng: Source of randomness.
        num_moves: Steps.
    """
    student = math.isfinite(prior.most_tails)
    free = [*np.flatnonzero(prior.deviation > 0), *([_TAILS] if student else [])]

    def log_target(tried: Array) -> Array:
        inside = (tried[:_VARIANCE] >= 0).all(0) & (tried[_VARIANCE] > 0)
        if student:
            inside &= (tried[_TAILS] >= 3) & (tried[_TAILS] <= prior.most_tails)
        legal = np.where(inside, tried, 1.0)
        legal[_TAILS] = np.where(inside, tried[_TAILS], 3.0) if student else math.inf
        normal = [place for place in free if place != _TAILS and not (student and place == _VARIANCE)]
        errors = (legal[normal] - prior.mean[normal, None]) / prior.deviation[normal, None]
        total = _log_likelihood(legal, value) - 0.5 * np.square(errors).sum(0)
        if student:  # the first variance has an inverse gamma prior
            total = total - 3 * np.log(legal[_VARIANCE]) - 2 / legal[_VARIANCE]
        return np.where(inside, total, -np.inf)

    current = log_target(particles)
    for _ in range(num_moves):
        tried = particles.copy()
        tried[free] += _MOVE * rng.standard_normal((len(free), particles.shape[1]))
        found = log_target(tried)
        taken = np.log(rng.random(particles.shape[1])) < found - current
        particles = np.where(taken, tried, particles)
        current = np.where(taken, found, current)
    return particles
