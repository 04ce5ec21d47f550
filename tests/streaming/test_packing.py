"""Files hold the rows of a window that are in use and the state of inputs; a model goes on from them to the bit."""

from dataclasses import replace

import pytest
import torch

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.extra_experts import WindowGP
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.columns import Columns
from gp_ensembles.streaming.content import packed, unpacked
from gp_ensembles.streaming.inputs import InputPath, InputState

WARMUP, INPUTS = 40, 4
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


def gappy() -> tuple[torch.Tensor, torch.Tensor]:
    """Gaps, a column without any value in the warm-up, and one that persists."""
    generator = torch.Generator().manual_seed(3)
    X = torch.randn(WARMUP, INPUTS, generator=generator, dtype=torch.float64)
    X[torch.rand(WARMUP, INPUTS, generator=generator) < 0.1] = torch.nan
    X[:, 1], X[:, 2] = X[:, 0].nan_to_num().cumsum(0), torch.nan
    return X, X[:, 0].nan_to_num() + torch.randn(WARMUP, generator=generator, dtype=torch.float64)


def test_columns_and_states_are_read_back_as_they_were_packed():
    X, y = gappy()
    for config in (StreamConfig(oebe), StreamConfig(oebe, limit_inputs=False)):
        columns = Columns.of(config, X[:WARMUP], y[:WARMUP], [f"column {j}" for j in range(INPUTS)])
        state = InputPath(config, columns).warm_up(X[:WARMUP]).state
        again = InputState.unpacked(state.packed(), INPUTS)
        for one, other in zip(
            (state.num_rows, *state.gaps, *state.inactive_columns),
            (again.num_rows, *again.gaps, *again.inactive_columns),
            strict=True,
        ):
            assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
        assert all(map(torch.equal, (state.effect, *state.within), (again.effect, *again.within)))
        numbers = Columns.unpacked(columns.packed())
        assert all(map(torch.equal, numbers.scales, columns.scales))
        assert torch.equal(numbers.inactive, columns.inactive)
        assert torch.equal(numbers.imputation.used, columns.imputation.used)
