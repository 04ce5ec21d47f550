"""Adding experts to a running ensemble, and reviving dead ones."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.quarantine import grown
from gp_ensembles.engine.state import EnsembleState
from gp_ensembles.engine.weighing import with_lags
from gp_ensembles.experts.base import Expert
from gp_ensembles.filters.states import overwrite_
from gp_ensembles.meta_learners.base import MetaLearner, MetaState
from gp_ensembles.meta_learners.combined import CombinedRules, ReferenceAveraging


def add_experts(
    online: OnlineEnsemble,
    experts: Sequence[Expert],
    share: float,
    names: Sequence[str] | None = None,
    *,
    meta_learner: MetaLearner | None = None,
    rows: tuple[Tensor, Tensor] | None = None,
) -> OnlineEnsemble:
    """An ensemble that continues from this one's state with more experts; this one is unchanged.

    Args:
        online: The running ensemble.
        experts: Fitted expert objects to add; they are numbered after the old ones.
        share: Total weight of the new experts, between 0 and 1; the old ones keep their proportions. It is their weight
            before the next step of the rule: in ``log_weights``, one that switches or forgets first has already done so
            (dynamic model averaging turns a share of 0.2 into 0.2022, for instance).
        names: A name for each new expert; by default "new 0", "new 1", ..., skipping names that are taken.
        meta_learner: The rule for all M + n experts; by default the old rule, which must not have been built for M
            experts, as with a transition or prior weights. A rule with a memory of its own, such as
            :class:`~gp_ensembles.meta_learners.OnlineNewton`, can only follow one of its own kind.
        rows: Inputs (N, D) and targets (N,) that the new experts learn first, for instance the last rows of the stream.

    Returns:
        The enlarged ensemble.

    Raises:
        ValueError: If the rule is for another number of experts or needs a memory that the old one does not keep, a
            name is taken, or an expert or a row is invalid.

    Example:
        >>> import torch
        >>> from gp_ensembles.engine import Ensemble
        >>> from gp_ensembles.experts import GaussianExpert
        >>> from gp_ensembles.features import LinearFeatures
        >>> from gp_ensembles.meta_learners import BayesianModelAveraging
        >>> expert = GaussianExpert(LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64)))
        >>> online = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
        >>> new = GaussianExpert(LinearFeatures(1, torch.tensor(9.0, dtype=torch.float64)))
        >>> add_experts(online, [new], share=0.2).log_weights.exp()
        tensor([0.8000, 0.2000], dtype=torch.float64)
    """
    old = online.ensemble
    rule = old.meta_learner if meta_learner is None else meta_learner
    num_new = sum(expert.num_experts for expert in experts)
    new_names = _free_names(old.expert_names, num_new) if names is None else list(names)
    layers = old.layers
    enlarged = old.with_experts([*old.experts, *experts], [*old.expert_names, *new_names], rule)
    _check_memory(old.meta_learner, rule, enlarged.init().meta)
    before = online.state
    meta = rule.grow(before.meta, num_new * layers.num_copies, share)
    states = []
    with torch.no_grad():
        for expert in experts:
            state = expert.init()
            if rows is not None:
                state, _ = expert.update(state, with_lags(layers.memory, None, *rows)[1], rows[1])
            states.append(state)
    innovations = None
    if layers.bank is not None and before.innovations is not None:
        innovations = layers.bank.grow(before.innovations, num_new)
    external_models = enlarged.init_external_counts(meta.log_weights)
    if external_models is not None and before.external_models is not None:
        external_models[:, : before.external_models.shape[1]] = before.external_models
    quarantine = grown(before.quarantine, num_new)
    layers_after = meta, innovations, before.history, external_models, quarantine, before.outliers
    after = EnsembleState((*before.experts, *states), *layers_after)
    return OnlineEnsemble(enlarged, after, online.block_size)


def _free_names(taken: Sequence[str], num_new: int) -> list[str]:
    free = (name for name in (f"new {number}" for number in itertools.count()) if name not in taken)
    return list(itertools.islice(free, num_new))


def _check_memory(old: MetaLearner, new: MetaLearner, start: MetaState) -> None:
    """Raise if the new rule, which starts from ``start``, has a memory that the old one did not keep."""
    if start.memory.shape[-1] and _what_it_remembers(new) != _what_it_remembers(old):
        owner = type(old).__name__ if type(old) is not type(new) else "the old one, of other rules or references,"
        raise ValueError(
            f"{type(new).__name__} needs a memory that {owner} did not store; give "
            f"meta_learner a rule of the old kind or one without memory (FixedShare, BayesianModelAveraging), or start "
            f"the new rule afresh with OnlineEnsemble"
        )


def _what_it_remembers(rule: MetaLearner) -> tuple[object, ...]:
    """The types of a rule and of those inside it, and the experts that serve as references."""
    inside = [*rule.rules, rule.over] if isinstance(rule, CombinedRules) else []
    inside += [rule.rule] if isinstance(rule, ReferenceAveraging) else []
    references = rule.references if isinstance(rule, ReferenceAveraging) else ()
    return type(rule), *references, *(kind for part in inside for kind in _what_it_remembers(part))


def revive_experts(online: OnlineEnsemble, names: Sequence[str], share: float) -> None:
    """Give dead experts of an ensemble weight again, in place.

    Dead experts are not run: they continue from the posteriors that they had when they died.

    Args:
        online: The ensemble.
        names: Names of dead experts.
        share: Their total weight, between 0 and 1; living experts keep their proportions.

    Raises:
        ValueError: If a name is unknown, an expert already has weight, or the share is out of range; nothing changes.

    Example:
        >>> import torch
        >>> from gp_ensembles.engine import Ensemble
        >>> from gp_ensembles.experts import GaussianExpert
        >>> from gp_ensembles.features import LinearFeatures
        >>> from gp_ensembles.meta_learners import BayesianModelAveraging
        >>> expert = GaussianExpert(LinearFeatures(1, torch.ones(2, dtype=torch.float64)))
        >>> rule = BayesianModelAveraging(torch.tensor([1.0, 0.0], dtype=torch.float64))  # the second is dead
        >>> online = OnlineEnsemble(Ensemble([expert], rule, ["a", "b"]))
        >>> revive_experts(online, ["b"], share=0.25)
        >>> online.log_weights.exp()
        tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    known = {name: number for number, name in enumerate(online.names)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"there is no expert named {unknown[0]!r}; the names are {list(online.names)}")
    state = online.state.meta
    index = torch.tensor([known[name] for name in names], dtype=torch.int64, device=state.log_weights.device)
    overwrite_(state, online.ensemble.meta_learner.revive(state, index, share))
