"""Fixtures of the tests: seeded generators, frozen numbers, optional data beside the repository."""

import signal
from pathlib import Path

import pytest
import torch

from tests.gpus import GPUS, Gpu

GOLDEN = Path(__file__).parent / "golden"
SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture
def generator() -> torch.Generator:
    """A fresh generator with a fixed seed."""
    return torch.Generator().manual_seed(20240502)


@pytest.fixture(params=GPUS)
def gpu(request) -> Gpu:
    """A stand-in, and the machine's GPU where it has one."""
    return GPUS[request.param]


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the frozen numbers that travel with the repository."""
    return GOLDEN


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of the data and golden files kept beside the repository; skips where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("the shared data folder is not beside this checkout")
    return SHARED


@pytest.fixture
def wrong_default_dtype():
    """Run the test while torch's default dtype is not the one the tensors have."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture
def ctrl_c():
    """Ctrl-C interrupts, as at a terminal, even where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
