"""What embeddings are worth on real rows: the label of the nearest neighbor, beside principal components."""

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, KernelPCA

from gp_ensembles.data import load_folder
from gp_ensembles.papers.gplvm import ie_gplvm
from studies.ie_gplvm.neighbors import neighbor_error


def errors(X, label, num_rows, block_size):
    """Of the ensemble in one space and as reported, of principal components and of kernel principal components."""
    order = torch.randperm(len(label), generator=torch.Generator().manual_seed(0))[:num_rows]
    Y, label, first = X[order], label[order], num_rows // 10
    Y = Y[:, Y[:first].std(0) > 1e-9]
    model = ie_gplvm(Y.shape[1], generator=torch.Generator().manual_seed(0))
    start = model.start(Y[:first])
    later = model.update(Y[first:], block_size)
    one = torch.cat([start.by_expert, later.by_expert], 1)[model.best_expert]
    reported = torch.cat([start.embedding, later.embedding])
    gamma = 0.5 / float(torch.pdist(Y[:500]).square().median())
    others = [PCA(2, random_state=0), KernelPCA(2, kernel="rbf", gamma=gamma, random_state=0)]
    flat = [torch.tensor(other.fit_transform(Y.numpy())) for other in others]
    return [neighbor_error(X, label) for X in (one, reported, *flat)]


@pytest.mark.slow
@pytest.mark.processor
def test_digits_are_far_better_apart_than_by_principal_components():
    digits = load_digits()
    one, _, flat, kernel = errors(torch.tensor(digits.data), torch.tensor(digits.target), 900, block_size=20)
    assert one < 0.1
    assert min(flat, kernel) > 0.35


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_rows", "block_size", "best", "worst"),
    [("oil_flow", 1000, 1, 0.02, 0.1), ("usps_0to4", 1500, 30, 0.06, 0.2), ("mnist_5k", 1500, 30, 0.3, 0.5)],
)
def test_tables_are_far_better_apart_than_by_principal_components(shared, name, num_rows, block_size, best, worst):
    table = load_folder(shared / "data", name)
    one, reported, flat, kernel = errors(table.X, table.y, num_rows, block_size)
    assert one <= best
    assert min(flat, kernel) > worst
    if name == "oil_flow":
        assert reported <= 0.03
