"""Health checks of a stream: coverage, weights, failed experts, missing and moved inputs, speed."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from gp_ensembles.calibration.levels import CoverageState
from gp_ensembles.engine.quarantine import QuarantineReport
from gp_ensembles.streaming.missed_structure import missed_text
from gp_ensembles.streaming.model import OnlineModel

_FEWEST_ROWS = 100  # of which a share says something


@dataclass(frozen=True)
class HealthLimits:
    r"""Limits beyond which a number is a warning.

    Attributes:
        coverage_gap: Largest difference of the empirical coverage, or of the levels of adaptive intervals, from the
            nominal coverage, as a share of the nominal misses: 0.5 is 5 % for intervals of 90 %.
        least_experts: Least effective number of experts, :math:`\exp(-\sum_m w_m \log w_m)`.
        experts_out: Maximum number of experts in quarantine.
        inputs_moved: Largest share of inputs far beyond the range seen so far.
        inputs_imputed: Largest share of missing inputs.
        targets_discounted: Largest share of targets that were taken for outliers.
        bad_rows: Largest share of rows with a number that cannot be learned, see ``StreamConfig.on_bad_row``.
        share_missed: Largest share of the variance of the warm-up's targets that the fit misses.
        slowdown: Largest ratio of the time per row to that of the first thousand rows.

    Raises:
        ValueError: If a limit is negative.
    """

    coverage_gap: float = 0.5
    least_experts: float = 1.0
    experts_out: int = 0
    inputs_moved: float = 0.01
    inputs_imputed: float = 0.2
    targets_discounted: float = 0.01
    bad_rows: float = 0.01
    share_missed: float = 0.0
    slowdown: float = 3.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")


class Finding(NamedTuple):
    """One number and its limit.

    Attributes:
        name: What was checked.
        value: The number.
        limit: Beyond it the number is a warning.
        ok: Whether it is within the limit.
        meaning: A sentence.
    """

    name: str
    value: float
    limit: float
    ok: bool
    meaning: str


def health(
    model: OnlineModel,
    limits: HealthLimits | None = None,
    *,
    coverage: CoverageState | None = None,
    slowdown: float | None = None,
) -> tuple[Finding, ...]:
    """Check a model on its stream.

    Args:
        model: The model; nothing is found before its warm-up is over.
        limits: Limits beyond which a number is a warning.
        coverage: Empirical coverage of its intervals of 90 %, if it is counted.
        slowdown: Time per row, as a multiple of that of the first thousand rows, if it is measured.

    Returns:
        Findings in the order of :class:`HealthLimits`.

    Example:
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> from gp_ensembles.streaming import StreamConfig
        >>> X = torch.linspace(0, 9, 60, dtype=torch.float64).unsqueeze(-1)
        >>> model = OnlineModel(
        ...     StreamConfig(replace(oebe, bases=(LinearBasis(),)), warmup=20)
        ... )
        >>> _ = model.observe(X[:30], X[:30, 0] + X[:30, 0].sin())
        >>> [finding.name for finding in health(model)[1:5]]
        ['effective experts', 'experts in quarantine', 'inputs moved', 'inputs imputed']
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
    meaning = f"{len(out)} experts are in quarantine after a failure{': ' + names if out else ''}"
    found.append(_at_most("experts in quarantine", len(out), limits.experts_out, meaning))
    rows = max(model.num_rows - model.config.warmup, 1)
    cells = rows * max(len(model.used_features), 1)
    moved, imputed = model.anomaly_counts.inputs_moved / cells, model.anomaly_counts.inputs_imputed / cells
    meaning = f"{100 * moved:.3g} % of the inputs lay far beyond the range seen so far"
    found.append(_at_most("inputs moved", moved, limits.inputs_moved, meaning))
    meaning = f"{100 * imputed:.3g} % of the inputs were missing"
    found.append(_at_most("inputs imputed", imputed, limits.inputs_imputed, meaning))
    discounted = model.anomaly_counts.targets_discounted / rows
    meaning = f"{100 * discounted:.3g} % of the targets lay far outside all predictions and were down-weighted"
    found.append(_at_most("targets discounted", discounted, limits.targets_discounted, meaning))
    bad = model.anomaly_counts.bad_rows / max(model.num_rows, 1)
    meaning = f"{100 * bad:.3g} % of the rows held an infinite or implausibly large number"
    found.append(_at_most("bad rows", bad, limits.bad_rows, meaning))
    missed = model.anomaly_counts.share_missed
    meaning = missed_text(missed) if missed > 0 else "the fit misses no structure of the warm-up that neighbors show"
    found.append(_at_most("share missed", missed, limits.share_missed, meaning))
    if slowdown is not None:
        meaning = f"a row takes {slowdown:.3g} times as long as one of the first thousand"
        found.append(_at_most("slowdown", slowdown, limits.slowdown, meaning))
    return tuple(found)


def _coverage(share: float, promised: float, limits: HealthLimits) -> Finding:
    gap, limit = abs(share - promised), limits.coverage_gap * (1 - promised)
    meaning = f"intervals of {100 * promised:g} % covered {100 * share:.4g} % of the targets"
    return _at_most("coverage gap", gap, limit, meaning)


def _levels(lower: float, upper: float, promised: float, limits: HealthLimits) -> Finding:
    gap, limit = abs(upper - lower - promised), limits.coverage_gap * (1 - promised)
    meaning = f"to cover {100 * promised:g} % the intervals are now at levels {lower:.3g} and {upper:.3g}"
    return _at_most("interval levels", gap, limit, meaning)


def _effective(model: OnlineModel, limits: HealthLimits) -> Finding:
    weights = torch.tensor(list(model.weights.values()), dtype=torch.float64, device="cpu")
    number = float(torch.special.entr(weights).sum().exp())
    meaning = f"the weights are those of {number:.3g} equal experts among {len(weights)}"
    ok = number >= limits.least_experts - 1e-9
    return Finding("effective experts", number, limits.least_experts, ok, meaning)


def _at_most(name: str, value: float, limit: float, meaning: str) -> Finding:
    return Finding(name, float(value), float(limit), value <= limit, meaning)


def failures(model: OnlineModel) -> tuple[QuarantineReport, ...]:
    """Reports of the experts that have failed, with rows counted from the first of the stream."""
    if model.online is None:
        return ()
    before = model.num_rows - int(model.online.state.meta.num_seen)
    return tuple(report.later(before) for report in model.online.failures)
