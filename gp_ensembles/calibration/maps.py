"""Formulas of recalibration, of one target or of several at once: leading axes are free, on tensors and on arrays."""

from typing import Any, NamedTuple

from gp_ensembles.numerics.backends import backend_of
from gp_ensembles.numerics.normal_scores import TAIL

backend = backend_of(__name__)
xp, jit, part, where, cdf = backend.xp, backend.jit, backend.part, backend.where, backend.cdf
total, up, inner, blend, join = backend.total, backend.up, backend.inner, backend.blend, backend.join


class Maps(NamedTuple):
    """Candidates, each a normal distribution of the normal score."""

    shift: Any  # shifts, shape (K,)
    scale: Any  # scales, shape (K,)
    lower: Any  # their probability below the limits, shape (K,)
    upper: Any  # that above, shape (K,)


class Rules(NamedTuple):
    """Numbers of the R rules that weigh candidates, and of the rule over the identity and their mixtures."""

    kept: Any  # factor of a weight, shape (R, 1)
    gained: Any  # factor of its density, shape (R, 1)
    given: Any  # share of each candidate, shape (R, 1)
    keep: Any  # what the identity and the mixtures keep, shape (1,)
    give: Any  # what each of them gets, shape (1 + R,)


def at(maps: Maps, u: Any, z: Any) -> tuple[Any, Any]:
    """Densities and values (..., K) of K maps at probabilities u (..., 1) with normal scores z."""
    p, value = inside(z, maps.shift, maps.scale)
    beyond = (u < TAIL) | (u > 1 - TAIL)
    if beyond.any():
        low = z < 0
        mass = where(low, maps.lower, maps.upper)
        line = where(low, u, 1 - u) / TAIL * mass
        p, value = where(beyond, mass / TAIL, p), where(beyond, where(low, line, 1 - line), value)
    return p, value


@jit
def inside(z: Any, shift: Any, scale: Any) -> tuple[Any, Any]:
    """The same within the limits."""
    standard = (z - shift) / scale
    return xp.exp(0.5 * (z * z - standard * standard)) / scale, cdf(standard)


@part
def in_force(candidates: Any, shares: Any) -> Any:
    """Weights (..., 1 + K) of the map for the next target."""
    return join(shares[..., :1], blend(shares[..., 1:], candidates))


@jit
def step(rules: Rules, candidates: Any, shares: Any, p: Any, value: Any, u: Any) -> tuple[Any, Any, Any, Any, Any]:
    """The map in force, what it makes of a target, and all weights after the target.

    Shapes: ``candidates`` (..., R, K), ``shares`` (..., 1 + R), ``p`` and ``value`` (..., K), densities and values of
    the candidates at the probability u (..., 1) of the target. Returns: ``candidates`` and ``shares`` after it; weights
    (..., 1 + K) of the map before it, its density (..., 1) and its value (..., 1).
    """
    own, rest = shares[..., :1], shares[..., 1:]
    weights, each = in_force(candidates, shares), inner(candidates, p)
    mixture = weights[..., 1:]
    density = own + total(mixture * p)
    learned = candidates * (rules.kept + (rules.gained / each) * up(p)) + rules.given
    shared = join(own, rest * each[..., 0]) * (rules.keep / density) + rules.give
    return learned, shared, weights, density, own * u + total(mixture * value)
