"""What became of the models from outside in a running ensemble: how often they were absent, and who was ahead."""

import math
from typing import NamedTuple

import torch

from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.regret import Regret, StreamSize, path_bound
from gp_ensembles.experts.external import REASONS, ExternalExpert
from gp_ensembles.filters.states import ExternalState


class GuestReport(NamedTuple):
    """One model from outside.

    Attributes:
        name: What the expert is called.
        num_absent: Rows of which it said nothing that could be used, those of the warm-up included.
        reason: Why, the last time; empty if it was never absent.
        regret: Its log density of the targets that it predicted minus the ensemble's, in nats, negative where the
            ensemble is ahead, and the most that the rule can lose to it; since the rule's weights were first set.
            Targets that were discounted as outliers count for their share.
        num_targets: How many these were.
    """

    name: str
    num_absent: int
    reason: str
    regret: Regret
    num_targets: int


@torch.no_grad()
def guest_reports(online: OnlineEnsemble) -> tuple[GuestReport, ...]:
    """A report on each model from outside.

    An expert that sleeps is to the rule one that predicts like the mixture, so bounds for experts hold, too; they are
    those of an ensemble to which no expert was added meanwhile.

    Example:
        >>> from gp_ensembles.ensembles.ensemble import Ensemble
        >>> from gp_ensembles.experts.boosting import HistogramBoosting
        >>> from gp_ensembles.features.inputs import InputFeatures
        >>> from gp_ensembles.meta_learners import BayesianModelAveraging
        >>> features = InputFeatures(1, torch.ones(2, dtype=torch.float64))
        >>> experts = [ExternalExpert(HistogramBoosting(), features)]
        >>> online = OnlineEnsemble(Ensemble(experts, BayesianModelAveraging(), ["trees", "twin"]))
        >>> X = torch.ones(9, 1, dtype=torch.float64)
        >>> _ = online.observe(X, X.squeeze(-1))
        >>> guest_reports(online)[0].regret.regret, round(guest_reports(online)[0].regret.bound, 4)  # log 2
        (0.0, 0.6931)
    """
    ensemble, state = online.ensemble, online.state
    if state.guests is None:
        return ()
    ahead, num_targets = state.guests.tolist()
    parts = [
        (expert, part)
        for expert, part in zip(ensemble.experts, state.experts, strict=True)
        if isinstance(expert, ExternalExpert) and isinstance(part, ExternalState)
        for _ in range(expert.num_experts)
    ]
    found = []
    for number, (place, (expert, part)) in enumerate(zip(ensemble.layers.guests, parts, strict=True)):
        steps = max(int(state.meta.num_seen), 1)
        size = StreamSize(ensemble.num_experts, steps, math.inf)
        path = torch.full((steps,), place * ensemble.layers.num_copies, dtype=torch.int64, device="cpu")
        bound = path_bound(ensemble.meta_learner, size, path)
        reason = REASONS.get(int(part.reason), "")
        if reason and expert.last_failure:
            reason = f"{reason} ({expert.last_failure})"
        regret = Regret(ahead[number], bound if bound < math.inf else None)
        name = ensemble.expert_names[place]
        found.append(GuestReport(name, int(part.num_absent), reason, regret, int(num_targets[number])))
    return tuple(found)
