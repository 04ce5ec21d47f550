"""What is too large is refused in one sentence, before memory is taken for it."""

import gzip
import itertools

import pytest
import torch

from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.named_configs import refuse_odd_yaml
from gp_ensembles.cli.running import is_memory_full, one_sentence
from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.ensembles import build
from gp_ensembles.ensembles.bases import FourierBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.meta_learners import FixedShare
from gp_ensembles.numerics import arguments
from gp_ensembles.tables import open_rows, text


def test_aliases_that_stand_for_too_much_are_refused(tmp_path, refused):
    letters = "abcdefghij"
    lines = [f"{new}: &{new} [{','.join(['*' + old] * 9)}]" for old, new in itertools.pairwise(letters)]
    (tmp_path / "laughs.yaml").write_text("\n".join(["a: &a [1,2,3]", *lines, "ensemble: *j", ""]))
    (tmp_path / "itself.yaml").write_text("ensemble: &a [1, *a]\n")
    (tmp_path / "fine.yaml").write_text("base: &b {LinearBasis: {}}\nensemble: {like: oebe, bases: [*b, *b]}\n")
    (tmp_path / "long.yaml").write_text("warmup: 50\n" + "# so it goes\n" * 100_000)
    (tmp_path / "a.csv").write_text("a,y\n" + "1,2\n" * 40)
    expands = "its aliases expand to"
    for name, words in (("laughs", expands), ("itself", expands), ("long", "1000000 bytes")):
        config = str(tmp_path / f"{name}.yaml")
        refused(main(["stream", str(tmp_path / "a.csv"), "--target", "y", "--config", config]), words)
    refuse_odd_yaml(tmp_path / "fine.yaml")


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_without_an_end_is_no_table(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(text, "LONGEST", 200_000)
    content = b"a,y\n" + b"1,2\n" * 50 + b"0" * 300_000 + b",1\n"
    path = tmp_path / "long.csv"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ValueError, match=r"long.csv, after line 52: .* line 52 has more than 199999 characters"):
        for _ in open_rows(path, "y", num_warm_up=20):
            pass


def test_a_quotation_mark_that_is_left_open_is_named(tmp_path):
    path = tmp_path / "open.csv"
    path.write_text("a,y\n" + "1,2\n" * 50 + '"' + "1,2\n" * 50_000)
    with pytest.raises(ValueError, match="check for an unclosed quotation mark"):
        for _ in open_rows(path, "y", num_warm_up=20):
            pass


def test_what_a_machine_cannot_hold_is_refused_before_it_is_begun(monkeypatch):
    monkeypatch.setattr(arguments, "memory_of", lambda device: 1_000_000)
    X = torch.randn(50, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wide = [("rff", FourierBasis(num_features=500).build(X, generator=None)[0][1])]
    with pytest.raises(ValueError, match=r"rff.* with 500 features would take .* GB too little; take fewer features"):
        build.fitted_experts(wide, X, X[:, 0], oebe.fit_settings, None, False)
    experts = [GaussianExpert(LinearFeatures(1, torch.ones(50, dtype=torch.float64)))]
    ensemble = OnlineEnsemble(Ensemble(experts, FixedShare()))
    before = {name: value.clone() for name, value in ensemble.state_dict().items()}
    rows = torch.zeros(20_000, 1, dtype=torch.float64)
    words = r"the predictions of 50 experts for 20000 rows do not fit into memory; pass at most 250 rows per call"
    with pytest.raises(ValueError, match=words):
        ensemble.observe(rows, rows[:, 0])
    assert all(torch.equal(value, ensemble.state_dict()[name]) for name, value in before.items())


def test_full_memory_is_a_sentence():
    words = "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: 9600480000 bytes"
    error = RuntimeError(words)
    assert is_memory_full(error)
    assert one_sentence(error).startswith("not enough memory; use fewer features")
    assert not is_memory_full(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
