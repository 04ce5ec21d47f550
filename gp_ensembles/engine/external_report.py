"""Reports on the external models of a running ensemble: their scores, weights and absences."""

import math
from typing import NamedTuple

import torch

from gp_ensembles.engine.external_counts import ExternalCounts
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.regret import Regret, StreamSize, path_bound
from gp_ensembles.experts.adapters import described
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.filters.states import ExternalState


class ExternalReport(NamedTuple):
    """One external model, on the rows after the warm-up.

    Attributes:
        name: Name of the expert.
        num_answered: Rows that it predicted.
        num_absent: Rows that it did not predict.
        num_targets: Rows that it predicted and that had a target, which are scored.
        log_score: Mean log density of these targets under the model, in nats; ``None`` without any.
        ensemble_log_score: The same under the ensemble, before recalibration.
        regret: Its log density of these targets minus the ensemble's, in nats, negative where the ensemble is ahead,
            and the most that the rule can lose to it. Outliers count for their share.
        weight: Its weight in the next row, innovation models included; zero if it was absent from the last row.
        mean_weight: Mean of its weights in the rows that it predicted; ``None`` without any.
        reason: Why it was last absent; empty if it never was.
        fix: How to correct that; likewise.
    """

    name: str
    num_answered: int
    num_absent: int
    num_targets: int
    log_score: float | None
    ensemble_log_score: float | None
    regret: Regret
    weight: float
    mean_weight: float | None
    reason: str
    fix: str

    def __str__(self) -> str:
        """A line on the scores, and one on absences if there were any."""
        lines = []
        if self.log_score is not None and self.ensemble_log_score is not None and self.mean_weight is not None:
            side, (ahead, bound) = "behind" if self.regret.regret > 0 else "ahead", self.regret
            most = "" if bound is None else f" (at most {bound:.1f} behind, whatever the targets)"
            lines.append(
                f"{self.name}: log score {self.log_score:.4f}, the ensemble's on the same {self.num_targets} targets "
                f"{self.ensemble_log_score:.4f}: in total the ensemble is {abs(ahead):.1f} nats {side}{most}; "
                f"weight {self.weight:.3f} now, {self.mean_weight:.3f} on average"
            )
        if self.reason or not lines:
            answered = f"{self.name}: predicted {self.num_answered} of {self.num_answered + self.num_absent} rows"
            why = f"; last absent because {self.reason}: {self.fix}" if self.reason else ""
            lines.append(answered + why)
        return "\n".join(lines)

    def in_units(self, scale: float) -> "ExternalReport":
        """The report with densities in the units of the target, ``scale`` of which are one unit of the ensemble."""
        if self.log_score is None or self.ensemble_log_score is None:
            return self
        shift = math.log(scale)
        return self._replace(log_score=self.log_score - shift, ensemble_log_score=self.ensemble_log_score - shift)


@torch.no_grad()
def external_reports(online: OnlineEnsemble) -> tuple[ExternalReport, ...]:
    """A report on each external model."""
    ensemble, state = online.ensemble, online.state
    if state.external_models is None:
        return ()
    parts = [
        part
        for expert, part in zip(ensemble.experts, state.experts, strict=True)
        if isinstance(expert, ExternalExpert) and isinstance(part, ExternalState)
        for _ in range(expert.num_experts)
    ]
    weights = ensemble.layers.by_expert(online.log_weights).exp().tolist()
    return tuple(
        _report(online, place, part, ExternalCounts(*column), weights[place])
        for place, part, column in zip(
            ensemble.layers.external_models, parts, state.external_models.unbind(1), strict=True
        )
    )


def _report(
    online: OnlineEnsemble, place: int, state: ExternalState, counted: ExternalCounts, weight: float
) -> ExternalReport:
    """The report from the sums of one model."""
    ensemble, steps = online.ensemble, max(int(online.state.meta.num_seen), 1)
    size = StreamSize(ensemble.num_experts, steps, math.inf)
    path = torch.full((steps,), place * ensemble.layers.num_copies, dtype=torch.int64, device="cpu")
    bound = path_bound(ensemble.meta_learner, size, path) - float(counted.before)
    num_targets, num_answered, num_absent = (
        int(number) for number in (counted.num_targets, counted.num_answered, counted.num_absent)
    )
    was_absent = int(state.reason) and (num_absent or not int(counted.is_awake))
    reason, fix = described(int(state.reason), state.words) if was_absent else ("", "")
    return ExternalReport(
        ensemble.expert_names[place],
        num_answered,
        num_absent,
        num_targets,
        float(counted.own) / num_targets if num_targets else None,
        float(counted.mixed) / num_targets if num_targets else None,
        Regret(float(counted.ahead), bound if bound < math.inf else None),
        weight,
        float(counted.weight) / num_answered if num_answered else None,
        reason,
        fix,
    )
