"""Configs as records: they agree with the presets, survive the trip through plain containers, and all files load."""

import inspect
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from gp_ensembles.cli.baselines import Baselines, fill_forward
from gp_ensembles.cli.config import StreamConfig, from_plain, load_config, to_plain
from gp_ensembles.cli.dictionaries import DIEGP, DSIEGP, IEGP, SIEGP
from gp_ensembles.cli.models import DOEBE, EDOEBE, OEBE, SDOEBE, SOEBE, GradientSteps, QuasiNewton
from gp_ensembles.ensembles import presets
from gp_ensembles.ensembles.bases import FourierBasis, LinearBasis, PolynomialBasis, RadialBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.targets import RealTarget

MODELS = [OEBE, DOEBE, SOEBE, SDOEBE, EDOEBE, IEGP, SIEGP, DIEGP, DSIEGP]
FOLDER = Path(__file__).resolve().parents[2] / "configs"
OF_REPRODUCE = {
    *FOLDER.glob("maskerade_table_*.yaml"),
    *FOLDER.glob("knots_*.yaml"),
    *FOLDER.glob("fusion_figure_*.yaml"),
    FOLDER / "ie_gp_figure_7.yaml",
}
CONFIGS = sorted(set(FOLDER.glob("*.yaml")) - OF_REPRODUCE)


@pytest.mark.parametrize("model", MODELS)
def test_records_have_the_settings_and_defaults_of_their_presets(model):
    preset = inspect.signature(getattr(presets, model().name)).parameters
    ours = {field.name: field.default for field in fields(model)}
    theirs = {name: p.default for name, p in preset.items() if name not in ("X", "y", "generator", "progress")}
    assert set(ours) == set(theirs)
    assert {name: value for name, value in ours.items() if name not in ("fit", "target")} == {
        name: value for name, value in theirs.items() if name not in ("fit", "target")
    }
    assert model().kind == theirs["target"] == RealTarget()
    num_samples = 1 if model in (IEGP, SIEGP, DIEGP, DSIEGP) else FitSettings().num_samples
    assert theirs["fit"] == FitSettings(num_samples=num_samples)
    assert QuasiNewton(num_samples=num_samples).settings() == theirs["fit"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_loads_and_survives_the_trip(path):
    config = load_config(path)
    assert from_plain(to_plain(config)) == config


def test_every_preset_and_family_has_a_config():
    names = {path.stem for path in CONFIGS}
    families = {f"{kind}_{family}" for kind in ("oe", "doe") for family in ("hsgp", "rff", "rbf", "poly", "linear")}
    assert {model().name for model in MODELS} | families | {"bma_all"} <= names
    for model in MODELS:
        assert load_config(next(p for p in CONFIGS if p.stem == model().name)).model == model()


def test_nested_records_survive_the_trip():
    bases = (LinearBasis(), PolynomialBasis((2, 5)), FourierBasis(50, 1.5), RadialBasis(7, (0.5,)))
    config = StreamConfig(SOEBE(bases, GradientSteps(num_steps=3), 0.9), 77, 5, "cpu", "float32", 9, True)
    assert from_plain(to_plain(config)) == config


@pytest.mark.parametrize("model", MODELS)
def test_structure_alone_takes_the_state_of_a_fitted_model(model):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    y = X[:, 0] + 0.1 * torch.randn(60, generator=generator, dtype=torch.float64)
    settings = {"fit": QuasiNewton(max_iterations=2, num_samples=2)}
    if "bases" in {field.name for field in fields(model)}:
        settings["bases"] = (LinearBasis(), FourierBasis(6), RadialBasis(4))
    else:
        settings["num_features"] = 6
    record = model(**settings)
    fitted, empty = (
        record.build(X, y, structure_only=only, generator=torch.Generator().manual_seed(1), progress=False)
        for only in (False, True)
    )
    empty.load_state_dict(fitted.state_dict())
    assert fitted.names == empty.names
    assert torch.equal(fitted.observe(X[:9], y[:9]).log_prob, empty.observe(X[:9], y[:9]).log_prob)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: StreamConfig(warmup=3), "warmup"),
        (lambda: StreamConfig(seed=-1), "seed"),
        (lambda: StreamConfig(block_size=0), "block_size"),
        (lambda: StreamConfig(device="abacus").check_device(), "abacus"),
        (lambda: StreamConfig(device="meta").check_device(), "meta"),
        (lambda: QuasiNewton(num_samples=0).settings(), "num_samples"),
        (lambda: GradientSteps(prior_precision=0.0).settings(), "prior_precision"),
    ],
)
def test_numbers_out_of_range_are_named(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_gaps_are_filled_with_the_last_number():
    nan = torch.nan
    values = torch.tensor([1.0, nan, nan, 4.0, nan], dtype=torch.float64)
    assert fill_forward(values).tolist() == [1, 1, 1, 4, 4]


def test_baselines_in_blocks_equal_baselines_in_one_go():
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(80, 2, generator=generator, dtype=torch.float64)
    y = X[:, 0] + torch.randn(80, generator=generator, dtype=torch.float64)
    y[[5, 33, 34]] = torch.nan
    whole, cut = Baselines(X[:30], y[:30]), Baselines(X[:30], y[:30])
    together = whole.observe(X[30:], y[30:])
    parts = [cut.observe(X[a:b], y[a:b]) for a, b in ((30, 34), (34, 35), (35, 80))]
    for name, normal in together.items():
        for field in ("mean", "variance"):
            pieces = torch.cat([getattr(part[name], field) for part in parts])
            torch.testing.assert_close(getattr(normal, field), pieces, rtol=1e-9, atol=1e-9)
