"""What all tests of Bayesian optimization share."""

import pytest
from botorch.acquisition.multi_objective import logei


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch):
    """BoTorch compiles a kernel the first time that a hypervolume improvement is asked for; its numbers need none."""
    monkeypatch.setattr(logei, "_load_attempted", True)
