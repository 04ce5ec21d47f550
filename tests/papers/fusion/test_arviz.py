"""Draws as ArviZ takes them: the arrays handed over, and where it is installed what it makes of them."""

import pytest
import torch

from gp_ensembles.papers.fusion import HMC, FourierPrior, LaplaceApproximation, PoGPE, fit_fusion
from gp_ensembles.papers.fusion.chees import HMCSettings
from gp_ensembles.papers.fusion.fitted import arviz_groups, to_arviz
from tests.papers.fusion.cases import F64, line, normal, quiet, seeded


@pytest.fixture(scope="module")
def fitted():
    X, prior = line(30), FourierPrior(torch.tensor([[1.0], [2.0]], dtype=F64))
    model = PoGPE(X, torch.sin(2 * X.squeeze(-1)) + 0.1 * normal(30), 2, prior, prior, prior)
    inference = HMC(num_chains=4, settings=HMCSettings(num_draws=30, num_warmup=60), start_iterations=20)
    with quiet():
        return fit_fusion(model, inference, generator=seeded(1))


def test_groups_have_chains_and_draws_first(fitted):
    groups = arviz_groups(fitted)
    blocks = groups["posterior"]
    assert set(blocks) == set(fitted.model.blocks)
    assert all(block.shape[:2] == (4, 30) for block in blocks.values())
    assert groups["log_likelihood"]["y"].shape == (4, 30, 30)
    joint = fitted.model.log_joint(fitted.posterior.chains.theta)
    assert torch.allclose(torch.as_tensor(groups["sample_stats"]["lp"]), joint)
    total = torch.as_tensor(groups["log_likelihood"]["y"]).sum(-1)
    assert torch.allclose(total, joint - fitted.model.log_prior(fitted.posterior.chains.theta))
    assert groups["observed_data"]["y"].shape == (30,)


@pytest.mark.filterwarnings("ignore:the posterior is far from normal")  # thirty rows; only the groups matter here
def test_an_inference_without_chains_is_one(fitted):
    quick = fit_fusion(fitted.model, LaplaceApproximation(num_draws=20), generator=seeded())
    groups = arviz_groups(quick)
    assert "sample_stats" not in groups
    assert all(block.shape[:2] == (1, 20) for block in groups["posterior"].values())


def test_arviz_takes_them(fitted):
    pytest.importorskip("arviz", reason="ArviZ is an optional extra")
    data = to_arviz(fitted)
    name = next(iter(fitted.model.blocks))
    assert data["posterior"][name].shape[:2] == (4, 30)
    assert data["sample_stats"]["lp"].shape == (4, 30)


def test_without_arviz_the_error_says_what_to_install(fitted, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "arviz", None)
    with pytest.raises(ImportError, match=r"gp_ensembles\[arviz\]"):
        to_arviz(fitted)
