"""Structure that a fit misses, against correlations that are known, and streams of noise."""

from dataclasses import replace

import pytest
import torch

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.fleet import Fleet
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.health import health
from gp_ensembles.streaming.missed_structure import missed_share

LINES = StreamConfig(replace(oebe, bases=(LinearBasis(),)), warmup=300)


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def wave(X, noise, seed=1):
    return (50 * X[:, 0] + 30 * X[:, 1]).sin() + noise * draws(len(X), seed=seed)


@pytest.mark.parametrize("correlation", [0.4, 0.7, 0.95])
def test_what_neighbors_have_in_common_is_their_correlation(correlation):
    """Each two rows have the same inputs, and targets of a known correlation; of heavy tails, which do not matter."""
    X = draws(500, 2).repeat_interleave(2, dim=0)
    common, own = draws(500, seed=1).repeat_interleave(2), draws(1000, seed=2)
    y = correlation**0.5 * common + (1 - correlation) ** 0.5 * own
    for target in (y, 3 + y.sinh()):
        predicted = torch.full_like(y, float(target.mean()))
        assert missed_share(X, target, predicted) == pytest.approx(correlation, abs=0.08)
        assert missed_share(X * torch.tensor([1e6, 1e-6]), target, predicted) == missed_share(X, target, predicted)
        assert missed_share(X, target, target - 0.5 * own) == 0  # explained
    seen = torch.cat([y, y.new_full((7,), torch.nan)])
    rows = torch.cat([X, X[:7]])
    assert missed_share(rows, seen, torch.zeros_like(seen)) > 0.9 * correlation - 0.05


def test_noise_is_no_structure():
    found = []
    for seed in range(200):
        num_rows, num_columns = (30, 100, 300)[seed % 3], (1, 2, 8)[seed // 3 % 3]
        X, y = draws(num_rows, num_columns, seed=seed), draws(num_rows, seed=1000 + seed)
        X = (X.round(), X, X.cumsum(0))[seed % 2 + seed % 5 // 4]
        found.append(missed_share(X, y.exp() if seed % 4 == 0 else y, torch.zeros_like(y)))
    assert sum(share > 0 for share in found) <= 2


def test_a_fit_that_misses_a_function_says_so_and_one_of_noise_does_not(tmp_path):
    X = torch.rand(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.warns(
        UserWarning, match="explains almost none .* similar inputs share .* of it: it missed a function"
    ) as seen:
        model = OnlineModel(LINES).fit(X, wave(X, 0.2))
    assert seen[0].filename == __file__
    model.save(tmp_path / "model")
    for known in (model, OnlineModel.load(tmp_path / "model")):
        found = {finding.name: finding for finding in health(known)}["share missed"]
        assert not found.ok
        assert "add WindowGP" in found.meaning
    quiet = OnlineModel(LINES).fit(X, draws(300))  # pytest makes warnings errors
    assert quiet.anomaly_counts.share_missed == 0
    line = OnlineModel(LINES).fit(X, X[:, 0] + 0.2 * wave(X, 1.0))  # most of it is found
    assert line.anomaly_counts.share_missed == 0


def test_a_fleet_names_series_whose_function_is_missed():
    X = torch.rand(900, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    names, noise = [row % 3 for row in range(900)], draws(900)
    y = torch.where(torch.arange(900) % 3 == 1, wave(X, 0.2), noise)
    with pytest.warns(UserWarning, match="^1 of 3 series that were checked, such as 1: the fit explains") as seen:
        Fleet(LINES.ensemble, warmup=300).observe(names, X, y)
    assert seen[0].filename == __file__
    Fleet(LINES.ensemble, warmup=300).observe(names, X, noise)
