"""Algorithm 2 of the paper written out with dense matrices and scipy, beside ours: by rows, blocks, with gaps."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import norm

from gp_ensembles.meta_learners import MarkovSwitching
from gp_ensembles.meta_learners.switching import sticky_transition
from gp_ensembles.papers.gplvm import IEGPLVM, LatentSettings
from gp_ensembles.papers.gplvm.presets import rbf_features

M, D, START, STAY = 3, 5, 20, 0.9
SPREAD = 1.3  # prior variance of a latent coordinate


def build(switching, ratio):
    features = rbf_features(2, 6, variances=[0.49, 1.0, 4.0], generator=torch.Generator().manual_seed(0))
    settings = LatentSettings(latent_variance=SPREAD, random_walk_ratio=ratio, num_starts=1, batch_iterations=15)
    learner = MarkovSwitching(sticky_transition(M, STAY)) if switching else None
    return IEGPLVM(features, D, learner, settings)


def table():
    rng = np.random.default_rng(3)
    u, v = rng.uniform(-1, 1, size=(2, START + 6))
    Y = np.column_stack([u, v, np.sin(2 * u), np.cos(2 * v), u * v])
    Y = 3 + 2 * Y + 0.6 * rng.normal(size=Y.shape)  # so noisy that it matters by which rule an expert is chosen
    Y[START + 1, 2] = Y[START + 4, 0] = Y[START + 4, 3] = np.nan
    return Y


class Dense:
    """The state with covariances in full, and every row seen in a list."""

    def __init__(self, model, ratio, switching):
        self.omega, self.noise, self.prior = (
            getattr(model, name).numpy().copy() for name in ("omega", "noise", "prior_variance")
        )
        self.offset, self.scale = model.offset.numpy().copy(), float(model.scale)
        self.inverse = (model.factor @ model.factor.mT).numpy()
        self.mean = model.mean.numpy().copy()
        kept = int(model.store.num_kept)
        self.rows, self.places = list(model.store.rows[:kept].numpy()), list(model.store.embedding[:kept].numpy())
        self.weights, self.log_joint = np.full(M, 1 / M), model.log_joint.numpy().copy()
        self.ratio, self.switching, self.agreed = ratio, switching, []

    def features(self, m, x):
        angles = self.omega[m] @ x
        return np.concatenate([np.sin(angles), np.cos(angles)]) / math.sqrt(len(angles))

    def density(self, m, x, y):
        phi, seen = self.features(m, x), ~np.isnan(y)
        variance = self.noise[m] * (1 + phi @ self.inverse[m] @ phi)
        row = norm.logpdf(y[seen], phi @ self.mean[m][:, seen], math.sqrt(variance)).sum()
        return row, norm.logpdf(x, 0.0, math.sqrt(SPREAD)).sum()

    def place(self, m, y, found):
        seen = ~np.isnan(y)
        near = min(range(len(self.rows)), key=lambda i: np.sum((self.rows[i] - y)[seen] ** 2))
        start = self.places[near][m]
        theirs = minimize(lambda x: -sum(self.density(m, x, y)), start, method="BFGS", tol=1e-9).x
        here = sum(self.density(m, found, y))
        assert here >= sum(self.density(m, start, y)), "the search must climb"
        ahead = [sum(self.density(m, found + 1e-4 * step, y)) for step in (*np.eye(2), *-np.eye(2))]
        assert max(ahead) <= here + 1e-7, "and end at a maximum"
        self.agreed.append(np.abs(found - theirs).max() < 1e-3)  # with several maxima scipy may reach another
        return found

    def in_force(self):
        move = STAY * np.eye(M) + (1 - STAY) / (M - 1) * (1 - np.eye(M))
        return move @ self.weights if self.switching else self.weights

    def block(self, Y, found):
        """Embed, weigh and learn rows that do not know one another, found at (B, M, 2); what is reported of each."""
        Y = (Y - self.offset) / self.scale
        for m in range(M):
            self.inverse[m] += self.ratio * len(Y) * self.prior[m] / self.noise[m] * np.eye(self.inverse.shape[1])
        reports, learned = [], []
        for y, places in zip(Y, found, strict=True):
            x = np.stack([self.place(m, y, places[m]) for m in range(M)])
            row, latent = np.array([self.density(m, x[m], y) for m in range(M)]).T
            weights = self.in_force()
            self.weights = weights * np.exp(row - row.max())
            self.weights /= self.weights.sum()
            self.log_joint += row + latent
            expert = int(np.argmax(np.log(weights) + row + latent))
            score = logsumexp(np.log(weights) + row) - np.sum(~np.isnan(y)) * math.log(self.scale)
            filled = np.stack([np.where(np.isnan(y), self.features(m, x[m]) @ self.mean[m], y) for m in range(M)])
            # A row with gaps has the noise of what is filled in: the variance of the row before it was learned.
            each = [self.features(m, x[m]) for m in range(M)]
            variances = [1 + phi @ self.inverse[m] @ phi if np.isnan(y).any() else 1.0 for m, phi in enumerate(each)]
            reports.append((x, expert, score, weights))
            learned.append((filled, variances))
        for (x, expert, *_), (filled, variances) in zip(reports, learned, strict=True):
            for m in range(M):
                phi, information = self.features(m, x[m]), np.linalg.inv(self.inverse[m])
                after = np.linalg.inv(information + np.outer(phi, phi) / variances[m])
                self.mean[m] = after @ (information @ self.mean[m] + np.outer(phi, filled[m]) / variances[m])
                self.inverse[m] = after
            self.rows.append(filled[expert])
            self.places.append(x)
        return reports


@pytest.mark.parametrize(("switching", "ratio", "block_size"), [(False, 0.01, 3), (True, 0.0, 1)])
def test_the_algorithm_is_the_papers(switching, ratio, block_size):
    model, Y = build(switching, ratio), table()
    model.start(torch.from_numpy(Y[:START]))
    dense = Dense(model, ratio, switching)
    found = model.update(torch.from_numpy(Y[START:]), block_size=block_size)
    reports = []
    for first in range(START, len(Y), block_size):
        there = slice(first - START, first - START + block_size)
        reports += dense.block(Y[first : first + block_size], found.by_expert[:, there].movedim(0, 1).numpy())
    places, experts, scores, weights = (np.stack(part) for part in zip(*reports, strict=True))
    assert np.mean(dense.agreed) > 0.7
    np.testing.assert_array_equal(found.expert, experts)
    np.testing.assert_allclose(found.log_prob, scores, atol=1e-8)
    np.testing.assert_allclose(found.log_weights.exp().mT, weights, atol=1e-8)
    np.testing.assert_allclose(found.embedding, places[np.arange(len(experts)), experts], atol=1e-12)
    np.testing.assert_allclose(model.factor @ model.factor.mT, dense.inverse, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(model.mean, dense.mean, atol=1e-7)
    np.testing.assert_allclose(model.log_joint, dense.log_joint, rtol=1e-9)
    np.testing.assert_allclose(model.store.rows[: len(Y)], np.stack(dense.rows), atol=1e-8)
    np.testing.assert_allclose(model.store.embedding[: len(Y)], np.stack(dense.places), atol=1e-12)

    # What is said without learning is said of the row that would come next.
    new = Y[START + 2 : START + 3] + 0.1
    later = model.transform(torch.from_numpy(new))
    back = model.inverse_transform(later.embedding, later.expert)
    expert = int(later.expert[0])
    phi = dense.features(expert, later.embedding[0].numpy())
    step = ratio * dense.prior[expert] / dense.noise[expert] * np.eye(len(phi))
    spread = dense.noise[expert] * (1 + phi @ (dense.inverse[expert] + step) @ phi) * dense.scale**2
    np.testing.assert_allclose(back.variance[0], np.full(D, spread), rtol=1e-8)
    np.testing.assert_allclose(back.mean[0], phi @ dense.mean[expert] * dense.scale + dense.offset, atol=1e-7)
    ((place, reported, score, _),) = dense.block(new, later.by_expert.movedim(0, 1).numpy())
    assert reported == expert
    np.testing.assert_allclose(later.embedding[0], place[expert], atol=1e-12)
    np.testing.assert_allclose(later.log_prob[0], score, atol=1e-8)
