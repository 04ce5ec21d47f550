"""Files hold the rows of a window that are in use; a model goes on from them to the bit."""

from dataclasses import replace

import pytest
import torch

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.extra_experts import WindowGP
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.content import packed, unpacked

WINDOWS = (WindowGP(num_rows=40), WindowGP(num_rows=30, refit_every=50, name="refitted"))
SPEC = replace(oebe, bases=(LinearBasis(),), extra_experts=WINDOWS)


def rows(num_rows=200):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    return X, (3 * X[:, 0]).sin() + 0.1 * torch.randn(num_rows, generator=generator, dtype=torch.float64)


def model(num_rows, dtype="float64"):
    X, y = rows()
    one = OnlineModel(StreamConfig(SPEC, warmup=35, dtype=dtype))
    one.observe(X[:num_rows], y[:num_rows])
    return one


@pytest.mark.processor
@pytest.mark.parametrize(  # 59 and 79 rows fill the windows
    ("num_rows", "dtype"), [(36, "float64"), (79, "float32"), (80, "float64"), (150, "float64")]
)
def test_a_model_goes_on_to_the_bit(num_rows, dtype, tmp_path):
    X, y = rows()
    one = model(num_rows, dtype)
    one.save(tmp_path / "model.pt")
    other = OnlineModel.load(tmp_path / "model.pt")
    for (name, saved), loaded in zip(one.online.state_dict().items(), other.online.state_dict().values(), strict=True):
        assert torch.equal(saved, loaded), name
    want = one.observe(X[num_rows:], y[num_rows:])
    assert torch.equal(other.observe(X[num_rows:], y[num_rows:]).log_prob, want.log_prob)


def test_a_factor_of_another_form_is_kept_whole_and_one_that_does_not_fit_refused():
    one = model(60)
    window = next(part for part in one.online.state.experts if hasattr(part, "factor"))
    name = next(name for name in one.online.state_dict() if name.endswith("_factor"))
    saved = packed(one.online)
    with pytest.raises(RuntimeError, match="the factor of 60 rows of a window of 80 does not fit"):
        unpacked(one.online, {**saved, name: saved[name][..., 1:]})
    window.factor[..., 0, 5] = 1e-300  # above the diagonal, where nothing should be
    saved = packed(one.online)
    assert torch.equal(saved[name], window.factor)
    assert torch.equal(unpacked(one.online, saved)[name], window.factor)
