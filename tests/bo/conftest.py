"""What all tests of Bayesian optimization share."""

import pytest
import torch
from botorch.acquisition.multi_objective import logei


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch):
    """BoTorch compiles a kernel the first time that a hypervolume improvement is asked for; its numbers need none."""
    monkeypatch.setattr(logei, "_load_attempted", True)


@pytest.fixture
def _repeatable():
    """The same draws in every test, of what takes no generator; torch's own is put back."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
