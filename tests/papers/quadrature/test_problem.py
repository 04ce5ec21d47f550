"""Batched log marginal likelihoods: golden values, scipy, distinct lags, chunks, failures, bad data."""

import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gp_ensembles.numerics.exact_gp import log_marginal
from gp_ensembles.papers.quadrature import likelihoods as likelihoods_module
from gp_ensembles.papers.quadrature.likelihoods import DenseLikelihood, distinct_lags
from gp_ensembles.papers.quadrature.problem import RegressionProblem
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures, covariance
from tests.papers.quadrature.cases import flatten, random_mixtures, tensor, unflatten


def data(seed, num_rows, num_inputs):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.uniform(size=(num_rows, num_inputs))), torch.tensor(rng.normal(size=num_rows))


GAPS = [0, 1, 2, 3, 7, 8, 9, 10, 11, 15, 16, 17, 20, 21]


def hyperparameters(seed, count):
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.lognormal(size=count)), torch.tensor(rng.lognormal(-4.0, 1.0, count))


def grid(places):
    return torch.tensor(places, dtype=torch.float64).unsqueeze(-1) * 0.1 + 1949.0


def test_golden_log_likelihoods(archive):
    file = archive("maskerade_sm_kernel")
    for case in ["D1_n1", "D1_n3", "D3_n1", "D3_n3"]:
        X, y = file[f"X_{case[:2]}"], file[f"y_{case[:2]}"]
        mixtures = unflatten(file[f"theta_{case}"].unsqueeze(0), X.shape[1])
        value = DenseLikelihood(X, y)(mixtures, tensor(1.0), file["noise"].reshape(1))
        assert value.item() == pytest.approx(float(file[f"loglik_{case}_paper"]), abs=1e-9)


def test_golden_log_likelihoods_of_mixed_sizes(archive, given_values):
    file, mixtures = archive("maskerade_predictive"), unflatten(given_values["theta"], 1)
    assert sorted(set(mixtures.num_components.tolist())) == [1, 2, 3]
    ones = torch.ones_like(given_values["loglik"])
    value = DenseLikelihood(file["X"].unsqueeze(-1), file["y"])(mixtures, ones, file["noise"] * ones)
    torch.testing.assert_close(value, given_values["loglik"], rtol=0, atol=1e-10)


def test_values_are_normal_log_densities_in_the_order_given():
    for num_inputs in [1, 3]:
        mixtures, (outputscale, noise) = random_mixtures(0, num_inputs, (9,)), hyperparameters(1, 9)
        X, y = data(2, 12, num_inputs)
        value = DenseLikelihood(X, y)(mixtures, outputscale, noise)
        for b in range(9):
            matrix = outputscale[b] * covariance(mixtures.take(b), X, X) + noise[b] * torch.eye(12).double()
            expected = stats.multivariate_normal.logpdf(y.numpy(), cov=matrix.numpy())
            assert value[b].item() == pytest.approx(expected, rel=1e-10)


def test_distinct_lags_give_what_direct_evaluation_gives():
    for X in [
        grid(range(30)),
        grid(GAPS),
        grid([0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8]),
        grid(np.random.default_rng(0).permutation(25)),
        torch.linspace(-1, 1, 40, dtype=torch.float64).unsqueeze(-1),
        (1e-6 * torch.arange(20.0).double() + 5.0).unsqueeze(-1),
    ]:
        lags = distinct_lags(X)
        assert lags is not None
        assert lags[0].numel() <= X.shape[0] ** 2 / 4
        span = float(X.max() - X.min())
        assert float((lags[0][lags[1]] - (X - X.mT).abs()).abs().max()) < 1e-9 * span
        assert lags[0][lags[1].diagonal()].abs().max() == 0.0
        assert bool((lags[0].diff() > 0).all())
        unit = X / span  # so that frequencies are of the order of the rows
        y = torch.sin(7.0 * unit.squeeze(-1) - 7.0 * unit[0])
        mixtures, (outputscale, noise) = random_mixtures(4, 1, (7,)), hyperparameters(4, 7)
        likelihoods = DenseLikelihood(unit, y)
        direct = covariance(mixtures, unit, unit)
        torch.testing.assert_close(likelihoods.covariance(mixtures), direct, rtol=0, atol=1e-8)
        matrices = outputscale[:, None, None] * direct + noise[:, None, None] * torch.eye(len(y)).double()
        value = likelihoods(mixtures, outputscale, noise)
        torch.testing.assert_close(value, log_marginal(matrices, y), rtol=1e-6, atol=1e-6)


@settings(max_examples=40)
@given(
    st.sets(st.integers(0, 60), min_size=25, max_size=40), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3), st.integers(0, 3)
)
def test_distinct_lags_of_grids_with_gaps_and_duplicates(places, step, origin, repeats):
    rows = sorted(places) + sorted(places)[:repeats]
    X = step * (origin + torch.tensor(rows, dtype=torch.float64).unsqueeze(-1))
    lags = distinct_lags(X)
    exact = {a - b for a in rows for b in rows if a >= b}
    if 4 * len(exact) > len(rows) ** 2:
        assert lags is None
        return
    assert lags is not None
    assert lags[0].numel() == len(exact)
    expected = step * torch.tensor(sorted(exact), dtype=torch.float64)
    rounding = 1e-14 * step * (abs(origin) + 60)
    torch.testing.assert_close(lags[0], expected, rtol=0, atol=rounding)


