"""Refits, trainings and drops, which make a row take longer: which come next, and doing them between two rows."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from gp_ensembles.experts.base import BoundExpert, Upkeep
from gp_ensembles.filters.states import FilterState, overwrite_
from gp_ensembles.numerics.cholesky import NumericalError


class UpkeepReport(NamedTuple):
    """Work of an expert that makes a row take longer.

    Attributes:
        name: The expert, the first one of those that are run as one.
        what: A refit, a training, or a drop of its oldest rows.
        rows: Rows until it is done, 1 for within the next one; at the earliest, where rows without a target come.

    Example:
        >>> UpkeepReport("window", "refit", 12)
        UpkeepReport(name='window', what='refit', rows=12)
    """

    name: str
    what: str
    rows: int


def coming(
    experts: Sequence[BoundExpert], states: Sequence[FilterState], names: Sequence[str]
) -> Iterator[tuple[UpkeepReport, Upkeep, FilterState]]:
    """The work of expert objects that is to come, and how to do it to their states."""
    start = 0
    for bound, state in zip(experts, states, strict=True):
        for work in bound.plans.upkeep(bound, state):
            yield UpkeepReport(names[start], work.what, work.rows), work, state
        start += bound.prior_variance.numel()


@torch.no_grad()
def maintain_(
    experts: Sequence[BoundExpert], states: Sequence[FilterState], names: Sequence[str], rows: int
) -> tuple[UpkeepReport, ...]:
    """Do, in place, what would come within so many rows; work that fails, or is too early, is left to its row."""
    done = []
    for report, work, state in coming(experts, states, names):
        if report.rows > rows:
            continue
        try:
            after = work.do()
        except NumericalError:
            continue
        if after is state:  # there is nothing to do yet
            continue
        overwrite_(state, after)
        done.append(report)
    return tuple(done)
