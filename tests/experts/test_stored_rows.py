"""Experts that store rows, train, refit or count: what each keeps in an ensemble beside another expert.

Blocks, causality, prediction, missing targets, resumption and refused calls; their numbers have oracles of their own.
"""

import pytest
import torch

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.experts.structural import StructuralExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.meta_learners import FixedShare
from tests.experts import test_external, test_refitted

DUE = 40  # rows after which they are first trained or refitted
STEPS, SLOPE = torch.tensor([[0.1, 0.01, 1e-3]]).double(), torch.tensor([[0.02, 0.9]]).double()
KINDS = {
    "external": lambda: test_external.expert(first=DUE),
    "refitted": lambda: test_refitted.expert(first=DUE),
    "structural": lambda: StructuralExpert(STEPS, 6, 2, 40),
    "changing trend": lambda: StructuralExpert(STEPS, 6, 2, 40, SLOPE),
}
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def started(make, size=64):
    line = GaussianExpert(LinearFeatures(2, torch.ones((), dtype=torch.float64)))
    return OnlineEnsemble(Ensemble([line, make()], FixedShare(0.01)), block_size=size)


@each_kind
def test_a_target_changes_no_prediction_up_to_its_own(make):
    X, y = test_refitted.rows(180, gaps=False)
    first = started(make).observe(X, y).experts.mean
    for t in (DUE - 1, DUE, 139):
        other = y.clone()
        other[t] += 1.0
        second = started(make).observe(X, other).experts.mean
        torch.testing.assert_close(first[:, : t + 1], second[:, : t + 1], rtol=0, atol=1e-12, equal_nan=True)
        assert not torch.allclose(first[1:, t + 1 :], second[1:, t + 1 :])
