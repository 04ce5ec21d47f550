"""Rows without a target are left out: every model is that of the other rows."""

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import ModelListGP
from gpytorch.kernels import RBFKernel
from torch import nan

from gp_ensembles import EnsembleModel, ExactEnsembleModel, select_knots
from gp_ensembles.papers.fusion import (
    BHS,
    PBHS,
    ExpertPredictions,
    FourierPrior,
    HetGP,
    LaplaceApproximation,
    fit_fusion,
)
from gp_ensembles.papers.rows import check_rows
from gp_ensembles.papers.sparse import ExactGP

X = torch.rand(24, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = (5 * X).sin().sum(-1, keepdim=True)
GONE = torch.arange(24) % 5 == 3
HOLES = Y.masked_fill(GONE.unsqueeze(-1), nan)
AT = X + 0.01


def moments(model):
    with torch.no_grad():
        found = model.posterior(AT, observation_noise=True)
    return found.mean.flatten(), found.variance.flatten()


def fused(rows, y):
    prior = FourierPrior(torch.ones_like(X[:3]))
    return fit_fusion(HetGP(rows, y, prior, prior), LaplaceApproximation(num_draws=20), generator=source())


def source():
    return torch.Generator().manual_seed(1)


def tails(rows, y):
    found = select_knots(rows, y.squeeze(-1), generator=source()).predict(AT)
    return found.mean, found.variance


DOORS = {
    "exact": lambda rows, y: moments(ExactEnsembleModel(rows, y).fit()),
    "exact, known noise": lambda rows, y: moments(ExactEnsembleModel(rows, y, 0.01 + 0 * y).fit()),
    "exact, data sets": lambda rows, y: moments(ExactEnsembleModel(torch.stack([rows, 1 - rows]), y.expand(2, -1, -1))),
    "experts": lambda rows, y: moments(EnsembleModel(rows, y, generator=source())),
    "exact, two outputs": lambda rows, y: moments(ExactEnsembleModel(rows, torch.cat([y, -y], -1)).fit()),
    "every row a knot": lambda rows, y: moments(ExactGP(rows, y, RBFKernel().double())),
    "knots": tails,
    "fusion": lambda rows, y: fused(rows, y.squeeze(-1)).predict(AT)[:2],
}


@pytest.mark.parametrize("name", DOORS)
def test_rows_without_a_target_are_left_out(name):
    wanted = DOORS[name](X[~GONE], Y[~GONE])
    found = DOORS[name](X.masked_fill(GONE.unsqueeze(-1), nan) if name != "exact" else X, HOLES)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("make", [ExactEnsembleModel, lambda x, y: EnsembleModel(x, y, generator=source())])
def test_later_rows_without_a_target_are_left_out(make):
    model = make(X[:10], Y[:10])
    wanted = moments(model.condition_on_observations(X[10:][~GONE[10:]], Y[10:][~GONE[10:]]))
    torch.testing.assert_close(moments(model.condition_on_observations(X[10:], HOLES[10:])), wanted)
    torch.testing.assert_close(moments(model.condition_on_observations(X[3:4], HOLES[3:4])), moments(model))
    with pytest.raises(InputDataError, match="Y is nan in row 0"):
        model.condition_on_observations(X[3:4].expand(2, 1, 2), HOLES[3:4].expand(2, 1, 1))
    both = ModelListGP(make(X[:10], Y[:10]), make(X[:10], -Y[:10]))
    other = both.condition_on_observations([X[10:12]] * 2, torch.cat([Y[10:12], HOLES[12:14]], -1))
    assert [len(one.train_targets) for one in other.models] == [12, 11]


@pytest.mark.parametrize("model", [BHS, PBHS])
def test_predictions_of_rows_without_a_target_are_left_out(model):
    table = ExpertPredictions(torch.cat([X, -X], -1).mT, torch.ones(4, 24).double(), torch.ones(4, 24).double())
    some = ExpertPredictions(*(part[:, ~GONE] for part in table))
    y = Y.squeeze(-1)
    for found, wanted in (
        (model(X, HOLES, table), model(X[~GONE], y[~GONE], some)),
        (model(X, HOLES, each(table)), model(X[~GONE], y[~GONE], each(some))),
    ):
        theta = found.draw_prior(3, generator=source())
        torch.testing.assert_close(found.log_joint(theta), wanted.log_joint(theta), rtol=1e-10, atol=1e-10)


def each(table):
    return [ExpertPredictions(*(part[k : k + 1] for part in table)) for k in range(4)]


def test_what_cannot_be_learned_is_refused():
    nothing, endless = HOLES * nan, HOLES.index_fill(0, torch.tensor([4]), torch.inf)
    for make in (ExactEnsembleModel, EnsembleModel):
        with pytest.raises(InputDataError, match="none of the 24 rows has a target"):
            make(X, nothing)
        with pytest.raises(InputDataError, match="train_Y is inf in row 4"):
            make(X, endless)
    for make in (select_knots, check_rows):
        with pytest.raises(ValueError, match="all 24 targets are missing"):
            make(X, nothing)
        with pytest.raises(ValueError, match=r"targets must be finite, but targets\[4, 0\] is inf"):
            make(X, endless)
    with pytest.raises(InputDataError, match="some targets of row 3 are missing"):
        ExactEnsembleModel(X, torch.cat([HOLES, Y], -1))
    with pytest.raises(InputDataError, match="some targets of row 3 are missing"):
        ExactEnsembleModel(X.expand(2, -1, -1), torch.stack([HOLES, Y]))


NOTHING = {
    "exact": lambda x, y: ExactEnsembleModel(x, y).fit(),
    "experts": lambda x, y: EnsembleModel(x, y, generator=source()),
    "knots": lambda x, y: select_knots(x, y, generator=source()),
}


@pytest.mark.parametrize("door", NOTHING)
def test_a_fit_to_noise_alone_says_so(door):
    """White noise of 500 rows, which no function of one input explains by more than a few in a hundred."""
    numbers = torch.Generator().manual_seed(0)
    x, noise = (draw(500, 1, dtype=torch.float64, generator=numbers) for draw in (torch.rand, torch.randn))
    with pytest.warns(UserWarning, match=r"the fit explains [0-2]\.\d% of the variance"):
        NOTHING[door](x, noise)
    NOTHING[door](x, noise + (4 * x).sin())  # a third of the variance: no warning, which would be an error
