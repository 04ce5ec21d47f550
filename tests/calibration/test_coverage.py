"""Counts of what intervals have kept, against counts made at once."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.calibration.levels import count_coverage, init_coverage


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 100), cuts=st.lists(st.integers(0, 2300), max_size=4))
def test_counts_are_those_of_the_whole_stream(seed, cuts):
    rng = np.random.default_rng(seed)
    hits = (rng.random(2300) < 0.84).astype(float)
    hits[rng.random(2300) < 0.1] = np.nan
    width = rng.random(2300)
    width[rng.random(2300) < 0.01] = np.inf
    state = init_coverage(torch.zeros(1))
    for some, wide in zip(np.split(hits, sorted(cuts)), np.split(width, sorted(cuts)), strict=True):
        state = count_coverage(state, torch.as_tensor(some), torch.as_tensor(wide), 0.9)
    seen = ~np.isnan(hits)
    assert (float(state.num_targets), float(state.num_covered)) == (seen.sum(), hits[seen].sum())
    finite = seen & np.isfinite(width)
    np.testing.assert_allclose(float(state.width), width[finite].sum(), rtol=1e-12)
    assert float(state.num_finite) == finite.sum()
    full = hits[seen][: seen.sum() // 500 * 500].reshape(-1, 500).mean(1)
    assert float(state.num_windows) == len(full)
    assert float(state.num_kept) == (np.abs(full - 0.9) <= 0.05 + 1e-12).sum()
    assert float(state.window_targets) == seen.sum() % 500
