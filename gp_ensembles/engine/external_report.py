"""What became of the external models in a running ensemble: how often they answered, and who was ahead."""

import math
from typing import NamedTuple

import torch

from gp_ensembles.engine.external_counts import ExternalCounts
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.regret import Regret, StreamSize, path_bound
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.experts.failing import Failure, described
from gp_ensembles.filters.states import ExternalState


class ExternalReport(NamedTuple):
    """One external model, on the rows after the warm-up.

    Attributes:
        name: What the expert is called.
        num_answered: Rows that it answered.
        num_absent: Rows that it did not.
        num_targets: Rows that it answered and that had a target: those that are scored.
        log_score: Mean log density that it gave these targets, in nats; ``None`` without any.
        ensemble_log_score: What the ensemble gave the same targets, before recalibration.
        regret: Its log density of these targets minus the ensemble's, in nats, negative where the ensemble is ahead,
            and the most that the rule can lose to it. Outliers count for their share.
        weight: Its weight in the next row with its innovation models; zero if it was absent from the last one.
        mean_weight: Mean of its weights in the rows that it answered; ``None`` without any.
        reason: Why it was absent, the last time; empty if it never was.
        mend: What can be done about it; likewise.

    Example:
        >>> regret = Regret(-0.35, 9.5)
        >>> print(ExternalReport("trees/0", 7, 2, 7, -1.25, -1.2, regret, 0.3, 0.2, "it said nothing", "ask it"))
        trees/0: log score -1.2500, the ensemble's on the same 7 targets -1.2000: it is 0.3 nats ahead (at most 9.5
        behind, whatever the targets); weight 0.300 now, 0.200 on average
        trees/0: answered 7 of 9 rows; absent the last time because it said nothing: ask it
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
    mend: str

    def __str__(self) -> str:
        """A line on who was ahead where it answered, and one on its absence if there was any."""
        lines = []
        if self.log_score is not None and self.ensemble_log_score is not None and self.mean_weight is not None:
            side, (ahead, bound) = "behind" if self.regret.regret > 0 else "ahead", self.regret
            most = "" if bound is None else f" (at most {bound:.1f} behind, whatever the targets)"
            lines.append(
                f"{self.name}: log score {self.log_score:.4f}, the ensemble's on the same {self.num_targets} targets "
                f"{self.ensemble_log_score:.4f}: it is {abs(ahead):.1f} nats {side}{most}; weight {self.weight:.3f} "
                f"now, {self.mean_weight:.3f} on average"
            )
        if self.reason or not lines:
            answered = f"{self.name}: answered {self.num_answered} of {self.num_answered + self.num_absent} rows"
            why = f"; absent the last time because {self.reason}: {self.mend}" if self.reason else ""
            lines.append(answered + why)
        return "\n".join(lines)

    def in_units(self, scale: float) -> "ExternalReport":
        """With densities per unit of the target, of which the ensemble's own unit is ``scale``."""
        if self.log_score is None or self.ensemble_log_score is None:
            return self
        shift = math.log(scale)
        return self._replace(log_score=self.log_score - shift, ensemble_log_score=self.ensemble_log_score - shift)


@torch.no_grad()
def external_reports(online: OnlineEnsemble) -> tuple[ExternalReport, ...]:
    r"""A report on each external model.

    An expert that sleeps is to the rule one that predicts like the mixture, so bounds for experts hold, too. Where the
    rows of the warm-up count for the weights, the most that is lost after them is :math:`B - R_0`, with the bound B for
    all rows and the regret :math:`R_0` of those of the warm-up. Bounds are not those of an ensemble to which experts
    were added meanwhile.

    Example:
        >>> from gp_ensembles.engine.ensemble import Ensemble
        >>> from gp_ensembles.experts.gaussian import GaussianExpert
        >>> from gp_ensembles.experts.adapters import ColumnsAdapter
        >>> from gp_ensembles.features import LinearFeatures
        >>> from gp_ensembles.features.inputs import InputFeatures
        >>> from gp_ensembles.meta_learners import BayesianModelAveraging
        >>> one = torch.ones((), dtype=torch.float64)
        >>> told = ExternalExpert(ColumnsAdapter(), InputFeatures(1, one), columns=[1])
        >>> experts = [GaussianExpert(LinearFeatures(1, one)), told]
        >>> online = OnlineEnsemble(Ensemble(experts, BayesianModelAveraging(), ["line", "told"]))
        >>> _ = online.observe(torch.ones(9, 2, dtype=torch.float64), torch.ones(9, dtype=torch.float64))
        >>> report = external_reports(online)[0]
        >>> report.num_answered, round(report.log_score, 4), report.regret.regret < report.regret.bound
        (9, -0.9189, True)
    """
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
    """A report from the sums of one model, scalars."""
    ensemble, steps = online.ensemble, max(int(online.state.meta.num_seen), 1)
    size = StreamSize(ensemble.num_experts, steps, math.inf)
    path = torch.full((steps,), place * ensemble.layers.num_copies, dtype=torch.int64, device="cpu")
    bound = path_bound(ensemble.meta_learner, size, path) - float(counted.before)
    num_targets, num_answered, num_absent = (
        int(number) for number in (counted.num_targets, counted.num_answered, counted.num_absent)
    )
    was_absent = int(state.reason) and (num_absent or not int(counted.is_awake))
    failure = described(int(state.reason), state.words) if was_absent else Failure("", "")
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
        failure.reason,
        failure.mend,
    )
