"""Recalibrated classes against plain loops in information form; blocks, gaps, causality, cost, resumption."""

import math

import numpy as np
import pytest
import torch

from gp_ensembles.calibration.classes import init_classes, update_classes

N = 40
MOVES = ((1, 0, 0, 0, 0), (1, 1, 0, 1, 0), (1, 1, 1, 1, 1))
VARIANCES = (0.05, 0.25, 0.25, 0.25, 0.05)


def stream(num_classes, num_others=1, num_rows=N, seed=0, missing=(7, 8, 20), dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    predicted = (2 * torch.randn(num_rows, num_classes, generator=g, dtype=torch.float64)).log_softmax(-1)
    others = torch.randn(num_others, num_rows, num_classes, generator=g, dtype=torch.float64).log_softmax(-1)
    y = torch.multinomial(predicted.exp(), 1, generator=g).squeeze(-1).to(dtype)
    y[list(missing)] = torch.nan
    return predicted.to(dtype), others.to(dtype), y


def softmax(z):
    z = np.exp(z - z.max())
    return z / z.sum()


def plain(predicted, others, y):
    """One row at a time, coefficients in information form, all classes alike."""
    predicted, others, y = predicted.numpy(), others.numpy(), y.numpy()
    num_rows, C = predicted.shape
    F = 5 + C
    moving = [np.array([*own, *[1] * C], dtype=bool) for own in MOVES]
    start = np.diag([*VARIANCES, *[0.025] * C])
    covariances = [start[np.ix_(m, m)] for m in moving]
    means = [np.eye(F)[0].copy() for _ in moving]
    count = len(moving) + 1 + len(others)
    shares = np.full(count, 1 / count)
    labels, error, last = [np.full(C, 1 / C)] * 2, np.zeros(C), np.full(C, -math.log(C))
    out = []
    for t in range(num_rows):
        clipped = np.maximum(predicted[t], -12.0)
        design = np.column_stack([clipped, labels[-1], labels[-2], error, last, np.eye(C)])
        chances = [softmax(design @ mean) for mean in means]
        candidates = np.array([*chances, np.exp(predicted[t]), *np.exp(others[:, t])])
        shares_now = 0.998 * shares + 0.002 / count
        out.append(np.log(shares_now @ candidates))
        soft = np.exp(predicted[t])
        if not np.isnan(y[t]):
            soft = np.eye(C)[int(y[t])]
            shares = shares_now * candidates[:, int(y[t])]
            shares = shares / shares.sum()
            for k, m in enumerate(moving):
                own = design[:, m]
                curvature = own.T @ (np.diag(chances[k]) - np.outer(chances[k], chances[k])) @ own
                before = covariances[k] + 1e-5 * np.eye(m.sum())
                covariances[k] = np.linalg.inv(np.linalg.inv(before) + curvature)
                means[k][m] += covariances[k] @ own.T @ (soft - chances[k])
        labels, error, last = [labels[-1], soft], soft - np.exp(predicted[t]), clipped
    return torch.tensor(np.array(out)), means, covariances, shares


@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_it_is_plain_loops(num_classes):
    predicted, others, y = stream(num_classes)
    state, log_prob = update_classes(init_classes(num_classes, 1, predicted), predicted, others, y)
    want, means, covariances, shares = plain(predicted, others, y)
    torch.testing.assert_close(log_prob, want, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(N, dtype=torch.float64))
    torch.testing.assert_close(state.log_shares.exp(), torch.tensor(shares))
    for k, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        moving = torch.tensor([*MOVES[k], *[1] * num_classes], dtype=torch.bool)
        torch.testing.assert_close(state.moments[k, :, -1], torch.tensor(mean), rtol=1e-8, atol=1e-9)
        own = state.moments[k, :, :-1][moving][:, moving]
        torch.testing.assert_close(own, torch.tensor(covariance), rtol=1e-7, atol=1e-10)


def test_a_missing_label_moves_no_coefficient_and_no_share():
    predicted, others, y = stream(3)
    before, _ = update_classes(init_classes(3, 1, predicted), predicted, others, y)
    gaps = torch.full_like(y[:5], torch.nan)
    after, _ = update_classes(before, predicted[:5], others[:, :5], gaps)
    torch.testing.assert_close(after.moments, before.moments, rtol=1e-14, atol=0)
    torch.testing.assert_close(after.log_shares, before.log_shares, rtol=1e-14, atol=0)


def test_calibrated_probabilities_cost_next_to_nothing():
    predicted, others, y = stream(2, num_others=0, num_rows=4000, seed=3, missing=())
    _, log_prob = update_classes(init_classes(2, 0, predicted), predicted, others, y)
    rows = torch.arange(len(y))
    loss = float((predicted[rows, y.long()] - log_prob[rows, y.long()]).mean())
    assert loss < 0.002
