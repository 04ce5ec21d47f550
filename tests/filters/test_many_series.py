"""One row of each of many series in place, beside the textbook recursion of each."""

import pytest
import torch

from gp_ensembles.filters.many_series import learn_rows, predict_rows
from gp_ensembles.filters.states import GaussianState, gaussian_state
from gp_ensembles.filters.textbook import textbook_step

SERIES, EXPERTS, FEATURES, ROUNDS = 9, 3, 5, 4


@pytest.mark.parametrize("width", [None, 1, FEATURES])
def test_rows_are_learned_as_the_textbook_does(width, generator):
    for chosen in (range(SERIES), range(2, 7), [7, 1, 4]):
        draw = {"generator": generator, "dtype": torch.float64}
        prior, noise = torch.rand(EXPERTS, **draw) + 0.5, torch.rand(EXPERTS, **draw) + 0.1
        walk = None if width is None else 0.05 * torch.rand(EXPERTS, width, **draw)
        moments = gaussian_state(prior, FEATURES).moments.expand(SERIES, -1, -1, -1).clone()
        expected, places = moments.clone(), torch.tensor(list(chosen))
        for number in range(ROUNDS):
            Phi = torch.randn(len(places), EXPERTS, FEATURES, **draw)
            y = torch.randn(len(places), **draw)
            y[number % len(places)] = torch.nan
            rows = predict_rows(moments, places, Phi, walk, noise)
            state, step = textbook_step(GaussianState(expected[places]), Phi, y.unsqueeze(-1), noise, walk)
            expected[places] = state.moments
            got, want = (rows.mean, rows.variance), (step.mean.squeeze(-1), step.variance.squeeze(-1))
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
            learn_rows(moments, places, rows, y, walk)
        torch.testing.assert_close(moments, expected, rtol=1e-11, atol=1e-12)


def test_states_are_worked_on_a_few_at_a_time(generator):
    """More series than fit into the cache at once; whole, and with one left out."""
    num, width = 40, 60
    draw = {"generator": generator, "dtype": torch.float64}
    one = torch.ones(2, dtype=torch.float64)
    for places in (torch.arange(num), torch.arange(1, num).flip(0)):
        moments = gaussian_state(one, width).moments.expand(num, -1, -1, -1).clone()
        expected = moments.clone()
        Phi, y = torch.randn(len(places), 2, width, **draw), torch.randn(len(places), **draw)
        state, _ = textbook_step(GaussianState(expected[places]), Phi, y.unsqueeze(-1), one)
        expected[places] = state.moments
        learn_rows(moments, places, predict_rows(moments, places, Phi, None, one), y, None)
        torch.testing.assert_close(moments, expected, rtol=1e-11, atol=1e-12)
