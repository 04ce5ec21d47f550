"""A block of each of many series in place, beside the textbook recursion of each."""

import pytest
import torch

from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import GaussianState, gaussian_state
from gp_ensembles.filters.stream import condition_series, learn_series, predict_series
from gp_ensembles.filters.textbook import textbook_step

SERIES, EXPERTS, FEATURES, ROUNDS = 9, 3, 5, 4


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("width", [None, 1, FEATURES])
def test_blocks_are_learned_as_the_textbook_does(width, num_rows, generator):
    """Missing targets among them, of series in a row, in part and in any order."""
    for chosen in (range(SERIES), range(2, 7), [7, 1, 4]):
        draw = {"generator": generator, "dtype": torch.float64}
        prior, noise = torch.rand(EXPERTS, **draw) + 0.5, torch.rand(EXPERTS, **draw) + 0.1
        walk = None if width is None else 0.05 * torch.rand(EXPERTS, width, **draw)
        moments = gaussian_state(prior, FEATURES).moments.expand(SERIES, -1, -1, -1).clone()
        expected, places = moments.clone(), torch.tensor(list(chosen))
        for number in range(ROUNDS):
            Phi = torch.randn(len(places), EXPERTS, num_rows, FEATURES, **draw)
            y = torch.randn(len(places), num_rows, **draw)
            y[number % len(places), -1] = torch.nan
            ahead = predict_series(moments, places, Phi[:, :, :1], noise, walk)
            gain, steps = condition_series(moments, places, Phi, Rows(y), noise, walk)
            torch.testing.assert_close(ahead[:2], tuple(part[..., :1] for part in steps[:2]), rtol=1e-12, atol=1e-12)
            for row in range(num_rows):
                before = GaussianState(expected[places])
                state, step = textbook_step(before, Phi[:, :, row], y[:, row : row + 1], noise, walk)
                expected[places] = state.moments
                for got, want in zip(steps, step, strict=True):
                    torch.testing.assert_close(got[..., row], want.squeeze(-1), rtol=1e-11, atol=1e-11, equal_nan=True)
            learn_series(moments, places, gain)
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
        rows = Rows(y.unsqueeze(-1))
        learn_series(moments, places, condition_series(moments, places, Phi.unsqueeze(-2), rows, one, None)[0])
        torch.testing.assert_close(moments, expected, rtol=1e-11, atol=1e-12)
