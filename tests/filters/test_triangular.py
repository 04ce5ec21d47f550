"""Forward substitution by panels against a dense solve."""

import numpy as np
import pytest

from gp_ensembles.filters.window import forward_row


@pytest.mark.parametrize("n", [0, 1, 127, 128, 129, 300])
def test_a_row_is_solved_for_as_by_a_dense_solve(n: int) -> None:
    draw = np.random.default_rng(n)
    factor = draw.normal(size=(320, 320)) / 18 + 2 * np.eye(320)  # whole, and larger than what is read
    right = draw.normal(size=n)
    kept = factor.copy(), right.copy()
    panels: list[np.ndarray] = []
    for rows in (n, n, n // 2):  # with what was inverted for the row before
        solved = forward_row(factor, right[:rows], panels)
        exact = np.linalg.solve(np.tril(factor[:rows, :rows]), right[:rows])
        np.testing.assert_allclose(solved, exact, rtol=1e-9, atol=1e-12)
    assert np.array_equal(factor, kept[0])
    assert np.array_equal(right, kept[1])
