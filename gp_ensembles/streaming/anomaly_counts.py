"""How many numbers of a stream were treated in a way that its owner should know of."""

from typing import NamedTuple

from torch import Tensor

from gp_ensembles.distributions import LatentMixture
from gp_ensembles.engine.predictions import AnyMixture


class AnomalyCounts(NamedTuple):
    """Counts so far.

    Attributes:
        inputs_moved: Inputs out of reach that were moved, see :mod:`~gp_ensembles.streaming.input_range`.
        targets_discounted: Targets beyond ``EnsembleSpec.outlier_threshold``, from which less was learned.
        targets_left_out: Targets of the warm-up that count as missing, see
            :mod:`~gp_ensembles.streaming.warm_up_outliers`.
        inputs_imputed: Missing inputs for which something stood in, see :mod:`~gp_ensembles.streaming.gaps`.
    """

    inputs_moved: int = 0
    targets_discounted: int = 0
    targets_left_out: int = 0
    inputs_imputed: int = 0

    def after(self, num_moved: int, num_discounted: int, inputs_imputed: int) -> "AnomalyCounts":
        """With those of a block, and how many inputs were imputed in all."""
        inputs, targets, left_out, _ = self
        return AnomalyCounts(inputs + num_moved, targets + num_discounted, left_out, inputs_imputed)


def num_discounted(mixture: AnyMixture, y: Tensor, threshold: float | None) -> int:
    """How many targets (B,) are further from a mixture's mean than ``threshold`` of its deviations."""
    if threshold is None or isinstance(mixture, LatentMixture) or y.ndim != 1:
        return 0
    mean, variance = mixture.moments()
    return int(((y - mean).abs() > threshold * variance.sqrt()).sum())
