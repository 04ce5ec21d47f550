r"""Rows whose targets have further noise, for instance because an input was missing and is imputed.

A row with further noise variance e is predicted by every expert with variance :math:`v + e`. An expert with noise
variance :math:`\sigma^2` learns it with noise :math:`\sigma^2 + e`, which is what a row :math:`r \phi` and a target
:math:`r y` with :math:`r^2 = \sigma^2 / (\sigma^2 + e)` teach. Experts that are run together have one r, by the mean
of their noise variances. Those whose noise is itself learned (Student-t, refitted) and external models learn such
a row as any other.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.gaussian import BoundGaussian
from gp_ensembles.experts.robust import BoundRobust
from gp_ensembles.experts.structural import BoundStructural
from gp_ensembles.experts.window import BoundWindow
from gp_ensembles.filters.states import LatentPredictions, Predictions, StudentTPredictions
from gp_ensembles.numerics import normal, student_t


def noise_of(bound: Sequence[BoundExpert]) -> Tensor | None:
    r"""Noise variances of K expert objects that are run together, (K, \*batch), or (\*batch) of one; or none known."""
    known = (BoundGaussian, BoundRobust, BoundStructural, BoundWindow)
    found = [b.noise.detach() for b in bound if isinstance(b, known)]
    if len(found) < len(bound):
        return None
    return found[0] if len(found) == 1 else torch.stack(found)


def row_counts(noise: Tensor, extra: Tensor) -> Tensor:
    """The root of what counts of each row, (B,), where noise variances have the mean of these."""
    mean = noise.mean().to(extra)
    return (mean / (mean + extra)).sqrt()


def unscaled(steps: Predictions, y: Tensor, counts: Tensor, noise: Tensor, extra: Tensor) -> Predictions:
    r"""Predictions of the targets from those of targets times ``counts``.

    Shapes: ``y`` (B,), ``counts`` (B,), ``noise`` (\*batch), ``extra`` (B,).
    """
    assert not isinstance(steps, LatentPredictions)
    noise = noise.to(extra).unsqueeze(-1)
    variance = steps.variance / counts.square() - noise / counts.square() + noise + extra
    rows = torch.where(extra > 0, variance, steps.variance)  # the others to the bit
    mean = torch.where(extra > 0, steps.mean / counts, steps.mean)
    return _rescored(steps, y, mean, rows, extra)


def widened(steps: Predictions, y: Tensor, extra: Tensor) -> Predictions:
    """Predictions (..., B) whose rows have further noise variance, (B,)."""
    assert not isinstance(steps, LatentPredictions)
    return _rescored(steps, y, steps.mean, steps.variance + extra, extra)


def _rescored(steps: Predictions, y: Tensor, mean: Tensor, variance: Tensor, extra: Tensor) -> Predictions:
    if isinstance(steps, StudentTPredictions):
        log_prob = student_t.log_prob(y, mean, variance, steps.degrees_of_freedom)
    else:
        log_prob = normal.log_prob(y, mean, variance)
    kept = (extra == 0) | torch.isinf(steps.log_prob)  # an expert that is dead stays so
    log_prob = torch.where(kept, steps.log_prob, log_prob)
    return steps._replace(mean=mean, variance=variance, log_prob=log_prob)
