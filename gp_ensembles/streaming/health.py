"""Whether a stream is well: what it promised and keeps, who has weight or failed, what was lacking, how fast it is."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from gp_ensembles.calibration.coverage import CoverageState
from gp_ensembles.streaming.failures import failures
from gp_ensembles.streaming.model import OnlineModel

_FEWEST_ROWS = 100  # of which a share says something


@dataclass(frozen=True)
class HealthLimits:
    r"""From where on a number is a reason to look.

    Attributes:
        coverage_gap: Most that the share of covered targets of all windows, or the levels at which adaptive intervals
            have to stand, may differ from what is promised, as a share of the misses that are promised: 0.5 is 5 %
            for intervals of 90 %.
        least_experts: Least effective number of experts, :math:`\exp(-\sum_m w_m \log w_m)`.
        experts_out: Most experts in quarantine.
        inputs_moved: Most inputs beyond all that the warm-up had shown, as a share of all inputs.
        inputs_imputed: Most inputs that were missing, as a share of all.
        slowdown: Most times that a row may take as long as one of the first thousand.

    Raises:
        ValueError: If a limit is negative.
    """

    coverage_gap: float = 0.5
    least_experts: float = 1.0
    experts_out: int = 0
    inputs_moved: float = 0.01
    inputs_imputed: float = 0.2
    slowdown: float = 3.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")


class Finding(NamedTuple):
    """One number and its limit.

    Attributes:
        name: What was looked at.
        value: What was found.
        limit: Where it becomes a reason to look.
        is_well: Whether it is within.
        meaning: A sentence.
    """

    name: str
    value: float
    limit: float
    is_well: bool
    meaning: str


class Throughput(NamedTuple):
    """Seconds a row.

    Attributes:
        first: Of the first thousand rows.
        now: Of the last that were timed.
    """

    first: float
    now: float


def health(
    model: OnlineModel,
    limits: HealthLimits | None = None,
    *,
    coverage: CoverageState | None = None,
    timing: Throughput | None = None,
) -> tuple[Finding, ...]:
    """Look at a model on its stream.

    Args:
        model: The model; nothing is found before its warm-up is over.
        limits: From where on a number is a reason to look.
        coverage: What its intervals of 90 % have kept, where somebody counts.
        timing: How long rows took, where somebody measures.

    Returns:
        What was found, in the order of :class:`HealthLimits`.

    Example:
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> from gp_ensembles.streaming import StreamConfig
        >>> X = torch.linspace(0, 9, 60, dtype=torch.float64).unsqueeze(-1)
        >>> model = OnlineModel(
        ...     StreamConfig(replace(oebe, bases=(LinearBasis(),)), warmup=20)
        ... )
        >>> _ = model.observe(X[:30], X[:30, 0].sin())
        >>> [finding.name for finding in health(model) if finding.is_well]
        ['interval levels', 'effective experts', 'experts in quarantine', 'inputs moved', 'inputs imputed']
    """
    if model.online is None:
        return ()
    limits = HealthLimits() if limits is None else limits
    found = []
    if coverage is not None and int(coverage.num_targets) >= _FEWEST_ROWS:
        found.append(_coverage(float(coverage.num_covered / coverage.num_targets), 0.9, limits))
    if model.has_intervals and 0.9 in model.config.coverages:
        found.append(_levels(*model.interval_levels(0.9), 0.9, limits))
    found.append(_effective(model, limits))
    out = [report for report in failures(model) if report.returns is not None]
    names = ", ".join(report.name for report in out)
    predicted = f"{len(out)} experts are kept out after a failure{': ' + names if out else ''}"
    found.append(_at_most("experts in quarantine", len(out), limits.experts_out, predicted))
    rows = max(model.num_rows - model.config.warmup, 1)
    cells = rows * max(len(model.used_features), 1)
    moved, imputed = model.anomaly_counts.inputs_moved / cells, model.anomaly_counts.inputs_imputed / cells
    predicted = f"{100 * moved:.3g} % of the inputs lay far beyond all that had been seen"
    found.append(_at_most("inputs moved", moved, limits.inputs_moved, predicted))
    predicted = f"{100 * imputed:.3g} % of the inputs were missing"
    found.append(_at_most("inputs imputed", imputed, limits.inputs_imputed, predicted))
    if timing is not None and timing.first > 0:
        ratio = timing.now / timing.first
        predicted = f"a row takes {ratio:.3g} times as long as one of the first thousand"
        found.append(_at_most("slowdown", ratio, limits.slowdown, predicted))
    return tuple(found)


def _coverage(share: float, promised: float, limits: HealthLimits) -> Finding:
    gap, limit = abs(share - promised), limits.coverage_gap * (1 - promised)
    predicted = f"intervals of {100 * promised:g} % covered {100 * share:.4g} % of the targets"
    return _at_most("coverage gap", gap, limit, predicted)


def _levels(lower: float, upper: float, promised: float, limits: HealthLimits) -> Finding:
    gap, limit = abs(upper - lower - promised), limits.coverage_gap * (1 - promised)
    predicted = f"to keep {100 * promised:g} % the intervals now stand at levels {lower:.3g} and {upper:.3g}"
    return _at_most("interval levels", gap, limit, predicted)


def _effective(model: OnlineModel, limits: HealthLimits) -> Finding:
    weights = torch.tensor(list(model.weights.values()), dtype=torch.float64, device="cpu")
    number = float(torch.special.entr(weights).sum().exp())
    predicted = f"the weights are those of {number:.3g} equal experts among {len(weights)}"
    is_well = number >= limits.least_experts - 1e-9
    return Finding("effective experts", number, limits.least_experts, is_well, predicted)


def _at_most(name: str, value: float, limit: float, meaning: str) -> Finding:
    return Finding(name, float(value), float(limit), value <= limit, meaning)
