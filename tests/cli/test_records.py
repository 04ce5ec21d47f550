"""Configs as records: they agree with the presets, survive the trip through plain containers, and all files load."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from gp_ensembles import meta_learners as rules
from gp_ensembles.cli.config import load_config
from gp_ensembles.ensembles.bases import Basis, LinearBasis
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.ensembles.records import spec_from_plain, spec_to_plain
from gp_ensembles.ensembles.spec import SpeedSwitching

FOLDER = Path(__file__).resolve().parents[2] / "configs"
CONFIGS = sorted(FOLDER.rglob("*.yaml"))


def test_every_config_loads_and_survives_the_trip():
    for path in CONFIGS:
        plain = load_config(path).to_plain()
        assert spec_to_plain(spec_from_plain(plain["ensemble"])) == plain["ensemble"], path.stem
        assert yaml.safe_load(yaml.safe_dump(plain)) == plain, path.stem


def test_every_preset_and_family_has_a_config():
    names = {path.stem for path in CONFIGS}
    families = {
        f"{kind}_{family}" for kind in ("oe", "doe") for family in ("hsgp", "rff", "off", "rbf", "poly", "linear")
    }
    assert PRESETS.keys() | families | {"bma_all"} <= names
    for name, preset in PRESETS.items():
        assert spec_to_plain(load_config(FOLDER / f"{name}.yaml").ensemble) == spec_to_plain(preset)


RULES = [
    rules.BayesianModelAveraging(prune_below=1e-16), rules.DynamicModelAveraging(0.9), rules.FixedShare(0.1),
    rules.ExponentiatedGradient(0.2, 0.01), rules.SoftBayes(), rules.OnlineNewton(0.5),
    rules.DiscountedOnlineNewton(discount=0.9), SpeedSwitching(0.1),
    rules.CombinedRules([rules.SoftBayes(0.1), rules.FixedShare()], over=rules.FixedShare(0.2)),
]  # fmt: skip


def test_every_rule_has_a_name_and_keeps_its_settings():
    for rule in RULES:
        plain = spec_to_plain(replace(PRESETS["oebe"], rule=rule))
        again = spec_from_plain(plain)
        assert type(again.rule) is type(rule)
        assert spec_to_plain(again) == plain
        settings = {name: value for name, value in vars(rule).items() if isinstance(value, float)}
        assert all(getattr(again.rule, name) == value for name, value in settings.items())


def test_parts_of_the_users_own_have_no_name():
    class Mine(Basis):
        def build(self, X, *, generator=None):
            return LinearBasis().build(X)

    with pytest.raises(TypeError, match=r"Mine cannot be saved.*pickle.dump\(model, file\)"):
        spec_to_plain(replace(PRESETS["oebe"], bases=(Mine(),)))
    with pytest.raises(TypeError, match=r"one of \['FourierBasis'.*'RecurringBasis'\]$"):
        spec_to_plain(replace(PRESETS["oebe"], bases=(Mine(),)))  # bases only

    class Ours(rules.FixedShare):
        pass

    with pytest.raises(
        TypeError, match=r"Ours cannot be saved.* one of \['BayesianModelAveraging', 'Dynamic"
    ) as reported:
        spec_to_plain(replace(PRESETS["oebe"], rule=Ours()))
    assert "Basis'" not in str(reported.value)
    prior = rules.BayesianModelAveraging(torch.tensor([0.5, 0.5]))
    with pytest.raises(TypeError, match="prior weights"):
        spec_to_plain(replace(PRESETS["oebe"], rule=prior))


def test_nothing_that_is_read_imports_a_module(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("import pathlib\npathlib.Path(__file__).with_name('sprung').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("evil.M", "evil", "evil:M", "!!python/object/apply:evil.M"):
        for text in (
            f"ensemble: {{like: oebe, bases: ['{name}']}}",
            f"ensemble: {{class_path: '{name}'}}",
            f"ensemble: '{name}'",
            f"ensemble: {{like: oebe, target: {{'{name}': {{}}}}}}",
            f"ensemble: {{like: oebe, rule: {{class_path: '{name}', init_args: {{}}}}}}",
            f"warmup: {name}",
            f"class_path: {name}",
        ):
            file = tmp_path / "bad.yaml"
            file.write_text(text, encoding="utf-8")
            with pytest.raises(ValueError, match=r"bad\.yaml"):
                load_config(file)
        with pytest.raises(ValueError, match="evil"):
            spec_from_plain({"like": name})
    assert not (tmp_path / "sprung").exists()
