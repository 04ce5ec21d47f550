"""Shapes that differ in number only, and predictions of which one output is none."""

import pytest
import torch

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.engine.predictions import invalid_rows
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters.states import StepPredictions
from gp_ensembles.meta_learners import FixedShare

ONE = torch.ones(1, dtype=torch.float64)


@pytest.mark.parametrize("num_targets", [3, 5])
def test_fewer_and_more_targets_than_rows_are_refused(num_targets: int) -> None:
    online = OnlineEnsemble(Ensemble([GaussianExpert(LinearFeatures(2, ONE))], FixedShare(0.02)))
    before = online.state_dict()["expert_0_moments"].clone()
    with pytest.raises(ValueError, match="y must have shape"):
        online.observe(torch.ones(4, 2, dtype=torch.float64), torch.ones(num_targets, dtype=torch.float64))
    assert torch.equal(online.state_dict()["expert_0_moments"], before)


def test_one_output_that_is_none_is_a_row_that_is_none() -> None:
    """Two experts, three rows, two outputs."""
    mean, one = torch.zeros(2, 3, 2), torch.ones(2, 3, 2)
    mean[0, 2, 1], one[1, 0, 0] = torch.nan, -1.0
    wrong = invalid_rows(StepPredictions(mean, one, torch.zeros(2, 3)))
    assert wrong is not None
    assert wrong.tolist() == [[False, False, True], [True, False, False]]
    assert invalid_rows(StepPredictions(torch.zeros(2, 3, 2), torch.ones(2, 3, 2), torch.zeros(2, 3))) is None
