"""Synthetic sets: the truth they carry is the law they follow."""

import math

import pytest
import torch

from gp_ensembles.data import available, drifting_sensor, friedman1, friedman2, load
from gp_ensembles.data.synthetic import switching_gps
from tests.refusals import refused


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


DRAWS = {
    "friedman1": lambda n, noise, g: friedman1(n, noise, generator=g),
    "friedman2": lambda n, noise, g: friedman2(n, noise, generator=g),
    "switching_gps": lambda n, noise, g: switching_gps(n, noise=noise, generator=g),
    "drifting_sensor": lambda n, noise, g: drifting_sensor(n, noise=noise, generator=g),
}
every_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


@every_draw
def test_residuals_have_the_variance_that_is_told(draw):
    made = draw(1500, 0.3, seeded())
    residual = (made.table.y - made.truth)[~made.table.y.isnan()]
    assert made.noise_variance == pytest.approx(0.09)
    # The mean of n squared normals has relative deviation sqrt(2 / n), 4 % here.
    assert float(residual.square().mean()) == pytest.approx(0.09, rel=0.16)
    assert float(residual.mean()) == pytest.approx(0, abs=4 * 0.3 / math.sqrt(len(residual)))
    made = draw(50, 0.0, seeded())
    seen = ~made.table.y.isnan()
    assert torch.equal(made.table.y[seen], made.truth[seen])


@every_draw
@pytest.mark.parametrize(("num_rows", "noise"), [(0, 0.1), (50, -1.0), (50, math.nan)])
def test_impossible_sizes(draw, num_rows, noise):
    with pytest.raises(ValueError, match=r"row|noise"):
        draw(num_rows, noise, seeded())


def test_friedman_values():
    made = friedman1(40, generator=seeded())
    for x, value in zip(made.table.X.tolist(), made.truth.tolist(), strict=True):
        expected = 10 * math.sin(math.pi * x[0] * x[1]) + 20 * (x[2] - 0.5) ** 2 + 10 * x[3] + 5 * x[4]
        assert value == pytest.approx(expected, rel=1e-12)
    made = friedman2(4000, generator=seeded())
    for x, value in zip(made.table.X.tolist()[:40], made.truth.tolist(), strict=False):
        assert value == pytest.approx(math.hypot(x[0], x[1] * x[2] - 1 / (x[1] * x[3])), rel=1e-12)
    low, high = made.table.X.amin(0), made.table.X.amax(0)
    limits = low.new_tensor([[0, 40 * math.pi, 0, 1], [100, 560 * math.pi, 1, 11]])
    assert bool((low >= limits[0]).all() and (high <= limits[1]).all())
    torch.testing.assert_close(torch.stack([low, high]), limits, rtol=0.05, atol=0.1)


def test_segments_have_their_own_length_scales():
    made = switching_gps(900, lengthscales=(2.0, 0.05, 2.0), noise=0.0, generator=seeded())
    assert made.parts["segment"].bincount().tolist() == [300, 300, 300]
    assert bool((made.parts["segment"].diff() >= 0).all())
    assert made.parts["lengthscale"][[0, 299, 300, 599, 600]].tolist() == [2.0, 2.0, 0.05, 0.05, 2.0]
    slopes = []
    for segment in range(3):
        rows = made.parts["segment"] == segment
        order = made.table.X[rows, 0].argsort()
        slopes.append(float(made.truth[rows][order].diff().abs().mean()))
    assert slopes[1] > 5 * max(slopes[0], slopes[2])
    # The first and third are different functions, for all their common length scale.
    first, third = made.parts["segment"] == 0, made.parts["segment"] == 2
    assert not torch.allclose(made.truth[first].mean(), made.truth[third].mean(), atol=1e-3)


def test_segments_need_rows():
    assert switching_gps(5, lengthscales=(1.0, 2.0), generator=seeded()).parts["segment"].tolist() == [0, 0, 0, 1, 1]
    with pytest.raises(ValueError, match="3 rows are fewer than the 4 segments"):
        switching_gps(3)
    for scales in ((), (1.0, 0.0)):
        with pytest.raises(ValueError, match="must be positive"):
            switching_gps(10, lengthscales=scales)


def test_the_sensor_drifts_jumps_and_falls_silent():
    made = drifting_sensor(400, 250, gap=(100, 140), noise=0.0, generator=seeded())
    assert made.table.y.isnan().nonzero().flatten().tolist() == list(range(100, 140))
    assert bool(made.truth.isfinite().all())
    assert made.parts["offset"].diff().nonzero().flatten().tolist() == [249]
    assert float(made.parts["gain"][0]) == 1.0
    torch.testing.assert_close(made.parts["gain"].diff(), torch.full_like(made.parts["gain"][1:], 0.5 / 400))
    load_, temperature = made.table.X.unbind(1)
    response = torch.sin(2 * math.pi * load_) + load_ * temperature
    torch.testing.assert_close(made.truth, made.parts["gain"] * response + made.parts["offset"])
    assert made.table.feature_names == ("load", "temperature")
    usual = drifting_sensor(200, generator=seeded())
    assert int(usual.table.y.isnan().sum()) == 20
    assert usual.parts["offset"].diff().nonzero().flatten().tolist() == [99]


@pytest.mark.parametrize(
    "places", [{"jump_at": -1}, {"jump_at": 51}, {"gap": (-1, 3)}, {"gap": (5, 3)}, {"gap": (5, 51)}]
)
def test_the_sensor_keeps_to_its_rows(places):
    with pytest.raises(ValueError, match="lies outside the 50 rows"):
        drifting_sensor(50, **places)


def test_the_registry_loads_every_name():
    pytest.importorskip("river")
    names = available()
    assert names == sorted(set(names))
    assert {*DRAWS, "trump_approval"} <= set(names)
    for name in names:
        table, again = load(name), load(name)
        assert table.name == name
        assert torch.equal(table.X, again.X)
        assert torch.equal(table.y.nan_to_num(), again.y.nan_to_num())


@pytest.mark.parametrize(
    ("name", "message"), [("fridman1", "did you mean friedman1"), ("zzzz", "there are airline_passengers, ")]
)
def test_unknown_names(name, message):
    refused(ValueError, message, lambda: load(name))
