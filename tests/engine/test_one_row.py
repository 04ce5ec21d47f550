"""Which experts go one row at a time on plain arrays."""

import pytest
import torch

from gp_ensembles.experts import GaussianExpert
from gp_ensembles.experts.base import LinearRow
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import ExponentialForgetting, RandomWalk, StabilizedForgetting
from gp_ensembles.filters.states import GaussianState, gaussian_state, square_root_state
from gp_ensembles.filters.transitions import Transition


@pytest.mark.parametrize(
    ("transition", "takes"),
    [(None, True), (RandomWalk(1e-3), True), (ExponentialForgetting(0.9), False), (StabilizedForgetting(0.9), False)],
)
def test_only_weights_at_rest_or_walking_at_random(transition: Transition | None, takes: bool) -> None:
    one = torch.ones(1, dtype=torch.float64)
    expert = GaussianExpert(LinearFeatures(2, one), transition=transition, initial_state=gaussian_state)
    state = gaussian_state(one, 3)
    assert isinstance(state, GaussianState)
    with torch.no_grad():
        bound, features = expert.bind(), expert.features
        assert isinstance(bound.plans.row(bound, state, features), LinearRow) == takes
        assert bound.plans.row(bound, square_root_state(one, 3), features) is None
