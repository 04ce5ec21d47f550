r"""Updates of weight rules by one or several targets, on tensors and arrays, with free leading axes.

.. math:: w_{t+1} = w_t \circ \Bigl(a + b\, \frac{p_t}{w_t^\top p_t}\Bigr) + c

is a fixed share for :math:`a = 0, b = 1 - \delta, c = \delta / M`, and Soft-Bayes with a fixed rate for
:math:`a = 1 - \alpha, b = \alpha, c = 0`. Densities p are relative to the best of each target.
"""

from typing import Any

from gp_ensembles.numerics.backends import backend_of

LARGEST = 600.0  # difference of log densities, to avoid overflow

backend = backend_of(__name__)
xp, jit, part, where, clip = backend.xp, backend.jit, backend.part, backend.where, backend.clip
total, peak, up = backend.total, backend.peak, backend.up
take, inner, blend = backend.take, backend.inner, backend.blend


@jit
def advance(weight: Any, p: Any, density: Any, keep: Any, gain: Any, give: Any) -> Any:
    """Weights after a target, from those before it and the target's densities under each expert and their mixture.

    Takes arrays or tensors that broadcast, or numbers.
    """
    return weight * (keep + (gain / density) * p) + give


@jit
def linear(weights: Any, p: Any, keep: Any, gain: Any, give: Any) -> tuple[Any, Any]:
    """Weights (..., R, M) of R rules after a target with densities p (..., M), and its density under each, (..., R, 1).

    Shapes: ``keep``, ``gain`` and ``give``, coefficients a, b and c, (..., R, 1).
    """
    density = inner(weights, p)
    return advance(weights, up(p), density, keep, gain, give), density


@jit
def follow(weights: Any, p: Any, keep: Any, gain: Any, give: Any) -> tuple[Any, Any]:
    """Weights (B + 1, R, M) before each of B targets and after the last, and densities (B, R, 1), on arrays.

    Shapes: ``weights`` (R, M), ``p`` (B, M), coefficients of the rules (B, R, 1).
    """
    found = xp.zeros((len(p) + 1, weights.shape[0], weights.shape[1]))
    densities = xp.zeros((len(p), weights.shape[0], 1))
    row = found[0]
    row += weights  # assigning to a row of an array would take numba seconds to compile
    for t in range(len(p)):
        after, density = linear(row, p[t], keep[t], gain[t], give[t])
        row, of_row = found[t + 1], densities[t]
        row += after
        of_row += density
    return found, densities


@jit
def logarithms(log_weights: Any, weights: Any, density: Any, p: Any, keep: Any, gain: Any, give: Any) -> Any:
    """Logarithms of the weights after a target, exact for arbitrarily small weights if c = 0."""
    return where(give > 0, xp.log(weights), log_weights + xp.log(keep + (gain / density) * up(p)))


@jit
def combine(numbers: Any, above: Any, own: Any, over: Any, log_prob: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
    """One target of R rules and an upper rule.

    Shapes: ``numbers``, coefficients of the rules, three of (R, 1), ``above``, those of the upper rule, three of
    (1, 1); ``own`` (..., R, M) and ``over`` (..., R), log weights; ``log_prob`` (..., M). Returns both after it; the
    weights (..., M) of the experts in the mixture before and after it; its log density (..., 1); the smallest relative
    density (..., 1), which must be a normal number.
    """
    best = peak(log_prob)
    p, weights, shares = xp.exp(log_prob - best), xp.exp(own), xp.exp(over)
    keep, gain, give = numbers
    after, each = linear(weights, p, keep, gain, give)
    learned = logarithms(own, after, each, p, keep, gain, give)
    keep, gain, give = above
    mixtures = each[..., 0]
    following, whole = linear(up(shares), mixtures, keep, gain, give)
    shared = logarithms(up(over), following, whole, mixtures, keep, gain, give)[..., 0, :]
    before, joint = blend(shares, weights), blend(following[..., 0, :], after)
    return learned, shared, before, joint, xp.log(whole[..., 0]) + best, -peak(-mixtures)


@part
def moved(weight: Any, ratio: Any) -> Any:
    """The weight of the second of two predictions after a target whose density is ``ratio`` times the first's."""
    return weight * ratio / (1 - weight + weight * ratio)


@jit
def refer(
    references: Any, share: float, prior: float, among: Any, weight: Any, log_prob: Any, density: Any
) -> tuple[Any, Any, Any, Any, Any]:
    """One target of R reference experts, averaged with a rule.

    Shapes: ``references``, indices (R,); ``among`` (..., R), log weights of references; ``weight`` (..., 1), of their
    mixture after the last target; ``log_prob`` (..., M); ``density`` (..., 1), the log density under the rule. Returns
    log weights of the references after it, (..., R); the weight of their mixture before it, after it, and before the
    next one, and the log density of the average, (..., 1).
    """
    joint = among + take(log_prob, references)
    best = peak(joint)
    size = xp.log(total(xp.exp(joint - best)))
    before = (1 - share) * weight + share * prior
    ratio = xp.exp(clip(best + size - density, -LARGEST, LARGEST))
    after = moved(before, ratio)
    following = (1 - share) * after + share * prior
    return joint - best - size, before, after, following, density + xp.log(1 - before + before * ratio)


@jit
def mix(weights: Any, weight: Any, among: Any, places: Any) -> Any:
    """Log weights (..., M) of the average of a rule's mixture and that of references, which has ``weight`` (..., 1).

    Shapes: ``among`` (..., R), log weights of the references; ``places`` (R, M), their one-hot indices.
    """
    return xp.log((1 - weight) * weights + weight * blend(xp.exp(among), places))
