"""The temperature of weights by softmax of variances, by the score on validation data."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gp_ensembles.fusion.experts import ExpertPredictions
from gp_ensembles.fusion.rules import ProductOfExperts, Rule, Space, fuse
from gp_ensembles.fusion.weightings import Prior, SoftmaxVariance, Weighting

_GRID = 41  # temperatures looked at before the best is refined
_REFINEMENTS = 40  # of a golden-section search: each shrinks the interval to 0.618 of it
_GOLDEN = (math.sqrt(5) - 1) / 2


@torch.no_grad()
def fit_temperature(
    predictions: ExpertPredictions,
    y: Tensor,
    rule: Callable[[Weighting], Rule] = ProductOfExperts,
    *,
    space: Space,
    prior: Prior | None = None,
) -> SoftmaxVariance:
    r"""The temperature with the best mean log density of validation targets.

    Zero, and a grid of :math:`10^{-3}` to :math:`10^{3}` over the average difference of the experts' variances, are
    tried; the best of the grid is refined by a golden-section search between its neighbors.

    Args:
        predictions: What the experts predict at the validation inputs.
        y: Validation targets, shape (N,); NaN is a missing one.
        rule: What is made of the weights; the generalized product of experts if not given.
        space: As in :func:`fuse`.
        prior: As in :func:`fuse`.

    Returns:
        The weighting with the best temperature found; zero where it does not matter.

    Raises:
        ValueError: If the targets do not fit the predictions or all are missing, or the predictions cannot be fused.

    Example:
        >>> import torch
        >>> mean = torch.tensor([[0.0, 0.0], [3.0, 5.0]]).double()
        >>> predictions = ExpertPredictions(mean, mean + 1, 0 * mean)
        >>> fit_temperature(predictions, torch.zeros(2).double(), space="y").temperature > 1
        True
    """
    if y.shape != predictions.mean.shape[-1:] or bool(torch.isnan(y).all()):
        raise ValueError(
            f"{predictions.mean.shape[-1]} validation targets were due, not all missing; got shape {tuple(y.shape)}"
        )

    def score(temperature: float) -> float:
        fused = fuse(predictions, rule(SoftmaxVariance(temperature)), space=space, prior=prior)
        return float(fused.log_prob(y).nanmean())

    variance = predictions.variance if space == "f" else predictions.target_variance
    scale = float((variance.amax(0) - variance.amin(0)).mean())
    even = score(0.0)
    if not scale > 0:  # the experts are equally sure: every temperature gives equal weights
        return SoftmaxVariance(0.0)
    exponents = [-3 + 6 * number / (_GRID - 1) for number in range(_GRID)]
    scores = [score(10**exponent / scale) for exponent in exponents]
    best = max(range(_GRID), key=scores.__getitem__)
    lower, upper = exponents[max(best - 1, 0)], exponents[min(best + 1, _GRID - 1)]
    found = _golden_section(lambda exponent: score(10**exponent / scale), lower, upper)
    candidates = [(even, 0.0), (scores[best], 10 ** exponents[best] / scale), (found[0], 10 ** found[1] / scale)]
    return SoftmaxVariance(max(candidates, key=lambda pair: pair[0])[1])


def _golden_section(function: Callable[[float], float], lower: float, upper: float) -> tuple[float, float]:
    """Largest value of a function of one peak, and where it is."""
    left, right = upper - _GOLDEN * (upper - lower), lower + _GOLDEN * (upper - lower)
    at_left, at_right = function(left), function(right)
    for _ in range(_REFINEMENTS):
        if at_left < at_right:
            lower, left, at_left = left, right, at_right
            right = lower + _GOLDEN * (upper - lower)
            at_right = function(right)
        else:
            upper, right, at_right = right, left, at_left
            left = upper - _GOLDEN * (upper - lower)
            at_left = function(left)
    return max((at_left, left), (at_right, right))
