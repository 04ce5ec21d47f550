"""Waxman, Llorente and Djuric 2025: rules that weigh experts of daily returns, untuned, and the best mixture after."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.data import Table
from gp_ensembles.ensembles.presets import default_rule
from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    DiscountedOnlineNewton,
    DynamicModelAveraging,
    FixedShare,
    MetaLearner,
    OnlineNewton,
    SoftBayes,
)
from gp_ensembles.metrics import best_fixed_mixture
from studies.follow_ups.garch import EXPERTS, Array, fit
from studies.follow_ups.particles import published_log_prob
from studies.harness.comparison import Estimate, beside_printed, estimate, read_printed
from studies.harness.experiment import Choices, found_sets
from studies.harness.sources import FoundSet, PaperSet
from studies.harness.trials import Case, run_cases

SET = PaperSet(
    "sp500",
    ("sp500_returns",),
    "February 2013 to February 2018, the index a day ahead and ten of its stocks, in percent; the authors took the "
    "index from 2015 to the end of 2019, so the series is not theirs",
)
INDEX = "index"
_SHARE_FITTED = 0.2
_PERCENT = 100.0
_BEST_EXPERT, _BEST_MIXTURE = "best expert", "best mixture"

RULES: dict[str, MetaLearner] = {
    "BMA": BayesianModelAveraging(),
    "DMA": DynamicModelAveraging(),
    "fixed share": FixedShare(),
    "Soft-Bayes": SoftBayes(),
    "ONS": OnlineNewton(),
    "ONS 0.1": OnlineNewton(beta=0.1),
    "D-ONS": DiscountedOnlineNewton(),
    "auto's rule": default_rule(),
}


def expert_log_prob(returns: Array, num_fitted: int) -> Tensor:
    """Log densities (M, T) of the rows behind those that the experts are fitted to, each given all rows before it.

    Args:
        returns: Returns, all rows, in any unit.
        num_fitted: How many rows the experts are fitted to.

    Raises:
        ValueError: If there are too few rows to fit, or none behind them.
    """
    if not num_fitted < len(returns):
        raise ValueError(f"{num_fitted} rows to fit leave none of {len(returns)} to be scored")
    models = [fit(returns[:num_fitted], kind) for kind in EXPERTS.values()]
    return torch.from_numpy(np.stack([model.log_prob(returns)[num_fitted:] for model in models]))


def rule_scores(log_prob: Tensor) -> dict[str, float]:
    """Mean log densities of every rule's mixture, of the best expert and of the best constant mixture in hindsight.

    Args:
        log_prob: Log densities of the experts, shape (M, T).

    Example:
        >>> found = rule_scores(torch.tensor([[0.8, 0.2, 0.2], [0.2, 0.8, 0.8]], dtype=torch.float64).log())
        >>> found["best expert"] < found["best mixture"]
        True
    """
    experts = log_prob.mean(1)
    scores = {"worst expert": float(experts.min()), _BEST_EXPERT: float(experts.max())}
    for name, rule in RULES.items():
        output = rule.update_block(rule.init(len(log_prob), like=log_prob), log_prob)[1]
        scores[name] = float(output.log_prob.mean())
    return {**scores, _BEST_MIXTURE: float(best_fixed_mixture(log_prob).log_prob.mean())}


def run(choices: Choices, settings: None) -> str:
    """Score every rule on every series, and compare those of the index with the printed ones."""
    (found,), notes = found_sets(choices, (SET,))
    series = {name: values[: choices.max_rows] for name, values in _series(found).items()}
    num_rows = len(next(iter(series.values())))
    if choices.as_published:
        return _run_published(choices, found, series[INDEX], notes)
    num_fitted = int(_SHARE_FITTED * num_rows)
    cases: dict[str, Case] = {name: _case(values, num_fitted) for name, values in series.items()}
    title = "Mean log density of a day's return as a fraction, nats, from experts fitted to the first fifth of the days"
    used = {"set": found.name, "file": found.file, "note": found.note, "rows": num_rows, "fitted": num_fitted}

    def after(means: Mapping[str, Mapping[str, Estimate]]) -> str:
        return "\n".join([_over_series(means), _beside(means), *notes])

    return run_cases(choices._replace(trials=1), "stacking", title, cases, used, after)


def _run_published(choices: Choices, found: FoundSet, returns: Array, notes: list[str]) -> str:
    used = {"set": found.name, "file": found.file, "note": found.note, "rows": len(returns), "experts": "particles"}

    def case(generator: torch.Generator) -> dict[str, float]:
        return rule_scores(published_log_prob(returns / _PERCENT, generator))

    title = (
        "AS PUBLISHED, but for two EGARCH experts: mean log density of a day's return, nats, all days, from particle "
        "filters whose priors suit squared percent; a trial draws priors and particles"
    )
    name = "stacking_as_published"
    return run_cases(choices, name, title, {INDEX: case}, used, lambda means: "\n".join([_beside(means), *notes]))


def _series(found: FoundSet) -> dict[str, Array]:
    table: Table = found.table
    columns = {} if found.is_own else dict(zip(table.feature_names, table.X.unbind(-1), strict=True))
    return {INDEX: table.y.numpy(), **{name: column.numpy() for name, column in columns.items()}}


def _case(returns: Array, num_fitted: int) -> Case:
    def make(generator: torch.Generator) -> dict[str, float]:
        # The density of r / 100 is a hundred times that of r.
        return rule_scores(expert_log_prob(returns, num_fitted) + math.log(_PERCENT))

    return make


def _over_series(means: Mapping[str, Mapping[str, Estimate]]) -> str:
    lines = ["", "less the best expert, mean over series ± its standard error, and on how many series above it:"]
    for rule in (*RULES, _BEST_MIXTURE):
        gains = [row[rule].mean - row[_BEST_EXPERT].mean for row in means.values()]
        lines.append(f"  {rule}: {estimate(gains)}, {sum(gain > 0 for gain in gains)} of {len(gains)}")
    return "\n".join(lines)


def _beside(means: Mapping[str, Mapping[str, Estimate]]) -> str:
    printed = read_printed(Path(__file__).with_name("printed.csv"), "stacking")

    def ours(name: str, method: str, score: str) -> Estimate | None:
        return means.get(INDEX, {}).get(method)

    return "\n" + beside_printed(printed, ours) if INDEX in means else ""
