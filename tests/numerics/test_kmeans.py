"""K-means against all partitions of a few rows, and against scikit-learn's on many."""

from itertools import product

import pytest
import torch
from sklearn.cluster import KMeans

from gp_ensembles.numerics.kmeans import kmeans


def normals(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inertia(X, centers):
    return float(torch.cdist(X, centers).amin(1).square().sum())


def test_a_few_rows_have_the_best_partition():
    for seed in range(5):
        X = normals(seed, 6, 2)
        partitions = [torch.tensor(labels) for labels in product(range(3), repeat=6) if set(labels) == {0, 1, 2}]
        best = min(inertia(X, torch.stack([X[labels == k].mean(0) for k in range(3)])) for labels in partitions)
        found = min(inertia(X, kmeans(X, 3, generator=torch.Generator().manual_seed(draw))) for draw in range(40))
        assert found == pytest.approx(best, rel=1e-12)


def test_each_center_is_the_mean_of_the_rows_nearest_to_it():
    X = normals(0, 200, 3)
    centers = kmeans(X, 12, generator=torch.Generator().manual_seed(1))
    nearest = torch.cdist(X, centers).argmin(1)
    torch.testing.assert_close(centers, torch.stack([X[nearest == k].mean(0) for k in range(12)]))


def test_clusters_are_as_tight_as_those_of_scikit_learn():
    """On average: single runs differ by up to a tenth either way, so the mean of twelve by up to .03."""
    ratios = []
    for seed in range(12):
        X = normals(seed, 300, 4) * normals(100 + seed, 4).exp() + 4 * (normals(200 + seed, 300, 1) > 0)
        theirs = KMeans(40, n_init=1, random_state=seed).fit(X.numpy()).inertia_
        ratios.append(inertia(X, kmeans(X, 40, generator=torch.Generator().manual_seed(seed))) / theirs)
    assert sum(ratios) / len(ratios) < 1.03


def test_wrong_arguments():
    X = normals(6, 6, 2)
    with pytest.raises(ValueError, match="5 centers need as many distinct rows, X has 3"):
        kmeans(X[:3].repeat(4, 1), 5)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        kmeans(X, 0)
    with pytest.raises(ValueError, match=r"shape \(N, D\)"):
        kmeans(X.reshape(2, 3, 2), 2)