def test_inputs_without_enough_common_lags():
    for X in [data(0, 30, 1)[0], data(0, 30, 2)[0], torch.zeros(1, 1).double(), torch.full((5, 1), 3.0).double()]:
        assert distinct_lags(X) is None


def test_inputs_off_the_grid_are_not_moved_onto_it():
    """A lag that differs by a millionth of the range is another lag."""
    X = grid(range(40)) - 1949.0
    X[7] += 4e-6
    lags = distinct_lags(X)
    assert lags is not None
    assert float((lags[0][lags[1]] - (X - X.mT).abs()).abs().max()) < 1e-12


def test_chunks_change_nothing(monkeypatch):
    for X in [grid(range(20)), data(3, 20, 1)[0], data(3, 20, 2)[0]]:
        num_inputs = X.shape[1]
        mixtures = random_mixtures(6, num_inputs, (11,))
        theta = flatten(mixtures).requires_grad_()
        outputscale, noise = (value.requires_grad_() for value in hyperparameters(6, 11))
        y = data(6, 20, 1)[1]
        results = []
        for chunk_bytes in (1, 3 * 8 * 400, 2**30):  # one, three, and all matrices at once
            monkeypatch.setattr(likelihoods_module, "CHUNK_BYTES", chunk_bytes)
            value = DenseLikelihood(X, y)(unflatten(theta, num_inputs), outputscale, noise)
            slope, *others = torch.autograd.grad(value.sum(), (theta, outputscale, noise))
            slope[:, :4] *= mixtures.weights != 0  # a chunk without a component does not see its weight
            results.append((value, slope, *others))
        for first, other in pairwise(results):
            for a, b in zip(first, other, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "X", [grid(range(8)) - 1949.0, data(3, 5, 1)[0], data(3, 5, 2)[0]], ids=["grid", "line", "plane"]
)
def test_derivatives_of_likelihoods(X):
    num_inputs = X.shape[1]
    mixtures = random_mixtures(8, num_inputs, (3,), size=2)
    y = data(6, X.shape[0], 1)[1]
    likelihoods = DenseLikelihood(X, y)
    present = mixtures.weights != 0

    def function(weights, means, scales, outputscale, noise):
        return likelihoods(SpectralMixtures(weights.where(present, 0.0), means, scales), outputscale, noise)

    arguments = (*tuple(mixtures), *hyperparameters(8, 3))
    assert torch.autograd.gradcheck(function, tuple(value.requires_grad_() for value in arguments))


def test_a_kernel_that_cannot_be_factorized_is_a_fact_and_no_failure():
    """Equal rows without noise: singular for every kernel; another kernel of the batch has noise."""
    X, y = torch.tensor([[0.0], [0.0], [1.0]]).double(), torch.tensor([0.0, 1.0, 2.0]).double()
    theta = torch.tensor([[1.0, 0.5, 0.1]]).double().repeat(2, 1).requires_grad_()
    ones = torch.ones(2).double()
    noise = torch.tensor([1e-30, 0.1]).double()
    value = DenseLikelihood(X, y)(unflatten(theta, 1), ones, noise)
    assert value.isnan().tolist() == [True, False]
    value.nansum().backward()
    assert bool(theta.grad.isfinite().all())
    assert bool(theta.grad[1].any())


def with_entry(tensor, index, value):
    result = tensor.clone()
    result[index] = value
    return result


X4, Y4 = data(0, 4, 2)
BAD_DATA = {
    "targets of another length": (X4, Y4[:3], "do not fit"),
    "inputs as a vector": (Y4, Y4, "do not fit"),
    "whole numbers": (X4.long(), Y4, "share a real dtype"),
    "whole numbers in both": (X4.long(), Y4.long(), "share a real dtype"),
    "two precisions": (X4, Y4.float(), "torch.float32"),
    "complex": (X4 + 0j, Y4 + 0j, "share a real dtype"),
    "no row": (X4[:0], Y4[:0], "at least one row"),
    "one row": (X4[:1], Y4[:1], "one row"),
    "a missing input": (with_entry(X4, (2, 1), torch.nan), Y4, "inputs must be finite, but inputs[2, 1] is nan"),
    "an infinite input": (with_entry(X4, (1, 0), -torch.inf), Y4, "inputs[1, 0] is -inf"),
    "an infinite target": (X4, with_entry(Y4, 3, torch.inf), "targets must be finite, but targets[3, 0]"),
}


def test_bad_data_is_refused_with_its_place():
    for X, y, message in BAD_DATA.values():
        with pytest.raises(ValueError, match=re.escape(message)):
            RegressionProblem(X, y)
