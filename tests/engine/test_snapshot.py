"""A rejected call leaves long windows as they were, whether rows would have been dropped or not."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.engine.state import named_tensors
from gp_ensembles.experts.window import BoundWindow, Refit, WindowExpert
from gp_ensembles.meta_learners import FixedShare
from gp_ensembles.numerics.cholesky import NumericalError

KEEP = 20


def rows(num_rows):
    X = torch.linspace(-1, 1, num_rows, dtype=torch.float64).unsqueeze(-1)
    return X, (5 * X).sin().squeeze(-1)


@pytest.mark.parametrize("refit", [None, Refit(every=15)])
@pytest.mark.parametrize(("before", "during"), [(3, 12), (25, 12), (30, 60)])
def test_a_call_that_fails_half_way_leaves_everything(monkeypatch, before, during, refit):
    X, y = rows(100)
    expert = WindowExpert(RBFKernel().double(), 1, KEEP, refit=refit)
    online = OnlineEnsemble(Ensemble([expert], FixedShare()), block_size=4)
    online.observe(X[:before], y[:before])
    want = [value.clone() for _, value in named_tensors(online.state)]
    stage, calls = BoundWindow.stage, []

    def failing(self, *arguments):
        calls.append(1)
        if len(calls) >= 3:
            raise NumericalError("nothing left")
        return stage(self, *arguments)

    monkeypatch.setattr(BoundWindow, "stage", failing)
    with pytest.raises(NumericalError):
        online.observe(X[before : before + during], y[before : before + during])
    for got, old in zip([value for _, value in named_tensors(online.state)], want, strict=True):
        assert torch.equal(got, old)
