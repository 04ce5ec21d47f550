"""Ctrl-C while something is trained anew: nothing has changed, and the stream goes on to the same numbers."""

import copy
import signal
from dataclasses import replace

import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.external_models import Boosting
from gp_ensembles.ensembles.extra_experts import Refitted, WindowGP
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.experts import empirical_bayes, refitted, window
from gp_ensembles.streaming import OnlineModel, StreamConfig

WARM, DUE = 40, 80  # rows after which they are trained; trees when they are asked next
RECORDS = {
    "boosting": Boosting(5, every=40),
    "window": WindowGP(num_rows=30, refit_every=40),
    "refitted": Refitted(every=40, num_rows=60),
}


def rows(num_rows=100):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    return X, (2 * X[:, 0]).sin() + 0.1 * torch.randn(num_rows, generator=generator, dtype=torch.float64)


def interrupted(monkeypatch, name):
    """The interrupt key is pressed in the middle of the next training; how often that was."""
    pressed = []

    def press():
        if not pressed:
            pressed.append(name)
            signal.raise_signal(signal.SIGINT)

    if name == "boosting":
        trees = HistGradientBoostingRegressor.fit

        def train(self, *arguments):
            trained = trees(self, *arguments)
            press()
            return trained

        monkeypatch.setattr(HistGradientBoostingRegressor, "fit", train)
        return pressed

    def climbing(expert, evidence, *arguments):
        evaluated = []

        def counted():
            evaluated.append(True)
            if len(evaluated) == 3:
                press()
            return evidence()

        return empirical_bayes.gradient_ascent(expert, counted, *arguments)

    for module in (window, refitted):
        monkeypatch.setattr(module, "gradient_ascent", climbing)
    return pressed


PAIRS = [(name, size) for name in RECORDS for size in (1, 7, 60)]
FAST = [("boosting", 60), ("window", 1), ("refitted", 7)]


@pytest.mark.parametrize(
    ("name", "size"), [pytest.param(*pair, marks=() if pair in FAST else pytest.mark.slow) for pair in PAIRS]
)
def test_nothing_is_lost(name, size, monkeypatch):
    X, y = rows()
    extra_experts = tuple(replace(record, name=key) for key, record in RECORDS.items())
    plain = OnlineModel(StreamConfig(replace(oebe, bases=(LinearBasis(),), extra_experts=extra_experts), warmup=WARM))
    plain.observe(X[:WARM], y[:WARM])
    stopped = copy.deepcopy(plain)
    want = [plain.observe(X[t : t + size], y[t : t + size]).log_prob for t in range(WARM, len(y), size)]
    pressed = interrupted(monkeypatch, name)
    got, start = [], WARM
    while start < len(y):
        before = {key: value.clone() for key, value in stopped.online.state_dict().items()}
        try:
            got.append(stopped.observe(X[start : start + size], y[start : start + size]).log_prob)
            start += size
        except KeyboardInterrupt:
            after = stopped.online.state_dict()
            assert all(torch.equal(value.nan_to_num(), before[key].nan_to_num()) for key, value in after.items())
            assert stopped.num_rows == start
            assert any(start <= due <= start + size for due in (WARM, DUE))
    assert pressed == [name]
    assert torch.equal(torch.cat(got), torch.cat(want))
